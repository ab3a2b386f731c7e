"""Why a group rebalances, as a member knows it: named right, or unknown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.member.causes import Cause, Causes
from roster.member.events import RebalanceRequested, SelectionChanged
from roster.member.types import ReportKind
from roster.wire import ErrorCode
from tests.member.stage import Stage

MEMBERS = st.frozensets(st.sampled_from("abcd"), min_size=1)


@given(st.lists(st.tuples(st.integers(1, 2), MEMBERS), min_size=1, max_size=6))
def test_a_leader_names_who_came_and_who_is_gone(steps: list[tuple[int, frozenset[str]]]) -> None:
    causes, generation, before = Causes(), 0, frozenset[str]()
    for step, group in steps:
        generation += step
        found = causes.joined(generation, group, follows_up=False)
        if generation == step or step > 1 or group == before:
            assert found is Cause.UNKNOWN, "the generation before was another leader's, or nobody changed"
        elif group > before:
            assert found is Cause.JOIN
        elif group < before:
            assert found is Cause.LEAVE
        else:
            assert found is Cause.REPLACED
        before = group


def test_a_follower_knows_its_own_causes_only() -> None:
    causes = Causes(next=Cause.PARTITIONS)
    causes.join_sent()
    assert causes.joined(4, None, follows_up=False) is Cause.PARTITIONS
    causes.join_sent()
    assert causes.joined(5, None, follows_up=False) is Cause.UNKNOWN
    assert causes.joined(6, frozenset("ab"), follows_up=False) is Cause.UNKNOWN, "it did not lead the one before"


def test_a_cause_stays_until_a_join_is_accepted_and_a_later_one_waits_for_the_next() -> None:
    causes = Causes(next=Cause.JOIN)
    causes.join_sent()
    causes.join_sent()  # the first was refused: a member id is needed
    causes.next = Cause.SUBSCRIPTION
    assert causes.joined(1, None, follows_up=False) is Cause.JOIN
    causes.join_sent()
    assert causes.joined(2, None, follows_up=False) is Cause.SUBSCRIPTION


def causes_of(stage: Stage) -> list[str]:
    return [each.cause for each in stage.reports if each.kind is ReportKind.JOINED]


def in_the_group(**options: Any) -> Stage:
    stage = Stage(**options)
    stage.start()
    stage.joined()
    stage.synced("t-0")
    assert causes_of(stage) == ["join"]
    return stage


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, "unknown"),
        (ErrorCode.UNKNOWN_MEMBER_ID, "expired"),
        (ErrorCode.ILLEGAL_GENERATION, "unknown"),
    ],
)
def test_what_a_heartbeat_is_answered_says_whether_the_member_was_thrown_out(code: ErrorCode, expected: str) -> None:
    stage = in_the_group()
    stage.heartbeat(code)
    stage.joined(generation=2)
    assert causes_of(stage) == ["join", expected]


def test_a_request_and_another_subscription_are_the_members_own() -> None:
    stage = in_the_group()
    stage.step(RebalanceRequested("enforced"))
    stage.joined(generation=2)
    stage.synced("t-0")
    stage.step(SelectionChanged(frozenset({"t", "u"})))
    stage.joined(generation=3)
    assert causes_of(stage) == ["join", "own", "subscription"]


def test_a_member_that_gives_up_partitions_joins_for_them() -> None:
    stage = in_the_group()
    stage.step(RebalanceRequested("enforced"))
    stage.joined(generation=2)
    stage.synced("")
    stage.release("t-0")
    stage.joined(generation=3)
    assert causes_of(stage) == ["join", "own", "revoked"]


def test_every_cause_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/monitor.md").read_text()
    assert [each.value for each in Cause if not re.search(rf"\| `{each.value}` \|", page)] == []
