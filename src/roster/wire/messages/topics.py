"""Creating, changing and deleting topics."""

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, boolean, int8, int16, int32, int64, string, uuid
from roster.wire.codec.table import Message, Struct


class CreateTopicsRequest(Message, key=ApiKey.CREATE_TOPICS, versions="2-7", flexible="5+"):
    """Create topics."""

    class Topic(Struct):
        """A topic to create; -1 for partitions or replication takes the broker's default."""

        class Assignment(Struct):
            partition_index: int = int32()
            broker_ids: list[int] = array(int32())

        class Config(Struct):
            name: str = string()
            value: str | None = string(nullable="0+", default=None)

        name: str = string()
        num_partitions: int = int32()
        replication_factor: int = int16()
        assignments: list[Assignment] = array(Assignment)
        configs: list[Config] = array(Config)

    Config = Topic.Config

    topics: list[Topic] = array(Topic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean()


class CreateTopicsResponse(Message, key=ApiKey.CREATE_TOPICS, versions="2-7", flexible="5+"):
    """One result per topic."""

    class Topic(Struct):
        class Config(Struct):
            name: str = string()
            value: str | None = string(nullable="0+", default=None)
            read_only: bool = boolean()
            config_source: int = int8(default=-1, ignorable=True)
            is_sensitive: bool = boolean()

        name: str = string()
        topic_id: bytes = uuid("7+", ignorable=True)
        error_code: int = int16()
        error_message: str | None = string(nullable="0+", default=None, ignorable=True)
        topic_config_error_code: int = int16("5+", ignorable=True, tag=0)
        num_partitions: int = int32("5+", default=-1, ignorable=True)
        replication_factor: int = int16("5+", default=-1, ignorable=True)
        configs: list[Config] | None = array(Config, "5+", nullable="5+", ignorable=True)

    Config = Topic.Config

    throttle_time_ms: int = int32(ignorable=True)
    topics: list[Topic] = array(Topic)


class DeleteTopicsRequest(Message, key=ApiKey.DELETE_TOPICS, versions="1-6", flexible="4+"):
    """Delete topics: up to v5 by name in `topic_names`, from v6 by name or id in `topics`."""

    class Topic(Struct):
        """A topic by name, or by id with name None."""

        name: str | None = string(nullable="0+", default=None)
        topic_id: bytes = uuid()

    topics: list[Topic] = array(Topic, "6+")
    topic_names: list[str] = array(string(), "0-5", ignorable=True)
    timeout_ms: int = int32()


class DeleteTopicsResponse(Message, key=ApiKey.DELETE_TOPICS, versions="1-6", flexible="4+"):
    """One result per topic."""

    class Topic(Struct):
        name: str | None = string(nullable="6+")
        topic_id: bytes = uuid("6+", ignorable=True)
        error_code: int = int16()
        error_message: str | None = string("5+", nullable="5+", default=None, ignorable=True)

    throttle_time_ms: int = int32(ignorable=True)
    responses: list[Topic] = array(Topic)


class DeleteRecordsRequest(Message, key=ApiKey.DELETE_RECORDS, versions="0-2", flexible="2+"):
    """Delete records from the front of partitions."""

    class Topic(Struct):
        class Partition(Struct):
            """Delete the records before an offset; -1 is the high watermark."""

            partition_index: int = int32()
            offset: int = int64()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    Partition = Topic.Partition

    topics: list[Topic] = array(Topic)
    timeout_ms: int = int32()


class DeleteRecordsResponse(Message, key=ApiKey.DELETE_RECORDS, versions="0-2", flexible="2+"):
    """The first offset left in each partition."""

    class Topic(Struct):
        class Partition(Struct):
            """The outcome for one partition; `low_watermark` -1 with an error."""

            partition_index: int = int32()
            low_watermark: int = int64()
            error_code: int = int16()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    Partition = Topic.Partition

    throttle_time_ms: int = int32()
    topics: list[Topic] = array(Topic)


class CreatePartitionsRequest(Message, key=ApiKey.CREATE_PARTITIONS, versions="0-3", flexible="2+"):
    """Give topics more partitions."""

    class Topic(Struct):
        """The new total `count`; `assignments` None lets the broker place them."""

        class Assignment(Struct):
            broker_ids: list[int] = array(int32())

        name: str = string()
        count: int = int32()
        assignments: list[Assignment] | None = array(Assignment, nullable="0+", default=None)

    topics: list[Topic] = array(Topic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class CreatePartitionsResponse(Message, key=ApiKey.CREATE_PARTITIONS, versions="0-3", flexible="2+"):
    """One result per topic."""

    class Result(Struct):
        name: str = string()
        error_code: int = int16()
        error_message: str | None = string(nullable="0+", default=None)

    throttle_time_ms: int = int32()
    results: list[Result] = array(Result)
