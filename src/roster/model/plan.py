"""An assignor's result: the owner of each partition, as columns, with views as dictionaries and reasons for moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from roster.model.arrays import Bool, Int32, Int64
from roster.model.problem import NO_OWNER, Problem
from roster.model.topics import TopicPartition


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
        user_data: Mapping[str, bytes] | None = None,
    ) -> Plan:
        """Build a plan; by default no partition has a previous owner, is withheld, or is contested."""
        size = problem.partition_count
        return cls(
            problem,
            owner.astype(np.int32, copy=False),
            np.full(size, NO_OWNER, dtype=np.int32) if owner_before is None else owner_before,
            np.zeros(size, dtype=np.bool_) if withheld is None else withheld,
            np.zeros(size, dtype=np.bool_) if contested is None else contested,
            user_data={} if user_data is None else user_data,
        )

    @classmethod
    def from_assignment(
        cls,
        problem: Problem,
        assignment: Mapping[str, Mapping[str, Iterable[int]]],
        *,
        user_data: Mapping[str, bytes] | None = None,
    ) -> Plan:
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
        return np.bincount(self.owner[self.owner >= 0], minlength=len(self.problem.members))

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
        return list(self._moves())

    def _moves(self) -> Iterator[Move]:
        problem = self.problem
        members = problem.members
        subscribed = [set(s.tolist()) for s in problem.subscriptions]
        had = np.bincount(self.owner_before[self.owner_before >= 0], minlength=len(members))
        loads = self.loads()
        gains = np.bincount(self.owner[(self.owner != self.owner_before) & (self.owner >= 0)], minlength=len(members))
        racks = problem.racks
        suits = None if racks is None else racks.suits()
        topic_of, number_of = problem.topic_of(), problem.number_of()
        for p in np.flatnonzero((self.owner != NO_OWNER) & (self.owner != self.owner_before)).tolist():
            target, source, topic = int(self.owner[p]), int(self.owner_before[p]), int(topic_of[p])
            to, place = members[target], (problem.topics[topic], int(number_of[p]))
            if source == NO_OWNER:
                why = "claimed by several members in one generation" if self.contested[p] else "it had no owner"
                yield Move(*place, None, to, why)
                continue
            giver = members[source]
            if topic not in subscribed[problem.subscription_of[source]]:
                why = f"{giver} no longer subscribes to {problem.topics[topic]}"
            elif loads[source] < had[source]:
                grows = f"{to} goes from {had[target]} to {loads[target]}"
                why = f"balance: {giver} had {had[source]} and keeps {loads[source]}, {grows}"
            elif self.lag is not None and problem.lag is not None:
                why = f"lag: {int(problem.lag[p])} records to read go from {giver} to {to}"
            elif racks and suits is not None and suits[target, racks.set_of[p]] and not suits[source, racks.set_of[p]]:
                why = f"{to} is in a rack with a replica, {giver} is not"
                if racks.member[target] is None:
                    why = f"{giver} is in a rack without a replica, {to} in none"
            elif gains[source]:
                why = f"balance: {giver} makes room for a partition that {to} may not have"
            else:
                why = f"{problem.topics[topic]} is placed anew by this policy"
            yield Move(*place, giver, to, why)


def _give(problem: Problem, owner: Int32, member: int, topic: int, numbers: list[int], place: str) -> None:
    """Make a member the owner of partitions of one topic; `place` is for messages."""
    first, end = int(problem.first[topic]), int(problem.first[topic + 1])
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < end - first:
            raise ValueError(f"{place}: {number!r} is no partition; there are 0 to {end - first - 1}")
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
