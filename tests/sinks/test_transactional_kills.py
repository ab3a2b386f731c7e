"""Applications of one group killed, paused and started again in the middle of transactions, and the broker under them.

What a reader of committed records finds is compared with what was sent, exactly. ROSTER_KILL_ROUNDS sets the number of
blows, ROSTER_KILL_SEED the first seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import pytest

from roster.client import ClaimedBy, ClientError
from roster.testing.broker import BrokerProcess
from tests.librdkafka import idempotent_producer
from tests.spark import programs
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.real.realparts.apache import ApacheKafka

pytestmark = [pytest.mark.process, pytest.mark.timeout(240 + 60 * int(os.environ.get("ROSTER_KILL_ROUNDS", "3")))]

ROUNDS = int(os.environ.get("ROSTER_KILL_ROUNDS", "3"))
SEED = int(os.environ.get("ROSTER_KILL_SEED", "1"))
PARTITIONS = 6
SESSION_SECONDS = 3.0
PROGRAM = programs.APPS / "transactional.py"


class Application:
    """A program with the arguments of transactional.py, and maybe more, as a process."""

    def __init__(
        self,
        program: Sequence[str],
        bootstrap: str,
        group: str,
        topic: str,
        out: str,
        log: Path,
        *,
        open_seconds: float = 0.4,
    ) -> None:
        self.log, self._log = log, log.open("w")
        arguments = [bootstrap, group, topic, out, str(int(SESSION_SECONDS * 1000)), str(open_seconds), *program[1:]]
        command = [sys.executable, program[0], *arguments]
        self.process = programs.start(command, stdout=self._log, stderr=self._log)

    def send(self, number: int) -> None:
        programs.send(self.process, number)

    def end(self, number: int = signal.SIGTERM) -> int:
        if number == signal.SIGTERM:  # which ends a process that has not come to its pipeline yet, as it does any
            until(lambda: self.process.poll() is not None or " roster." in self.log.read_text(), 60, "it runs")
        self.send(signal.SIGCONT)
        self.send(number)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            return self.process.wait()
        finally:
            self._log.close()


def numbered(number: int) -> tuple[bytes, int]:
    return b"%d" % number, number % PARTITIONS


class Feed:
    """Sends records, a few at a time, until it is left; record: the value and the partition of a number."""

    def __init__(
        self, bootstrap: str, topic: str, record: Callable[[int], tuple[bytes, int]] = numbered, pause: float = 0.05
    ) -> None:
        self._producer = idempotent_producer(bootstrap, {"linger.ms": 5})
        self._topic, self._over, self._record, self._pause = topic, threading.Event(), record, pause
        self.sent = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.is_set():
            for _ in range(10):
                value, partition = self._record(self.sent)
                self._producer.produce(self._topic, value, partition=partition)
                self.sent += 1
            self._producer.poll(0)
            self._over.wait(self._pause)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert self._producer.flush(120) == 0


def check(applications: list[Application]) -> bool:
    """Fail with the log of an application that has ended by itself."""
    for application in applications:
        assert application.process.poll() is None, application.log.read_text()[-3000:]
    return True


def caught_up(topics: Topics, group: str, ends: dict[object, int]) -> bool:
    """Whether all that was there before is committed; False while the broker does not answer."""
    try:
        done = topics.committed(group)
    except ClientError:
        return False
    return all(done.get(p, 0) >= end for p, end in ends.items())  # type: ignore[call-overload]


def owners(topics: Topics, group: str) -> set[str]:
    """The transactional ids that own the group's partitions, as committed offsets name them."""
    found = topics.admin.group_offsets(group, stable=False)
    claims = [ClaimedBy.of(position.metadata) for position in found.values()]
    return {claim.transactional_id for claim in claims if claim is not None}


def shared(topics: Topics, group: str) -> bool:
    """Whether two applications have partitions, and have begun to work on them."""
    members = topics.admin.describe_group(group).members
    return len([member for member in members if member.assignment]) == 2 and len(owners(topics, group)) == 2


class Told(NamedTuple):
    """Where a run has read and written."""

    group: str
    topic: str
    out: str


