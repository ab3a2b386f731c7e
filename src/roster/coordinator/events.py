"""Events, timers and effects of the group coordinator: with `roster.coordinator_common`, its interface."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from roster.coordinator_common import CommonEvent, LogRecord, Reply, Write
from roster.model import CancelTimer, SetTimer


class TimerKind(Enum):
    """Purpose of a timer."""

    __hash__ = object.__hash__  # in C: names of timers are hashed with every request

    SESSION = "session"
    """Session of a member, or the reservation of a pending member id."""
    JOIN = "join"
    """End of the join phase, or of one delay of an initial rebalance."""
    SYNC = "sync"
    """End of the sync phase: members that have not fetched their assignment are removed."""
    OFFSET_EXPIRATION = "offset expiration"
    """Next check of the committed offsets of one partition of `__consumer_offsets`."""


class TimerName(NamedTuple):
    """Identity of a timer; setting a name again replaces its deadline."""

    kind: TimerKind
    group_id: str = ""
    member_id: str = ""
    """For SESSION."""
    partition: int = -1
    """For OFFSET_EXPIRATION."""


@dataclass(frozen=True, slots=True)
class TransactionalRecord:
    """A record in a transaction of a producer; it takes effect when the transaction commits."""

    producer_id: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a producer's transaction in the log, a control record."""

    producer_id: int
    committed: bool


LoadedRecord: TypeAlias = LogRecord | TransactionalRecord | TransactionEnd


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """The marker that ends a producer's transaction in a partition of `__consumer_offsets` is durable."""

    partition: int
    end: TransactionEnd
    wall_ms: int


@dataclass(frozen=True, slots=True)
class TopicsDeleted:
    """Topics were deleted; their committed offsets are deleted too."""

    topics: tuple[str, ...]
    wall_ms: int


Event: TypeAlias = CommonEvent[TimerName, LoadedRecord] | TopicsDeleted | TransactionEnded


TimerEffect: TypeAlias = SetTimer[TimerName] | CancelTimer[TimerName]


class Effects(NamedTuple):
    """Effects of one step; the shell carries out the timers, starts the writes in order and sends the replies."""

    replies: tuple[Reply, ...] = ()
    writes: tuple[Write, ...] = ()
    timers: tuple[TimerEffect, ...] = ()
