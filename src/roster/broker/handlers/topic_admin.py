"""CreateTopics, DeleteTopics, CreatePartitions."""

import logging
from collections import Counter

from roster.broker.call import Call
from roster.broker.described_settings import topic_settings
from roster.broker.errors import RefusedError, refusing
from roster.broker.request_limits import in_slices
from roster.broker.services import Services
from roster.broker.topic_config import check_settings, cleanup_policies
from roster.broker.topics import Topic, check_partitions
from roster.wire import ZERO_UUID, ErrorCode, Message, WireError
from roster.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

logger = logging.getLogger(__name__)

MOST_PARTITIONS_PER_REQUEST = 10_000
"""As in Apache Kafka, where topics count too: files are made one by one, and each partition takes memory."""
_DEFAULT = -1
_TOPICS_BY_NAME_OR_ID_SINCE = 6


async def create_topics(services: Services, call: Call[CreateTopicsRequest]) -> Message:
    """Create each topic; errors are per topic, but for too many partitions: then no topic is created."""
    request = call.message
    response = CreateTopicsResponse()
    wanted = sum(_partitions(services, topic) + 1 for topic in request.topics)
    times = Counter(topic.name for topic in request.topics)
    async for topic in in_slices({topic.name: topic for topic in request.topics}.values()):
        answer = CreateTopicsResponse.Topic(name=topic.name, topic_id=ZERO_UUID)
        response.topics.append(answer)
        with refusing(answer):
            check_once(topic.name, times[topic.name])
            _check_size(wanted)
            await _create(services, topic, answer, validate_only=request.validate_only)
    return response


def _partitions(services: Services, topic: CreateTopicsRequest.Topic) -> int:
    """Return how many partitions a topic is to have."""
    if topic.assignments:
        return len(topic.assignments)
    return services.config.default_partitions if topic.num_partitions == _DEFAULT else topic.num_partitions


def check_once(name: str, times: int) -> None:
    """Raise RefusedError for a topic that is in a request more than once."""
    if times > 1:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"topic {name!r} is in the request more than once")


def _check_size(new: int) -> None:
    """Raise RefusedError if a request makes too much."""
    if new > MOST_PARTITIONS_PER_REQUEST:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"a request makes {MOST_PARTITIONS_PER_REQUEST} topics and partitions at most; a topic can grow later",
        )


async def _create(
    services: Services, request: CreateTopicsRequest.Topic, answer: CreateTopicsResponse.Topic, *, validate_only: bool
) -> None:
    services.topics.check_new(request.name)
    if request.replication_factor not in (_DEFAULT, 1):
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {request.replication_factor} is larger than the number of brokers, 1",
        )
    partitions = _partitions(services, request)
    if request.assignments and (request.num_partitions, request.replication_factor) != (_DEFAULT, _DEFAULT):
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, "partitions and replication factor must be -1 where replicas are placed by hand"
        )
    if request.assignments:
        placed = sorted((entry.partition_index, entry.broker_ids) for entry in request.assignments)
        if placed != [(index, [services.config.node_id]) for index in range(len(placed))]:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partitions must be numbered from 0 and placed on broker {services.config.node_id}",
            )
    settings = check_settings({entry.name: entry.value for entry in request.configs})
    check_partitions(partitions)
    if not validate_only:
        topic = await services.topics.create(request.name, partitions, settings)
        answer.topic_id = topic.id
        logger.info("created topic %s with %d partitions", topic.name, partitions)
    answer.num_partitions, answer.replication_factor = partitions, 1
    answer.configs = [
        CreateTopicsResponse.Config(name=setting.name, value=setting.value, config_source=setting.source)
        for setting in topic_settings(services.config.log, settings)
    ]


