"""Errors of the client; each message names the cause and the fix."""

from collections.abc import Collection

from roster._errors import RosterError
from roster.member.types import Failure, FailureKind
from roster.model import TopicPartition
from roster.wire import ErrorCode


class ClientError(RosterError):
    """Base of all errors of the client; `code` is the broker's error code when a broker said so, else None.

    `retriable` is true when the same call may succeed later without a change of configuration.
    """

    retriable = False

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class OptionError(ClientError, ValueError):
    """An option has an invalid value; `option` is its name."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"option {option}: {message}")
        self.option = option


class AuthenticationError(ClientError):
    """The broker refused the login or the client's certificate, or its own certificate is not trusted."""


class UnreachableError(ClientError):
    """No broker answered at the addresses given."""

    retriable = True


class RequestTimeoutError(ClientError):
    """A broker was reached but the answer did not come in time."""

    retriable = True


class UnsupportedError(ClientError):
    """The broker does not speak a version of the request that this client needs."""


class BrokerError(ClientError):
    """The broker refused a request with an error code that has no exception class here."""


class UnknownTopicError(ClientError):
    """A topic or partition does not exist; `topics` names them."""

    def __init__(self, message: str, *, topics: Collection[str] = (), code: int | None = None) -> None:
        super().__init__(message, code=code)
        self.topics = tuple(topics)


def no_such_topics(names: Collection[str]) -> UnknownTopicError:
    """Return the error for topics that do not exist."""
    return UnknownTopicError(
        f"no such topic: {', '.join(sorted(names))}. Create it (roster topics create) or correct the name",
        topics=names,
        code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


class TopicExistsError(ClientError):
    """The topic to create already exists."""


class InvalidTopicError(BrokerError):
    """The cluster does not allow this name, number of partitions or replicas, or setting of a topic."""


class InvalidRequestError(ClientError, ValueError):
    """A value does not fit into a request; the message names the field."""


class TransactionAbortedError(ClientError):
    """The transaction cannot be committed, and nothing in it counts; its work may be done again in another."""


class ProducerFencedError(TransactionAbortedError):
    """Another producer has taken the transactional id; what this one had open is aborted."""


class GroupError(ClientError):
    """The group refused this member or failed; the member is closed."""


class SessionTimeoutError(GroupError):
    """session_timeout_ms lies outside the range the broker allows."""


class InconsistentProtocolError(GroupError):
    """The group's members share no assignor with this one, or the group is not a consumer group."""


class GroupFullError(GroupError):
    """The group has as many members as the broker allows."""


class FencedInstanceError(GroupError):
    """Another member with the same group_instance_id took this member's place."""


class AuthorizationError(GroupError):
    """The broker does not allow this client to use the group or a topic."""


class AssignmentError(GroupError):
    """The group's leader could not compute an assignment and said why."""


class UnknownGroupError(GroupError):
    """The group does not exist."""


class GroupTypeError(GroupError):
    """The group is of a type that this client cannot describe, such as a share group."""


class GroupNotEmptyError(GroupError):
    """The group still has members; neither it nor offsets in use can be deleted."""


class GroupEmptyError(GroupError):
    """The group has no members."""


class RebalanceInProgressError(GroupError):
    """The group is in the middle of a rebalance, when its members' subscriptions are not visible."""

    retriable = True


class ClosedError(ClientError):
    """The member or client was closed."""


class CommitError(ClientError):
    """Offsets were not committed; `partitions` names them."""

    def __init__(self, message: str, *, partitions: Collection[TopicPartition] = (), code: int | None = None) -> None:
        super().__init__(message, code=code)
        self.partitions = frozenset(partitions)


class CommitFenced(CommitError):  # the name states the fact the caller must act on
    """The partitions were lost to another member: results of that work must not be published."""


class CommitRetriable(CommitError):
    """The commit failed or its outcome is unknown; it may be repeated while the partitions are owned."""

    retriable = True


_ERRORS: dict[FailureKind, type[ClientError]] = {
    FailureKind.SESSION_TIMEOUT: SessionTimeoutError,
    FailureKind.PROTOCOL: InconsistentProtocolError,
    FailureKind.GROUP_FULL: GroupFullError,
    FailureKind.FENCED_INSTANCE: FencedInstanceError,
    FailureKind.AUTHENTICATION: AuthenticationError,
    FailureKind.AUTHORIZATION: AuthorizationError,
    FailureKind.UNSUPPORTED: UnsupportedError,
    FailureKind.ASSIGNMENT: AssignmentError,
    FailureKind.CLOSED: ClosedError,
}

_COMMIT_ERRORS: dict[FailureKind, type[CommitError]] = {
    FailureKind.FENCED: CommitFenced,
    FailureKind.RETRIABLE: CommitRetriable,
    FailureKind.METADATA_TOO_LARGE: CommitError,
}


def failure_error(failure: Failure) -> ClientError:
    """Return the exception for a member's failure; GroupError without a narrower class."""
    code = int(failure.code)
    if failure.kind in _COMMIT_ERRORS:
        return _COMMIT_ERRORS[failure.kind](failure.message, partitions=failure.partitions, code=code)
    if failure.kind is FailureKind.UNKNOWN_TOPIC:
        return UnknownTopicError(failure.message, topics=sorted({p.topic for p in failure.partitions}), code=code)
    return _ERRORS.get(failure.kind, GroupError)(failure.message, code=code)


_DELETIONS = frozenset({"it cannot be deleted"})
"""Requests that need the ACL operation DELETE on a group; all others need READ."""


def group_error(code: ErrorCode, group: str, what: str) -> ClientError:
    """Return the exception for an error code in a response about a group; `what` failed."""
    name = f"group {group!r}: {what}"
    if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return AuthorizationError(f"{name}; grant this client READ on the topics ({code.name})", code=code)
    if code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
        right = "DELETE" if what in _DELETIONS else "READ"
        return AuthorizationError(f"{name}; grant this client {right} on the group ({code.name})", code=code)
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        return UnknownGroupError(f"there is no group {group!r}; the name may be misspelt", code=code)
    return GroupError(f"{name} ({code.name})", code=code)


def transaction_error(code: ErrorCode, transactional_id: str, what: str) -> ClientError:
    """Return the exception for an error code in a response about a transactional id; `what` failed."""
    name = f"transactional id {transactional_id!r}: {what}"
    if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return AuthorizationError(f"{name}; grant this client WRITE and DESCRIBE on it ({code.name})", code=code)
    if code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return AuthorizationError(f"{name}; grant this client READ on the group ({code.name})", code=code)
    if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return AuthorizationError(f"{name}; grant this client READ and WRITE on the topics ({code.name})", code=code)
    return BrokerError(f"{name} ({code.name})", code=code)
