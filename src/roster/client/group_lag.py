"""Lag of a group: committed offsets beside the ends of the logs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from roster.client.admin import Admin
from roster.client.types import GroupDescription
from roster.model import GroupPosition, OffsetAndMetadata, TopicPartition
from roster.model.switch import results_of

SETTLED = frozenset({"Stable", "Empty"})
"""States in which every assignment is visible."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The group's position in one partition, in offsets; `committed` is None before the first commit.

    `lag` is None where it cannot be known: before the first commit, unless the log is empty.
    """

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
    results: str = ""
    """Fate of the group's results, "" if they do not depend on another group; see `roster groups switch`."""

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
    (positions,), counts = _look_up(admin, {group: assigned})
    pending = admin.pending_offsets(group, positions) if positions else set()
    lags = {
        tp: PartitionLag(
            *tp, position.committed, position.begin or 0, position.end or 0, position.lag, pending=tp in pending
        )
        for tp, position in positions.items()
    }
    return GroupLag(lags, _total(state, counts, positions))


def total_lags(admin: Admin, groups: Sequence[GroupDescription]) -> dict[str, TotalLag]:
    """Look up the total lag of each group: one request per group, and a few for all together."""
    assigned = {group.group_id: {tp for member in group.members for tp in member.assignment} for group in groups}
    positions, counts = _look_up(admin, assigned)
    return {
        group.group_id: _total(group.state, counts, group_positions)
        for group, group_positions in zip(groups, positions, strict=True)
    }


def group_positions(
    admin: Admin, group: str, assigned: Collection[TopicPartition] = ()
) -> dict[TopicPartition, GroupPosition]:
    """Return a group's position in each existing partition, given or committed, in order.

    Committed offsets are read before the log ends: records that arrive in between make a lag larger, never zero too
    early.
    """
    (positions,), _ = _look_up(admin, {group: assigned})
    return positions


def _look_up(
    admin: Admin, groups: Mapping[str, Collection[TopicPartition]]
) -> tuple[list[dict[TopicPartition, GroupPosition]], Mapping[str, int]]:
    """Return the positions of each group, and the number of partitions of each of their topics."""
    committed = [admin.group_offsets(group, stable=False) for group in groups]
    wanted = [{*assigned, *offsets} for assigned, offsets in zip(groups.values(), committed, strict=True)]
    racks = admin.replica_racks({tp.topic for partitions in wanted for tp in partitions})
    counts = {topic: len(partitions) for topic, partitions in racks.items()}
    there = {tp for partitions in wanted for tp in partitions if tp.partition < counts.get(tp.topic, 0)}
    begins, ends = admin.beginning_offsets(there), admin.end_offsets(there)
    positions = [
        {tp: position_of(offsets.get(tp), begins[tp], ends[tp]) for tp in sorted(partitions & there)}
        for partitions, offsets in zip(wanted, committed, strict=True)
    ]
    return positions, counts


def position_of(committed: OffsetAndMetadata | None, begin: int | None, end: int | None) -> GroupPosition:
    """Return a position by what the group has committed, None if nothing, and the ends of the log."""
    if committed is None:
        return GroupPosition(None, end, begin)
    return GroupPosition(committed.offset, end, begin, committed.metadata)


def _total(state: str, counts: Mapping[str, int], positions: Mapping[TopicPartition, GroupPosition]) -> TotalLag:
    known = [position.lag for position in positions.values() if position.lag is not None]
    expected = sum(counts[topic] for topic in {tp.topic for tp in positions})
    results = results_of(position.metadata for position in positions.values() if position.committed is not None)
    return TotalLag(sum(known) if known else None, state in SETTLED and len(known) == expected, results)
