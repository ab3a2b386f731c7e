"""kafka-python's consumer without two faults of 3.0.12.

A poll that ends while a join is under way may forget the join. The leader joins once more when its metadata change. If
`poll` runs out of time between the answer to SyncGroup and the taking over of the assignment, the next poll sees
nothing to join for: the consumer stays in the group, without partitions, for ever. Here a join counts as needed until
its assignment has been taken over.

A leader's range and roundrobin forget members: where a static one stands between two dynamic ones (Apache Kafka's order
is that of a hash map), the dynamic ones before it get nothing. Here the static ones come first.
"""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer
from kafka.coordinator.assignors import range as ranges
from kafka.coordinator.assignors import roundrobin
from kafka.coordinator.base import BaseCoordinator

__all__ = ["KafkaConsumer", "RangePartitionAssignor", "RoundRobinPartitionAssignor"]

_need_rejoin = BaseCoordinator.need_rejoin


def _need_rejoin_until_joined(self: BaseCoordinator) -> bool:
    return self._join_task is not None or _need_rejoin(self)


BaseCoordinator.need_rejoin = _need_rejoin_until_joined


class _StaticFirst:
    """Members as an assignor gets them: the static ones before the dynamic ones."""

    @classmethod
    def assign(cls, cluster: Any, members: Any) -> Any:
        return super().assign(cluster, sorted(members, key=lambda member: member.group_instance_id is None))


class RangePartitionAssignor(_StaticFirst, ranges.RangePartitionAssignor):
    """range that gives to every member."""


class RoundRobinPartitionAssignor(_StaticFirst, roundrobin.RoundRobinPartitionAssignor):
    """roundrobin that gives to every member."""
