"""The owner of half a group's tasks is killed, with standby copies of them on the other application's disk.

What the new owner replays is counted by its progress. ROSTER_STANDBY_KILL_ROUNDS sets the number of random blows that
applications with standby copies get, each new one with an empty disk.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.spark_topics import until
from tests.spark.test_stateful_kills import PROGRAM, compare
from tests.spark.test_transactional_kills import (
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

if TYPE_CHECKING:
    from tests.spark.spark_topics import Topics

ROUNDS = int(os.environ.get("ROSTER_STANDBY_KILL_ROUNDS", "0"))

pytestmark = [pytest.mark.process, pytest.mark.timeout(400 + 90 * ROUNDS)]


def told_by(application: Application) -> list[dict[str, Any]]:
    """What it has written of batches and copies, in order."""
    lines = application.log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def has_copies(application: Application) -> bool:
    """Whether the copies of all standby tasks were up with their changelogs when it last worked on one."""
    told = [each["gaps"] for each in told_by(application) if "gaps" in each]
    return bool(told) and len(told[-1]) == PARTITIONS // 2 and not any(told[-1].values())


def ends_of(topics: Topics, told: Told) -> int:
    return sum(topics.ends(f"{told.group}-totals-changelog").values())


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
                enough = feed.sent + 600
                until(lambda: check(both) and feed.sent >= enough, what="some state")
            until(lambda: caught_up(topics, told.group, topics.ends(told.topic)), what="all that was sent")
            until(lambda: check(both) and has_copies(heir), what="standby copies that are up")
            before, known = ends_of(topics, told), len(told_by(heir))
            with Feed(topics.bootstrap, told.topic) as feed:
                until(lambda: check(both) and feed.sent >= 100, what="a tail")
                victim.end(signal.SIGKILL)
                until(lambda: check([heir]) and len(topics.admin.describe_group(told.group).members) == 1)
                ends = topics.ends(told.topic)
                until(lambda: check([heir]) and caught_up(topics, told.group, ends), what="the heir's work")
            until(lambda: caught_up(topics, told.group, topics.ends(told.topic)), what="the rest")
            tail, since = ends_of(topics, told) - before, told_by(heir)[known:]
        finally:
            codes = [application.end() for application in both]
        assert codes == [-signal.SIGKILL, 0], heir.log.read_text()[-3000:]
        replayed = sum(each["restored"] for each in since if "restored" in each)
        print(f"changelog offsets before {before}, tail {tail}, replayed {replayed}")
        assert 0 < replayed <= tail < before
        compare(topics, told)


if ROUNDS:

    def test_state_and_results_are_exact_with_standby_copies(tmp_path: Path) -> None:
        with quick_broker(tmp_path / "data") as (topics, restart):
            compare(topics, blows(topics, tmp_path, restart, [str(PROGRAM), str(tmp_path / "state"), "1"], ROUNDS))
