"""The timeline of a group's rebalances, out of the generations that its coordinator stored.

A generation differs from the one before it, and the differences are what can have caused the rebalance. Where there is
none the cause is unknown. Records do not say whether a member that is gone left or expired, nor which of several
changes came first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from roster.history.generations import Generation, MemberSeen, read_generation
from roster.model import TopicPartition
from roster.wire import WireError


class CauseKind(StrEnum):
    """What changed between two generations; the values are those of `roster history show --json`."""

    JOINED = "joined"
    GONE = "left_or_expired"
    REPLACED = "static_member_replaced"
    SUBSCRIPTION = "subscription_changed"
    PARTITIONS = "partitions_added"
    FOLLOW_UP = "follow_up"
    ASSIGNOR = "assignor_changed"
    UNKNOWN = "unknown"


class Cause(NamedTuple):
    """A change, with the member it was of where there is one."""

    kind: CauseKind
    member: MemberSeen | None = None
    detail: str = ""


class Move(NamedTuple):
    """A partition that changed hands; None: it had or has no owner."""

    partition: TopicPartition
    source: str | None
    target: str | None


@dataclass
class Rebalance:
    """A rebalance that ended, or a static member's replacement without one; times in wall-clock ms.

    `ended_at_ms` is when the coordinator stored the assignment. `missing` is how many generations before this one were
    never stored with an assignment: rebalances that did not end. `sync_ms` is the time from the end of the join phase
    to the assignment, known on Roster's broker only.
    """

    ended_at_ms: int
    generation: int | None
    assignor: str
    leader: str
    members: int
    partitions: int
    causes: list[Cause]
    moves: list[Move]
    missing: int = 0
    sync_ms: int | None = None
    unowned: list[TopicPartition] = field(default_factory=list)
    unowned_partition_ms: int | None = 0
    """How long partitions that lost their owner here had none, summed; None: some have none yet."""


class Owned(NamedTuple):
    """A partition's owner from the storing of one assignment to that of another (None: until now); wall-clock ms."""

    partition: TopicPartition
    member: MemberSeen
    from_ms: int
    until_ms: int | None = None

    def is_at(self, at_ms: int) -> bool:
        """Return True if this owner was the one by the last assignment stored before a time."""
        return self.from_ms <= at_ms and (self.until_ms is None or at_ms < self.until_ms)


@dataclass
class Timeline:
    """The rebalances of a group, who owned what, and how many of its records were damaged."""

    rebalances: list[Rebalance] = field(default_factory=list)
    ownership: list[Owned] = field(default_factory=list)
    damaged: int = 0


def timeline(records: Iterable[tuple[int, bytes | None]]) -> Timeline:
    """Read the records of one group in the order of its log: append time in wall-clock ms, and value."""
    found = Timeline()
    builder = _Builder(found)
    for at_ms, value in records:
        try:
            builder.see(read_generation(at_ms, value))
        except WireError:
            found.damaged += 1
    builder.end()
    return found


