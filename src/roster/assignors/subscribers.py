"""Subscribers of topics, found by classes of topics with the same subscribers."""

from dataclasses import dataclass

import numpy as np

from roster.assignors.arrays import distinct, ranges, stable_order
from roster.model import Problem
from roster.model.arrays import Bool, Int32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class TopicClasses:
    """Topics grouped by their subscribers; classes are numbered by their first topic.

    of_topic: [topics] class of each topic. Class c is in subscriptions `subscription[start[c]:start[c + 1]]`.
    """

    of_topic: Int64
    start: Int64
    subscription: Int32

    def __len__(self) -> int:
        return len(self.start) - 1

    def subscriptions(self, number: int) -> Int32:
        """Return the subscriptions that contain the topics of a class."""
        return self.subscription[self.start[number] : self.start[number + 1]]


def topic_classes(problem: Problem) -> TopicClasses:
    """Group the topics of a problem; each topic is in at least one subscription."""
    topic_count = len(problem.topics)
    if len(problem.subscriptions) <= 1 or not topic_count:
        one = np.zeros(min(topic_count, 1), dtype=np.int32)
        return TopicClasses(np.zeros(topic_count, dtype=np.int64), np.arange(len(one) + 1), one)
    topic = np.concatenate(problem.subscriptions)
    subscription = np.repeat(
        np.arange(len(problem.subscriptions), dtype=np.int32), list(map(len, problem.subscriptions))
    )
    subscription = subscription[stable_order(topic, topic_count)]
    size = np.bincount(topic, minlength=topic_count)
    start = np.cumsum(size) - size
    example = _first_alike(subscription, start, size)
    examples, of_topic, _ = distinct(example, topic_count)
    bounds = np.zeros(len(examples) + 1, dtype=np.int64)
    np.cumsum(size[examples], out=bounds[1:])
    return TopicClasses(of_topic, bounds, subscription[ranges(start[examples], size[examples])])


def _first_alike(values: Int32, start: Int64, size: Int64) -> Int64:
    """Return for each list values[start:start + size] the number of the first list equal to it; no list is empty."""
    mixed = (values.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    signature = np.add.reduceat(mixed ^ (mixed >> np.uint64(29)), start)
    order = np.argsort(signature)
    begins = np.append(True, signature[order[1:]] != signature[order[:-1]])
    example = np.empty(len(order), dtype=np.int64)
    example[order] = np.minimum.reduceat(order, np.flatnonzero(begins))[np.cumsum(begins) - 1]
    if (size == size[example]).all() and (values == values[ranges(start[example], size)]).all():
        return example
    number_of: dict[bytes, int] = {}  # two different lists have the same signature
    lists = (values[a : a + n].tobytes() for a, n in zip(start.tolist(), size.tolist(), strict=True))
    return np.array([number_of.setdefault(key, number) for number, key in enumerate(lists)], dtype=np.int64)


def members_by_subscription(problem: Problem) -> list[Int64]:
    """Return the indices of the members of each subscription, ascending."""
    if len(problem.subscriptions) == 1:
        return [np.arange(len(problem.subscription_of), dtype=np.int64)]
    order = np.argsort(problem.subscription_of, kind="stable")
    sizes = np.bincount(problem.subscription_of, minlength=len(problem.subscriptions))
    return np.split(order, np.cumsum(sizes)[:-1]) if len(sizes) else []


def subscribers(members: list[Int64], subscriptions: Int32) -> Int64:
    """Return the members of any of the subscriptions, ascending."""
    if len(subscriptions) == 1:
        return members[int(subscriptions[0])]
    return np.sort(np.concatenate([members[s] for s in subscriptions.tolist()]))


def is_subscribed(problem: Problem, member: Int32, topic: Int32) -> Bool:
    """Return for each pair whether the member subscribes to the topic."""
    if len(problem.subscriptions) == 1:
        return np.ones(len(member), dtype=np.bool_)
    subscription, topic_count = problem.subscription_of[member], len(problem.topics)
    sizes = [len(s) for s in problem.subscriptions]
    if len(sizes) * topic_count <= 8 * len(member):
        subscribed = np.zeros((len(sizes), topic_count), dtype=np.bool_)
        for row, topics in zip(subscribed, problem.subscriptions, strict=True):
            row[topics] = True
        # One flat index is read faster than a pair of indexes.
        return np.asarray(subscribed.ravel().take(subscription.astype(np.int64) * topic_count + topic), dtype=np.bool_)
    pairs = np.repeat(np.arange(len(sizes)), sizes) * topic_count + np.concatenate(problem.subscriptions)
    wanted = subscription.astype(np.int64) * topic_count + topic
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    return np.asarray(pairs[place] == wanted, dtype=np.bool_)


def active_members(problem: Problem) -> Int64:
    """Return the members that subscribe to some topic, ascending."""
    if all(map(len, problem.subscriptions)):
        return np.arange(len(problem.members))
    subscribes = np.array([len(topics) > 0 for topics in problem.subscriptions], dtype=np.bool_)
    return np.flatnonzero(subscribes[problem.subscription_of]) if len(problem.members) else np.zeros(0, dtype=np.int64)
