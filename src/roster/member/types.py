"""Values that a member and its shell exchange inside events and effects."""

from dataclasses import dataclass
from enum import Enum, StrEnum
from re import Pattern
from typing import NamedTuple, TypeAlias

from roster.model import Address, TopicPartition
from roster.wire import ErrorCode

Selection: TypeAlias = frozenset[str] | Pattern[str]
"""Topics to subscribe to: by name, or every non-internal topic whose whole name the pattern matches."""


class Node(NamedTuple):
    """A broker's id and address."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return str(Address(self.host, self.port))


class Channel(Enum):
    """Connection to use. A broker answers the requests of one connection in order, and may park some of them."""

    PARKED = "parked"
    """To the coordinator, for JoinGroup and SyncGroup, whose responses may take a whole rebalance."""
    PROMPT = "prompt"
    """To the coordinator, for Heartbeat, OffsetCommit and LeaveGroup, which must not queue behind a parked request."""
    ANY = "any"
    """To any broker, for everything else."""
    RECORDS = "records"
    """To any broker, for Fetch, which it may hold until there are records."""


class FailureKind(Enum):
    """Reason why a member stopped, or why a commit was not written."""

    SESSION_TIMEOUT = "session timeout"
    PROTOCOL = "protocol"
    GROUP_FULL = "group full"
    FENCED_INSTANCE = "fenced instance"
    AUTHENTICATION = "authentication"
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
    """Reason of a failure: kind, message, and the broker's error `code`, NONE if the broker sent none."""

    kind: FailureKind
    message: str
    code: ErrorCode = ErrorCode.NONE
    partitions: frozenset[TopicPartition] = frozenset()


class ReportKind(StrEnum):
    """Subject of a `Report`."""

    COORDINATOR = "coordinator"
    JOINING = "joining"
    JOINED = "joined"
    LEADING = "leading"
    DIVIDED = "divided"
    ASSIGNED = "assigned"
    REVOKING = "revoking"
    LOST = "lost"
    REJOIN = "rejoin"
    RETRY = "retry"
    LEFT = "left"
    FAILED = "failed"
