"""Releases that change the state in place, killed while they do: each update is that of a plain computation.

ROSTER_STATE_KILL_ROUNDS sets the number of blows to each release, ROSTER_KILL_SEED the first seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import uuid
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from roster.client import ClientError
from roster.state.definition import STATE_KEY, Noted
from roster.state.entries import Read
from tests.sinks.test_transactional_kills import (
    PARTITIONS,
    SEED,
    Application,
    Feed,
    Told,
    caught_up,
    check,
    quick_broker,
    shared,
)
from tests.spark.apps.changing import RELEASES
from tests.spark.apps.stateful import KEYS
from tests.spark.programs import APPS
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

ROUNDS = int(os.environ.get("ROSTER_STATE_KILL_ROUNDS", "1"))
PROGRAM = APPS / "changing.py"

pytestmark = [pytest.mark.process, pytest.mark.gate, pytest.mark.timeout(400 + 60 * ROUNDS)]


class Group:
    """The processes of one group; each has a disk and standby copies of its own."""

    def __init__(self, topics: Topics, tmp_path: Path) -> None:
        self._topics, self._path, self._started = topics, tmp_path, 0
        self.told = Told(f"changes-{uuid.uuid4().hex[:8]}", topics.create(PARTITIONS), topics.create(PARTITIONS))

    def start(self, release: int) -> Application:
        self._started += 1
        program = [str(PROGRAM), str(self._path / "state"), "1", str(release)]
        return Application(program, self._topics.bootstrap, *self.told, self._path / f"app-{self._started}.log")

    def is_at(self, release: int) -> bool:
        """Return True if all of the state is that of a release."""
        try:
            written = self.definitions()
        except (ClientError, KeyError):
            return False  # the changelog is not there yet
        names = [list(each.definition.document["aggregates"]) for each in written.values()]
        return len(names) == PARTITIONS and all(each == list(RELEASES[release]) for each in names)

    def work(self, applications: list[Application], release: int) -> None:
        """Wait until both have tasks, and all of the state is that of their release."""
        until(lambda: check(applications) and self.is_at(release), 150, f"release {release}")
        until(lambda: check(applications) and shared(self._topics, self.told.group), 150, "two owners")

    def definitions(self) -> dict[int, Noted]:
        log = committed_records(self._topics, f"{self.told.group}-totals-changelog")
        return {at: Noted.decode(value) for at, key, value in log if key == STATE_KEY and value is not None}


def compare(topics: Topics, told: Told) -> None:
    numbers: dict[str, list[int]] = defaultdict(list)
    for _, _, value in committed_records(topics, told.topic):
        numbers[str(int(value or b"") % KEYS)].append(int(value or b""))
    updates: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _, key, value in committed_records(topics, told.out):
        updates[(key or b"").decode()].append(json.loads(value or b""))
    assert updates.keys() == numbers.keys()
    for key, found in updates.items():
        release, since, done, own = 0, 0, 0, numbers[key]
        for update in found:
            names = [name for name in update if name != "k"]
            now = RELEASES.index(next(each for each in RELEASES if list(each) == names))
            if now != release:
                assert now > release, "an old release has changed the state back"
                release, since = now, done
            count = update["count"] if "count" in update else update["n"]
            assert count > done, f"twice or out of order: {key}"
            done = count
            assert update["sum"] == sum(own[:count])
            if "most" in update:
                assert update["most"] == max(own[since:count])
            if "mean" in update:
                assert update["mean"] == pytest.approx(sum(own[since:count]) / (count - since))
        assert done == len(own), f"rows are missing: {key}"
        assert release == len(RELEASES) - 1
    kept = state(topics, told)
    assert {key: {"k": int(key), **found[-1]} for key, found in updates.items()} == kept
    print(f"{sum(map(len, numbers.values()))} records, {sum(map(len, updates.values()))} updates", flush=True)


def state(topics: Topics, told: Told) -> dict[str, dict[str, Any]]:
    """What the changelog alone says, by key."""
    entries: dict[int, dict[bytes, bytes]] = defaultdict(dict)
    for at, key, value in committed_records(topics, f"{told.group}-totals-changelog"):
        if value is None:
            entries[at].pop(key or b"", None)
        else:
            entries[at][key or b""] = value
    found = {}
    for each in entries.values():
        reader = Noted.decode(each[STATE_KEY]).definition.entries()
        found |= {str(row["k"]): row for row in reader.rows([Read(sorted(each.items()))])}
    return found


def test_each_release_goes_on_from_the_one_before_however_often_it_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with quick_broker(tmp_path / "data") as (topics, _):
        group = Group(topics, tmp_path)
        applications: list[Application] = []
        try:
            with Feed(topics.bootstrap, group.told.topic):
                for release in range(len(RELEASES)):
                    applications = [group.start(release), group.start(release)]
                    for _ in range(ROUNDS):
                        time.sleep(chance.uniform(1.0, 5.0))  # while they join, change and work
                        victim = chance.randrange(2)
                        applications[victim].end(signal.SIGKILL)
                        applications[victim] = group.start(release)
                    group.work(applications, release)
                    if release < len(RELEASES) - 1:
                        for each in applications:
                            each.end(chance.choice([signal.SIGKILL, signal.SIGTERM]))
            ends = topics.ends(group.told.topic)
            until(lambda: check(applications) and caught_up(topics, group.told.group, ends), 150, "the rest")
        finally:
            codes = [each.end() for each in applications]
        assert codes == [0, 0]
        compare(topics, group.told)


def test_releases_beside_each_other_lose_nothing_and_the_newest_one_remains(tmp_path: Path) -> None:
    with quick_broker(tmp_path / "data") as (topics, _):
        group = Group(topics, tmp_path)
        old, new = [group.start(0), group.start(0)], list[Application]()
        try:
            with Feed(topics.bootstrap, group.told.topic):
                group.work(old, 0)
                for release in range(1, len(RELEASES)):
                    for number, before in enumerate(old):
                        new.append(group.start(release))
                        time.sleep(3)
                        with suppress(ProcessLookupError):
                            before.end()
                        if before.process.returncode != 0:
                            assert "a newer release has changed its state" in before.log.read_text(), number
                    group.work(new, release)
                    old, new = new, []
            ends = topics.ends(group.told.topic)
            until(lambda: check(old) and caught_up(topics, group.told.group, ends), 150, "the rest")
        finally:
            codes = [each.end() for each in [*old, *new]]
        assert codes == [0, 0]
        compare(topics, group.told)
