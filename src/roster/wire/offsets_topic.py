"""Keys and values of the `__consumer_offsets` topic: committed offsets and classic groups.

A key starts with an int16 for its type (0 and 1 an offset, 2 a group), a value with an int16 for the version of its
table. Source: Kafka's group coordinator record schemas; the versions written are those of Kafka 4.1.
"""

from struct import Struct as Packing
from typing import TypeAlias, TypeVar, cast

from roster.wire.codec.codec import decode_from, encode
from roster.wire.codec.fields import array, bytes_, int32, int64, string, uuid
from roster.wire.codec.table import Message, Struct
from roster.wire.codec.varint import Buffer
from roster.wire.errors import WireError

_PREFIX = Packing(">h")

_V = TypeVar("_V", bound=Message)


class OffsetCommitKey(Message, versions="0"):
    """Key of an offset: group, topic, partition."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    """The offset; timestamps are wall-clock ms. With expire timestamp -1 the broker's retention applies."""

    offset: int = int64()
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: bytes = uuid("4+", ignorable=True, tag=0)


class GroupMetadataKey(Message, versions="0"):
    """Key of a group's metadata."""

    group: str = string()


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    """A group between rebalances; an empty one has no protocol, leader and members. Times in ms."""

    class Member(Struct):
        """A member with its subscription and its assignment."""

        member_id: str = string()
        group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
        client_id: str = string()
        client_host: str = string()
        rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
        session_timeout: int = int32()
        subscription: bytes = bytes_()
        assignment: bytes = bytes_()

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+", default=None)
    leader: str | None = string(nullable="0+", default=None)
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[Member] = array(Member)


Key: TypeAlias = OffsetCommitKey | GroupMetadataKey
Value: TypeAlias = OffsetCommitValue | GroupMetadataValue

_OFFSET_COMMIT_LEGACY, _OFFSET_COMMIT, _GROUP_METADATA = 0, 1, 2


def encode_key(key: Key) -> bytes:
    """Encode a key, with its type in front."""
    kind = _OFFSET_COMMIT if isinstance(key, OffsetCommitKey) else _GROUP_METADATA
    return _PREFIX.pack(kind) + encode(key, 0)


def decode_key(data: Buffer) -> Key | None:
    """Decode a key; None for an unknown type (consumer, share and streams groups)."""
    kind = read_version(data, "record key: type")
    if kind < 0:
        raise WireError(f"record key: type {kind}")
    if kind in (_OFFSET_COMMIT_LEGACY, _OFFSET_COMMIT):
        return decode_exactly(OffsetCommitKey, 0, data)
    if kind == _GROUP_METADATA:
        return decode_exactly(GroupMetadataKey, 0, data)
    return None


def encode_value(value: Value, version: int | None = None) -> bytes:
    """Encode a value, with its version in front: by default 3, or 1 for an offset with an expire timestamp."""
    if version is None:
        version = 1 if isinstance(value, OffsetCommitValue) and value.expire_timestamp != -1 else 3
    body = encode(value, version)
    return _PREFIX.pack(version) + body


def decode_value(key: Key, data: Buffer) -> Value:
    """Decode the value of a key; a tombstone must be handled before."""
    version = read_version(data, "record value: version")
    if isinstance(key, OffsetCommitKey):
        return decode_exactly(OffsetCommitValue, version, data)
    return decode_exactly(GroupMetadataValue, version, data)


def partition_of(group_id: str, count: int = 50) -> int:
    """Return a group's partition of `__consumer_offsets`: Java's string hash, made positive, modulo `count`."""
    units = group_id.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    if value >= 1 << 31:
        value = 0 if value == 1 << 31 else (1 << 32) - value
    return value % count


def read_version(data: Buffer, where: str) -> int:
    """Decode the int16 at the start of keys and values of Kafka's internal topics; `where` names it in errors."""
    if len(data) < _PREFIX.size:
        raise WireError(f"{where}: needs {_PREFIX.size} bytes, there are {len(data)}")
    return cast("int", _PREFIX.unpack_from(data)[0])


def decode_exactly(cls: type[_V], version: int, data: Buffer) -> _V:
    """Decode the table after that int16. Raises WireError if bytes are left."""
    message, end = decode_from(cls, version, data, _PREFIX.size)
    if end != len(data):
        raise WireError(f"{cls.__table__.name} v{version}: {len(data) - end} bytes behind the end of the record")
    return message
