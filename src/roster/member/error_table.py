"""The action that each error code of each response requires.

The rows follow Kafka's Java client (AbstractCoordinator, ConsumerCoordinator). A code that is not listed is fatal.
"""

from enum import Enum

from roster.member.types import FailureKind
from roster.wire import ErrorCode as E


class Action(Enum):
    """Reaction to a response."""

    ACCEPT = "accept"
    TAKE_MEMBER_ID = "keep the member id given and join again at once"
    RETRY = "join again at once, as the same member"
    BACK_OFF = "try again after a pause"
    REDISCOVER = "look for the coordinator, then try again after a pause"
    RESET_MEMBER = "drop generation and member id, then join again"
    RESET_GENERATION = "drop the generation, keep the member id, then join again"
    REJOIN = "join again, as the same member, when stable"
    FATAL = "give up"


FIND_COORDINATOR = {
    E.NONE: Action.ACCEPT,
    E.COORDINATOR_NOT_AVAILABLE: Action.BACK_OFF,
    E.COORDINATOR_LOAD_IN_PROGRESS: Action.BACK_OFF,
    E.REQUEST_TIMED_OUT: Action.BACK_OFF,
}
_OF_COORDINATORS = {
    E.NONE: Action.ACCEPT,
    E.COORDINATOR_LOAD_IN_PROGRESS: Action.BACK_OFF,
    E.REQUEST_TIMED_OUT: Action.BACK_OFF,
    E.COORDINATOR_NOT_AVAILABLE: Action.REDISCOVER,
    E.NOT_COORDINATOR: Action.REDISCOVER,
}
_OF_MEMBERS = {
    **_OF_COORDINATORS,
    E.UNKNOWN_MEMBER_ID: Action.RESET_MEMBER,
    E.ILLEGAL_GENERATION: Action.RESET_GENERATION,
}
SYNC_GROUP = {**_OF_MEMBERS, E.REBALANCE_IN_PROGRESS: Action.RETRY}
JOIN_GROUP = {**SYNC_GROUP, E.MEMBER_ID_REQUIRED: Action.TAKE_MEMBER_ID}
HEARTBEAT = {**_OF_MEMBERS, E.REBALANCE_IN_PROGRESS: Action.REJOIN}
DESCRIBE_GROUPS = _OF_COORDINATORS
"""Any other error ends the comparison with the kept assignment, but does not fail the member."""
OFFSET_COMMIT = {**HEARTBEAT, E.REQUEST_TIMED_OUT: Action.REDISCOVER}
"""Errors that concern the group; `COMMIT_FAILURES` has those that concern single partitions."""

COMMIT_FAILURES = {
    E.UNKNOWN_TOPIC_OR_PARTITION: FailureKind.UNKNOWN_TOPIC,
    E.UNKNOWN_TOPIC_ID: FailureKind.UNKNOWN_TOPIC,
    E.OFFSET_METADATA_TOO_LARGE: FailureKind.METADATA_TOO_LARGE,
    E.INVALID_COMMIT_OFFSET_SIZE: FailureKind.METADATA_TOO_LARGE,
    E.TOPIC_AUTHORIZATION_FAILED: FailureKind.AUTHORIZATION,
}

FATAL_KINDS = {
    E.INVALID_SESSION_TIMEOUT: FailureKind.SESSION_TIMEOUT,
    E.INCONSISTENT_GROUP_PROTOCOL: FailureKind.PROTOCOL,
    E.GROUP_MAX_SIZE_REACHED: FailureKind.GROUP_FULL,
    E.FENCED_INSTANCE_ID: FailureKind.FENCED_INSTANCE,
    E.GROUP_AUTHORIZATION_FAILED: FailureKind.AUTHORIZATION,
    E.INVALID_GROUP_ID: FailureKind.GROUP_ID,
    E.UNSUPPORTED_VERSION: FailureKind.UNSUPPORTED,
}
