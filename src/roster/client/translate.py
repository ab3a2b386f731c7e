"""A member's failures as exceptions."""

from __future__ import annotations

from roster.client.errors import (
    AssignmentError,
    AuthorizationError,
    ClientError,
    ClosedError,
    CommitError,
    CommitFenced,
    CommitRetriable,
    FencedInstanceError,
    GroupError,
    GroupFullError,
    InconsistentProtocolError,
    SessionTimeoutError,
    UnknownTopicError,
    UnsupportedError,
)
from roster.member.types import Failure, FailureKind

PLAIN: dict[FailureKind, type[ClientError]] = {
    FailureKind.SESSION_TIMEOUT: SessionTimeoutError,
    FailureKind.PROTOCOL: InconsistentProtocolError,
    FailureKind.GROUP_FULL: GroupFullError,
    FailureKind.FENCED_INSTANCE: FencedInstanceError,
    FailureKind.AUTHORIZATION: AuthorizationError,
    FailureKind.UNSUPPORTED: UnsupportedError,
    FailureKind.ASSIGNMENT: AssignmentError,
    FailureKind.CLOSED: ClosedError,
}

OF_COMMITS: dict[FailureKind, type[CommitError]] = {
    FailureKind.FENCED: CommitFenced,
    FailureKind.RETRIABLE: CommitRetriable,
    FailureKind.METADATA_TOO_LARGE: CommitError,
}


def error_of(failure: Failure) -> ClientError:
    """The exception for a failure; GroupError where there is nothing more exact."""
    code = int(failure.code)
    if failure.kind in OF_COMMITS:
        return OF_COMMITS[failure.kind](failure.message, partitions=failure.partitions, code=code)
    if failure.kind is FailureKind.UNKNOWN_TOPIC:
        return UnknownTopicError(failure.message, topics=sorted({p.topic for p in failure.partitions}), code=code)
    return PLAIN.get(failure.kind, GroupError)(failure.message, code=code)
