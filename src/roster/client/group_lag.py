"""Lag of a group: committed offsets beside the ends of the logs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from roster.client.admin import Admin
from roster.client.types import GroupDescription
from roster.model import OffsetAndMetadata, TopicPartition

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
    """True if an undecided transaction holds another offset."""


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
    """Look up a group's lag.

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
    partitions = _there(counts, assigned, committed)
    pending = admin.pending_offsets(group, partitions) if partitions else set()
    begins, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
    found = {}
    for partition in partitions:
        offset = committed[partition].offset if partition in committed else None
        lag = _lag(partition, committed, ends)
        found[partition] = PartitionLag(
            *partition, offset, begins[partition], ends[partition], lag, pending=partition in pending
        )
    return GroupLag(found, _total(state, counts, {tp: position.lag for tp, position in found.items()}))


def total_lags(admin: Admin, groups: Sequence[GroupDescription]) -> dict[str, TotalLag]:
    """Look up the total lag of each group: one request per group, and a few for all together."""
    counts = admin.list_topics(internal=True)
    committed = {each.group_id: admin.group_offsets(each.group_id, stable=False) for each in groups}
    assigned = {each.group_id: {tp for member in each.members for tp in member.assignment} for each in groups}
    read = {group: _there(counts, assigned[group], offsets) for group, offsets in committed.items()}
    ends = admin.end_offsets({tp for partitions in read.values() for tp in partitions})
    return {
        each.group_id: _total(
            each.state, counts, {tp: _lag(tp, committed[each.group_id], ends) for tp in read[each.group_id]}
        )
        for each in groups
    }


def _there(
    counts: Mapping[str, int], assigned: Collection[TopicPartition], committed: Collection[TopicPartition]
) -> list[TopicPartition]:
    """Return the partitions of a group that exist, in order."""
    return sorted(tp for tp in {*assigned, *committed} if tp.partition < counts.get(tp.topic, 0))


def _lag(
    partition: TopicPartition, committed: Mapping[TopicPartition, OffsetAndMetadata], ends: Mapping[TopicPartition, int]
) -> int | None:
    found = committed.get(partition)
    return None if found is None else max(0, ends[partition] - found.offset)


def _total(state: str, counts: Mapping[str, int], lags: Mapping[TopicPartition, int | None]) -> TotalLag:
    known = [lag for lag in lags.values() if lag is not None]
    expected = sum(counts[topic] for topic in {tp.topic for tp in lags})
    return TotalLag(sum(known) if known else None, state in SETTLED and len(known) == expected)
