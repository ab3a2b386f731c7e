"""The current state of a group as rows, one per partition and member, to draw or write as JSON."""

from collections import defaultdict
from dataclasses import dataclass

from roster.console.history import GroupHistory, Member, Series
from roster.model import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition. `owner` is None when no member has it; `waits` when its owner left and no other has it yet."""

    partition: TopicPartition
    owner: Member | None
    waits: bool
    committed: int | None
    end: int | None
    lag: int | None
    rate: float | None
    lags: Series
    """Lag at the last snapshots."""


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member and the sums over its partitions; `unknown_lags` of them have no known lag."""

    member: Member
    partitions: tuple[TopicPartition, ...]
    lag: int
    unknown_lags: int
    rate: float | None


@dataclass(frozen=True, slots=True)
class GroupRows:
    """All of it: partitions by topic and number, members as they were first seen, those that left last."""

    partitions: tuple[PartitionRow, ...]
    members: tuple[MemberRow, ...]

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics in order."""
        return tuple(dict.fromkeys(row.partition.topic for row in self.partitions))


def rows_of(history: GroupHistory) -> GroupRows:
    """Return the rows of the newest snapshot."""
    partitions = tuple(_partition(history, tp) for tp in sorted(history.positions.keys() | history.owners.keys()))
    owned: dict[str, list[PartitionRow]] = defaultdict(list)
    for row in partitions:
        if row.owner is not None:
            owned[row.owner.seen.key].append(row)
    listed = [*history.members.values(), *history.departed.values()]
    return GroupRows(partitions, tuple(_member(member, owned[member.seen.key]) for member in listed))


def _partition(history: GroupHistory, tp: TopicPartition) -> PartitionRow:
    owner = history.member_of(history.owners.get(tp, ""))
    waits = owner is not None and owner.left_at is not None
    position = history.positions.get(tp)
    if position is None:
        return PartitionRow(tp, owner, waits, None, None, None, None, Series())
    track = history.tracks[tp]
    rate = track.committed.rate()
    return PartitionRow(tp, owner, waits, position.committed, position.end, position.lag, rate, track.lag)


def _member(member: Member, rows: list[PartitionRow]) -> MemberRow:
    rates = [row.rate for row in rows if row.rate is not None]
    return MemberRow(
        member=member,
        partitions=tuple(row.partition for row in rows),
        lag=sum(row.lag or 0 for row in rows),
        unknown_lags=sum(row.lag is None for row in rows),
        rate=sum(rates) if rates else None,
    )
