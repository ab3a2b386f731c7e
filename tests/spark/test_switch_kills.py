"""Two groups that take turns in writing, with commands and applications killed amid it: each result is there once.

ROSTER_SWITCHES sets the number of switches, from 20 on also on Apache Kafka, ROSTER_KILL_SEED the first seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roster.cli.root import run
from roster.client.switch_requests import request_group, switch_asked
from roster.model.switch import Results, Seen
from tests.sinks.test_transactional_kills import (
    PARTITIONS,
    SEED,
    SESSION_SECONDS,
    Application,
    Feed,
    caught_up,
    check,
    quick_broker,
)
from tests.spark.apps.stateful import KEYS
from tests.spark.programs import APPS, start
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real.realparts.apache import ApacheKafka

SWITCHES = int(os.environ.get("ROSTER_SWITCHES", "7"))
PROGRAM = APPS / "switch.py"
STATELESS = APPS / "transactional.py"

pytestmark = [pytest.mark.process, pytest.mark.gate, pytest.mark.timeout(300 + 20 * SWITCHES)]


class Colour:
    """A group of two applications, each with a disk of its own."""

    def __init__(self, topics: Topics, path: Path, topic: str, out: str, *, paused: bool, keeps_state: bool) -> None:
        self._topics, self._path, self._told = topics, path, (topic, out)
        begins = "paused" if paused else "writes"
        stateful, stateless = [str(PROGRAM), str(path / "state"), "1", begins], [str(STATELESS), begins]
        self._program = stateful if keeps_state else stateless
        self.group, self._started = f"{'green' if paused else 'blue'}-{uuid.uuid4().hex[:8]}", 0
        self.applications = [self.start(), self.start()]

    def start(self) -> Application:
        self._started += 1
        name = f"{self.group}-{self._started}"
        log = self._path / f"{name}.log"
        return Application(self._program, self._topics.bootstrap, self.group, *self._told, log, open_seconds=0.1)

    def kill(self, number: int) -> None:
        self.applications[number].end(signal.SIGKILL)
        self.applications[number] = self.start()

    def freeze(self, number: int) -> None:
        """Let an application come back when its partitions are others'."""
        self.applications[number].send(signal.SIGSTOP)
        threading.Event().wait(SESSION_SECONDS + 1)
        self.applications[number].send(signal.SIGCONT)

    def stand(self) -> set[Results]:
        found = self._topics.admin.group_offsets(self.group, stable=False).values()
        return {Seen.of(at).standing.results for at in found} if len(found) == PARTITIONS else set()


def switch(topics: Topics, old: Colour, new: Colour, *, timeout: float = 100) -> int:
    return run(["groups", "switch", old.group, new.group, "-b", topics.bootstrap, "--timeout", str(timeout)])


def killed_command(topics: Topics, old: Colour, new: Colour, wait: float) -> None:
    """Kill the command once it has asked a group, and let the applications go on for a moment."""
    command = [sys.executable, "-m", "roster", "groups", "switch", old.group, new.group, "-b", topics.bootstrap]
    process = start(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or switch_asked(topics.admin, new.group) is not None, 60, "it asks")
    threading.Event().wait(wait)
    process.kill()
    process.wait()


def amid(work: Callable[[], object], seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, work)
    timer.start()
    return timer


with_and_without_state = pytest.mark.parametrize("keeps_state", [True, False])


@with_and_without_state
def test_two_groups_take_turns_and_each_result_is_there_once(tmp_path: Path, capsys: Any, *, keeps_state: bool) -> None:
    with quick_broker(tmp_path / "data") as (topics, _):
        take_turns(topics, tmp_path, capsys, keeps_state=keeps_state)


if SWITCHES >= 20:  # one broker is enough by default

    @with_and_without_state
    def test_the_same_on_apache_kafka(
        apache_kafka: ApacheKafka, tmp_path: Path, capsys: Any, *, keeps_state: bool
    ) -> None:
        with Topics(apache_kafka.bootstrap) as topics:
            take_turns(topics, tmp_path, capsys, keeps_state=keeps_state)


def take_turns(topics: Topics, tmp_path: Path, capsys: Any, *, keeps_state: bool) -> None:
    chance = random.Random(SEED)
    topic, out = topics.create(PARTITIONS), topics.create(PARTITIONS)
    blue, green = (
        Colour(topics, tmp_path, topic, out, paused=paused, keeps_state=keeps_state) for paused in (False, True)
    )
    try:
        with Feed(topics.bootstrap, topic) as feed:
            until(lambda: blue.stand() == {Results.WRITES}, 60, "blue writes")
            until(lambda: green.stand() == {Results.PAUSED}, 60, "green follows")
            for number in range(SWITCHES):
                old, new = (blue, green) if number % 2 == 0 else (green, blue)
                blow = number // 4 if number % 4 == 1 else None
                timer, victim = None, chance.choice([old, new])
                if blow in (0, 3):
                    killed_command(topics, old, new, chance.uniform(0, 0.4))
                elif blow is not None or number % 8 == 6:
                    deal = victim.freeze if blow is None else victim.kill
                    timer = amid(partial(deal, chance.randrange(2)), chance.uniform(0, 1.0))
                assert switch(topics, old, new) == 0, capsys.readouterr()
                if timer is not None:
                    timer.join()
                assert new.stand() == {Results.WRITES}
                check([*blue.applications, *green.applications])
        ends = topics.ends(topic)
        until(lambda: all(caught_up(topics, each.group, ends) for each in (blue, green)), 100, "the rest")
    finally:
        codes = [each.end() for each in [*blue.applications, *green.applications]]
    assert codes == [0] * 4
    assert not topics.exists(request_group(blue.group))
    if keeps_state:
        compare(topics, topic, out, feed.sent)
    else:
        assert sorted(int(value or b"") for *_, value in committed_records(topics, out)) == list(range(feed.sent))


def compare(topics: Topics, topic: str, out: str, sent: int) -> None:
    """Each record has one result, with its number among those of its key in its partition."""
    counts: dict[tuple[int, int], int] = {}
    expected = {}
    for partition, _, value in committed_records(topics, topic):
        n = int(value or b"")
        counts[partition, n % KEYS] = counts.get((partition, n % KEYS), 0) + 1
        expected[n] = counts[partition, n % KEYS]
    results = [json.loads(value or b"") for _, _, value in committed_records(topics, out)]
    assert len(results) == len(expected) == sent
    assert {row["n"]: row["number"] for row in results} == expected
