"""Rights that requests need on topics."""

from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from roster.broker.call import Answer, Call
from roster.broker.errors import CloseConnection
from roster.broker.gate.gated_request import Gate, GatedRequest
from roster.broker.handlers.metadata import asks_by_id_too_early, creates_topics
from roster.broker.request_limits import in_slices
from roster.broker.services import Services
from roster.model.acl import AclOperation
from roster.wire import ErrorCode, Message
from roster.wire.messages import (
    AlterConfigsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)

_GatedProduce: TypeAlias = GatedRequest[ProduceRequest, Any]

_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_TOPIC_RESOURCE, _GROUP_RESOURCE = 2, 32
_PRODUCE_BY_ID_SINCE = 13
_DELETE_BY_ID_SINCE = 6


async def produce(gated: _GatedProduce) -> Message | None:
    """`begin_produce`, for a handler that waits."""
    handler = gated.handler

    async def begin(services: Services, call: Call[ProduceRequest]) -> Answer:
        return partial(handler, services, call)

    return await (await begin_produce(replace(gated, handler=begin)))()


async def begin_produce(gated: _GatedProduce) -> Answer:
    """WRITE on the transactional id, if there is one; WRITE on each topic. The handler returns an Answer."""
    request, access = gated.request, gated.access
    transactional_id = request.transactional_id
    if transactional_id is not None and not access.may_on_transaction(AclOperation.WRITE, transactional_id):
        return partial(_without_produce, gated, gated.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))

    def is_allowed(topic: ProduceRequest.Topic) -> bool:
        if gated.call.version < _PRODUCE_BY_ID_SINCE:
            return access.may_on_topic(AclOperation.WRITE, topic.name)
        known = gated.services.topics.by_id(topic.topic_id)
        return known is None or access.may_on_topic(AclOperation.WRITE, known.name)

    items = await gated.take("topic_data", is_allowed)
    refused = gated.refused("topic_data", items, _REFUSED) if items else None
    return partial(_with_refused, gated, await gated.answer(), refused)


async def _without_produce(gated: _GatedProduce, refused: ProduceResponse) -> ProduceResponse:
    _check_acks(gated)
    return _at_no_offset(refused)


async def _with_refused(gated: _GatedProduce, answer: Answer, refused: ProduceResponse | None) -> Message | None:
    response = await answer()
    if refused is not None:
        _check_acks(gated)
        if isinstance(response, ProduceResponse):
            response.responses.extend(_at_no_offset(refused).responses)
    return response


def _check_acks(gated: _GatedProduce) -> None:
    if gated.request.acks == 0:
        raise CloseConnection("a Produce with acks=0 failed: the client has no right to write there")


def _at_no_offset(refused: ProduceResponse) -> ProduceResponse:
    for topic in refused.responses:
        for partition in topic.partition_responses:
            partition.base_offset = -1
    return refused


def _on_each_topic(operation: AclOperation, into: str = "topics", **values: Any) -> Gate:
    """Return the gate of requests that need an operation on each topic; see `GatedRequest.refuse_topics`."""
    return lambda gated: gated.refuse_topics(operation, into, **values)


list_offsets = _on_each_topic(AclOperation.DESCRIBE, offset=-1, timestamp=-1)
describe_producers = _on_each_topic(AclOperation.READ)
delete_records = _on_each_topic(AclOperation.DELETE, low_watermark=-1)
create_partitions = _on_each_topic(AclOperation.ALTER, "results")


async def create_topics(gated: GatedRequest[CreateTopicsRequest, CreateTopicsResponse]) -> Message:
    """CREATE on the cluster or the topic; DESCRIBE_CONFIGS on the topic to be shown its settings."""
    access = gated.access
    may_create_all = access.may_on_cluster(AclOperation.CREATE)
    response = await gated.refuse_items(
        "topics",
        "topics",
        lambda topic: may_create_all or access.may_on_topic(AclOperation.CREATE, topic.name),
        _REFUSED,
        error_message="Authorization failed.",
        num_partitions=-1,
        replication_factor=-1,
    )
    for topic in response.topics:
        if not topic.error_code and not access.may_on_topic(AclOperation.DESCRIBE_CONFIGS, topic.name):
            topic.topic_config_error_code = _REFUSED
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = None
    return response


