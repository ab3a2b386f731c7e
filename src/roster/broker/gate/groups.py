"""What a client may do with groups and their offsets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roster.broker.request_limits import in_slices
from roster.model.acl import AclOperation
from roster.wire import ErrorCode
from roster.wire.messages import OffsetFetchResponse

if TYPE_CHECKING:
    from roster.broker.gate.asked import Asked, Gate

_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_GROUP, _TRANSACTION = 0, 1
_BATCHED_SINCE = 4
_SEVERAL_GROUPS_SINCE = 8


async def be_member(asked: Asked) -> Any:
    """READ on the group."""
    if not asked.access.may_be_member(asked.request.group_id):
        return asked.refuse(_REFUSED)
    return await asked.answer()


async def offset_commit(asked: Asked) -> Any:
    """READ on the group and on each topic."""
    if not asked.access.may_be_member(asked.request.group_id):
        return asked.refuse(_REFUSED)
    return await asked.each_topic(AclOperation.READ)


async def offset_delete(asked: Asked) -> Any:
    """DELETE on the group, READ on each topic."""
    if not asked.access.may_on_group(AclOperation.DELETE, asked.request.group_id):
        return asked.refuse(_REFUSED)
    return await asked.each_topic(AclOperation.READ)


async def transactional_offset_commit(asked: Asked) -> Any:
    """WRITE on the transactional id, READ on the group and on each topic."""
    request, access = asked.request, asked.access
    if not access.may_on_transaction(AclOperation.WRITE, request.transactional_id):
        return asked.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not access.may_be_member(request.group_id):
        return asked.refuse(_REFUSED)
    return await asked.each_topic(AclOperation.READ)


def _each(field: str, into: str, operation: AclOperation) -> Gate:
    """Return the gate of requests that need an operation on each group; the rest is as for `Asked.each`."""
    return lambda asked: asked.each(field, into, lambda name: asked.access.may_on_group(operation, name), _REFUSED)


describe_groups = _each("groups", "groups", AclOperation.DESCRIBE)
describe_consumer_groups = _each("group_ids", "groups", AclOperation.DESCRIBE)
delete_groups = _each("groups_names", "results", AclOperation.DELETE)


async def list_groups(asked: Asked) -> Any:
    """DESCRIBE on the cluster shows all groups; else DESCRIBE on each."""
    response = await asked.answer()
    access = asked.access
    if not access.may_on_cluster(AclOperation.DESCRIBE):
        response.groups = [
            group
            async for group in in_slices(response.groups)
            if access.may_on_group(AclOperation.DESCRIBE, group.group_id)
        ]
    return response


async def find_coordinator(asked: Asked) -> Any:
    """DESCRIBE on each group, or on each transactional id."""
    request, access = asked.request, asked.access
    is_transaction = request.key_type == _TRANSACTION
    error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if is_transaction else _REFUSED

    def is_allowed(key: str) -> bool:
        if is_transaction:
            return access.may_on_transaction(AclOperation.DESCRIBE, key)
        return request.key_type != _GROUP or access.may_on_group(AclOperation.DESCRIBE, key)

    if asked.call.version >= _BATCHED_SINCE:
        return await asked.each("coordinator_keys", "coordinators", is_allowed, error, node_id=-1, host="", port=-1)
    if is_allowed(request.key):
        return await asked.answer()
    refused: Any = asked.refuse(error)
    refused.node_id, refused.host, refused.port = -1, "", -1
    return refused


async def offset_fetch(asked: Asked) -> Any:
    """DESCRIBE on each group and on each topic; offsets of all topics are shown without those."""
    if asked.call.version >= _SEVERAL_GROUPS_SINCE:
        return await _offset_fetch_of_groups(asked)
    request, access = asked.request, asked.access
    if not access.may_on_group(AclOperation.DESCRIBE, request.group_id):
        refused = asked.refuse(_REFUSED)
        _without_offset(refused)
        return refused
    taken = await asked.take("topics", lambda topic: asked.sees(topic.name))
    response = await asked.answer()
    response.topics = [topic async for topic in in_slices(response.topics) if asked.sees(topic.name)]
    response.topics += _refused_topics(OffsetFetchResponse.Topic, taken)
    return response


async def _offset_fetch_of_groups(asked: Asked) -> Any:
    access = asked.access
    groups = await asked.take("groups", lambda group: access.may_on_group(AclOperation.DESCRIBE, group.group_id))
    taken: dict[str, list[Any]] = {}
    for group in asked.request.groups:
        if group.topics is not None:
            taken.setdefault(group.group_id, []).extend(t for t in group.topics if not asked.sees(t.name))
    asked.request.groups = [
        group if group.topics is None else replace(group, topics=[t for t in group.topics if asked.sees(t.name)])
        for group in asked.request.groups
    ]
    response = await asked.answer()
    for group in response.groups:
        group.topics = [topic async for topic in in_slices(group.topics) if asked.sees(topic.name)]
        if not group.error_code:
            group.topics += _refused_topics(OffsetFetchResponse.Group.Topic, taken.get(group.group_id, []))
    response.groups += [OffsetFetchResponse.Group(group_id=group.group_id, error_code=_REFUSED) for group in groups]
    return response


def _refused_topics(kind: Any, asked: list[Any]) -> list[Any]:
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return [
        kind(
            name=topic.name,
            partitions=[
                kind.Partition(partition_index=n, committed_offset=-1, error_code=error)
                for n in topic.partition_indexes
            ],
        )
        for topic in asked
    ]


def _without_offset(response: Any) -> None:
    for topic in response.topics:
        for partition in topic.partitions:
            partition.committed_offset = -1
