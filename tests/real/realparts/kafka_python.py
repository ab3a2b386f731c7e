"""kafka-python's consumer without its lost join: up to 3.0.12 a poll that ends while a join is under way may forget it.

The leader joins once more when its metadata change. If `poll` runs out of time between the answer to SyncGroup and the
taking over of the assignment, the next poll sees nothing to join for: the consumer stays in the group, without
partitions, for ever. Here a join counts as needed until its assignment has been taken over.
"""

from __future__ import annotations

from kafka import KafkaConsumer
from kafka.coordinator.base import BaseCoordinator

__all__ = ["KafkaConsumer"]

_need_rejoin = BaseCoordinator.need_rejoin


def _need_rejoin_until_joined(self: BaseCoordinator) -> bool:
    return self._join_task is not None or _need_rejoin(self)


BaseCoordinator.need_rejoin = _need_rejoin_until_joined
