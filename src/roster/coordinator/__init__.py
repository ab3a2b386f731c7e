"""The broker's side of Kafka's classic group protocol, as a state machine without I/O or clock."""

from roster.coordinator.config import CoordinatorConfig
from roster.coordinator.coordinator import REQUEST_HANDLERS, Coordinator
from roster.coordinator.events import (
    Effects,
    Event,
    TimerKind,
    TimerName,
    TopicsDeleted,
    TransactionalRecord,
    TransactionEnd,
    TransactionEnded,
)

__all__ = [
    "REQUEST_HANDLERS",
    "Coordinator",
    "CoordinatorConfig",
    "Effects",
    "Event",
    "TimerKind",
    "TimerName",
    "TopicsDeleted",
    "TransactionEnd",
    "TransactionEnded",
    "TransactionalRecord",
]
