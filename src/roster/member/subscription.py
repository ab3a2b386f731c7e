"""Subscriptions that a member sends to the leader and assignments it receives, as consumer protocol bytes.

User data by the source of the assignor's claims (Kafka's StickyAssignor, CooperativeStickyAssignor):

    sticky user data   V1: [topic string, [int32]] of the last assignment, int32 generation it was given in
    fields             int32 generation, -1 before the first
    the same of those that look at lag   behind Roster's own header (`roster.wire.consumer.lag_user_data`)
    nowhere, and sticky before its first assignment   null

When a leader of Roster cannot compute an assignment it sends every member an empty one whose user data is
`FAILURE_MAGIC` followed by the reason in UTF-8: SyncGroup has no error field. Other clients see an empty assignment.
"""

from __future__ import annotations

from roster.assignors import Assignor, ClaimSource
from roster.model import NO_GENERATION, TopicPartition
from roster.wire import WireError
from roster.wire.consumer.lag_user_data import encode_lag_user_data
from roster.wire.consumer.messages import (
    Assignment,
    Subscription,
    by_topic,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    flat,
)
from roster.wire.consumer.messages import decode_assignment as read_assignment
from roster.wire.consumer.user_data import encode_cooperative_user_data, encode_sticky_user_data

FAILURE_MAGIC = b"\xffroster-assignment-failure\x00"
"""Starts with a byte that no UTF-8 text starts with, and that no plausible count starts with."""
MAX_FAILURE_BYTES = 4096


class LeaderFailure(Exception):  # noqa: N818 - a failure of the leader, not of this member
    """The leader could not compute an assignment; the text is its reason."""


def subscription_bytes(
    assignor: Assignor,
    *,
    topics: frozenset[str],
    owned: frozenset[TopicPartition],
    generation: int,
    rack: str | None,
    last_assignment: tuple[int, frozenset[TopicPartition]],
    capacity: int = 1,
    settling: bool = False,
) -> bytes:
    """Encode the subscription for one assignor, in version 3.

    `last_assignment` is the generation and the partitions of the newest assignment, (-1, none) after a reset. For
    assignors that balance lag: `capacity` weighs this member against one of capacity 1, `settling` marks a join that
    follows a revocation.
    """
    given_in, given = last_assignment
    user_data, source = None, assignor.claim_source
    if source is ClaimSource.STICKY_USER_DATA and given_in != NO_GENERATION:
        user_data = encode_sticky_user_data(
            {entry.topic: entry.partitions for entry in by_topic(sorted(given))}, given_in
        )
    elif source is ClaimSource.FIELDS:
        user_data = encode_cooperative_user_data(generation)
    if assignor.wants_lag and source is not ClaimSource.NONE:
        user_data = encode_lag_user_data(user_data, capacity=capacity, settling=settling)
    return encode_subscription(
        Subscription(
            topics=sorted(topics),
            user_data=user_data,
            owned_partitions=by_topic(owned),
            generation_id=generation,
            rack_id=rack,
        )
    )


def topics_of(subscription: bytes) -> frozenset[str]:
    """Return the topics a member subscribes to; none when its bytes cannot be decoded."""
    try:
        return frozenset(decode_subscription(subscription).topics)
    except WireError:
        return frozenset()


def claimed(subscription: bytes) -> frozenset[TopicPartition]:
    """The partitions a member says that it holds; none when its bytes cannot be read."""
    try:
        return frozenset(flat(decode_subscription(subscription).owned_partitions))
    except WireError:
        return frozenset()


def assignment_bytes(partitions: frozenset[TopicPartition]) -> bytes:
    """An assignment of these partitions."""
    return encode_assignment(Assignment(assigned_partitions=by_topic(sorted(partitions))))


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Return the partitions assigned; empty bytes mean none. Raises LeaderFailure or WireError."""
    if not data:
        return frozenset()
    assignment = read_assignment(data)
    user_data = assignment.user_data
    if user_data is not None and user_data.startswith(FAILURE_MAGIC):
        raise LeaderFailure(user_data[len(FAILURE_MAGIC) :].decode(errors="replace"))
    return frozenset(flat(assignment.assigned_partitions))


def failure_assignment(reason: str) -> bytes:
    """Encode an empty assignment that carries the reason to Roster's members."""
    text = reason.encode(errors="replace")[:MAX_FAILURE_BYTES].decode(errors="ignore")
    return encode_assignment(Assignment(assigned_partitions=[], user_data=FAILURE_MAGIC + text.encode()))
