"""Lag of a group: committed offsets beside the ends of the logs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from roster.client.admin import Admin
from roster.model import TopicPartition

SETTLED = frozenset({"Stable", "Empty"})
"""States in which every assignment is visible."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The group's position in one partition, in offsets; `committed` and `lag` are None before the first commit."""

    topic: str
    partition: int
    committed: int | None
    begin: int
    end: int
    lag: int | None
    pending: bool = False
    """True if a transaction that is not decided holds another offset."""


@dataclass(frozen=True, slots=True)
class TotalLag:
    """Records a group has still to read: `known` of them for certain, all of them if `complete`.

    `known` is None when no partition's lag is known, as before the first commit.
    """

    known: int | None
    complete: bool

    def __str__(self) -> str:
        if self.known is None:
            return "unknown"
        return str(self.known) if self.complete else f"at least {self.known}"


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The group's positions in the partitions it has committed or owns, in order, and their sum."""

    partitions: dict[TopicPartition, PartitionLag]
    total: TotalLag


def group_lag(admin: Admin, group: str, state: str, assigned: Collection[TopicPartition] = ()) -> GroupLag:
    """Look up how far a group is behind.

    The total is complete only if the lag is known of every partition of every topic that the group reads, and the state
    makes all assignments visible.

    Args:
        admin: the cluster.
        group: its name.
        state: its state, as in its description.
        assigned: partitions that members own, besides those with a committed offset.

    """
    committed = admin.group_offsets(group, stable=False)
    counts = admin.list_topics(internal=True)
    partitions = sorted(tp for tp in {*assigned, *committed} if tp.partition < counts.get(tp.topic, 0))
    pending = admin.pending_offsets(group, partitions) if partitions else set()
    begins, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
    found = {}
    for partition in partitions:
        offset = committed[partition].offset if partition in committed else None
        lag = None if offset is None else max(0, ends[partition] - offset)
        found[partition] = PartitionLag(
            *partition, offset, begins[partition], ends[partition], lag, pending=partition in pending
        )
    lags = [position.lag for position in found.values() if position.lag is not None]
    expected = sum(counts[topic] for topic in {tp.topic for tp in partitions})
    complete = state in SETTLED and len(lags) == expected
    return GroupLag(found, TotalLag(sum(lags) if lags else None, complete))
