"""Events and effects: the whole interface between the state machine and the shell that runs it.

Times are integer milliseconds of a monotonic clock. The shell carries out effects in order, sends requests without
waiting for earlier ones, and answers every `Send` with one `Responded` or `RequestFailed`. Late and repeated answers
are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from roster.assignors import Assignor
from roster.member.group_snapshot import GroupSnapshot
from roster.member.timers import TimerName
from roster.member.types import Channel, Failure, Node, ReportKind, Selection
from roster.model import CancelTimer, OffsetAndMetadata, PartitionOffsets, SetTimer, TopicPartition
from roster.wire import Message

# Events: shell to member.


@dataclass(frozen=True, slots=True)
class Started:
    """Join the group now. former_id: a static member's id in its last membership, "" if it has had none.

    The coordinator refuses that id if another member has taken its instance id since (KIP-345).
    """

    former_id: str = ""


@dataclass(frozen=True, slots=True)
class Responded:
    """The response to `Send` number `id`, in the newest version of the message, whichever was negotiated."""

    id: int
    message: Message


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """`Send` number `id` has no response: no connection, connection lost, or timed out."""

    id: int
    reason: str
    unsupported: bool = False
    """True if the broker supports no version of the request that can carry it."""
    refused: bool = False
    """True if the broker refused this client's login or certificate, or this client does not trust the broker."""


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """A timer set by an earlier effect reached its deadline."""

    name: TimerName


@dataclass(frozen=True, slots=True)
class Assigned:
    """The result of `Assign` number `id`: assignment bytes per member id.

    withholds: partitions are withheld for one round; their owners give them up and rejoin, then others get them.
    """

    id: int
    assignments: Mapping[str, bytes]
    withholds: bool = False


@dataclass(frozen=True, slots=True)
class AssignFailed:
    """`Assign` number `id` failed; the leader sends `reason` to every member of the group."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True)
class OffsetsFetched:
    """The result of `FetchOffsets` number `id`; None with a `reason` when the offsets are not available."""

    id: int
    offsets: PartitionOffsets | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """The application finished its work on these partitions and committed it."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class SelectionChanged:
    """Subscribe to other topics from now on."""

    selection: Selection


@dataclass(frozen=True, slots=True)
class RebalanceRequested:
    """Rejoin with new user data (KIP-568, enforceRebalance)."""

    reason: str


@dataclass(frozen=True, slots=True)
class CommitRequested:
    """Commit `offsets` for work done under the ownership published with `epoch`; answered by `CommitDone(token)`."""

    token: int
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    epoch: int


@dataclass(frozen=True, slots=True)
class Closed:
    """Close. If `leave`, a dynamic member sends LeaveGroup. A static one never does, so it can return with its id."""

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
    | RebalanceRequested
    | CommitRequested
    | Closed
)

# Effects: member to shell.


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request: to the coordinator at `to`, or to any broker when `to` is None; fail it after `timeout_ms`."""

    id: int
    message: Message
    timeout_ms: int
    to: Node | None = None
    channel: Channel = Channel.ANY


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connections to a former coordinator, so that no request waits behind a parked one."""

    node: Node


@dataclass(frozen=True, slots=True)
class Assign:
    """Compute the group's assignment in another thread, while heartbeats continue.

    Answered by `Assigned` or `AssignFailed`.

    `group.partitions` has only topics that exist.
    """

    id: int
    assignor: Assignor
    group: GroupSnapshot


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """Fetch log start, log end and committed offset of every partition, for an assignor that balances lag.

    `partitions` is the partition count of each topic. Answered by one `OffsetsFetched`, at the latest after
    `timeout_ms`.
    """

    id: int
    group: str
    partitions: Mapping[str, int]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Ownership changed.

    `partitions` are owned; `revoking` are to be released before `revoke_deadline` (ms); `lost` were owned until this
    change. The three are disjoint. `epoch` counts the changes.
    """

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
    """A commit ended; it was written if `failure` is None."""

    token: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A line for logs and views. cause: of a generation that was joined, one of `Cause`."""

    kind: ReportKind
    text: str
    generation: int = -1
    member_id: str = ""
    partitions: frozenset[TopicPartition] = field(default_factory=frozenset)
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The member has stopped; no effect follows."""


Effect: TypeAlias = (
    Send
    | Disconnect
    | Assign
    | FetchOffsets
    | SetTimer[TimerName]
    | CancelTimer[TimerName]
    | Publish
    | CommitDone
    | Report
    | Stopped
)
