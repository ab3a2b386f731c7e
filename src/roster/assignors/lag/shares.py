"""Number of partitions of each topic that a member may have, so that every topic is spread evenly (KIP-169).

A subscriber's share of a topic with n partitions is n x capacity / sum of the subscribers' capacities. It gets its
share rounded down, or one more (an extra) if the share is not a whole number. With equal capacities that is KIP-169's
guarantee: counts within a topic differ by at most one. KIP-169 does not say who gets the extras; `level` chooses the
subscribers so that the totals over all topics are fairest.
"""

from collections import deque

import numpy as np

from roster.assignors.subscribers import (
    active_members,
    is_subscribed,
    members_by_subscription,
    subscribers,
    topic_classes,
)
from roster.model import Problem
from roster.model.arrays import Bool, Float64, Int32, Int64


class Shares:
    """Subscribers of each topic and their shares.

    class_of: [topics] the class of each topic; topics with the same subscribers are one class. consumers: for each
    class the members that subscribe to it, ascending. weight: [members] capacity. busy: members that subscribe to any
    topic.
    """

    def __init__(self, problem: Problem, weight: Int64) -> None:
        classes = topic_classes(problem)
        members = members_by_subscription(problem)
        self.problem = problem
        self.classes = classes
        self.class_of = classes.of_topic
        self.consumers = [subscribers(members, classes.subscriptions(number)) for number in range(len(classes))]
        self.weight = weight
        self.class_weight = np.array([weight[group].sum() for group in self.consumers], dtype=np.int64)
        self.counts = problem.counts
        self.topic_weight = self.class_weight[self.class_of]
        self.busy = active_members(problem)
        self._lots: dict[tuple[int, int], tuple[Int64, Bool]] = {}

    def least(self, topic: Int64 | Int32, member: Int64 | Int32) -> Int64:
        """Return the minimum number of partitions for each pair of a topic and a subscriber."""
        return self.counts[topic] * self.weight[member] // self.topic_weight[topic]

    def may_have_extra(self, topic: Int64 | Int32, member: Int64 | Int32) -> Bool:
        """Return for each pair of a topic and a subscriber whether it may have one partition above the minimum."""
        return np.asarray(self.counts[topic] * self.weight[member] % self.topic_weight[topic] > 0, dtype=np.bool_)

    def quota(self, topic: int) -> tuple[Int64, Bool]:
        """Return [subscribers] the share rounded down and [subscribers] whether an extra is allowed, for one topic.

        Topics of one class with equal partition counts share the arrays.
        """
        number, count = int(self.class_of[topic]), int(self.counts[topic])
        if (number, count) not in self._lots:
            due = count * self.weight[self.consumers[number]]
            whole = int(self.class_weight[number])
            self._lots[number, count] = due // whole, due % whole > 0
        return self._lots[number, count]

    def subscribe(self, member: Int64 | Int32, topic: Int64 | Int32) -> Bool:
        """Return for each pair whether the member subscribes to the topic."""
        if len(self.problem.subscriptions) == 1:
            return np.ones(len(member), dtype=np.bool_)
        return is_subscribed(self.problem, np.asarray(member, dtype=np.int32), np.asarray(topic, dtype=np.int32))

    def base(self) -> Int64:
        """Return [members] the number of partitions without extras."""
        total = np.zeros(len(self.weight), dtype=np.int64)
        kinds, example, number = np.unique(
            np.stack((self.class_of, self.counts)), axis=1, return_index=True, return_counts=True
        )
        for (group, _), topic, times in zip(kinds.T.tolist(), example.tolist(), number.tolist(), strict=True):
            total[self.consumers[group]] += times * self.quota(topic)[0]
        return total


def fullness(count: Int64, weight: Int64) -> Float64:
    """Return by how much one more partition increases count^2 / weight; the fairest counts minimise the sum of it."""
    return np.asarray((2 * count + 1) / weight, dtype=np.float64)


def level(eligible: list[Int64], has: list[Bool], count: Int64, weight: Int64, load: Int64) -> None:
    """Move extras between members until the totals are fairest; changes `has` and `count`.

    A member with at least two partitions more than another passes an extra on, directly or through other members; of
    equally full members, the one with most `load` is first. When no such path is left, the totals minimise every convex
    cost: they form an M-convex set, where a local minimum is global (Murota, "Discrete Convex Analysis", 2003).

    Args:
        eligible: for each topic the members that may have an extra of it.
        has: for each topic, True for each of these members that has one.
        count: [members] partitions in total.
        weight: [members] capacity.
        load: [members] lag in records.
    """
    extras = np.zeros(len(count), dtype=np.int64)
    chances = np.zeros(len(count), dtype=np.int64)
    for members, mask in zip(eligible, has, strict=True):
        extras[members[mask]] += 1
        chances[members] += 1
    holds: list[list[int]] = []
    while extras.any():
        sheds, takes = fullness(count - 1, weight), fullness(count, weight)
        lowest = takes[chances > extras].min(initial=np.inf)
        sources = np.flatnonzero((extras > 0) & (sheds > lowest))
        if not len(sources):
            return
        if not holds:
            holds = [[] for _ in count]
            for t, (members, mask) in enumerate(zip(eligible, has, strict=True)):
                for m in members[mask].tolist():
                    holds[m].append(t)
        sources = sources[np.lexsort((-load[sources], -sheds[sources]))]
        ends = _pass_on(sources, eligible, has, holds, sheds, takes)
        if ends is None:
            return
        for totals in (extras, count):
            totals[ends[0]] -= 1
            totals[ends[1]] += 1


def _pass_on(
    sources: Int64, eligible: list[Int64], has: list[Bool], holds: list[list[int]], sheds: Float64, takes: Float64
) -> tuple[int, int] | None:
    """Move extras along one path from a fuller to an emptier member; return its ends, None without a path.

    Breadth-first search from each source in turn; a member reached from a fuller source is not visited again.
    """
    met = np.zeros(len(takes), dtype=np.bool_)
    queued = np.zeros(len(eligible), dtype=np.bool_)
    came: dict[int, tuple[int, int]] = {}
    for source in sources.tolist():
        if met[source]:
            continue
        met[source] = True
        waiting = deque([source])
        while waiting:
            giver = waiting.popleft()
            for topic in holds[giver]:
                if queued[topic]:
                    continue
                queued[topic] = True
                new = eligible[topic][~has[topic]]
                new = new[~met[new]]
                if not len(new):
                    continue
                met[new] = True
                came.update(dict.fromkeys(new.tolist(), (topic, giver)))
                best = int(new[np.argmin(takes[new])])
                if takes[best] < sheds[source]:
                    _hand_along(best, source, came, eligible, has, holds)
                    return source, best
                waiting.extend(new.tolist())
    return None


def _hand_along(
    target: int,
    source: int,
    came: dict[int, tuple[int, int]],
    eligible: list[Int64],
    has: list[Bool],
    holds: list[list[int]],
) -> None:
    """Hand an extra on at each step of the path that `came` describes, from `target` back to `source`."""
    taker = target
    while taker != source:
        topic, giver = came[taker]
        for member, gets in ((taker, True), (giver, False)):
            has[topic][np.searchsorted(eligible[topic], member)] = gets
        holds[giver].remove(topic)
        holds[taker].append(topic)
        taker = giver
