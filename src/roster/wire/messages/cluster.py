"""ApiVersions, Metadata, DescribeTopicPartitions, DescribeCluster."""

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, boolean, int8, int16, int32, int64, string, uuid
from roster.wire.codec.table import Message, Struct


class ApiVersionsRequest(Message, key=ApiKey.API_VERSIONS, versions="0-5", flexible="3+"):
    """The first request on a connection: asks which requests and versions the broker serves (KIP-35, KIP-511).

    v5 and up may name the broker that the client means to reach (KIP-1242).
    """

    client_software_name: str = string("3+", ignorable=True)
    client_software_version: str = string("3+", ignorable=True)
    cluster_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    node_id: int = int32("5+", default=-1, ignorable=True)


class ApiVersionsResponse(Message, key=ApiKey.API_VERSIONS, versions="0-5", flexible="3+"):
    """Version ranges by api key; always sent with response header v0."""

    class ApiVersion(Struct):
        """The versions of one request, both ends included."""

        api_key: int = int16()
        min_version: int = int16()
        max_version: int = int16()

    class SupportedFeature(Struct):
        """A feature level this broker can have (KIP-584)."""

        name: str = string()
        min_version: int = int16()
        max_version: int = int16()

    class FinalizedFeature(Struct):
        """A feature level the cluster has agreed on (KIP-584)."""

        name: str = string()
        max_version_level: int = int16()
        min_version_level: int = int16()

    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32("1+", ignorable=True)
    supported_features: list[SupportedFeature] = array(SupportedFeature, "3+", ignorable=True, tag=0)
    finalized_features_epoch: int = int64("3+", default=-1, ignorable=True, tag=1)
    finalized_features: list[FinalizedFeature] = array(FinalizedFeature, "3+", ignorable=True, tag=2)


class MetadataRequest(Message, key=ApiKey.METADATA, versions="0-13", flexible="9+"):
    """Brokers and topics. `topics` None (v0: empty) asks for all topics, from v1 empty asks for none."""

    class Topic(Struct):
        """A topic by name, or from v12 by id with name None."""

        topic_id: bytes = uuid("10+", ignorable=True)
        name: str | None = string(nullable="10+")

    topics: list[Topic] | None = array(Topic, nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


class MetadataResponse(Message, key=ApiKey.METADATA, versions="0-13", flexible="9+"):
    """Brokers, controller and topics of the cluster."""

    class Broker(Struct):
        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string("1+", nullable="1+", default=None, ignorable=True)

    class Topic(Struct):
        class Partition(Struct):
            """Leader, replicas and in-sync replicas of a partition; leader -1 means no leader."""

            error_code: int = int16()
            partition_index: int = int32()
            leader_id: int = int32()
            leader_epoch: int = int32("7+", default=-1, ignorable=True)
            replica_nodes: list[int] = array(int32())
            isr_nodes: list[int] = array(int32())
            offline_replicas: list[int] = array(int32(), "5+", ignorable=True)

        error_code: int = int16()
        name: str | None = string(nullable="12+")
        topic_id: bytes = uuid("10+", ignorable=True)
        is_internal: bool = boolean("1+", ignorable=True)
        partitions: list[Partition] = array(Partition)
        topic_authorized_operations: int = int32("8+", default=-(2**31))

    Partition = Topic.Partition

    throttle_time_ms: int = int32("3+", ignorable=True)
    brokers: list[Broker] = array(Broker)
    cluster_id: str | None = string("2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[Topic] = array(Topic)
    cluster_authorized_operations: int = int32("8-10", default=-(2**31))
    error_code: int = int16("13+", ignorable=True)


class DescribeClusterRequest(Message, key=ApiKey.DESCRIBE_CLUSTER, versions="0-1", flexible="0+"):
    """Brokers and controller (KIP-700); endpoint type 1 is brokers, 2 controllers."""

    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8("1+", default=1)


class DescribeClusterResponse(Message, key=ApiKey.DESCRIBE_CLUSTER, versions="0-1", flexible="0+"):
    """The brokers of the cluster."""

    class Broker(Struct):
        broker_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string(nullable="0+", default=None)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    endpoint_type: int = int8("1+", default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[Broker] = array(Broker)
    cluster_authorized_operations: int = int32(default=-(2**31))
