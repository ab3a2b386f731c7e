"""The broker's half of the group protocol as a pure state machine."""

from roster.coordinator.config import CoordinatorConfig
from roster.coordinator.coordinator import REQUEST_HANDLERS, Coordinator
from roster.coordinator.events import (
    CancelTimer,
    Effects,
    Event,
    PartitionLoaded,
    PartitionLoading,
    PartitionUnloaded,
    Reply,
    RequestReceived,
    SetTimer,
    TimerExpired,
    TimerName,
    TopicsDeleted,
    Write,
    WriteCompleted,
)

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
    "TimerName",
    "TopicsDeleted",
    "Write",
    "WriteCompleted",
]
