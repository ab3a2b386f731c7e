"""What goes into the coordinator and what comes out: the whole seam between the state machine and its shell.

Times are integer milliseconds. `now` given to `Coordinator.step` is monotonic and drives every timer; wall-clock time
for record timestamps comes with the event that needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from roster.wire import ErrorCode, Message

TimerName: TypeAlias = tuple[str, ...]
"""A timer's identity, e.g. ("session", group_id, member_id); setting a name again replaces its deadline."""


@dataclass(frozen=True, slots=True)
class RequestReceived:
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
    """The records of effect `Write` number `id` are durable, or failed to become so with `error`."""

    id: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class PartitionLoading:
    """The process became coordinator for a partition of `__consumer_offsets`; its groups are not known yet."""

    partition: int


@dataclass(frozen=True, slots=True)
class PartitionLoaded:
    """Every record of the partition, in log order; a tombstone has value None. `wall_ms` is the time of loading."""

    partition: int
    records: tuple[tuple[bytes, bytes | None], ...]
    wall_ms: int


@dataclass(frozen=True, slots=True)
class PartitionUnloaded:
    """The process is no longer coordinator for the partition."""

    partition: int


@dataclass(frozen=True, slots=True)
class TopicsDeleted:
    """Topics vanished from the cluster: their committed offsets go too."""

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
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A response that may be sent now, in the api version the request had."""

    token: int
    message: Message


@dataclass(frozen=True, slots=True)
class Write:
    """Records to append atomically, in order, to one partition of `__consumer_offsets`.

    The shell answers each with one WriteCompleted, those of one partition in the order they were asked for.
    """

    id: int
    partition: int
    records: tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire TimerExpired(name) once `now` reaches `deadline` (ms)."""

    name: TimerName
    deadline: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget the timer; cancelling an unknown name is no error."""

    name: TimerName


@dataclass(frozen=True, slots=True)
class Effects:
    """What one step asks of the shell: carry out timers, start the writes in order, send the replies."""

    replies: tuple[Reply, ...] = ()
    writes: tuple[Write, ...] = ()
    timers: tuple[SetTimer | CancelTimer, ...] = ()
