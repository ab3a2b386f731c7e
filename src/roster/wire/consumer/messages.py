"""Subscription and Assignment v0-v3: the metadata of JoinGroup and the assignment of SyncGroup.

Both begin with an int16 version. As in Kafka's own reader, a version above 3 is read as 3 and additional bytes are
ignored, so that newer clients can add fields; a negative version is refused. Source: ConsumerProtocolSubscription and
ConsumerProtocolAssignment (Kafka), KIP-429 (owned partitions), KIP-792 (generation), KIP-881 (rack).
"""

from collections.abc import Iterable
from struct import Struct as Packing
from typing import TypeVar

from roster.model import NO_GENERATION, TopicPartition
from roster.wire.codec.codec import decode_from, encode
from roster.wire.codec.fields import array, bytes_, int32, string
from roster.wire.codec.table import Message, Struct
from roster.wire.codec.varint import Buffer
from roster.wire.errors import WireError

HIGHEST_VERSION = 3

_PREFIX = Packing(">h")

M = TypeVar("M", bound=Message)


class TopicPartitions(Struct):
    """Some partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(int32())


class Subscription(Message, versions="0-3"):
    """Topics a member subscribes to, partitions it owns, and the generation in which it got them."""

    topics: list[str] = array(string())
    user_data: bytes | None = bytes_(nullable="0+", default=None)
    owned_partitions: list[TopicPartitions] = array(TopicPartitions, "1+", ignorable=True)
    generation_id: int = int32("2+", default=NO_GENERATION, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class Assignment(Message, versions="0-3"):
    """Partitions assigned to a member."""

    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    user_data: bytes | None = bytes_(nullable="0+", default=None)


def by_topic(partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
    """Group partitions by topic, topics in the order they first appear."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return [TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in topics.items()]


def flat(topics: Iterable[TopicPartitions]) -> list[TopicPartition]:
    """Return the partitions of `topics` in their order."""
    return [TopicPartition(entry.topic, partition) for entry in topics for partition in entry.partitions]


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """Encode a subscription, with topics and owned partitions sorted, and an empty rack as null."""
    try:
        ordered = Subscription(
            topics=sorted(subscription.topics),
            user_data=subscription.user_data,
            owned_partitions=by_topic(sorted(flat(subscription.owned_partitions))),
            generation_id=subscription.generation_id,
            rack_id=subscription.rack_id or None,
        )
    except (AttributeError, TypeError):
        ordered = subscription  # values that cannot be sorted cannot be encoded; the encoder raises the error
    return _with_version(ordered, version)


def decode_subscription(data: Buffer) -> Subscription:
    """Decode a subscription of any version."""
    subscription = _any_version(Subscription, data)
    if subscription.rack_id == "":
        subscription.rack_id = None
    return subscription


def encode_assignment(assignment: Assignment, version: int = HIGHEST_VERSION) -> bytes:
    """Encode an assignment, with topics in the given order."""
    return _with_version(assignment, version)


def decode_assignment(data: Buffer) -> Assignment:
    """Decode an assignment of any version."""
    return _any_version(Assignment, data)


def version_of(data: Buffer) -> int:
    """Return the version in front of a subscription or assignment."""
    if len(data) < _PREFIX.size:
        raise WireError(f"consumer protocol: version: needs {_PREFIX.size} bytes, there are {len(data)}")
    version: int = _PREFIX.unpack_from(data)[0]
    if version < 0:
        raise WireError(f"consumer protocol: version {version}")
    return version


def _with_version(message: Message, version: int) -> bytes:
    body = encode(message, version)
    return _PREFIX.pack(version) + body


def _any_version(cls: type[M], data: Buffer) -> M:
    version = min(version_of(data), HIGHEST_VERSION)
    return decode_from(cls, version, data, _PREFIX.size)[0]


FAILURE_MAGIC = b"\xffroster-assignment-failure\x00"
"""Its first byte begins neither UTF-8 text nor a plausible count."""
MAX_FAILURE_BYTES = 4096


def failure_assignment(reason: str) -> bytes:
    """Encode the assignment of a leader that cannot compute one: empty, with the reason.

    SyncGroup has no field for an error of the leader. So every member gets an empty assignment whose user data is
    `FAILURE_MAGIC` followed by the reason in UTF-8. Roster's coordinator and members recognise it; for any other
    client it is an empty assignment.
    """
    text = reason.encode(errors="replace")[:MAX_FAILURE_BYTES].decode(errors="ignore")
    return encode_assignment(Assignment(assigned_partitions=[], user_data=FAILURE_MAGIC + text.encode()))


def failure_reason(assignment: bytes) -> str | None:
    """Return the reason in such an assignment; None for any other assignment."""
    if FAILURE_MAGIC not in assignment:
        return None
    try:
        user_data = decode_assignment(assignment).user_data
    except WireError:
        return None
    if user_data is None or not user_data.startswith(FAILURE_MAGIC):
        return None
    return user_data[len(FAILURE_MAGIC) :].decode(errors="replace")
