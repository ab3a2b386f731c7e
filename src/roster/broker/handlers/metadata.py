"""ApiVersions, Metadata, DescribeCluster, FindCoordinator, for a cluster of one broker."""

import logging

from roster.broker.call import Call
from roster.broker.config import BrokerConfig
from roster.broker.errors import RefusedError
from roster.broker.log.batch_check import LEADER_EPOCH
from roster.broker.request_limits import SERVED, in_slices
from roster.broker.security.access import NOT_ASKED
from roster.broker.services import Services
from roster.broker.topics import Topic, check_name
from roster.model.acl import ResourceType
from roster.wire import ZERO_UUID, ErrorCode, Message
from roster.wire.frames import advertised
from roster.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

logger = logging.getLogger(__name__)

KEY_TYPES = (0, 1)
"""Key types of FindCoordinator: groups and transactions."""
TRANSACTION_VERSION = "transaction.version"
TRANSACTION_VERSION_LEVEL = 2
"""Transactions with an epoch of their own (KIP-890)."""
ENDPOINT_BROKERS = 1
_AUTO_CREATE_FLAG_SINCE = 4
_BATCHED_COORDINATORS_SINCE = 4
_BY_TOPIC_ID_SINCE = 12


async def api_versions(services: Services, call: Call[ApiVersionsRequest]) -> Message:
    """Return the supported versions of every request, and that transactions are of version 2.

    A client that means to reach another broker, whose address this one has now, is told so (KIP-1242).
    """
    meant = (call.message.cluster_id, call.message.node_id)
    if meant[0] is not None and meant != (services.meta.cluster_id, services.config.node_id):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    level = TRANSACTION_VERSION_LEVEL
    return ApiVersionsResponse(
        api_keys=advertised(SERVED),
        supported_features=[ApiVersionsResponse.SupportedFeature(name=TRANSACTION_VERSION, max_version=level)],
        finalized_features_epoch=0,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeature(
                name=TRANSACTION_VERSION, max_version_level=level, min_version_level=level
            )
        ],
    )


async def metadata(services: Services, call: Call[MetadataRequest]) -> Message:
    """Return the broker and the topics asked for; missing ones are created if broker and client allow it."""
    request = call.message
    if asks_by_id_too_early(request, call.version):
        return _refuse_ids(request)
    config = services.config
    response = MetadataResponse(
        brokers=[MetadataResponse.Broker(node_id=config.node_id, host=services.host, port=services.port)],
        cluster_id=services.meta.cluster_id,
        controller_id=config.node_id,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = call.access.operations_on_cluster()

    def operations(name: str) -> int:
        return call.access.operations(ResourceType.TOPIC, name) if with_operations else NOT_ASKED

    with_operations = request.include_topic_authorized_operations
    if request.topics is None or (call.version == 0 and not request.topics):
        async for topic in in_slices(services.topics):
            response.topics.append(describe_topic(config.node_id, topic, operations(topic.name)))
        return response
    may_create = creates_topics(config, request, call.version)
    async for requested in in_slices(
        {(requested.name, requested.topic_id): requested for requested in request.topics}.values()
    ):
        if requested.name is None:
            known = services.topics.by_id(requested.topic_id)
            missing = MetadataResponse.Topic(
                name=None, topic_id=requested.topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID
            )
        else:
            known, code = await _find_or_create(services, requested.name, may_create=may_create)
            missing = MetadataResponse.Topic(name=requested.name, topic_id=ZERO_UUID, error_code=code)
        response.topics.append(
            missing if known is None else describe_topic(config.node_id, known, operations(known.name))
        )
    return response


def creates_topics(config: BrokerConfig, request: MetadataRequest, version: int) -> bool:
    """Return True if a request creates the topics that it names."""
    return config.auto_create_topics and (version < _AUTO_CREATE_FLAG_SINCE or request.allow_auto_topic_creation)


def asks_by_id_too_early(request: MetadataRequest, version: int) -> bool:
    """Return True for topic ids, or a name that is null, in versions that have the fields but do not look up by id."""
    return version < _BY_TOPIC_ID_SINCE and any(
        topic.name is None or topic.topic_id != ZERO_UUID for topic in request.topics or ()
    )


def _refuse_ids(request: MetadataRequest) -> MetadataResponse:
    """Refuse every topic of a request, as Apache Kafka does; the response has no brokers, and no name is null."""
    code = ErrorCode.INVALID_REQUEST
    refused = [
        MetadataResponse.Topic(name=topic.name or "", topic_id=topic.topic_id, error_code=code)
        for topic in request.topics or ()
    ]
    return MetadataResponse(controller_id=-1, topics=refused)


async def _find_or_create(services: Services, name: str, *, may_create: bool) -> tuple[Topic | None, ErrorCode]:
    topic = services.topics.get(name)
    if topic is not None:
        return topic, ErrorCode.NONE
    try:
        check_name(name)
        if not may_create:
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic = await services.topics.create(name, services.config.default_partitions, {})
        logger.info("created topic %s with %d partitions because a client asked for it", name, len(topic.logs))
    except RefusedError as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            return None, error.code
        topic = services.topics.get(name)  # another request was faster
    except OSError as error:
        logger.error("cannot create topic %s: %s", name, error)
        return None, ErrorCode.KAFKA_STORAGE_ERROR
    return topic, ErrorCode.NONE if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def describe_topic(node_id: int, topic: Topic, operations: int) -> MetadataResponse.Topic:
    """Return the metadata of a topic whose partitions are all led by one broker."""
    one = [node_id]
    return MetadataResponse.Topic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        topic_authorized_operations=operations,
        partitions=[
            MetadataResponse.Partition(
                partition_index=n, leader_id=node_id, leader_epoch=LEADER_EPOCH, replica_nodes=one, isr_nodes=one
            )
            for n in range(len(topic.logs))
        ],
    )


async def describe_cluster(services: Services, call: Call[DescribeClusterRequest]) -> Message:
    """Return the cluster of one broker."""
    request = call.message
    response = DescribeClusterResponse(
        endpoint_type=request.endpoint_type, cluster_id=services.meta.cluster_id, controller_id=services.config.node_id
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = call.access.operations_on_cluster()
    if request.endpoint_type != ENDPOINT_BROKERS:
        response.error_code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        response.error_message = "this is a broker and has no controllers to ask"
        return response
    response.brokers = [
        DescribeClusterResponse.Broker(broker_id=services.config.node_id, host=services.host, port=services.port)
    ]
    return response


async def find_coordinator(services: Services, call: Call[FindCoordinatorRequest]) -> Message:
    """Return the one broker for every group and transactional id; an error for share groups."""
    request = call.message
    batched = call.version >= _BATCHED_COORDINATORS_SINCE
    keys = request.coordinator_keys if batched else [request.key]
    coordinators = [_coordinator(services, request.key_type, key) async for key in in_slices(keys)]
    if batched:
        return FindCoordinatorResponse(coordinators=coordinators)
    only = coordinators[0]
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _coordinator(services: Services, key_type: int, key: str) -> FindCoordinatorResponse.Coordinator:
    if key_type not in KEY_TYPES:
        return FindCoordinatorResponse.Coordinator(
            key=key,
            node_id=-1,
            port=-1,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="only groups and transactions have a coordinator here, share groups are not supported",
        )
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=services.config.node_id, host=services.host, port=services.port
    )
