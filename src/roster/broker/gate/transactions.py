"""What a client may do with transactional ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roster.broker.request_limits import in_slices
from roster.model.acl import AclOperation
from roster.wire import ErrorCode

if TYPE_CHECKING:
    from roster.broker.gate.asked import Asked

_REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def init_producer_id(asked: Asked) -> Any:
    """WRITE on the transactional id; without one IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679)."""
    transactional_id, access = asked.request.transactional_id, asked.access
    if transactional_id is not None:
        if not access.may_on_transaction(AclOperation.WRITE, transactional_id):
            return _without_producer(asked.refuse(_REFUSED))
    elif not access.may_on_cluster(AclOperation.IDEMPOTENT_WRITE) and not access.may_on_some_topic(AclOperation.WRITE):
        return _without_producer(asked.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    return await asked.answer()


def _without_producer(refused: Any) -> Any:
    refused.producer_id, refused.producer_epoch = -1, -1
    return refused


async def add_partitions(asked: Asked) -> Any:
    """WRITE on the transactional id and on each topic; nothing is added if one of them is refused."""
    request, access = asked.request, asked.access
    if not access.may_on_transaction(AclOperation.WRITE, request.v3_and_below_transactional_id):
        return asked.refuse(_REFUSED)
    refused = {
        topic.name
        async for topic in in_slices(request.v3_and_below_topics)
        if not access.may_on_topic(AclOperation.WRITE, topic.name)
    }
    if not refused:
        return await asked.answer()
    response: Any = asked.refuse(ErrorCode.OPERATION_NOT_ATTEMPTED)
    for topic in response.results_by_topic_v3_and_below:
        if topic.name in refused:
            for partition in topic.results_by_partition:
                partition.partition_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return response


async def add_offsets(asked: Asked) -> Any:
    """WRITE on the transactional id, READ on the group."""
    request, access = asked.request, asked.access
    if not access.may_on_transaction(AclOperation.WRITE, request.transactional_id):
        return asked.refuse(_REFUSED)
    if not access.may_on_group(AclOperation.READ, request.group_id):
        return asked.refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return await asked.answer()


async def end(asked: Asked) -> Any:
    """WRITE on the transactional id."""
    if not asked.access.may_on_transaction(AclOperation.WRITE, asked.request.transactional_id):
        return asked.refuse(_REFUSED)
    return await asked.answer()


async def write_markers(asked: Asked) -> Any:
    """CLUSTER_ACTION or ALTER on the cluster."""
    access = asked.access
    if not access.may_on_cluster(AclOperation.CLUSTER_ACTION) and not access.may_on_cluster(AclOperation.ALTER):
        return asked.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return await asked.answer()


async def describe(asked: Asked) -> Any:
    """DESCRIBE on each transactional id; topics that the client may not DESCRIBE are not shown."""
    access = asked.access
    response = await asked.each(
        "transactional_ids",
        "transaction_states",
        lambda name: access.may_on_transaction(AclOperation.DESCRIBE, name),
        _REFUSED,
    )
    for state in response.transaction_states:
        state.topics = [topic for topic in state.topics if access.may_on_topic(AclOperation.DESCRIBE, topic.topic)]
    return response


async def list_transactions(asked: Asked) -> Any:
    """DESCRIBE on each transactional id; others are not shown."""
    response = await asked.answer()
    response.transaction_states = [
        state
        async for state in in_slices(response.transaction_states)
        if asked.access.may_on_transaction(AclOperation.DESCRIBE, state.transactional_id)
    ]
    return response
