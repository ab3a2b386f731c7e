"""An assignor's result: the owner of each partition, as columns, with views as dictionaries and reasons for moves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from roster.model.arrays import Bool, Int32, Int64
from roster.model.problem import NO_OWNER, Problem
from roster.model.topics import TopicPartition


class MoveReason(StrEnum):
    """The rule that moved a partition."""

    CONTESTED = "claimed by several members in one generation"
    UNOWNED = "it had no owner"
    UNSUBSCRIBED = "its owner no longer reads the topic"
    BALANCE = "balance"
    LAG = "lag"
    RACK = "rack"
    ROOM = "room for another partition"
    """Its owner gets one that only few may have, for the balance of the group."""
    ANEW = "placed anew"
    """The policy does not regard owners, or does not say."""


REASONS = tuple(MoveReason)


class Move(NamedTuple):
    """A partition that moves from `source` (None: it had no owner) to `target`, and the rule that moved it."""

    topic: str
    partition: int
    source: str | None
    target: str
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class LagBalance:
    """Balance of a plan in records still to be read.

    of_member: [members] records to read. fullest: records per unit of capacity of the member with most; no assignment
    has less than `bound`. note: which input was missing, or why nothing moved; "" if neither.
    """

    of_member: Int64
    fullest: float
    bound: float
    note: str = ""

    @property
    def ratio(self) -> float:
        """`fullest / bound`; 1.0 is perfect, and the value if there is nothing to read."""
        return self.fullest / self.bound if self.bound else 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """An assignment for `problem`.

    owner: [partitions] member index of the owner, NO_OWNER for a topic without subscribers.
    owner_before: [partitions] member index of the previous owner according to the claims, NO_OWNER if none.
    withheld: [partitions] True where the owner gets the partition one round later, after another member revoked it.
    contested: [partitions] True where several members claim it in the same newest generation, so none owns it.
    lag: the balance of lag, from assignors that use it; None from others.
    user_data: {member id: bytes} for `Assignor.on_assignment`; members that are missing get null.
    """

    problem: Problem
    owner: Int32
    owner_before: Int32
    withheld: Bool
    contested: Bool
    lag: LagBalance | None = None
    user_data: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        problem: Problem,
        owner: Int32,
        *,
        owner_before: Int32 | None = None,
        withheld: Bool | None = None,
        contested: Bool | None = None,
        lag: LagBalance | None = None,
        user_data: Mapping[str, bytes] | None = None,
    ) -> "Plan":
        """Build a plan; by default no partition has a previous owner, is withheld, or is contested."""
        size = problem.partition_count
        return cls(
            problem,
            owner.astype(np.int32, copy=False),
            np.full(size, NO_OWNER, dtype=np.int32) if owner_before is None else owner_before,
            np.zeros(size, dtype=np.bool_) if withheld is None else withheld,
            np.zeros(size, dtype=np.bool_) if contested is None else contested,
            lag,
            user_data={} if user_data is None else user_data,
        )

    @classmethod
    def from_assignment(
        cls,
        problem: Problem,
        assignment: Mapping[str, Mapping[str, Iterable[int]]],
        *,
        user_data: Mapping[str, bytes] | None = None,
    ) -> "Plan":
        """Build a plan from {member: {topic: partition numbers}}; partitions not named have no owner.

        Raises ValueError that names the entry, for an unknown member, topic or partition, a partition given twice, or a
        topic that the member does not subscribe to.
        """
        owner = np.full(problem.partition_count, NO_OWNER, dtype=np.int32)
        member_at = {member: i for i, member in enumerate(problem.members)}
        topic_at = {topic: i for i, topic in enumerate(problem.topics)}
        subscribed = [set(topics.tolist()) for topics in problem.subscriptions]
        for member, topics in assignment.items():
            if member not in member_at:
                raise ValueError(f"assignment[{member!r}]: no such member")
            m = member_at[member]
            for topic, listed in topics.items():
                place = f"assignment[{member!r}][{topic!r}]"
                if topic not in topic_at:
                    raise ValueError(f"{place}: no member subscribes to such a topic, or it does not exist")
                if topic_at[topic] not in subscribed[problem.subscription_of[m]]:
                    raise ValueError(f"{place}: the member does not subscribe to the topic")
                _give(problem, owner, m, topic_at[topic], list(listed), place)
        return cls.of(problem, owner, user_data=user_data)

    def check_user_data(self) -> None:
        """Raise ValueError that names the entry of `user_data` that is for no member or is not bytes."""
        if not isinstance(self.user_data, Mapping):
            raise ValueError(f"user_data must be a mapping of member ids to bytes, not {self.user_data!r}")
        if not self.user_data:
            return
        known = set(self.problem.members)
        for member, data in self.user_data.items():
            if member not in known:
                raise ValueError(f"user_data[{member!r}]: no such member")
            if not isinstance(data, bytes):
                raise ValueError(f"user_data[{member!r}] must be bytes, not {type(data).__name__}")

    @property
    def given(self) -> Int32:
        """[partitions] Member that gets the partition in this round, NO_OWNER if it is withheld."""
        return np.where(self.withheld, np.int32(NO_OWNER), self.owner)

    def loads(self) -> Int64:
        """Return [members] the number of partitions, including those withheld for the next round."""
        return np.bincount(self.owner + 1, minlength=len(self.problem.members) + 1)[1:]

    def moved(self) -> Bool:
        """Return [partitions] True where a partition moves from one member to another."""
        return np.asarray(
            (self.owner_before != NO_OWNER) & (self.owner != NO_OWNER) & (self.owner_before != self.owner)
        )

    def assignment(self) -> dict[str, dict[str, list[int]]]:
        """Return the assignment of this round: {member: {topic: [partition]}}, with every member."""
        return _by_member(self.problem, self.given)

    def partitions(self) -> dict[str, list[TopicPartition]]:
        """Return the assignment as flat lists: {member: [TopicPartition]}."""
        return {
            member: [TopicPartition(topic, n) for topic, numbers in topics.items() for n in numbers]
            for member, topics in self.assignment().items()
        }

    def transferring(self) -> dict[TopicPartition, str]:
        """Return the withheld partitions and the member that gets each in the next round."""
        members = self.problem.members
        return {
            self.problem.topic_partition(p): members[int(self.owner[p])] for p in np.flatnonzero(self.withheld).tolist()
        }

    def explain(self) -> list[Move]:
        """Return every partition that changes owner with the rule that moved it, ordered by topic and number."""
        problem, members = self.problem, self.problem.members
        had, loads = self._held(), self.loads()
        topic_of, number_of = problem.topic_of(), problem.number_of()
        moves = []
        for p, number in zip(*(numbers.tolist() for numbers in self.reasons()), strict=True):
            target, source, topic = int(self.owner[p]), int(self.owner_before[p]), problem.topics[int(topic_of[p])]
            to, giver = members[target], None if source == NO_OWNER else members[source]
            why: str = REASONS[number]
            match REASONS[number]:
                case MoveReason.UNSUBSCRIBED:
                    why = f"{giver} no longer subscribes to {topic}"
                case MoveReason.BALANCE:
                    grows = f"{to} goes from {had[target]} to {loads[target]}"
                    why = f"balance: {giver} had {had[source]} and keeps {loads[source]}, {grows}"
                case MoveReason.LAG if problem.lag is not None:
                    why = f"lag: {int(problem.lag[p])} records to read go from {giver} to {to}"
                case MoveReason.RACK if problem.racks is not None and problem.racks.member[target] is None:
                    why = f"{giver} is in a rack without a replica, {to} in none"
                case MoveReason.RACK:
                    why = f"{to} is in a rack with a replica, {giver} is not"
                case MoveReason.ROOM:
                    why = f"balance: {giver} makes room for a partition that {to} may not have"
                case MoveReason.ANEW:
                    why = f"{topic} is placed anew by this policy"
            moves.append(Move(topic, int(number_of[p]), giver, to, why))
        return moves

    def _held(self) -> Int64:
        """Return [members] the number of partitions before."""
        return np.bincount(self.owner_before[self.owner_before >= 0], minlength=len(self.problem.members))

    def reasons(self) -> tuple[Int64, Int64]:
        """Return every partition that changes owner, ascending, and why it does: the index in REASONS."""
        problem = self.problem
        moved = np.flatnonzero((self.owner != NO_OWNER) & (self.owner != self.owner_before))
        source, target, topic = self.owner_before[moved], self.owner[moved], problem.topic_of()[moved]
        subscribed = [set(s.tolist()) for s in problem.subscriptions]
        readers = problem.subscription_of[source] if len(problem.members) else source
        reads = [t in subscribed[s] for s, t in zip(readers.tolist(), topic.tolist(), strict=True)]
        had, gains = self._held(), np.bincount(target, minlength=len(problem.members))
        nearer = np.zeros(len(moved), np.bool_)
        if racks := problem.racks:
            suits, its = racks.suits(), racks.set_of[moved]
            nearer = suits[target, its] & ~suits[source, its]
        unowned = source == NO_OWNER
        rules = [
            unowned & self.contested[moved],
            unowned,
            ~np.array(reads, np.bool_),
            self.loads()[source] < had[source],
            np.full(len(moved), self.lag is not None and problem.lag is not None),
            nearer,
            gains[source] > 0,
        ]
        return moved, np.select(rules, range(len(rules)), len(rules))


def _give(problem: Problem, owner: Int32, member: int, topic: int, numbers: list[int], place: str) -> None:
    """Make a member the owner of partitions of one topic; `place` is for messages."""
    first, end = int(problem.first[topic]), int(problem.first[topic + 1])
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < end - first:
            raise ValueError(f"{place}: {number!r} is not a partition; there are 0 to {end - first - 1}")
        other = int(owner[first + number])
        if other != NO_OWNER:
            raise ValueError(f"{place}: partition {number} is given twice, to {problem.members[other]!r} too")
        owner[first + number] = member


def _by_member(problem: Problem, owner: Int32) -> dict[str, dict[str, list[int]]]:
    order = np.argsort(owner, kind="stable")
    order = order[np.searchsorted(owner[order], 0) :]
    owners, topics = owner[order], problem.topic_of()[order]
    numbers = problem.number_of()[order].tolist()
    starts = np.ones(len(order), dtype=np.bool_)
    starts[1:] = (owners[1:] != owners[:-1]) | (topics[1:] != topics[:-1])
    runs = np.flatnonzero(starts)
    names = list(map(problem.topics.__getitem__, topics[runs].tolist()))
    if len(runs) == len(order):
        lists = [[number] for number in numbers]
    else:
        lists = [numbers[begin:end] for begin, end in pairwise([*runs.tolist(), len(order)])]
    bounds = np.searchsorted(owners[runs], np.arange(len(problem.members) + 1)).tolist()
    return {
        member: dict(zip(names[begin:end], lists[begin:end], strict=True))
        for member, (begin, end) in zip(problem.members, pairwise(bounds), strict=True)
    }
