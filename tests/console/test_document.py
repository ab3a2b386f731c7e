"""A group's document and the timeline of its rebalances: changes add up, causes are those that were seen."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given

from roster.console.document import GroupDocument
from roster.console.history import GroupHistory
from roster.console.rebalances import RebalanceTimeline
from roster.console.snapshot import Away, Snapshot
from roster.model import GroupPosition
from tests.console.groups_seen import looks, seen, tp


def applied(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """What a page makes of the state and the changes that follow it."""
    whole: dict[str, Any] = json.loads(json.dumps(documents[0]))
    for change in json.loads(json.dumps(documents[1:])):
        for name in ("points", "events"):
            whole[name] += change.pop(name)
        rows = change.pop("rows", [])
        whole |= change
        for index, *row in rows:
            whole["all_rows"][index] = row
    return whole | {"points": whole["points"][-120:], "events": whole["events"][-100:]}


@given(looks())
def test_the_state_and_its_changes_are_the_new_state(taken: list[Snapshot | Away]) -> None:
    history, timeline, document = GroupHistory(), RebalanceTimeline(), GroupDocument(1_000.0)
    told: list[dict[str, Any]] = []
    for look in taken:
        timeline.see(history, history.see(look))
        change = document.update(history, timeline, {tp(0): 1.25}, {"kind": "classic"})
        told.append(change if told else document.state)
    assert applied(told) == json.loads(json.dumps(document.state))


def test_a_look_that_changes_one_partition_sends_one_row() -> None:
    history, timeline, document = GroupHistory(), RebalanceTimeline(), GroupDocument(0.0)

    def update(at: float, end: int) -> dict[str, Any]:
        positions = {tp(number): GroupPosition(100, end if number == 7 else 100, 0) for number in range(1000)}
        look = seen(at, {"a": list(range(1000))}, positions=positions)
        timeline.see(history, history.see(look))
        return document.update(history, timeline, {tp(7): 4.0}, {})

    assert len(update(0.0, 100)["all_rows"]) == 1000
    update(2.0, 100)
    change = update(4.0, 130)
    assert "all_rows" not in change
    assert change["rows"] == [[7, 0, 7, 0, 100, 130, 30, 4.0, 0.0]]


def timeline_of(*taken: Snapshot | Away) -> list[Any]:
    history, timeline = GroupHistory(), RebalanceTimeline()
    for look in taken:
        timeline.see(history, history.see(look))
    return list(timeline.rebalances)


def test_a_rebalance_has_its_phases_its_cause_and_its_moves() -> None:
    (found,) = timeline_of(
        seen(0, {"a": [0, 1]}),
        seen(2, {"a": [0, 1], "b": []}, state="PreparingRebalance"),
        seen(4, {"a": [0, 1], "b": []}, state="PreparingRebalance"),
        seen(6, {"a": [], "b": []}, state="CompletingRebalance"),
        seen(8, {"a": [0], "b": [1]}),
    )
    assert (found.began, found.ended) == (2, 8)
    assert found.phases == [("PreparingRebalance", 2), ("CompletingRebalance", 6)]
    assert (found.causes, found.moved, found.members) == (["B b-id joined"], 1, 2)


def test_what_was_over_between_two_looks_has_no_phases_and_a_member_that_left_is_its_cause() -> None:
    (found,) = timeline_of(seen(0, {"a": [0], "b": [1]}), seen(2, {"a": [0, 1]}))
    assert (found.began, found.ended, found.phases) == (2, 2, [])
    assert found.causes == ["B b-id left (or its session ended)"]


def test_new_partitions_of_a_topic_are_a_cause() -> None:
    (found,) = timeline_of(seen(0, {"a": [0, 1]}), seen(2, {"a": [0, 1, 2, 3]}))
    assert found.causes == ["t has 2 partitions more"]


def test_the_second_rebalance_of_a_cooperative_move_says_so() -> None:
    first, second = timeline_of(seen(0, {"a": [0, 1]}), seen(2, {"a": [0], "b": []}), seen(4, {"a": [0], "b": [1]}))
    assert first.causes == ["B b-id joined"]
    assert second.causes == ["partitions revoked before are given to their new owners"]


def test_without_a_change_that_was_seen_there_is_no_cause() -> None:
    before = seen(0, {"a": [0], "b": [1]})
    (found,) = timeline_of(before, replace(before, at=2.0, state="PreparingRebalance"), replace(before, at=4.0))
    assert (found.causes, found.moved) == ([], 0)


def test_a_rebalance_ends_with_its_group_and_lasts_while_the_coordinator_is_away() -> None:
    (found,) = timeline_of(
        seen(0, {"a": [0]}), seen(2, {"a": [0]}, state="PreparingRebalance"), Away(4, "no answer"), Snapshot(6)
    )
    assert (found.began, found.ended, found.phases) == (2, 6, [("PreparingRebalance", 2)])


def test_a_partitions_life_is_its_moves_and_its_lag() -> None:
    history, timeline, document = GroupHistory(), RebalanceTimeline(), GroupDocument(10.0)
    for look in (seen(0, {"a": [0, 1]}, lag=5), seen(2, {"a": [0], "b": [1]}, lag=7)):
        timeline.see(history, history.see(look))
    life = document.partition(history, tp(1))
    assert life["lags"] == [[10_000, 5], [12_000, 7]]
    assert [(each["at"], each["source"], each["target"]) for each in life["events"]] == [(12_000, "a-id", "b-id")]
    assert document.partition(history, tp(99)) == {"lags": [], "events": []}