async def delete_topics(gated: GatedRequest[DeleteTopicsRequest, DeleteTopicsResponse]) -> Message:
    """DELETE on each topic; the name of one that is given by its id needs DESCRIBE."""
    access = gated.access
    if gated.call.version < _DELETE_BY_ID_SINCE:
        return await gated.refuse_items(
            "topic_names", "responses", lambda name: access.may_on_topic(AclOperation.DELETE, name), _REFUSED
        )

    def name_of(topic: DeleteTopicsRequest.Topic) -> str | None:
        if topic.name is not None:
            return topic.name
        known = gated.services.topics.by_id(topic.topic_id)
        return None if known is None else known.name

    def is_allowed(topic: DeleteTopicsRequest.Topic) -> bool:
        name = name_of(topic)
        return name is None or access.may_on_topic(AclOperation.DELETE, name)

    items = await gated.take("topics", is_allowed)
    answer = await gated.answer()
    for item, refused in zip(items, gated.refused("topics", items, _REFUSED).responses, strict=True) if items else ():
        name = name_of(item)
        is_seen = item.name is not None or (name is not None and access.may_on_topic(AclOperation.DESCRIBE, name))
        refused.name = name if is_seen else None
        answer.responses.append(refused)
    return answer


async def metadata(gated: GatedRequest[MetadataRequest, MetadataResponse]) -> Message:
    """DESCRIBE on each topic; CREATE on the cluster or the topic where asking creates it. Others are not shown."""
    request, access, topics = gated.request, gated.access, gated.services.topics
    if asks_by_id_too_early(request, gated.call.version):
        return await gated.answer()
    if request.topics is None or (gated.call.version == 0 and not request.topics):
        response = await gated.answer()
        response.topics = [topic async for topic in in_slices(response.topics) if gated.sees(topic.name or "")]
        return response
    creates = creates_topics(gated.services.config, request, gated.call.version)
    may_create_all = access.may_on_cluster(AclOperation.CREATE)

    def is_allowed(topic: MetadataRequest.Topic) -> bool:
        if topic.name is None:
            known = topics.by_id(topic.topic_id)
            return known is None or gated.sees(known.name)
        if not gated.sees(topic.name):
            return False
        creates_it = creates and topics.get(topic.name) is None
        return not creates_it or may_create_all or access.may_on_topic(AclOperation.CREATE, topic.name)

    items = await gated.take("topics", is_allowed)
    response = await gated.answer()
    if not request.topics:  # which version 0 takes for all topics
        response.topics = []
    if items:
        response.topics.extend(gated.refused("topics", items, _REFUSED).topics)
    return response


async def describe_configs(gated: GatedRequest[Message, Message]) -> Message:
    """DESCRIBE_CONFIGS on each topic and group, and on the cluster for the broker's settings."""
    return await _configs(gated, AclOperation.DESCRIBE_CONFIGS, "results")


async def alter_configs(gated: GatedRequest[Message, Message]) -> Message:
    """ALTER_CONFIGS on each topic and group, and on the cluster for the broker's settings."""
    return await _configs(gated, AclOperation.ALTER_CONFIGS, "responses")


async def _configs(gated: GatedRequest[Message, Message], operation: AclOperation, into: str) -> Message:
    access = gated.access

    def refusal(resource: DescribeConfigsRequest.Resource | AlterConfigsRequest.Resource) -> ErrorCode:
        if resource.resource_type == _TOPIC_RESOURCE:
            allowed, error = access.may_on_topic(operation, resource.resource_name), _REFUSED
        elif resource.resource_type == _GROUP_RESOURCE:
            allowed = access.may_on_group(operation, resource.resource_name)
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        else:
            allowed, error = access.may_on_cluster(operation), ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return ErrorCode.NONE if allowed else error

    items = await gated.take("resources", lambda resource: not refusal(resource))
    response = await gated.answer()
    for error in dict.fromkeys(map(refusal, items)):
        refused = gated.refused("resources", [item for item in items if refusal(item) == error], error)
        getattr(response, into).extend(getattr(refused, into))
    return response
