"""Each topic on its own, in contiguous ranges (Kafka's RangeAssignor, with the rack awareness of KIP-881)."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from roster.assignors.arrays import stable_order
from roster.assignors.base import Assignor, ClaimSource
from roster.assignors.subscribers import members_by_subscription, subscribers, topic_classes
from roster.model import NO_OWNER, Plan, Problem, Racks
from roster.model.arrays import Bool, Int64


def assign(problem: Problem) -> Plan:
    """Return the plan; with n partitions and c subscribers, the first n mod c members get one more than the others.

    Balance comes first, then co-partitioning (topics with the same subscribers and number of partitions are divided in
    the same way), then racks.
    """
    owner = np.full(problem.partition_count, NO_OWNER, dtype=np.int32)
    racks = problem.racks
    if racks is not None and not any(_racks_matter(racks, consumers, rows) for consumers, rows in _alike(problem)):
        racks = None
    for consumers, partitions in _alike(problem):
        if racks is None:
            quota, spare = divmod(partitions.shape[1], len(consumers))
            owner[partitions] = np.repeat(consumers, quota + (np.arange(len(consumers)) < spare))
        else:
            owner[partitions] = consumers[_Cut(racks, consumers, partitions).owners()]
    return Plan.of(problem, owner)


def _alike(problem: Problem) -> Iterator[tuple[Int64, Int64]]:
    """Yield (members, [topics, numbers] partitions) for topics with the same subscribers and number of partitions."""
    classes = topic_classes(problem)
    members = members_by_subscription(problem)
    counts = problem.counts
    by_class = stable_order(classes.of_topic, len(classes))
    bounds = np.cumsum(np.bincount(classes.of_topic, minlength=len(classes))).tolist()
    for number, (begin, end) in enumerate(pairwise([0, *bounds])):
        topics = by_class[begin:end]
        consumers = subscribers(members, classes.subscriptions(number))
        for count in sorted(set(counts[topics].tolist())):
            first = problem.first[topics[counts[topics] == count]]
            yield consumers, first[:, np.newaxis] + np.arange(count)


def _racks_matter(racks: Racks, consumers: Int64, partitions: Int64) -> bool:
    """Return True if racks can change the assignment of one of the topics."""
    return any(racks.matter(consumers.tolist(), np.unique(sets).tolist()) for sets in racks.set_of[partitions])


class _Cut:
    """Division of one or several co-partitioned topics among their consumers; `partitions` is [topics, numbers]."""

    def __init__(self, racks: Racks, consumers: Int64, partitions: Int64) -> None:
        self.racks = racks
        self.partitions = partitions
        self.quota, self.spare = divmod(partitions.shape[1], len(consumers))
        self.consumers = consumers
        self.has = np.zeros(len(consumers), dtype=np.int64)
        self.owner = np.full(partitions.shape[1], NO_OWNER, dtype=np.int64)

    def owners(self) -> Int64:
        """Return [numbers] the owner of each partition number, as an index into the consumers."""
        alone = len(self.partitions) == 1
        if any(self.racks.member[m] for m in self.consumers.tolist()):
            fits = np.asarray(self.racks.matches()[self.consumers][:, self.racks.set_of[self.partitions]].all(axis=1))
            if not alone:
                self._first_fit(fits)
            elif _racks_matter(self.racks, self.consumers, self.partitions):
                self._fill(fits)
        self._fill(np.ones((len(self.consumers), len(self.owner)), dtype=np.bool_))
        return self.owner

    def _room(self, consumer: int) -> int:
        return int(self.quota + (self.spare > 0) - self.has[consumer])

    def _take(self, consumer: int, numbers: Int64) -> None:
        self.owner[numbers] = consumer
        self.has[consumer] += len(numbers)
        self.spare -= int(self.has[consumer] > self.quota)

    def _fill(self, fits: Bool) -> None:
        """Give each consumer in turn the lowest partition numbers that fit."""
        for consumer in range(len(self.consumers)):
            numbers = np.flatnonzero((self.owner == NO_OWNER) & fits[consumer])[: max(self._room(consumer), 0)]
            if len(numbers):
                self._take(consumer, numbers)

    def _first_fit(self, fits: Bool) -> None:
        """Give each partition number to the first consumer with room that fits in all topics."""
        for number in range(len(self.owner)):
            room = self.quota + (self.spare > 0) > self.has
            fitting = np.flatnonzero(fits[:, number] & room)
            if len(fitting):
                self._take(int(fitting[0]), np.array([number]))


class RangeAssignor(Assignor):
    """`range`: each topic divided into contiguous ranges."""

    name = "range"
    claim_source = ClaimSource.NONE

    def assign(self, problem: Problem) -> Plan:
        """See `assign` of this module."""
        return assign(problem)


RANGE = RangeAssignor()
