"""Events, effects and pending writes of both coordinators. Each keeps its state in an internal topic of its own.

Times are integer milliseconds. `now` given to `step` is monotonic and drives every timer; wall-clock time, for records,
comes with the events.
"""

from collections.abc import Callable, Iterable
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


Continuation: TypeAlias = Callable[[ErrorCode], None]
"""Called when a write is complete, with the error for clients."""

CLIENT_ERRORS: dict[ErrorCode, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""{error of an append to the log: error for clients of the coordinator}; other errors stay as they are."""


class PendingWrites:
    """Numbers the writes of a coordinator and keeps their continuations."""

    def __init__(self) -> None:
        self.started: list[Write] = []
        """Writes that the current step started."""
        self._pending: dict[int, tuple[int, list[Continuation]]] = {}
        self._last = 0

    def start(
        self, partition: int, records: Iterable[LogRecord], then: Continuation, producer: tuple[int, int] | None = None
    ) -> None:
        """Append records to the log, as part of a producer's (id, epoch) transaction if there is one.

        `then` runs in the step that reports the result.
        """
        self._last += 1
        self._pending[self._last] = (partition, [then])
        self.started.append(Write(self._last, partition, tuple(records), producer))

    def after_last(self, then: Continuation) -> None:
        """Run `then` also when the last write of the current step is complete; requires that there is one."""
        self._pending[self._last][1].append(then)

    def complete(self, write_id: int, error: ErrorCode) -> None:
        """Run the continuations of a write; an id from before an unload is ignored."""
        _, continuations = self._pending.pop(write_id, (0, []))
        for resume in continuations:
            resume(CLIENT_ERRORS.get(error, error))

    def fail(self, partition: int) -> None:
        """Fail the pending writes of an unloaded partition; its next coordinator learns which are durable."""
        for write_id in [number for number, (owner, _) in self._pending.items() if owner == partition]:
            self.complete(write_id, ErrorCode.NOT_COORDINATOR)

    def take_started(self) -> list[Write]:
        """Return the writes started since the last call."""
        started = self.started
        if started:
            self.started = []
        return started
