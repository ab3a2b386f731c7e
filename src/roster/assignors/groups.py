"""Who may have what: topics with the same subscribers, members with the same subscription, and dealing in turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roster.model import Problem
from roster.model.problem import Bool, Int32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class TopicClasses:
    """Topics grouped by who subscribes to them.

    of_topic: [topics] class of each topic. subscriptions: per class, the indices of the subscriptions that contain it.
    """

    of_topic: Int32
    subscriptions: list[Int32]


def topic_classes(problem: Problem) -> TopicClasses:
    """Group the topics; classes are numbered by their first topic."""
    subscriptions = problem.subscriptions
    topic_count = len(problem.topics)
    if len(subscriptions) == 1:
        return TopicClasses(np.zeros(topic_count, dtype=np.int32), [np.zeros(1, dtype=np.int32)] if topic_count else [])
    topic = np.concatenate([*subscriptions, np.zeros(0, dtype=np.int32)])
    subscription = np.repeat(np.arange(len(subscriptions), dtype=np.int32), [len(s) for s in subscriptions])
    order = np.argsort(topic, kind="stable")
    subscription = subscription[order]
    bounds = np.zeros(topic_count + 1, dtype=np.int64)
    np.cumsum(np.bincount(topic, minlength=topic_count), out=bounds[1:])
    cells, at = subscription.tobytes(), (bounds * subscription.itemsize).tolist()
    number: dict[bytes, int] = {}
    of_topic = [number.setdefault(cells[at[t] : at[t + 1]], len(number)) for t in range(topic_count)]
    return TopicClasses(np.array(of_topic, dtype=np.int32), [np.frombuffer(key, dtype=np.int32) for key in number])


def members_by_subscription(problem: Problem) -> list[Int64]:
    """Per subscription the indices of the members that have it, ascending."""
    order = np.argsort(problem.subscription_of, kind="stable")
    sizes = np.bincount(problem.subscription_of, minlength=len(problem.subscriptions))
    return np.split(order, np.cumsum(sizes)[:-1]) if len(sizes) else []


def subscribers(members: list[Int64], subscriptions: Int32) -> Int64:
    """Members of any of the subscriptions, ascending."""
    return np.sort(np.concatenate([members[s] for s in subscriptions.tolist()]))


_MATRIX_LIMIT = 1 << 26


def may_have(problem: Problem, member: Int32, topic: Int32) -> Bool:
    """For each pair, whether the member subscribes to the topic."""
    subscription, topic_count = problem.subscription_of[member], len(problem.topics)
    sizes = [len(s) for s in problem.subscriptions]
    if len(sizes) * topic_count <= _MATRIX_LIMIT:
        subscribed = np.zeros((len(sizes), topic_count), dtype=np.bool_)
        for row, topics in zip(subscribed, problem.subscriptions, strict=True):
            row[topics] = True
        return np.asarray(subscribed[subscription, topic], dtype=np.bool_)
    pairs = np.repeat(np.arange(len(sizes)), sizes) * topic_count + np.concatenate(problem.subscriptions)
    asked = subscription.astype(np.int64) * topic_count + topic
    place = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
    return np.asarray(pairs[place] == asked, dtype=np.bool_)


def rank_within(groups: Int64 | Int32) -> Int64:
    """For each entry, how many earlier entries are of the same group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(order) else order
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    return rank


def deal(counts: Int64) -> Int64:
    """Indices 0..n-1, index i counts[i] times, as cards are dealt: one to each in turn who still lacks some."""
    receivers = np.repeat(np.arange(len(counts)), counts)
    turn = np.arange(len(receivers)) - np.repeat(np.cumsum(counts) - counts, counts)
    return receivers[np.argsort(turn, kind="stable")]
