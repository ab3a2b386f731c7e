"""What `processAllAvailable` waits for: the input at the call, then each topic that rows go on by."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from roster.client import UnreachableError
from roster.model import OffsetAndMetadata, TopicPartition
from roster.spark.dataframes.query import Available
from roster.spark.declarations import Declared, DeclaredSubtopology
from roster.spark.stateful_operators import Repartition

ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
FIRST, SECOND = TopicPartition("g-first-repartition", 0), TopicPartition("g-second-repartition", 0)


class Cluster:
    """Log ends, and what the group has committed; `open` is the length of what an open transaction holds."""

    def __init__(self) -> None:
        self.ends = {ORDERS: 0, OTHER: 0, FIRST: 0, SECOND: 0}
        self.committed: dict[TopicPartition, int] = {}
        self.open = 0
        self.is_away = False

    def list_topics(self) -> dict[str, int]:
        if self.is_away:
            raise UnreachableError("nobody answers")
        return {"orders": 2, FIRST.topic: 1, SECOND.topic: 1, "others": 1}

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.ends[partition] for partition in partitions}

    def stable_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.ends[partition] - self.open for partition in partitions}

    def group_offsets(self, group: str, *, stable: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        assert (group, stable) == ("g", False)
        return {partition: OffsetAndMetadata(offset) for partition, offset in self.committed.items()}


def available(cluster: Cluster, topics: Any = ("orders",), isolation: str = "read_uncommitted", rounds: int = 0) -> Any:
    options = SimpleNamespace(topics=topics, isolation_level=isolation, group="g")
    names = ("first", "second")[:rounds]
    behind = [DeclaredSubtopology(Repartition(("shop",), name, None)) for name in names]
    return Available(cast("Any", cluster), cast("Any", options), Declared([DeclaredSubtopology(), *behind]))


def test_records_that_come_later_are_not_waited_for() -> None:
    cluster = Cluster()
    cluster.ends |= {ORDERS: 5, OTHER: 2}
    all_available = available(cluster)
    assert not all_available.is_committed()
    cluster.ends[ORDERS] = 9
    cluster.committed = {ORDERS: 5, OTHER: 1}
    assert not all_available.is_committed()
    cluster.committed[OTHER] = 2
    assert all_available.is_committed()


def test_rows_are_followed_from_topic_to_topic() -> None:
    cluster = Cluster()
    cluster.ends[ORDERS] = 5
    all_available = available(cluster, rounds=2)
    assert not all_available.is_committed()
    cluster.committed, cluster.ends[FIRST] = {ORDERS: 5}, 3
    assert not all_available.is_committed()
    cluster.committed[FIRST], cluster.ends[SECOND] = 3, 2
    assert not all_available.is_committed()
    cluster.committed[SECOND], cluster.ends[FIRST] = 2, 7  # later rows
    looks = 0
    while not all_available.is_committed():
        cluster.committed[FIRST] = cluster.ends[FIRST]
        cluster.ends[FIRST] += 4
        looks += 1
        assert looks < 9, "it follows rows that go on to come"
    assert cluster.committed[FIRST] < cluster.ends[FIRST]


def test_a_topic_of_an_earlier_release_and_an_empty_one_hold_nothing_up() -> None:
    cluster = Cluster()
    cluster.ends |= {FIRST: 4, SECOND: 4}
    cluster.committed = {FIRST: 4}
    assert available(cluster, rounds=1).is_committed()


@pytest.mark.parametrize(("isolation", "end"), [("read_uncommitted", 5), ("read_committed", 3)])
def test_open_transactions_count_where_they_are_read(isolation: str, end: int) -> None:
    cluster = Cluster()
    cluster.ends[ORDERS], cluster.open = 5, 2
    all_available = available(cluster, re.compile("or.*"), isolation)
    cluster.committed = {ORDERS: end - 1}
    assert not all_available.is_committed()
    cluster.committed = {ORDERS: end}
    assert all_available.is_committed()


def test_brokers_that_do_not_answer_are_asked_again() -> None:
    cluster = Cluster()
    cluster.is_away = True
    all_available = available(cluster)
    assert not all_available.is_committed()
    cluster.is_away = False
    assert all_available.is_committed()
