"""The transaction coordinator (KIP-98, KIP-890) as a state machine without I/O and clock."""

from roster.transactions.config import TransactionConfig
from roster.transactions.coordinator import REQUEST_HANDLERS, TransactionCoordinator
from roster.transactions.events import (
    AddPartitions,
    Effects,
    Event,
    MarkersWritten,
    PartitionLoaded,
    PartitionLoading,
    PartitionsAdded,
    PartitionUnloaded,
    ProducerIdGiven,
    Reply,
    RequestReceived,
    TimerExpired,
    TimerKind,
    TimerName,
    TopicPartition,
    Write,
    WriteCompleted,
    WriteMarkers,
)
from roster.transactions.states import TransactionState

__all__ = [
    "REQUEST_HANDLERS",
    "AddPartitions",
    "Effects",
    "Event",
    "MarkersWritten",
    "PartitionLoaded",
    "PartitionLoading",
    "PartitionUnloaded",
    "PartitionsAdded",
    "ProducerIdGiven",
    "Reply",
    "RequestReceived",
    "TimerExpired",
    "TimerKind",
    "TimerName",
    "TopicPartition",
    "TransactionConfig",
    "TransactionCoordinator",
    "TransactionState",
    "Write",
    "WriteCompleted",
    "WriteMarkers",
]
