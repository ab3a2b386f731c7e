"""The transaction coordinator (KIP-98, KIP-890), as a state machine without I/O or clock."""

from roster.transactions.config import TransactionConfig
from roster.transactions.coordinator import REQUEST_HANDLERS, TransactionCoordinator
from roster.transactions.events import (
    AddPartitions,
    Effects,
    Event,
    MarkersWritten,
    PartitionsAdded,
    ProducerIdGiven,
    TimerKind,
    TimerName,
    WriteMarkers,
)
from roster.transactions.states import TransactionState

__all__ = [
    "REQUEST_HANDLERS",
    "AddPartitions",
    "Effects",
    "Event",
    "MarkersWritten",
    "PartitionsAdded",
    "ProducerIdGiven",
    "TimerKind",
    "TimerName",
    "TransactionConfig",
    "TransactionCoordinator",
    "TransactionState",
    "WriteMarkers",
]
