"""Committed offsets of a group."""

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, boolean, int16, int32, int64, string
from roster.wire.codec.table import Message, Struct


class TopicErrors(Struct):
    """An error code for each partition of a topic."""

    class Partition(Struct):
        partition_index: int = int32()
        error_code: int = int16()

    name: str = string()
    partitions: list[Partition] = array(Partition)


class OffsetCommitRequest(Message, key=ApiKey.OFFSET_COMMIT, versions="2-9", flexible="8+"):
    """Store offsets under a generation (-1: none). Retention in ms, -1: as configured."""

    class Topic(Struct):
        class Partition(Struct):
            """The next offset to read, with whatever text the client attaches."""

            partition_index: int = int32()
            committed_offset: int = int64()
            committed_leader_epoch: int = int32("6+", default=-1, ignorable=True)
            committed_metadata: str | None = string(nullable="0+")

        name: str = string(ignorable=True)
        partitions: list[Partition] = array(Partition)

    Partition = Topic.Partition

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1, ignorable=True)
    member_id: str = string(ignorable=True)
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1, ignorable=True)
    topics: list[Topic] = array(Topic)


class OffsetCommitResponse(Message, key=ApiKey.OFFSET_COMMIT, versions="2-9", flexible="8+"):
    """One error per partition."""

    Topic = TopicErrors
    Partition = TopicErrors.Partition

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[TopicErrors] = array(TopicErrors)


class OffsetFetchRequest(Message, key=ApiKey.OFFSET_FETCH, versions="1-9", flexible="6+"):
    """Ask for committed offsets: up to v7 of one group, from v8 of many. `topics` None means all of them."""

    class Group(Struct):
        """One group; member id and epoch are for KIP-848 groups."""

        class Topic(Struct):
            name: str = string()
            partition_indexes: list[int] = array(int32())

        group_id: str = string()
        member_id: str | None = string("9+", nullable="9+", default=None, ignorable=True)
        member_epoch: int = int32("9+", default=-1, ignorable=True)
        topics: list[Topic] | None = array(Topic, nullable="0+")

    Topic = Group.Topic

    group_id: str = string("0-7")
    topics: list[Group.Topic] | None = array(Group.Topic, "0-7", nullable="2-7")
    groups: list[Group] = array(Group, "8+")
    require_stable: bool = boolean("7+")


class OffsetFetchResponse(Message, key=ApiKey.OFFSET_FETCH, versions="1-9", flexible="6+"):
    """Committed offsets: up to v7 in `topics`, from v8 in `groups`."""

    class Group(Struct):
        class Topic(Struct):
            class Partition(Struct):
                partition_index: int = int32()
                committed_offset: int = int64()
                committed_leader_epoch: int = int32("5+", default=-1, ignorable=True)
                metadata: str | None = string(nullable="0+")
                error_code: int = int16()

            name: str = string()
            partitions: list[Partition] = array(Partition)

        group_id: str = string()
        topics: list[Topic] = array(Topic)
        error_code: int = int16()

    Topic = Group.Topic
    Partition = Group.Topic.Partition

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[Group.Topic] = array(Group.Topic, "0-7")
    error_code: int = int16("2-7", ignorable=True)
    groups: list[Group] = array(Group, "8+")


class OffsetDeleteRequest(Message, key=ApiKey.OFFSET_DELETE, versions="0"):
    """Forget committed offsets (KIP-496)."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int = int32()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    Partition = Topic.Partition

    group_id: str = string()
    topics: list[Topic] = array(Topic)


class OffsetDeleteResponse(Message, key=ApiKey.OFFSET_DELETE, versions="0"):
    """One error for all, or one per partition."""

    error_code: int = int16()
    throttle_time_ms: int = int32(ignorable=True)
    topics: list[TopicErrors] = array(TopicErrors)
