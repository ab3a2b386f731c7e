"""Events, timers and effects: the whole interface between the coordinator and the shell that runs it.

Times are integer milliseconds. `now` given to `Coordinator.step` is monotonic and drives every timer; wall-clock time
for record timestamps comes with the event that needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from roster.model import CancelTimer, SetTimer
from roster.wire import ErrorCode, Message


class TimerKind(Enum):
    """Purpose of a timer."""

    __hash__ = object.__hash__  # in C: names of timers are hashed with every request

    SESSION = "session"
    """Session of a member, or the reservation of a pending member id."""
    JOIN = "join"
    """End of the join phase, or of a window of the initial one."""
    SYNC = "sync"
    """End of the wait for members that do not fetch their assignment."""
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


class RequestReceived(NamedTuple):
    """A client's request for the group coordinator; `token` is the shell's handle for the reply.

    `wall_ms` is the wall clock at arrival (commit timestamps, state timestamps). Headers as decoded from the wire.
    """

    token: int
    api_version: int
    client_id: str
    client_host: str
    wall_ms: int
    message: Message


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """A timer set by an earlier effect reached its deadline (`now` of the step is at or past it)."""

    name: TimerName
    wall_ms: int


@dataclass(frozen=True, slots=True)
class WriteCompleted:
    """The records of `Write` number `id` are durable, or could not be stored because of `error`."""

    id: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class PartitionLoading:
    """Begin to load a partition of `__consumer_offsets`, which this process is coordinator for now."""

    partition: int


@dataclass(frozen=True, slots=True)
class TransactionalRecord:
    """A record of a transaction of this producer: it counts when the transaction commits."""

    producer_id: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a producer's transaction in the log, a control record."""

    producer_id: int
    committed: bool


LoadedRecord: TypeAlias = tuple[bytes, bytes | None] | TransactionalRecord | TransactionEnd


@dataclass(frozen=True, slots=True)
class PartitionLoaded:
    """Every record of the partition, in log order; a tombstone has value None. `wall_ms` is the time of loading."""

    partition: int
    records: tuple[LoadedRecord, ...]
    wall_ms: int


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """The marker that ends a producer's transaction in a partition of `__consumer_offsets` is durable."""

    partition: int
    end: TransactionEnd
    wall_ms: int


@dataclass(frozen=True, slots=True)
class PartitionUnloaded:
    """Another process is coordinator for the partition now."""

    partition: int


@dataclass(frozen=True, slots=True)
class TopicsDeleted:
    """Topics were deleted; their committed offsets are deleted too."""

    topics: tuple[str, ...]
    wall_ms: int


Event: TypeAlias = (
    RequestReceived
    | TimerExpired
    | WriteCompleted
    | PartitionLoading
    | PartitionLoaded
    | PartitionUnloaded
    | TopicsDeleted
    | TransactionEnded
)


class Reply(NamedTuple):
    """A response that may be sent now, in the api version the request had."""

    token: int
    message: Message


@dataclass(frozen=True, slots=True)
class Write:
    """Records to append atomically, in order, to one partition of `__consumer_offsets`.

    The shell answers each with one WriteCompleted, those of one partition in order. `producer` is the id and epoch of
    the producer whose transaction the records are part of.
    """

    id: int
    partition: int
    records: tuple[tuple[bytes, bytes | None], ...]
    producer: tuple[int, int] | None = None


TimerEffect: TypeAlias = SetTimer[TimerName] | CancelTimer[TimerName]


class Effects(NamedTuple):
    """Effects of one step; the shell carries out the timers, starts the writes in order and sends the replies."""

    replies: tuple[Reply, ...] = ()
    writes: tuple[Write, ...] = ()
    timers: tuple[TimerEffect, ...] = ()
