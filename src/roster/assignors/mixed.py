"""Balance for members with different subscriptions."""

from __future__ import annotations

import heapq

import numpy as np

from roster.assignors.groups import may_have, members_by_subscription, subscribers, topic_classes
from roster.model import NOBODY, Problem
from roster.model.problem import Int32


def balance_mixed(problem: Problem, held: Int32, *, by_rack: bool) -> Int32:
    """[partitions] the owner of every partition."""
    topic_of = problem.topic_of()
    owner = held.copy()
    mine = np.flatnonzero(owner >= 0)
    owner[mine[~may_have(problem, owner[mine], topic_of[mine])]] = NOBODY
    classes = topic_classes(problem)
    members = members_by_subscription(problem)
    load = np.bincount(owner[owner >= 0], minlength=len(problem.members)).tolist()
    for number, subscriptions in enumerate(classes.subscriptions):
        free = np.flatnonzero((owner < 0) & (classes.of_topic[topic_of] == number)).tolist()
        heap = [(load[m], m) for m in subscribers(members, subscriptions).tolist()]
        heapq.heapify(heap)
        for p in free:
            size, m = heap[0]
            heapq.heapreplace(heap, (size + 1, m))
            owner[p] = m
            load[m] += 1
    return owner