class _Builder:
    def __init__(self, found: Timeline) -> None:
        self._found = found
        self._before: Generation | None = None
        self._begun: Generation | None = None
        self._known: set[TopicPartition] = set()
        self._waiting: set[TopicPartition] = set()
        """Partitions that the rebalance before took from a member that still reads their topic."""
        self._owned: dict[TopicPartition, Owned] = {}
        self._unowned: dict[TopicPartition, tuple[Rebalance, int]] = {}

    def see(self, now: Generation) -> None:
        if not now.is_assigned:
            self._begun = now
            return
        before = self._before
        is_same = before is not None and before.number == now.number and _content(before) == _content(now)
        is_empty = not now.members and (before is None or not before.members)
        if not is_same and not is_empty:
            self._found.rebalances.append(self._rebalance(before, now))
        self._before, self._begun = now, None
        self._known |= _partitions(now)

    def end(self) -> None:
        self._found.ownership += self._owned.values()
        self._found.ownership.sort(key=lambda each: (each.from_ms, each.partition))
        for rebalance, _ in self._unowned.values():
            rebalance.unowned_partition_ms = None

    def _rebalance(self, before: Generation | None, now: Generation) -> Rebalance:
        owners = now.owners
        # A number that falls is of a group that was removed and made anew.
        is_numbered = before is not None and before.number is not None and now.number is not None
        if is_numbered and now.number < before.number:  # type: ignore[operator, union-attr]
            before = None
        had = {} if before is None else before.owners
        moves = [Move(tp, had.get(tp, _NOBODY).name, owners.get(tp, _NOBODY).name) for tp in sorted({*had, *owners})]
        begun = self._begun
        made = Rebalance(
            ended_at_ms=now.at_ms,
            generation=now.number,
            assignor=now.assignor,
            leader=now.leader,
            members=len(now.members),
            partitions=len(owners),
            causes=self._causes(before, now),
            moves=[move for move in moves if move.source != move.target],
            missing=max(0, now.number - before.number - 1) if is_numbered and before else 0,  # type: ignore[operator]
            sync_ms=now.at_ms - begun.at_ms if begun is not None and begun.number == now.number else None,
            unowned=sorted(had.keys() - owners.keys()),
        )
        self._hand_over(owners, made)
        still = now.members
        self._waiting = {tp for tp in made.unowned if tp.topic in still.get(had[tp].member_id, _NOBODY).topics}
        return made

    def _causes(self, before: Generation | None, now: Generation) -> list[Cause]:
        if before is None:
            return [Cause(CauseKind.UNKNOWN, detail="the history begins here")]
        causes = [*_membership(before, now), *_subscriptions(before, now)]
        if added := self._added(before, now):
            names = ", ".join(map(str, added))
            causes.append(Cause(CauseKind.PARTITIONS, detail=names))
        if given := self._waiting & now.owners.keys():
            causes.append(Cause(CauseKind.FOLLOW_UP, detail=f"{len(given)} revoked partitions were given"))
        if not causes and before.assignor != now.assignor:
            causes.append(Cause(CauseKind.ASSIGNOR, detail=f"{before.assignor or '-'} to {now.assignor or '-'}"))
        return causes or [Cause(CauseKind.UNKNOWN, detail="the generations do not differ")]

    def _added(self, before: Generation, now: Generation) -> list[TopicPartition]:
        """Return partitions that are new to a topic which the group read before."""
        read = {topic for member in before.members.values() for topic in member.topics}
        most: dict[str, int] = {}
        for topic, number in self._known:
            most[topic] = max(number, most.get(topic, -1))
        new = _partitions(now) - self._known
        return sorted(tp for tp in new if tp.topic in read and tp.topic in most and tp.partition > most[tp.topic])

    def _hand_over(self, owners: dict[TopicPartition, MemberSeen], made: Rebalance) -> None:
        for tp, owned in list(self._owned.items()):
            if owners.get(tp, _NOBODY).member_id != owned.member.member_id:
                self._found.ownership.append(self._owned.pop(tp)._replace(until_ms=made.ended_at_ms))
        for tp, member in owners.items():
            self._owned.setdefault(tp, Owned(tp, member, made.ended_at_ms))
            if tp in self._unowned:
                taken_by, since = self._unowned.pop(tp)
                assert taken_by.unowned_partition_ms is not None  # noqa: S101 - set at the end only
                taken_by.unowned_partition_ms += made.ended_at_ms - since
        self._unowned |= dict.fromkeys(made.unowned, (made, made.ended_at_ms))


class _Nobody:
    """In place of a member where there is none."""

    member_id = name = None
    topics: frozenset[str] = frozenset()


_NOBODY = _Nobody()


def _partitions(generation: Generation) -> set[TopicPartition]:
    return {tp for member in generation.members.values() for tp in member.assigned | member.claimed}


def _content(generation: Generation) -> object:
    """Return what a generation says, without what a member repeats of earlier ones."""
    members = {name: member._replace(claimed=frozenset()) for name, member in generation.members.items()}
    return generation.assignor, members


def _membership(before: Generation, now: Generation) -> Iterator[Cause]:
    """Yield members that came and went; a static one that is back under another id is replaced."""
    gone = [member for name, member in before.members.items() if name not in now.members]
    joined = [member for name, member in now.members.items() if name not in before.members]
    instances = {member.instance_id: member for member in gone if member.instance_id is not None}
    for member in joined:
        old = instances.pop(member.instance_id, None) if member.instance_id is not None else None
        if old is None:
            yield Cause(CauseKind.JOINED, member)
        else:
            gone.remove(old)
            yield Cause(CauseKind.REPLACED, member, f"it was {old.member_id}")
    for member in gone:
        yield Cause(CauseKind.GONE, member)


def _subscriptions(before: Generation, now: Generation) -> Iterator[Cause]:
    for name, member in now.members.items():
        old = before.members.get(name)
        if old is not None and old.topics != member.topics:
            added, dropped = sorted(member.topics - old.topics), sorted(old.topics - member.topics)
            detail = ", ".join([*(f"+{topic}" for topic in added), *(f"-{topic}" for topic in dropped)])
            yield Cause(CauseKind.SUBSCRIPTION, member, detail)
