"""Records of KIP-848 consumer groups in `__consumer_offsets`, as far as a history reads them; values have version 0.

Source: Kafka's group coordinator record schemas, 4.3. Behind a key's type are the group, and for records of a member
its id. Records of topics (type 4, before 4.1) and of targets (6 and 7) say nothing that the others do not.
"""

from roster.wire.codec.codec import decode_from
from roster.wire.codec.fields import array, int8, int32, string, uuid
from roster.wire.codec.table import Message, Struct
from roster.wire.codec.varint import Buffer
from roster.wire.errors import WireError
from roster.wire.offsets_topic import decode_exactly, read_version


class ConsumerGroupMetadataValue(Message, versions="0", flexible="0+"):
    """The epoch of a group: it grows when members, subscriptions or topics change."""

    epoch: int = int32()


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible="0+"):
    """A member and what it subscribes to."""

    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string())
    subscribed_topic_regex: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+", default=None)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+"):
    """Partitions that a member owns, and the epoch it has reached; in state 0 they are exactly its target."""

    class TopicPartitions(Struct):
        """Partitions of a topic."""

        topic_id: bytes = uuid()
        partitions: list[int] = array(int32())

    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions)


VALUES: dict[int, type[Message] | None] = {
    3: ConsumerGroupMetadataValue,
    4: None,
    5: ConsumerGroupMemberMetadataValue,
    6: None,
    7: None,
    8: ConsumerGroupCurrentMemberAssignmentValue,
}
"""Records by the type in their keys; None: not read."""
_OF_MEMBERS = (5, 7, 8)


class _Key(Message, versions="0-1"):
    group: str = string()
    member_id: str = string("1+", ignorable=True)


def decode_consumer_key(data: Buffer) -> tuple[int, str, str] | None:
    """Return type, group and member id ("" without one); None for a record of another kind."""
    kind = read_version(data, "record key: type")
    if kind not in VALUES:
        return None
    key, end = decode_from(_Key, int(kind in _OF_MEMBERS), data, 2)
    if end != len(data):
        raise WireError(f"record key {kind}: {len(data) - end} bytes behind its end")
    return kind, key.group, key.member_id


def decode_consumer_value(kind: int, data: Buffer) -> Message | None:
    """Decode the value of a record of that type; None if it is not read."""
    version, cls = read_version(data, "record value: version"), VALUES[kind]
    return None if cls is None else decode_exactly(cls, version, data)
