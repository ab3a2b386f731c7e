"""The timeline of a group's rebalances, out of the generations that its coordinator stored.

A generation differs from the one before it, and the differences are what can have caused the rebalance. Where there is
none the cause is unknown. Records do not say whether a member that is gone left or expired, nor which of several
changes came first. A record of the generation before with other owners is a step of a consumer group between two of its
epochs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from roster.history.generations import Generation, Generations, Member, read_generations
from roster.model import NO_OWNER
from roster.model.arrays import Bool, Int32, Int64


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


class CauseSeen(NamedTuple):
    """A change, with the member it was of where there is one."""

    kind: CauseKind
    member: Member | None = None
    detail: str = ""


WITHHELD = "given up for the next round"
WHYS = ("it had no owner", "its owner was gone", "its owner no longer read the topic", WITHHELD, "")
"""Why a partition moved, as far as records say; "" is the assignor's choice."""


@dataclass
class Rebalance:
    """A rebalance that ended, or a static member's replacement without one; times in wall-clock ms.

    `now` is what the coordinator stored. `missing` is how many generations before this one were never stored with an
    assignment: rebalances that did not end. `sync_ms` is the time from the end of the join phase to the assignment, or
    from a consumer group's new epoch until all have reached it. moved: [moved] numbers of partitions with another owner
    than before, or none; source, target: [moved] names (`Timeline.names`), NO_OWNER if none; why: [moved] index into
    WHYS. `unowned_ms` is how long the partitions that lost their owner here had none, summed; None: some have none yet.
    """

    now: Generation
    causes: list[CauseSeen]
    missing: int
    sync_ms: int | None
    moved: Int64
    source: Int32
    target: Int32
    why: Int64
    unowned_ms: int | None = 0

    @property
    def is_follow_up(self) -> bool:
        """It only finished the round before."""
        return [cause.kind for cause in self.causes] == [CauseKind.FOLLOW_UP]


class Ownership(NamedTuple):
    """Intervals: a partition, the member that owned it, from the storing of one assignment to that of another (ms).

    `until` is `OPEN` where the interval has not ended.
    """

    partition: Int64
    member: Int32
    since: Int64
    until: Int64


OPEN = np.iinfo(np.int64).max


@dataclass
class Timeline:
    """The rebalances of a group, and who owned what; `names` are of members, the same after a static one restarts."""

    group: Generations
    names: list[str]
    name_of: Int32
    rebalances: list[Rebalance]
    ownership: Ownership


def timeline(records: Iterable[tuple[int, bytes | None]]) -> Timeline:
    """Read the records of one group in the order of its log: append time in wall-clock ms, and value."""
    builder = _Builder(read_generations(records))
    for generation in builder.group.generations:
        builder.see(generation)
    return builder.end()


