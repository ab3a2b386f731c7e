"""The tables of one group's history, and what usually arrives, on worked examples."""

from __future__ import annotations

import random

from roster.history.derived import TABLES, GroupHistory
from roster.model import TopicPartition
from tests.history.made_up import Group, events


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


def test_what_usually_arrives_is_the_median_over_the_recordings_of_the_ends() -> None:
    group, commits, ends = steady()
    positions = GroupHistory(events(group, commits=commits, ends=ends)).positions
    assert positions.arriving(TopicPartition("t0", 0)) == 100
    assert positions.arriving(TopicPartition("t0", 1)) == 0
    assert positions.arriving(TopicPartition("other", 0)) is None


def test_moves_say_why_and_how_far_behind_the_partition_was() -> None:
    group, commits, ends = steady()
    history = GroupHistory(events(group, commits=commits, ends=ends))
    moves = [row for row in history.table("moves").to_pylist() if row["ended_at"].timestamp() * 1000 == group.now]
    assert {row["why"] for row in moves} == {"given up for the next round"}
    assert {(row["source"], row["target"]) for row in moves} == {("m1", None)}
    assert {row["partition"]: row["lag_records"] for row in moves}.items() <= {0: 6000, 1: 0, 2: 0, 3: 0}.items()


def test_tables_have_their_columns_and_the_name_of_the_group() -> None:
    group, commits, ends = steady()
    history = GroupHistory(events(group, "name", commits, ends))
    for name in TABLES:
        table = history.table(name)
        assert table.schema == TABLES[name]
        assert set(table["group"].to_pylist()) == {"name"}


def test_a_group_without_members_or_records_has_no_rows() -> None:
    history = GroupHistory(events(Group(random.Random(1)), commits={TopicPartition("t", 0): [(1, 1)]}))
    assert not any(len(history.table(name)) for name in TABLES)
