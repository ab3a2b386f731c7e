"""Rights that requests need on groups and their offsets."""

from collections.abc import Sequence
from dataclasses import replace

from roster.broker.coordinator_shell import OFFSETS_BY_ID_FROM
from roster.broker.gate.gated_request import Gate, GatedRequest, requires
from roster.broker.request_limits import in_slices
from roster.model.acl import AclOperation
from roster.wire import ErrorCode, Message
from roster.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
)

_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_GROUP, _TRANSACTION = 0, 1
_BATCHED_SINCE = 4
_SEVERAL_GROUPS_SINCE = 8


async def _read_topics(gated: GatedRequest[Message, Message]) -> Message:
    return await gated.refuse_topics(AclOperation.READ)


async def _read_topics_by_id(gated: GatedRequest[Message, Message]) -> Message:
    if gated.call.version < OFFSETS_BY_ID_FROM:
        return await _read_topics(gated)

    def is_allowed(topic: TxnOffsetCommitRequest.Topic) -> bool:
        known = gated.services.topics.by_id(topic.topic_id)
        return known is None or gated.access.may_on_topic(AclOperation.READ, known.name)

    return await gated.refuse_items("topics", "topics", is_allowed, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


be_member = requires(lambda access, request: access.may_be_member(request.group_id), _REFUSED)
offset_commit = requires(lambda access, request: access.may_be_member(request.group_id), _REFUSED, _read_topics)
offset_delete = requires(
    lambda access, request: access.may_on_group(AclOperation.DELETE, request.group_id), _REFUSED, _read_topics
)
transactional_offset_commit = requires(
    lambda access, request: access.may_on_transaction(AclOperation.WRITE, request.transactional_id),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    requires(lambda access, request: access.may_be_member(request.group_id), _REFUSED, _read_topics_by_id),
)


def _on_each_group(field: str, into: str, operation: AclOperation) -> Gate:
    """Return the gate of requests that need an operation on each group; see `GatedRequest.refuse_items`."""
    return lambda gated: gated.refuse_items(
        field, into, lambda name: gated.access.may_on_group(operation, name), _REFUSED
    )


describe_groups = _on_each_group("groups", "groups", AclOperation.DESCRIBE)
delete_groups = _on_each_group("groups_names", "results", AclOperation.DELETE)


async def list_groups(gated: GatedRequest[ListGroupsRequest, ListGroupsResponse]) -> Message:
    """DESCRIBE on the cluster shows all groups; else DESCRIBE on each."""
    response = await gated.answer()
    access = gated.access
    if not access.may_on_cluster(AclOperation.DESCRIBE):
        response.groups = [
            group
            async for group in in_slices(response.groups)
            if access.may_on_group(AclOperation.DESCRIBE, group.group_id)
        ]
    return response


async def find_coordinator(gated: GatedRequest[FindCoordinatorRequest, FindCoordinatorResponse]) -> Message:
    """DESCRIBE on each group, or on each transactional id."""
    request, access = gated.request, gated.access
    is_transaction = request.key_type == _TRANSACTION
    error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if is_transaction else _REFUSED

    def is_allowed(key: str) -> bool:
        if is_transaction:
            return access.may_on_transaction(AclOperation.DESCRIBE, key)
        return request.key_type != _GROUP or access.may_on_group(AclOperation.DESCRIBE, key)

    if gated.call.version >= _BATCHED_SINCE:
        return await gated.refuse_items(
            "coordinator_keys", "coordinators", is_allowed, error, node_id=-1, host="", port=-1
        )
    if is_allowed(request.key):
        return await gated.answer()
    refused = gated.refuse(error)
    refused.node_id, refused.host, refused.port = -1, "", -1
    return refused


async def offset_fetch(gated: GatedRequest[OffsetFetchRequest, OffsetFetchResponse]) -> Message:
    """DESCRIBE on each group and on each topic; offsets of all topics are shown without those."""
    if gated.call.version >= _SEVERAL_GROUPS_SINCE:
        return await _offset_fetch_of_groups(gated)
    request, access = gated.request, gated.access
    if not access.may_on_group(AclOperation.DESCRIBE, request.group_id):
        refused = gated.refuse(_REFUSED)
        _without_offset(refused)
        return refused
    taken = await gated.take("topics", lambda topic: gated.sees(topic.name))
    response = await gated.answer()
    response.topics = [topic async for topic in in_slices(response.topics) if gated.sees(topic.name)]
    response.topics += _refused_topics(taken)
    return response


async def _offset_fetch_of_groups(gated: GatedRequest[OffsetFetchRequest, OffsetFetchResponse]) -> Message:
    access = gated.access
    groups = await gated.take("groups", lambda group: access.may_on_group(AclOperation.DESCRIBE, group.group_id))
    taken: dict[str, list[OffsetFetchRequest.Group.Topic]] = {}
    for group in gated.request.groups:
        if group.topics is not None:
            taken.setdefault(group.group_id, []).extend(t for t in group.topics if not gated.sees(t.name))
    gated.request.groups = [
        group if group.topics is None else replace(group, topics=[t for t in group.topics if gated.sees(t.name)])
        for group in gated.request.groups
    ]
    response = await gated.answer()
    for answer in response.groups:
        answer.topics = [topic async for topic in in_slices(answer.topics) if gated.sees(topic.name)]
        if not answer.error_code:
            answer.topics += _refused_topics(taken.get(answer.group_id, []))
    response.groups += [OffsetFetchResponse.Group(group_id=group.group_id, error_code=_REFUSED) for group in groups]
    return response


def _refused_topics(topics: Sequence[OffsetFetchRequest.Group.Topic]) -> list[OffsetFetchResponse.Group.Topic]:
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return [
        OffsetFetchResponse.Topic(
            name=topic.name,
            partitions=[
                OffsetFetchResponse.Partition(partition_index=n, committed_offset=-1, error_code=error)
                for n in topic.partition_indexes
            ],
        )
        for topic in topics
    ]


def _without_offset(response: OffsetFetchResponse) -> None:
    for topic in response.topics:
        for partition in topic.partitions:
            partition.committed_offset = -1
