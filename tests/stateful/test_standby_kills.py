"""The owner of half a group's tasks is killed, with standby copies of them on the other application's disk.

What the new owner replays is counted by its progress. ROSTER_STANDBY_KILL_ROUNDS sets the number of random blows that
applications with standby copies get, each new one with an empty disk.
"""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.sinks.test_transactional_kills import (
    PARTITIONS,
    Application,
    Feed,
    Told,
    blows,
    caught_up,
    check,
    quick_broker,
    shared,
)
from tests.stateful.test_stateful_kills import PROGRAM, compare
from tests.waiting import until

if TYPE_CHECKING:
    from tests.spark.spark_topics import Topics

ROUNDS = int(os.environ.get("ROSTER_STANDBY_KILL_ROUNDS", "0"))

pytestmark = [pytest.mark.process, pytest.mark.timeout(400 + 90 * ROUNDS)]


def told_by(application: Application) -> list[dict[str, Any]]:
    """What it has written of batches and copies, in order."""
    lines = application.log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def copies_of(application: Application) -> dict[int, int]:
    """By partition the changelog offset that each copy was at when the application last worked on it."""
    return {int(partition): at for each in told_by(application) for partition, at in each.get("copies", {}).items()}


def restored_from(application: Application, since: int) -> list[tuple[int, int]]:
    """Partition and first offset of each restoring of a store that its log tells of from a place on."""
    found = re.findall(
        r"changelog-(\d+): restored \d+ changelog records from (\d+)", application.log.read_text()[since:]
    )
    return [(int(partition), int(offset)) for partition, offset in found]


def changelog_ends(topics: Topics, told: Told) -> dict[int, int]:
    return {at.partition: end for at, end in topics.ends(f"{told.group}-totals-changelog").items()}


def test_a_new_owner_with_a_standby_copy_replays_the_tail_only(tmp_path: Path) -> None:
    with quick_broker(tmp_path / "data") as (topics, _):
        told = Told(f"kills-{uuid.uuid4().hex[:8]}", topics.create(PARTITIONS), topics.create(PARTITIONS))
        program = [str(PROGRAM), str(tmp_path / "state"), "1"]
        both: list[Application] = []
        try:
            for name in "ab":
                log = tmp_path / f"{name}.log"
                both.append(Application(program, topics.bootstrap, told.group, told.topic, told.out, log))
            victim, heir = both
            with Feed(topics.bootstrap, told.topic) as feed:
                first = dict.fromkeys(topics.ends(told.topic), 1)
                until(lambda: check(both) and caught_up(topics, told.group, first), what="a first commit")
                until(lambda: check(both) and shared(topics, told.group), what="two owners")
                enough = feed.sent + 400
                until(lambda: check(both) and feed.sent >= enough, what="some state")
            until(lambda: caught_up(topics, told.group, topics.ends(told.topic)), what="all that was sent")
            before = changelog_ends(topics, told)
            lag = [each["lag"] for each in told_by(victim) if "lag" in each][-1]
            moving = {int(partition.rpartition("-")[2]) for partition in lag}
            wanted = {partition: before[partition] for partition in moving}
            until(lambda: check(both) and wanted.items() <= copies_of(heir).items(), what="standby copies that are up")
            known, place = len(told_by(heir)), heir.log.stat().st_size
            more = {at: end + 1 for at, end in topics.ends(told.topic).items() if at.partition in moving}
            with Feed(topics.bootstrap, told.topic):
                until(lambda: check(both) and caught_up(topics, told.group, more), what="a tail")
                victim.end(signal.SIGKILL)
                until(lambda: check([heir]) and len(topics.admin.describe_group(told.group).members) == 1)
                ends = topics.ends(told.topic)
                until(lambda: check([heir]) and caught_up(topics, told.group, ends), what="the heir's work")
            until(lambda: caught_up(topics, told.group, topics.ends(told.topic)), what="the rest")
            after, since, begun = changelog_ends(topics, told), told_by(heir)[known:], restored_from(heir, place)
        finally:
            codes = [application.end() for application in both]
        assert codes == [-signal.SIGKILL, 0], heir.log.read_text()[-3000:]
        replayed = sum(each["restored"] for each in since if "restored" in each)
        print(f"{sum(before.values())} changelog offsets before, {sum(after.values())} at the end, {replayed} replayed")
        assert replayed <= sum(after.values()) - sum(wanted.values())
        assert all(wanted.values())
        assert all(offset >= before[partition] for partition, offset in begun if partition in moving)
        assert {partition for partition, _ in begun} >= moving
        compare(topics, told)


if ROUNDS:

    def test_state_and_results_are_exact_with_standby_copies(tmp_path: Path) -> None:
        with quick_broker(tmp_path / "data") as (topics, restart):
            compare(topics, blows(topics, tmp_path, restart, [str(PROGRAM), str(tmp_path / "state"), "1"], ROUNDS))
