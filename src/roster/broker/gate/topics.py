"""What a client may do with topics."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from roster.broker.errors import CloseConnection
from roster.broker.handlers.metadata import asks_by_id_too_early, creates_topics
from roster.broker.request_limits import in_slices
from roster.model.acl import AclOperation
from roster.wire import ErrorCode

if TYPE_CHECKING:
    from roster.broker.call import Answer
    from roster.broker.gate.asked import Asked, Gate

_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_TOPIC_RESOURCE, _GROUP_RESOURCE = 2, 32
_PRODUCE_BY_ID_SINCE = 13
_DELETE_BY_ID_SINCE = 6


async def produce(asked: Asked) -> Answer:
    """WRITE on the transactional id, if there is one; WRITE on each topic."""
    request, access = asked.request, asked.access
    transactional_id = request.transactional_id
    if transactional_id is not None and not access.may_on_transaction(AclOperation.WRITE, transactional_id):
        return partial(_without_produce, asked, asked.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))

    def is_allowed(topic: Any) -> bool:
        if asked.call.version < _PRODUCE_BY_ID_SINCE:
            return access.may_on_topic(AclOperation.WRITE, topic.name)
        found = asked.services.topics.by_id(topic.topic_id)
        return found is None or access.may_on_topic(AclOperation.WRITE, found.name)

    items = await asked.take("topic_data", is_allowed)
    refused = asked.refused("topic_data", items, _REFUSED) if items else None
    return partial(_with_refused, asked, await asked.answer(), refused)


async def _without_produce(asked: Asked, refused: Any) -> Any:
    _check_acks(asked)
    return _at_no_offset(refused)


async def _with_refused(asked: Asked, answer: Answer, refused: Any) -> Any:
    response: Any = await answer()
    if refused is not None:
        _check_acks(asked)
        if response is not None:
            response.responses.extend(_at_no_offset(refused).responses)
    return response


def _check_acks(asked: Asked) -> None:
    if asked.request.acks == 0:
        raise CloseConnection("a Produce with acks=0 failed: the client has no right to write there")


def _at_no_offset(refused: Any) -> Any:
    for topic in refused.responses:
        for partition in topic.partition_responses:
            partition.base_offset = -1
    return refused


def _each(operation: AclOperation, into: str = "topics", **values: Any) -> Gate:
    """Return the gate of requests that need an operation on each topic; the rest is as for `Asked.each_topic`."""
    return lambda asked: asked.each_topic(operation, into, **values)


list_offsets = _each(AclOperation.DESCRIBE, offset=-1, timestamp=-1)
describe_producers = _each(AclOperation.READ)
delete_records = _each(AclOperation.DELETE, low_watermark=-1)
offset_for_leader_epoch = _each(AclOperation.DESCRIBE, named="topic", leader_epoch=-1, end_offset=-1)
create_partitions = _each(AclOperation.ALTER, "results")


async def create_topics(asked: Asked) -> Any:
    """CREATE on the cluster or the topic; DESCRIBE_CONFIGS on the topic to be shown its settings."""
    access = asked.access
    may_create_all = access.may_on_cluster(AclOperation.CREATE)
    response = await asked.each(
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


async def delete_topics(asked: Asked) -> Any:
    """DELETE on each topic; the name of one that is given by its id needs DESCRIBE."""
    access = asked.access
    if asked.call.version < _DELETE_BY_ID_SINCE:
        return await asked.each(
            "topic_names", "responses", lambda name: access.may_on_topic(AclOperation.DELETE, name), _REFUSED
        )

    def name_of(topic: Any) -> str | None:
        if topic.name is not None:
            return str(topic.name)
        found = asked.services.topics.by_id(topic.topic_id)
        return None if found is None else found.name

    def is_allowed(topic: Any) -> bool:
        name = name_of(topic)
        return name is None or access.may_on_topic(AclOperation.DELETE, name)

    items = await asked.take("topics", is_allowed)
    answer = await asked.answer()
    for item, refused in zip(items, asked.refused("topics", items, _REFUSED).responses, strict=True) if items else ():
        name = name_of(item)
        is_seen = item.name is not None or (name is not None and access.may_on_topic(AclOperation.DESCRIBE, name))
        refused.name = name if is_seen else None
        answer.responses.append(refused)
    return answer


async def metadata(asked: Asked) -> Any:
    """DESCRIBE on each topic; CREATE on the cluster or the topic where asking creates it. Others are not shown."""
    request, access, topics = asked.request, asked.access, asked.services.topics
    if asks_by_id_too_early(request, asked.call.version):
        return await asked.answer()
    if request.topics is None or (asked.call.version == 0 and not request.topics):
        response = await asked.answer()
        response.topics = [topic async for topic in in_slices(response.topics) if asked.sees(topic.name)]
        return response
    creates = creates_topics(asked.services.config, request, asked.call.version)
    may_create_all = access.may_on_cluster(AclOperation.CREATE)

    def is_allowed(topic: Any) -> bool:
        if topic.name is None:
            found = topics.by_id(topic.topic_id)
            return found is None or asked.sees(found.name)
        if not asked.sees(topic.name):
            return False
        creates_it = creates and topics.get(topic.name) is None
        return not creates_it or may_create_all or access.may_on_topic(AclOperation.CREATE, topic.name)

    items = await asked.take("topics", is_allowed)
    response = await asked.answer()
    if not request.topics:  # which version 0 takes for all topics
        response.topics = []
    if items:
        response.topics.extend(asked.refused("topics", items, _REFUSED).topics)
    return response


async def describe_configs(asked: Asked) -> Any:
    """DESCRIBE_CONFIGS on each topic and group, and on the cluster for the broker's settings."""
    return await _configs(asked, AclOperation.DESCRIBE_CONFIGS, "results")


async def alter_configs(asked: Asked) -> Any:
    """ALTER_CONFIGS on each topic and group, and on the cluster for the broker's settings."""
    return await _configs(asked, AclOperation.ALTER_CONFIGS, "responses")


async def _configs(asked: Asked, operation: AclOperation, into: str) -> Any:
    access = asked.access

    def refusal(resource: Any) -> ErrorCode:
        if resource.resource_type == _TOPIC_RESOURCE:
            allowed, error = access.may_on_topic(operation, resource.resource_name), _REFUSED
        elif resource.resource_type == _GROUP_RESOURCE:
            allowed = access.may_on_group(operation, resource.resource_name)
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        else:
            allowed, error = access.may_on_cluster(operation), ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return ErrorCode.NONE if allowed else error

    items = await asked.take("resources", lambda resource: not refusal(resource))
    response = await asked.answer()
    for error in dict.fromkeys(map(refusal, items)):
        refused = asked.refused("resources", [item for item in items if refusal(item) == error], error)
        getattr(response, into).extend(getattr(refused, into))
    return response
