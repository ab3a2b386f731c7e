"""What goes into a member and what comes out: the whole seam between the state machine and its shell.

Times are integer milliseconds of a monotonic clock. The shell carries effects out in order, sends requests without
waiting for each other, and answers every `Send` with one `Responded` or `RequestFailed`; late or repeated answers do no
harm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from re import Pattern
from typing import NamedTuple, TypeAlias

from roster.assignors import Assignor
from roster.member.offsets import OffsetAndMetadata
from roster.model import Address, TopicPartition
from roster.wire import ErrorCode, Message

Selection: TypeAlias = frozenset[str] | Pattern[str]
"""The topics a member wants: by name, or every non-internal topic whose whole name the pattern matches."""


class Node(NamedTuple):
    """A broker's address."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return str(Address(self.host, self.port))


class Channel(Enum):
    """Which connection to use: a broker answers one connection's requests in order, and may park some."""

    PARKED = "parked"
    """To the coordinator: JoinGroup and SyncGroup, whose answers may take a whole rebalance."""
    PROMPT = "prompt"
    """To the coordinator: heartbeats, commits and leaving, which must not wait behind them."""
    ANY = "any"
    """To any broker: everything else."""


class FailureKind(Enum):
    """Why a member cannot go on, or a commit cannot go through."""

    SESSION_TIMEOUT = "session timeout"
    PROTOCOL = "protocol"
    GROUP_FULL = "group full"
    FENCED_INSTANCE = "fenced instance"
    AUTHORIZATION = "authorization"
    GROUP_ID = "group id"
    UNSUPPORTED = "unsupported"
    ASSIGNMENT = "assignment"
    UNEXPECTED = "unexpected"
    FENCED = "fenced"
    RETRIABLE = "retriable"
    UNKNOWN_TOPIC = "unknown topic"
    METADATA_TOO_LARGE = "metadata too large"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Failure:
    """A reason for people and for code; `code` is the broker's error, NONE when the member itself decided."""

    kind: FailureKind
    message: str
    code: ErrorCode = ErrorCode.NONE
    partitions: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Started:
    """Join the group now."""


@dataclass(frozen=True, slots=True)
class Responded:
    """The answer to `Send` number `id`, in the newest shape of the message whatever version was spoken."""

    id: int
    message: Message


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """`Send` number `id` will get no answer: no connection, connection lost, or timed out."""

    id: int
    reason: str
    unsupported: bool = False


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """A timer set by an earlier effect reached its deadline."""

    name: TimerName


@dataclass(frozen=True, slots=True)
class Assigned:
    """The result of `Assign` number `id`: assignment bytes per member id."""

    id: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class AssignFailed:
    """`Assign` number `id` failed; every member of the group will be told `reason`."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True)
class OffsetsFetched:
    """The answer to `FetchOffsets` number `id`, as `roster.member.leader.lead` takes it; None: they cannot be had."""

    id: int
    offsets: Mapping[str, Mapping[int, tuple[int, int, int | None]]] | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """The application stopped working on these partitions and committed what it had."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class SelectionChanged:
    """The application wants other topics from now on."""

    selection: Selection


@dataclass(frozen=True, slots=True)
class CommitRequested:
    """Commit `offsets` for work done under the ownership published with `epoch`; answered by `CommitDone(token)`."""

    token: int
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    epoch: int


@dataclass(frozen=True, slots=True)
class Closed:
    """Stop. With `leave` a dynamic member says goodbye; a static one never does, its place waits for its return."""

    leave: bool = True
    reason: str = "the member is being closed"


Event: TypeAlias = (
    Started
    | Responded
    | RequestFailed
    | TimerExpired
    | Assigned
    | AssignFailed
    | OffsetsFetched
    | Released
    | SelectionChanged
    | CommitRequested
    | Closed
)

TimerName: TypeAlias = tuple[str | int, ...]
"""A timer's identity, e.g. ("heartbeat",) or ("commit", token); setting a name again replaces its deadline."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request: to the coordinator at `to`, or to any broker when `to` is None; give up after `timeout_ms`."""

    id: int
    message: Message
    timeout_ms: int
    to: Node | None = None
    channel: Channel = Channel.ANY


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The node is not the coordinator any more: drop its connections, nothing must wait behind a parked request."""

    node: Node


@dataclass(frozen=True, slots=True)
class Assign:
    """Compute the group's assignment off the event loop (heartbeats go on); answered by `Assigned` or `AssignFailed`.

    The fields are the arguments of `roster.member.leader.lead`; `partitions` has only topics that exist.
    """

    id: int
    assignor: Assignor
    subscriptions: Mapping[str, bytes]
    partitions: Mapping[str, int]
    instance_ids: Mapping[str, str | None]
    racks: Mapping[str, Sequence[Collection[str]]] | None
    generation: int
    offsets: Mapping[str, Mapping[int, tuple[int, int, int | None]]] | None = None
    auto_offset_reset: str = "latest"


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """Look up first, end and the group's committed offset of every partition, before the assignment that wants them.

    partitions: how many each topic has. Answered by one `OffsetsFetched`, at the latest after `timeout_ms`.
    """

    id: int
    group: str
    partitions: Mapping[str, int]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire `TimerExpired(name)` once the clock reaches `deadline` (ms)."""

    name: TimerName
    deadline: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget the timer; cancelling an unknown name is no error."""

    name: TimerName


@dataclass(frozen=True, slots=True)
class Publish:
    """What the member owns has changed; see `roster.client.Ownership` for the meaning of the fields. Deadline in ms."""

    epoch: int
    generation: int = -1
    member_id: str = ""
    partitions: frozenset[TopicPartition] = frozenset()
    revoking: frozenset[TopicPartition] = frozenset()
    lost: frozenset[TopicPartition] = frozenset()
    revoke_deadline: int | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class CommitDone:
    """A commit ended: durable when `failure` is None."""

    token: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Something worth telling people; `kind` as in `roster.client.MemberEvent`."""

    kind: str
    text: str
    generation: int = -1
    member_id: str = ""
    partitions: frozenset[TopicPartition] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Stopped:
    """The member is done; nothing more will come out of it."""


Effect: TypeAlias = (
    Send | Disconnect | Assign | FetchOffsets | SetTimer | CancelTimer | Publish | CommitDone | Report | Stopped
)