class _Builder:
    def __init__(self, group: Generations) -> None:
        self.group = group
        count = len(group.topic)
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(member.name, len(numbers)) for member in group.members]
        self._names, self._name_of = list(numbers), np.array([*codes, NO_OWNER], np.int32)
        self._reads = np.zeros((len(group.subscriptions), len(group.topics)), np.bool_)
        for row, topics in zip(self._reads, group.subscriptions, strict=True):
            row[topics] = True
        self._rebalances: list[Rebalance] = []
        self._before: Generation | None = None
        self._begun: Generation | None = None
        self._had: Int32 = np.full(count, NO_OWNER, np.int32)
        self._settled = self._had
        """Owners after the last rebalance; partitions of a consumer group change hands before the next one ends."""
        self._unowned_ms: Counter[int] = Counter()
        self._known: Bool = np.zeros(count, np.bool_)
        self._most = np.full(len(group.topics), -1, np.int64)
        self._waiting: Bool = np.zeros(count, np.bool_)
        """Partitions that the rebalance before took from a member that still reads their topic."""
        self._since = np.zeros(count, np.int64)
        self._unowned_by: Int32 = np.full(count, -1, np.int32)
        self._intervals: list[Ownership] = []

    def see(self, now: Generation) -> None:
        if not now.is_assigned:
            self._begun = now
            return
        before, owner = self._before, np.full(len(self._had), NO_OWNER, np.int32)
        owner[now.owned] = now.owner
        if before is not None and before.number == now.number is not None and self._differs(owner):
            self._hand_over(owner, now.at_ms)
            self._had = owner
            return
        is_empty = not len(now.member) and (before is None or not len(before.member))
        if not is_empty and not (before is not None and self._is_same(before, now, owner)):
            self._rebalances.append(self._rebalance(before, now, owner))
        self._before, self._begun, self._had, self._settled = now, None, owner, owner
        for partitions in (now.owned, now.claimed):
            fresh = partitions[~self._known[partitions]]
            if len(fresh):
                self._known[fresh] = True
                np.maximum.at(self._most, self.group.topic[fresh], self.group.number[fresh])

    def _differs(self, owner: Int32) -> bool:
        names = self._name_of[owner]
        return not all(np.array_equal(self._name_of[owners], names) for owners in (self._had, self._settled))

    def end(self) -> Timeline:
        self._close(np.flatnonzero(self._had != NO_OWNER), OPEN)
        still = set(self._unowned_by[self._unowned_by >= 0].tolist())
        for number, rebalance in enumerate(self._rebalances):
            rebalance.unowned_ms = None if number in still else self._unowned_ms[number]
        columns: list[Any] = [np.concatenate(column) for column in zip(*self._intervals, strict=True)]
        partition, _, since, _ = columns
        order = np.lexsort((partition, since))
        ownership = Ownership(*(column[order] for column in columns))
        return Timeline(self.group, self._names, self._name_of, self._rebalances, ownership)

    def _is_same(self, before: Generation, now: Generation, owner: Int32) -> bool:
        return (
            (before.number, before.assignor) == (now.number, now.assignor)
            and np.array_equal(before.member, now.member)
            and np.array_equal(before.subscription, now.subscription)
            and np.array_equal(self._settled, owner)
        )

    def _rebalance(self, before: Generation | None, now: Generation, owner: Int32) -> Rebalance:
        missing, had = 0, self._settled
        if before is not None and before.number is not None and now.number is not None:
            missing = max(0, now.number - before.number - 1)
            if now.number < before.number:  # the group was removed and made anew
                before, had = None, np.full_like(had, NO_OWNER)
        begun = self._begun
        source, target = self._name_of[had], self._name_of[owner]
        moved = np.flatnonzero(source != target)
        source, target = source[moved], target[moved]
        why = self._why(now, moved, source, target)
        began = begun.at_ms if begun is not None and begun.number == now.number else now.joined_at_ms
        is_new = before is None or before.number != now.number
        rebalance = Rebalance(
            now,
            self._causes(before, now),
            missing,
            max(now.at_ms - began, 0) if began is not None and is_new else None,
            moved,
            source,
            target,
            why,
        )
        self._hand_over(owner, now.at_ms)
        self._waiting = np.zeros_like(self._waiting)
        self._waiting[moved[why == WHYS.index(WITHHELD)]] = True
        return rebalance

    def _why(self, now: Generation, moved: Int64, source: Int32, target: Int32) -> Int64:
        subscription = np.full(len(self._names) + 1, -1, np.int64)
        subscription[self._name_of[now.member]] = now.subscription
        subscriptions = subscription[source]
        rules = [
            source == NO_OWNER,
            subscriptions < 0,
            ~self._reads[subscriptions, self.group.topic[moved]],
            target == NO_OWNER,
        ]
        return np.select(rules, range(len(rules)), len(rules))

    def _causes(self, before: Generation | None, now: Generation) -> list[CauseSeen]:
        if before is None:
            return [CauseSeen(CauseKind.UNKNOWN, detail="the history begins here")]
        causes = [*self._membership(before, now), *self._subscriptions(before, now)]
        if added := self._added(before, now):
            causes.append(CauseSeen(CauseKind.PARTITIONS, detail=", ".join(added)))
        if received := int(self._waiting[now.owned].sum()):
            causes.append(CauseSeen(CauseKind.FOLLOW_UP, detail=f"{received} revoked partitions were given"))
        if not causes and before.assignor != now.assignor:
            causes.append(CauseSeen(CauseKind.ASSIGNOR, detail=f"{before.assignor or '-'} to {now.assignor or '-'}"))
        return causes or [CauseSeen(CauseKind.UNKNOWN, detail="the generations do not differ")]

    def _membership(self, before: Generation, now: Generation) -> Iterator[CauseSeen]:
        """Yield members that came and went; a static one that is back under another id is replaced."""
        if np.array_equal(before.member, now.member):
            return
        was, there = before.member.tolist(), now.member.tolist()
        gone = {number: self.group.members[number] for number in was if number not in set(there)}
        instances = {member.instance_id: number for number, member in gone.items() if member.instance_id is not None}
        for member in [self.group.members[number] for number in there if number not in set(was)]:
            old = instances.pop(member.instance_id, None) if member.instance_id is not None else None
            if old is None:
                yield CauseSeen(CauseKind.JOINED, member)
            else:
                yield CauseSeen(CauseKind.REPLACED, member, f"it was {gone.pop(old).member_id}")
        for member in gone.values():
            yield CauseSeen(CauseKind.GONE, member)

    def _subscriptions(self, before: Generation, now: Generation) -> Iterator[CauseSeen]:
        _, old, new = np.intersect1d(before.member, now.member, assume_unique=True, return_indices=True)
        changed = np.flatnonzero(before.subscription[old] != now.subscription[new])
        for place in changed.tolist():
            was, reads = (
                {self.group.topics[t] for t in self.group.subscriptions[number].tolist()}
                for number in (int(before.subscription[old[place]]), int(now.subscription[new[place]]))
            )
            detail = ", ".join([*(f"+{t}" for t in sorted(reads - was)), *(f"-{t}" for t in sorted(was - reads))])
            yield CauseSeen(CauseKind.SUBSCRIPTION, self.group.members[int(now.member[new[place]])], detail)

    def _added(self, before: Generation, now: Generation) -> list[str]:
        """Return partitions that are new to a topic which the group read before."""
        partitions = np.concatenate((now.owned, now.claimed))
        fresh = np.unique(partitions[~self._known[partitions]])
        if not len(fresh):
            return []
        topics, numbers = self.group.topic[fresh], self.group.number[fresh]
        read = np.concatenate([self.group.subscriptions[s] for s in set(before.subscription.tolist())] or [topics[:0]])
        new = np.isin(topics, read) & (self._most[topics] >= 0) & (numbers > self._most[topics])
        return [f"{self.group.topics[t]}-{n}" for t, n in zip(topics[new].tolist(), numbers[new].tolist(), strict=True)]

    def _hand_over(self, owner: Int32, at_ms: int) -> None:
        changed = self._had != owner
        unowned = np.flatnonzero((self._had != NO_OWNER) & (owner == NO_OWNER))
        self._close(np.flatnonzero(changed & (self._had != NO_OWNER)), at_ms)
        owned_again = np.flatnonzero((owner != NO_OWNER) & (self._unowned_by >= 0))
        for number, since in zip(
            self._unowned_by[owned_again].tolist(), self._since[owned_again].tolist(), strict=True
        ):
            self._unowned_ms[number] += at_ms - since
        self._unowned_by[owned_again] = -1
        self._since[changed] = at_ms
        self._unowned_by[unowned] = len(self._rebalances)

    def _close(self, partitions: Int64, until: int) -> None:
        since = self._since[partitions]
        self._intervals.append(Ownership(partitions, self._had[partitions], since, np.full_like(since, until)))
