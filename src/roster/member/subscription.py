"""Subscriptions that a member sends to the leader and assignments it receives, as consumer protocol bytes.

A subscription's user data comes from the assignor (`Assignor.subscription_user_data`). An assignment's user data comes
from the leader; if it could not assign, it has the reason (`roster.wire.consumer.messages`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from roster.assignors import Assignor, JoinContext
from roster.model import TopicPartition
from roster.wire import WireError
from roster.wire.consumer.messages import (
    Assignment,
    Subscription,
    by_topic,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    failure_reason,
    flat,
)
from roster.wire.consumer.messages import decode_assignment as read_assignment


class AssignorError(Exception):
    """A method of this member's assignor raised an exception; the message names both."""


class LeaderFailure(Exception):  # a failure of the leader, not of this member
    """The leader could not compute an assignment; the message is its reason."""


class ReceivedAssignment(NamedTuple):
    """A decoded assignment: its partitions, and the leader's user data, if any."""

    partitions: frozenset[TopicPartition]
    user_data: bytes | None = None


def subscription_bytes(assignor: Assignor, join: JoinContext) -> bytes:
    """Encode the subscription for one assignor, in version 3. Raises AssignorError."""
    with assignor_errors(assignor, "subscription_user_data"):
        user_data = assignor.subscription_user_data(join)
        if user_data is not None and not isinstance(user_data, bytes):
            raise TypeError(f"must return bytes or None, not {type(user_data).__name__}")
    return encode_subscription(
        Subscription(
            topics=sorted(join.topics),
            user_data=user_data,
            owned_partitions=by_topic(join.owned),
            generation_id=join.generation,
            rack_id=join.rack,
        )
    )


@contextmanager
def assignor_errors(assignor: Assignor, method: str) -> Iterator[None]:
    """Turn any error of an assignor's method into an AssignorError."""
    try:
        yield
    except Exception as error:
        raise AssignorError(f"assignor {assignor.name}: {method}: {type(error).__name__}: {error}") from error


def topics_of(subscription: bytes) -> frozenset[str]:
    """Return the topics of a member's subscription; none if its bytes cannot be decoded."""
    try:
        return frozenset(decode_subscription(subscription).topics)
    except WireError:
        return frozenset()


def claimed(subscription: bytes) -> frozenset[TopicPartition]:
    """Return the partitions that a member claims; none if its bytes cannot be decoded."""
    try:
        return frozenset(flat(decode_subscription(subscription).owned_partitions))
    except WireError:
        return frozenset()


def assignment_bytes(assignment: ReceivedAssignment) -> bytes:
    """Encode an assignment."""
    listed = by_topic(sorted(assignment.partitions))
    return encode_assignment(Assignment(assigned_partitions=listed, user_data=assignment.user_data))


def decode_assignment(data: bytes) -> ReceivedAssignment:
    """Decode an assignment; empty bytes mean none. Raises LeaderFailure or WireError."""
    if not data:
        return ReceivedAssignment(frozenset())
    if (reason := failure_reason(data)) is not None:
        raise LeaderFailure(reason)
    assignment = read_assignment(data)
    return ReceivedAssignment(frozenset(flat(assignment.assigned_partitions)), assignment.user_data)
