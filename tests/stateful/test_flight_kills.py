"""Totals of aircraft and windows of carriers through kills, pauses, joins, leaves and restarts of the broker.

The applications are those of `roster demo --stateful`, each with two groups and a disk of its own. In the end all
results equal a plain computation of the file. Too long for every run: ROSTER_FLIGHT_ROUNDS sets the number of blows,
ROSTER_KILL_SEED the seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roster.cli.demo import oracle
from roster.cli.demo.environment import flights, in_order
from roster.cli.demo.jobs import AIRCRAFT, CARRIERS
from roster.client import ClientError
from tests.real.realparts.apache import ApacheKafka, free_ports
from tests.sinks.test_transactional_kills import quick_broker
from tests.spark.programs import send, start
from tests.spark.spark_topics import Topics
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOBS = (AIRCRAFT, CARRIERS)
ROUNDS = int(os.environ.get("ROSTER_FLIGHT_ROUNDS", "0"))
SEED = int(os.environ.get("ROSTER_KILL_SEED", "1"))
PARTITIONS = 4
MOST, SECONDS_A_ROUND = 3, 12
"""Applications at once, and about how long a round takes on two cores: the stream lasts for all of them."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600 + 180 * ROUNDS)]


class Application:
    """One of the demo's applications; those of one number share a disk, one after the other."""

    def __init__(self, folder: Path, bootstrap: str, number: int, started: int) -> None:
        self.log = folder / f"app-{number}-{started}.log"
        words = ["--name", f"A{number}", "--bootstrap", bootstrap, "--directory", str(folder)]
        words += [word for job in JOBS for word in ("--job", job.name, job.group, job.topic)]
        words += [word for port in free_ports(len(JOBS)) for word in ("--server", f"127.0.0.1:{port}")]
        command = [sys.executable, "-m", "roster.cli.demo.application", *words]
        with self.log.open("w") as log:
            self.process = start(command, stdout=log, stderr=subprocess.STDOUT)

    def send(self, number: int) -> None:
        send(self.process, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()

    def leave(self) -> None:
        """End it in order; before Spark starts nothing handles the signal."""
        self.process.terminate()
        assert self.process.wait(180) in (0, -signal.SIGTERM), self.log.read_text()[-4000:]


class Blows:
    """What befalls the applications of both groups."""

    def __init__(self, topics: Topics, folder: Path, restart: Callable[[], object]) -> None:
        self._topics, self._folder, self._restart = topics, folder, restart
        self._chance, self._started = random.Random(SEED), 0
        self.applications: dict[int, Application] = {}
        self.dealt: Counter[str] = Counter()
        for _ in range(2):
            self.join()

    def join(self) -> None:
        number = min(set(range(MOST)) - self.applications.keys())
        self._started += 1
        self.applications[number] = Application(self._folder, self._topics.bootstrap, number, self._started)

    def committed(self) -> int:
        """Return the records that are committed in both groups; -1 while the broker does not answer."""
        try:
            return sum(sum(self._topics.committed(job.group).values()) for job in JOBS)
        except ClientError:
            return -1

    def is_well(self) -> bool:
        """Fail if an application has ended by itself; who finds no broker at its start is started again."""
        for number, application in list(self.applications.items()):
            if application.process.poll() is not None:
                log = application.log.read_text()
                assert "no broker answered" in log and '"rows"' not in log, log[-4000:]  # noqa: PT018 - one cause
                del self.applications[number]
                self.join()
        return True

    def deal(self, number: int) -> None:
        """Deal one blow, and wait until work goes on behind it."""
        count = len(self.applications)
        kinds = ["kill -9", "SIGSTOP", "broker kill -9"] + ["join"] * (count < MOST) + ["leave"] * (count > 1)
        kind, before = self._chance.choice(kinds), self.committed()
        victim = self._chance.choice(sorted(self.applications))
        self.dealt[kind] += 1
        began = time.monotonic()
        if kind == "join":
            self.join()
        elif kind == "broker kill -9":
            self._restart()
        elif kind == "SIGSTOP":
            self.applications[victim].send(signal.SIGSTOP)
            time.sleep(self._chance.uniform(1, 12))
            self.applications[victim].send(signal.SIGCONT)
        elif kind == "leave":
            self.applications.pop(victim).leave()
        else:
            self.applications.pop(victim).kill()
            self.join()
        until(lambda: self.is_well() and self.committed() > before, 300, f"{kind} in round {number}")
        print(f"seed {SEED} round {number}: {kind}, goes on after {time.monotonic() - began:.1f} s", flush=True)
        time.sleep(self._chance.uniform(0, 4))

    def close(self) -> None:
        for application in self.applications.values():
            application.send(signal.SIGCONT)
            application.kill()


@contextlib.contextmanager
def streaming(bootstrap: str, path: Path, rate: float) -> Iterator[Callable[[], bool]]:
    """Load the file into each job's topic; yields whether that is over."""
    roster = [sys.executable, "-c", "from roster.cli import main; main()"]
    options = ["--bootstrap", bootstrap, "--rate", str(rate), "--null", "NA", "--json"]
    loaders = [
        start(
            [*roster, "load", str(path), "--topic", job.topic, "--key", *job.key, *options], stdout=subprocess.DEVNULL
        )
        for job in JOBS
    ]

    def is_over() -> bool:
        codes = [loader.poll() for loader in loaders]
        assert all(code in (None, 0) for code in codes)
        return None not in codes

    try:
        yield is_over
    finally:
        for loader in loaders:
            loader.kill()
            loader.wait()


def survive(topics: Topics, folder: Path, restart: Callable[[], object]) -> None:
    for job in JOBS:
        topics.admin.create_topic(job.topic, PARTITIONS)
        topics.admin.create_topic(job.output, PARTITIONS)
    workload = in_order(flights(JOBS), folder, None)
    expected = workload.expected()
    with (
        contextlib.closing(Blows(topics, folder, restart)) as blows,
        streaming(topics.bootstrap, workload.path, expected.records / (ROUNDS * SECONDS_A_ROUND)) as is_over,
    ):
        until(lambda: blows.is_well() and blows.committed() > 0, 300, "a first commit")
        for number in range(ROUNDS):
            blows.deal(number)
        until(lambda: blows.is_well() and is_over(), 60 * ROUNDS, "all flights are sent")
        ends = len(JOBS) * expected.records
        until(lambda: blows.is_well() and blows.committed() >= ends, 60 * ROUNDS, "all flights are counted")
        for application in blows.applications.values():
            application.leave()
    for job in JOBS:
        verdict = oracle.compare(expected.groups[job.group], job.results(topics.bootstrap, folder))
        assert verdict.holds, f"{job.nouns}: {verdict}"
        print(f"{job.nouns}: {verdict}", flush=True)
    print(f"seed {SEED}: {expected.records} flights twice, {dict(blows.dealt)}: all results equal a plain computation")


if ROUNDS:

    def test_flights_are_counted_exactly_whatever_befalls_applications_and_broker(tmp_path: Path) -> None:
        with quick_broker(tmp_path / "data") as (topics, restart):
            survive(topics, tmp_path, restart)

    def test_flights_are_counted_exactly_on_apache_kafka(tmp_path: Path) -> None:
        (tmp_path / "kafka").mkdir()
        broker = ApacheKafka(tmp_path / "kafka")
        try:
            with Topics(broker.bootstrap) as topics:
                survive(topics, tmp_path, broker.restart)
        finally:
            broker.stop()
