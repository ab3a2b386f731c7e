"""The transaction coordinator (KIP-98, KIP-890), as a state machine without I/O or clock."""

from roster.transactions.config import TransactionConfig
from roster.transactions.coordinator import TransactionCoordinator
from roster.transactions.events import AddPartitions, Event, MarkersWritten, ProducerIdGiven, TimerName, WriteMarkers

__all__ = [
    "AddPartitions",
    "Event",
    "MarkersWritten",
    "ProducerIdGiven",
    "TimerName",
    "TransactionConfig",
    "TransactionCoordinator",
    "WriteMarkers",
]
