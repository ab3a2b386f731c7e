"""What tools ask about a cluster: log directories, elections, reassignments, quotas."""

from __future__ import annotations

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, boolean, float64, int8, int16, int32, int64, string
from roster.wire.codec.table import Message, Struct


class DescribeLogDirsRequest(Message, key=ApiKey.DESCRIBE_LOG_DIRS, versions="1-5", flexible="2+"):
    """Ask how large partitions are on disk; `topics` None asks for all."""

    class Topic(Struct):
        """Partitions of one topic."""

        topic: str = string()
        partitions: list[int] = array(int32())

    topics: list[Topic] | None = array(Topic, nullable="0+")


class DescribeLogDirsResponse(Message, key=ApiKey.DESCRIBE_LOG_DIRS, versions="1-5", flexible="2+"):
    """The log directories of a broker; sizes are bytes."""

    class Result(Struct):
        """One directory, and the volume it is on; -1 bytes are unknown."""

        class Topic(Struct):
            """The partitions of one topic."""

            class Partition(Struct):
                """The size of a partition's log; `offset_lag` is what it has to fetch from the leader."""

                partition_index: int = int32()
                partition_size: int = int64()
                offset_lag: int = int64()
                is_future_key: bool = boolean()

            name: str = string()
            partitions: list[Partition] = array(Partition)

        error_code: int = int16()
        log_dir: str = string()
        topics: list[Topic] = array(Topic)
        total_bytes: int = int64("4+", default=-1, ignorable=True)
        usable_bytes: int = int64("4+", default=-1, ignorable=True)
        is_cordoned: bool = boolean("5+", ignorable=True)

    Topic = Result.Topic
    Partition = Result.Topic.Partition

    throttle_time_ms: int = int32()
    error_code: int = int16("3+", ignorable=True)
    results: list[Result] = array(Result)


class ElectLeadersRequest(Message, key=ApiKey.ELECT_LEADERS, versions="0-2", flexible="2+"):
    """Elect leaders: type 0 the preferred ones, 1 unclean; `topic_partitions` None is all."""

    class TopicPartitions(Struct):
        """Partitions of one topic."""

        topic: str = string()
        partitions: list[int] = array(int32())

    election_type: int = int8("1+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+")
    timeout_ms: int = int32(default=60000)


class ElectLeadersResponse(Message, key=ApiKey.ELECT_LEADERS, versions="0-2", flexible="2+"):
    """One result per partition."""

    class ReplicaElectionResult(Struct):
        """The partitions of one topic."""

        class PartitionResult(Struct):
            """The outcome for one partition."""

            partition_id: int = int32()
            error_code: int = int16()
            error_message: str | None = string(nullable="0+", default=None)

        topic: str = string()
        partition_result: list[PartitionResult] = array(PartitionResult)

    PartitionResult = ReplicaElectionResult.PartitionResult

    throttle_time_ms: int = int32()
    error_code: int = int16("1+", ignorable=True)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)


class ListPartitionReassignmentsRequest(Message, key=ApiKey.LIST_PARTITION_REASSIGNMENTS, versions="0", flexible="0+"):
    """Ask which partitions are on their way to other brokers; `topics` None asks for all."""

    class Topic(Struct):
        """Partitions of one topic."""

        name: str = string()
        partition_indexes: list[int] = array(int32())

    timeout_ms: int = int32(default=60000)
    topics: list[Topic] | None = array(Topic, nullable="0+", default=None)


class ListPartitionReassignmentsResponse(Message, key=ApiKey.LIST_PARTITION_REASSIGNMENTS, versions="0", flexible="0+"):
    """The partitions on their way."""

    class Topic(Struct):
        """The partitions of one topic."""

        class Partition(Struct):
            """The brokers of a partition, and which are added and removed."""

            partition_index: int = int32()
            replicas: list[int] = array(int32())
            adding_replicas: list[int] = array(int32())
            removing_replicas: list[int] = array(int32())

        name: str = string()
        partitions: list[Partition] = array(Partition)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    topics: list[Topic] = array(Topic)


class DescribeClientQuotasRequest(Message, key=ApiKey.DESCRIBE_CLIENT_QUOTAS, versions="0-1", flexible="1+"):
    """Ask for the quotas of entities that match all components."""

    class Component(Struct):
        """Match type 0 is this name, 1 the default entity, 2 any name."""

        entity_type: str = string()
        match_type: int = int8()
        match: str | None = string(nullable="0+", default=None)

    components: list[Component] = array(Component)
    strict: bool = boolean()


class DescribeClientQuotasResponse(Message, key=ApiKey.DESCRIBE_CLIENT_QUOTAS, versions="0-1", flexible="1+"):
    """The quotas found; `entries` is None with an error."""

    class Entry(Struct):
        """The quotas of one entity."""

        class Entity(Struct):
            """A part of its name; None is the default."""

            entity_type: str = string()
            entity_name: str | None = string(nullable="0+", default=None)

        class Value(Struct):
            """A quota."""

            key: str = string()
            value: float = float64()

        entity: list[Entity] = array(Entity)
        values: list[Value] = array(Value)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    entries: list[Entry] | None = array(Entry, nullable="0+")