def blows(
    topics: Topics,
    tmp_path: Path,
    restart: Callable[[], object] | None,
    program: Sequence[str] = (str(PROGRAM),),
    rounds: int = ROUNDS,
    between: str | None = None,
) -> Told:
    """Deal them at random until all is done; prints how long each take-over after a kill took.

    between: the end of the name of a topic that the applications write and read themselves, behind that of the group.
    """
    chance, group = random.Random(SEED), f"kills-{uuid.uuid4().hex[:8]}"
    topic, out = topics.create(PARTITIONS), topics.create(PARTITIONS)
    started = 0

    def start() -> Application:
        nonlocal started
        started += 1
        return Application(program, topics.bootstrap, group, topic, out, tmp_path / f"app-{started}.log")

    applications = [start(), start()]
    takeovers: list[float] = []
    try:
        with Feed(topics.bootstrap, topic):
            first = dict.fromkeys(topics.ends(topic), 1)
            until(lambda: check(applications) and caught_up(topics, group, first), what="a first commit")
            for number in range(rounds):
                until(lambda: check(applications) and shared(topics, group), 150, f"two owners in round {number}")
                time.sleep(chance.uniform(0.2, 2.0))
                kinds = ["kill", "pause", *(["broker"] if restart else []), "stop"]
                kind = kinds[number] if number < len(kinds) and len(kinds) >= rounds else chance.choice(kinds)
                victim = chance.randrange(2)
                ends, began = topics.ends(topic), time.monotonic()
                if kind == "kill":
                    applications[victim].end(signal.SIGKILL)
                    until(lambda: len(owners(topics, group)) == 1, 150, f"take-over in round {number}")
                    takeovers.append(time.monotonic() - began - SESSION_SECONDS)
                elif kind == "stop":
                    applications[victim].end()
                elif kind == "pause":
                    applications[victim].send(signal.SIGSTOP)
                elif restart is not None:
                    restart()
                until(lambda ends=ends: caught_up(topics, group, ends), 150, f"{kind} in round {number}")
                print(
                    f"seed {SEED} round {number}: {kind}, caught up after {time.monotonic() - began:.2f} s", flush=True
                )
                if kind == "pause":
                    applications[victim].send(signal.SIGCONT)
                elif kind in ("kill", "stop"):
                    applications[victim] = start()
        until(lambda: check(applications) and shared(topics, group), what="both before they are told to end")
        for read in [topic] if between is None else [topic, f"{group}{between}"]:
            until(lambda read=read: caught_up(topics, group, topics.ends(read)), what=f"the rest of {read}")
    finally:
        codes = [application.end() for application in applications]
    assert codes == [0, 0], (tmp_path / f"app-{started}.log").read_text()[-3000:]
    late = sorted(round(took, 2) for took in takeovers)
    print(f"seed {SEED}: take-overs after the session timeout, s: {late}", flush=True)
    return Told(group, topic, out)


def compare(topics: Topics, told: Told) -> None:
    records = committed_records(topics, told.topic)
    found = Counter(value for _, _, value in committed_records(topics, told.out))
    assert found == Counter(value for _, _, value in records)


@contextlib.contextmanager
def quick_broker(directory: Path) -> Iterator[tuple[Topics, Callable[[], object]]]:
    """Topics on a broker with short times, and a function that kills it and starts it again."""
    quick = ("--initial-rebalance-delay-ms", "150", "--min-session-timeout-ms", "1000", "--log-level", "error")
    with BrokerProcess(directory, *quick) as broker, Topics(broker.bootstrap) as topics:

        def restart() -> None:
            broker.kill()
            broker.start()

        yield topics, restart


def test_records_count_once_whatever_befalls_applications_and_broker(tmp_path: Path) -> None:
    with quick_broker(tmp_path / "data") as (topics, restart):
        compare(topics, blows(topics, tmp_path, restart))


if ROUNDS >= 10:  # one broker is enough by default

    def test_records_count_once_on_apache_kafka(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
        with Topics(apache_kafka.bootstrap) as topics:
            compare(topics, blows(topics, tmp_path, None))
