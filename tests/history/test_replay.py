"""A replayed history against a plain computation with dictionaries; lag, weights and moves on worked examples."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.assignors import ASSIGNORS, RebalanceProtocol, find_assignor, make_plan
from roster.history.derived import TABLES, GroupHistory
from roster.history.replay import replay
from roster.history.report import report
from roster.model import MemberInfo, Problem, TopicPartition
from roster.wire.consumer.messages import decode_assignment, decode_subscription, flat
from roster.wire.offsets_topic import GroupMetadataKey, GroupMetadataValue, decode_value
from tests.examples_tried import examples
from tests.history.made_up import Group, events, happening

MEMBERS = ("members", "partitions", "moved", "rounds", "stopped", "least", "most")


def plain(group: Group, name: str) -> list[dict[str, Any]]:
    """Replay a group with dictionaries of partitions, members by name."""
    assignor, counts = find_assignor(name), dict.fromkeys(("t0", "t1"), 0)
    owned: dict[TopicPartition, str] = {}
    rows = []
    for (_, value), done in zip(group.records, group.done, strict=True):
        assert value is not None
        record = decode_value(GroupMetadataKey(group="g"), value)
        assert isinstance(record, GroupMetadataValue)
        read = [(m, decode_subscription(m.subscription)) for m in record.members]
        seen = [tp for m in record.members for tp in flat(decode_assignment(m.assignment).assigned_partitions)]
        seen += [tp for _, subscription in read for tp in flat(subscription.owned_partitions)]
        for topic, partition in seen:
            counts[topic] = max(counts[topic], partition + 1)
        if {kind for kind, _ in done} == {"follow_up"}:
            continue
        name_of = {m.member_id: m.group_instance_id or m.member_id for m, _ in read}
        claims = {tp: owner for tp, owner in owned.items() if owner in name_of.values() and tp.topic in _all(read)}
        before, eager = dict(owned), RebalanceProtocol.COOPERATIVE not in assignor.supported_protocols
        stopped, rounds = len(claims) if eager else 0, 0
        while True:
            rounds += 1
            infos = {
                m.member_id: MemberInfo(
                    s.topics, _by_topic(claims, name_of[m.member_id]), 0, instance=m.group_instance_id
                )
                for m, s in read
            }
            plan = make_plan(assignor, Problem.build(infos, counts, group_generation=1))
            claims = {tp: name_of[m] for m, tps in plan.partitions().items() for tp in tps}
            if not plan.withheld.any():
                break
            stopped += len(plan.transferring())
        owned = claims
        loads = [list(owned.values()).count(each) for each in name_of.values()]
        moved = sum(tp in before and before[tp] != owner for tp, owner in owned.items())
        total = sum(count for topic, count in counts.items() if topic in _all(read))
        rows.append((len(read), total, moved, rounds, stopped, min(loads), max(loads)))
    return [dict(zip(MEMBERS, row, strict=True)) for row in rows]


def _all(read: list[Any]) -> set[str]:
    return {topic for _, subscription in read for topic in subscription.topics}


def _by_topic(claims: dict[TopicPartition, str], owner: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for tp, each in sorted(claims.items()):
        if each == owner:
            found.setdefault(tp.topic, []).append(tp.partition)
    return found


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["cooperative-sticky", "range"]))
def test_a_replay_is_what_a_plain_computation_says(seed: int, recorded: str) -> None:
    group = happening(seed, 10, recorded)
    history = GroupHistory(events(group))
    names = ["range", "roundrobin", "sticky", "cooperative-sticky"]
    rows = replay(history, [find_assignor(name) for name in names]).to_pylist()
    for name in names:
        mine = [{key: row[key] for key in MEMBERS} for row in rows if row["policy"] == name]
        assert mine == plain(group, name), name


def steady() -> tuple[Group, dict[TopicPartition, list[tuple[int, int]]], dict[TopicPartition, list[tuple[int, int]]]]:
    """Two members share four partitions of which one has a hundred records a second; the group stops at 60 s.

    Reading a record takes 2 ms in that partition, as far as records wait.
    """
    group = Group(random.Random(1), topics={"t0": 4})
    group.join()
    group.rebalance(set())
    group.rebalance(group.join())
    start = group.now
    ends = {
        TopicPartition("t0", n): [(start - 60_000 + i * 60_000, 6000 * i * (n == 0)) for i in range(4)]
        for n in range(4)
    }
    commits = {tp: [(start - 1_000, 0)] for tp in ends}
    commits[TopicPartition("t0", 0)] += [(start + 60_000, 0), (start + 62_000, 1000)]
    return group, commits, ends


def test_lag_spread_and_time_to_drain() -> None:
    group, commits, ends = steady()
    history = GroupHistory(events(group, commits=commits, ends=ends))
    rows = replay(history, [find_assignor("cooperative-sticky")]).to_pylist()
    assert [row["lag_spread"] for row in rows] == [None, 6000], "ends are known from the second rebalance on"
    assert rows[1]["drain_seconds"] == pytest.approx(6000 * 0.002)
    weights = {row["partition"]: row for row in dict(history.tables())["weights"].to_pylist()}
    assert weights[0]["records_per_second"] == 100
    assert weights[0]["seconds_per_record"] == 0.002
    assert (weights[1]["records_per_second"], weights[1]["seconds_per_record"]) == (0, None)


def test_moves_say_why_and_how_far_behind_the_partition_was() -> None:
    group, commits, ends = steady()
    tables = dict(GroupHistory(events(group, commits=commits, ends=ends)).tables())
    moves = [row for row in tables["moves"].to_pylist() if row["ended_at"].timestamp() * 1000 == group.now]
    assert {row["why"] for row in moves} == {"given up for the next round"}
    assert {(row["source"], row["target"]) for row in moves} == {("m1", None)}
    assert {row["partition"]: row["lag_records"] for row in moves}.items() <= {0: 6000, 1: 0, 2: 0, 3: 0}.items()
    lag = [(row["partition"], row["records"], row["ms"]) for row in tables["lag"].to_pylist() if row["partition"] == 0]
    assert lag == [(0, 6000, 60_000), (0, 12_000, 120_000), (0, 17_000, 170_000)]


def test_tables_have_their_columns_and_the_name_of_the_group() -> None:
    group, commits, ends = steady()
    for name, table in GroupHistory(events(group, "name", commits, ends)).tables():
        assert table.schema == TABLES[name]
        assert set(table["group"].to_pylist()) == {"name"}


def test_a_group_without_members_or_records_has_no_rows() -> None:
    history = GroupHistory(events(Group(random.Random(1)), commits={TopicPartition("t", 0): [(1, 1)]}))
    assert {name: len(table) for name, table in history.tables() if len(table)} == {"weights": 1}
    assert replay(history, list(ASSIGNORS.values())).num_rows == 0


def test_lag_assignors_are_replayed_with_the_lag_of_the_time() -> None:
    group, commits, ends = steady()
    commits[TopicPartition("t0", 1)] = [(group.now - 1_000, 0)]
    ends[TopicPartition("t0", 1)] = [(at, 12_000 if at >= group.now else 0) for at, _ in ends[TopicPartition("t0", 1)]]
    rows = replay(GroupHistory(events(group, commits=commits, ends=ends)), list(ASSIGNORS.values())).to_pylist()
    spread = {row["policy"]: row["lag_spread"] for row in rows if row["lag_spread"] is not None}
    assert spread["range"] == 18_000
    assert spread["lag"] == spread["lag-sticky"] == spread["lag-cooperative-sticky"] == 6000


def test_a_page_escapes_names_and_asks_for_nothing() -> None:
    totals = [
        dict.fromkeys(("rebalances", "moved", "stopped", "rounds"), 3)
        | {"policy": "<b>&", "uneven": 0.25, "lag_spread": None, "drain_median": 1.5, "drain_p95": None}
    ]
    page = report(totals, [{"policy": "<b>&", "at": 5, "moved": 2, "stopped": 1}], [{"group": "<script>", "<b>&": 7}])
    assert "<script>" not in page
    assert "<b>&<" not in page
    assert "&lt;script&gt;" in page
    assert "25.0%" in page
    assert "<polyline" in page
    assert "http" not in page
    assert "no rebalances" in report([], [], [])


def test_numbers_above_what_a_group_can_have_are_not_replayed_and_said(caplog: pytest.LogCaptureFixture) -> None:
    group = Group(random.Random(1))
    group.join()
    group.owned = {"m1": {"t0": [np.iinfo(np.int32).max]}}
    group.rebalance(set())
    assert replay(GroupHistory(events(group)), list(ASSIGNORS.values())).num_rows == 0
    assert "group g is not replayed: it has more than 10000000 partitions" in caplog.text
