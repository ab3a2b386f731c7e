"""The broker's half of Kafka's classic group protocol as a state machine without I/O and clock."""

from roster.coordinator.config import CoordinatorConfig
from roster.coordinator.coordinator import REQUEST_HANDLERS, Coordinator
from roster.coordinator.events import (
    Effects,
    Event,
    PartitionLoaded,
    PartitionLoading,
    PartitionUnloaded,
    Reply,
    RequestReceived,
    TimerExpired,
    TimerKind,
    TimerName,
    TopicsDeleted,
    TransactionalRecord,
    TransactionEnd,
    TransactionEnded,
    Write,
    WriteCompleted,
)
from roster.model import CancelTimer, SetTimer

__all__ = [
    "REQUEST_HANDLERS",
    "CancelTimer",
    "Coordinator",
    "CoordinatorConfig",
    "Effects",
    "Event",
    "PartitionLoaded",
    "PartitionLoading",
    "PartitionUnloaded",
    "Reply",
    "RequestReceived",
    "SetTimer",
    "TimerExpired",
    "TimerKind",
    "TimerName",
    "TopicsDeleted",
    "TransactionEnd",
    "TransactionEnded",
    "TransactionalRecord",
    "Write",
    "WriteCompleted",
]
