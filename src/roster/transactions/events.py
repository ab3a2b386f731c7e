"""Events, timers and effects of the transaction coordinator: with `coordinator_common`, its interface."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from roster.coordinator_common import CommonEvent, LogRecord, Reply, Write
from roster.model import CancelTimer, SetTimer, TopicPartition
from roster.wire import ErrorCode


class TimerKind(Enum):
    """Purpose of a timer."""

    __hash__ = object.__hash__  # in C: names of timers are hashed with every request

    TRANSACTION_TIMEOUT = "transaction timeout"
    COMPLETION = "completion"
    """Next attempt to write the record of a complete transaction."""
    ID_EXPIRATION = "id expiration"
    """Next check of the transactional ids of one partition of `__transaction_state`."""


class TimerName(NamedTuple):
    """Identity of a timer; setting a name again replaces its deadline."""

    kind: TimerKind
    transactional_id: str = ""
    partition: int = -1
    """For ID_EXPIRATION."""


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """A Produce or TxnOffsetCommit for partitions: add them to the transaction (version 2 of the protocol), or with
    `verify_only` check that they were added before. Answered with PartitionsAdded.
    """

    token: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    wall_ms: int
    verify_only: bool = False


@dataclass(frozen=True, slots=True)
class ProducerIdGiven:
    """A producer id requested in `Effects.producer_ids`; None if none could be allocated."""

    number: int
    producer_id: int | None
    wall_ms: int


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """All markers of a WriteMarkers are durable."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    wall_ms: int


Event: TypeAlias = CommonEvent[TimerName, LogRecord] | AddPartitions | ProducerIdGiven | MarkersWritten


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """The answer to AddPartitions: one error per partition."""

    token: int
    errors: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Markers to append to every partition of a transaction; answered by one MarkersWritten, however long it takes."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: frozenset[TopicPartition]
    coordinator_epoch: int


TimerEffect: TypeAlias = SetTimer[TimerName] | CancelTimer[TimerName]


@dataclass(slots=True)
class Effects:
    """Effects of one step; the shell carries out the timers, starts the writes in order and sends the replies."""

    replies: list[Reply] = field(default_factory=list)
    added: list[PartitionsAdded] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    markers: list[WriteMarkers] = field(default_factory=list)
    producer_ids: list[int] = field(default_factory=list)
    """Numbers of the requests for a new producer id."""
    timers: list[TimerEffect] = field(default_factory=list)
