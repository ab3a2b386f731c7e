"""Events and effects of both coordinators. Each stores its state as records of an internal topic of its own.

Times are integer milliseconds. `now` given to `step` is monotonic and drives every timer; wall-clock time, for records,
comes with the events.
"""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from roster.wire import ErrorCode, Message

NameT = TypeVar("NameT")
RecordT = TypeVar("RecordT")

LogRecord: TypeAlias = tuple[bytes, bytes | None]
"""Key and value; a tombstone has the value None."""


class IllegalTransitionError(RuntimeError):
    """A bug: a transition that is not in the table of states."""


class RequestReceived(NamedTuple):
    """A client's request; `token` is the shell's handle for the reply.

    `wall_ms` is the wall-clock time of arrival, for commit and state timestamps. The other fields are from the header.
    """

    token: int
    api_version: int
    client_id: str
    client_host: str
    wall_ms: int
    message: Message


@dataclass(frozen=True, slots=True)
class TimerExpired(Generic[NameT]):
    """A timer set by an earlier effect reached its deadline (`now` of the step is at or past it)."""

    name: NameT
    wall_ms: int


@dataclass(frozen=True, slots=True)
class WriteCompleted:
    """The records of `Write` number `id` are durable, or could not be stored because of `error`."""

    id: int
    wall_ms: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class PartitionLoading:
    """The process has become coordinator for a partition of the internal topic and begins to load it."""

    partition: int


@dataclass(frozen=True, slots=True)
class PartitionLoaded(Generic[RecordT]):
    """Every record of the partition, in log order. `wall_ms` is the time of loading."""

    partition: int
    records: tuple[RecordT, ...]
    wall_ms: int


@dataclass(frozen=True, slots=True)
class PartitionUnloaded:
    """Another process has become coordinator for the partition."""

    partition: int


CommonEvent: TypeAlias = (
    RequestReceived
    | TimerExpired[NameT]
    | WriteCompleted
    | PartitionLoading
    | PartitionLoaded[RecordT]
    | PartitionUnloaded
)
"""Events of both coordinators, generic in the type of their timers' names and of their records."""


class Reply(NamedTuple):
    """A response to send now, in the API version of the request."""

    token: int
    message: Message


@dataclass(frozen=True, slots=True)
class Write:
    """Records to append atomically, in order, to one partition of the internal topic.

    The shell answers each with one WriteCompleted, in order for each partition. `producer`: id and epoch of the
    producer whose transaction the records are part of, or None.
    """

    id: int
    partition: int
    records: tuple[LogRecord, ...]
    producer: tuple[int, int] | None = None
