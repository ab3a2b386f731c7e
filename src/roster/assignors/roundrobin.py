"""All partitions in topic order, given to the members in turn (Kafka's RoundRobinAssignor)."""

from bisect import bisect_left

import numpy as np

from roster.assignors.base import Assignor, ClaimSource
from roster.assignors.subscribers import members_by_subscription, subscribers, topic_classes
from roster.model import NO_OWNER, Plan, Problem


def assign(problem: Problem) -> Plan:
    """Return the plan: members take turns, and a member that does not subscribe to a partition's topic is skipped."""
    classes = topic_classes(problem)
    members = members_by_subscription(problem)
    consumers = [subscribers(members, classes.subscriptions(number)) for number in range(len(classes))]
    turns = [group.tolist() for group in consumers]
    owner = np.full(problem.partition_count, NO_OWNER, dtype=np.int32)
    if len(turns) == 1:
        owner[:] = consumers[0][np.arange(len(owner)) % len(turns[0])]
        return Plan.of(problem, owner)
    pointer = 0
    first = problem.first.tolist()
    for topic, number in enumerate(classes.of_topic.tolist()):
        turn, begin, end = turns[number], first[topic], first[topic + 1]
        position = bisect_left(turn, pointer)
        owner[begin:end] = consumers[number][np.arange(position, position + end - begin) % len(turn)]
        pointer = turn[(position + end - begin - 1) % len(turn)] + 1
    return Plan.of(problem, owner)


class RoundRobinAssignor(Assignor):
    """`roundrobin`: all partitions given to the members in turn."""

    name = "roundrobin"
    claim_source = ClaimSource.NONE

    def assign(self, problem: Problem) -> Plan:
        """See `assign` of this module."""
        return assign(problem)


ROUNDROBIN = RoundRobinAssignor()