async def delete_topics(services: Services, call: Call[DeleteTopicsRequest]) -> Message:
    """Delete each topic, its records and the offsets committed for it."""
    request = call.message
    response = DeleteTopicsResponse()
    if call.version >= _TOPICS_BY_NAME_OR_ID_SINCE:
        wanted = [(entry.name, entry.topic_id) for entry in request.topics]
    else:
        wanted = [(name, ZERO_UUID) for name in request.topic_names]
    deleted = []
    times = Counter(wanted)
    async for name, topic_id in in_slices(times):
        answer = DeleteTopicsResponse.Topic(name=name, topic_id=topic_id)
        response.responses.append(answer)
        topic = services.topics.get(name) if name is not None else services.topics.by_id(topic_id)
        with refusing(answer):
            if times[name, topic_id] > 1:
                raise RefusedError(ErrorCode.INVALID_REQUEST, "the topic is in the request more than once")
            if topic is None:
                answer.error_code = (
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name is not None else ErrorCode.UNKNOWN_TOPIC_ID
                )
                continue
            answer.name, answer.topic_id = topic.name, topic.id
            if topic.is_internal:
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"{topic.name} belongs to the broker")
            await services.topics.delete(topic)
            logger.info("deleted topic %s", topic.name)
            deleted.append(topic.name)
    if deleted:
        services.group_coordinator.topics_deleted(deleted)
    return response


async def create_partitions(services: Services, call: Call[CreatePartitionsRequest]) -> Message:
    """Add partitions to each topic; errors are per topic."""
    request = call.message
    response = CreatePartitionsResponse()
    added = 0
    times = Counter(topic.name for topic in request.topics)
    async for topic in in_slices({topic.name: topic for topic in request.topics}.values()):
        answer = CreatePartitionsResponse.Result(name=topic.name)
        response.results.append(answer)
        with refusing(answer):
            check_once(topic.name, times[topic.name])
            added = await _grow(services, topic, added, validate_only=request.validate_only)
    return response


async def _grow(services: Services, request: CreatePartitionsRequest.Topic, added: int, *, validate_only: bool) -> int:
    """Add partitions to a topic; return how many the request has made with them, `added` before."""
    topic = known_topic(services, request.name)
    if topic.is_internal:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{topic.name} belongs to the broker")
    check_partitions(request.count)
    if request.count <= len(topic.logs):
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS, f"topic {topic.name!r} has {len(topic.logs)} partitions already"
        )
    if request.assignments is not None:
        placed = [entry.broker_ids for entry in request.assignments]
        if placed != [[services.config.node_id]] * (request.count - len(topic.logs)):
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"every new partition must be placed on broker {services.config.node_id}",
            )
    added += request.count - len(topic.logs)
    _check_size(added)
    if not validate_only:
        await services.topics.grow(topic, request.count)
        logger.info("topic %s has %d partitions now", topic.name, request.count)
    return added


def known_topic(services: Services, name: str) -> Topic:
    """Return the topic; RefusedError if there is none."""
    topic = services.topics.get(name)
    if topic is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    return topic


HIGH_WATERMARK = -1
_NOWHERE = -1


async def delete_records(services: Services, call: Call[DeleteRecordsRequest]) -> Message:
    """Delete the records before an offset of each partition; errors are per partition."""
    response = DeleteRecordsResponse()
    async for requested in in_slices(call.message.topics):
        topic = services.topics.get(requested.name)
        answers = DeleteRecordsResponse.Topic(name=requested.name)
        response.topics.append(answers)
        last = {partition.partition_index: partition.offset for partition in requested.partitions}
        for partition, offset in last.items():
            answer = DeleteRecordsResponse.Partition(partition_index=partition, low_watermark=_NOWHERE)
            answers.partitions.append(answer)
            try:
                answer.low_watermark = await _delete(services, topic, partition, offset)
            except RefusedError as error:
                answer.error_code = error.code
            except (OSError, WireError) as error:
                logger.error("cannot delete records of %s-%d: %s", requested.name, partition, error)
                answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return response


async def _delete(services: Services, topic: Topic | None, partition: int, offset: int) -> int:
    """Return the first offset left; RefusedError if records of the partition may not be deleted."""
    log = topic.log(partition) if topic is not None else None
    if topic is None or log is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic or partition")
    if topic.is_internal:
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} belongs to the broker")
    if "delete" not in cleanup_policies(topic.settings):
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION, f"{topic.name} is compacted, and its cleanup.policy has no delete"
        )
    wanted = log.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= wanted <= log.high_watermark:
        raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE, f"the log ends at {log.high_watermark}")
    return await services.retention.delete_records(log, wanted)
