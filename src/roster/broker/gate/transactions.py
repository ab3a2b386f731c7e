"""Rights that requests need on transactional ids."""

from roster.broker.gate.gated_request import GatedRequest, requires
from roster.broker.request_limits import in_slices
from roster.broker.security.access import Access
from roster.model.acl import AclOperation
from roster.wire import ErrorCode, Message
from roster.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

_REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def init_producer_id(gated: GatedRequest[InitProducerIdRequest, InitProducerIdResponse]) -> Message:
    """WRITE on the transactional id; without one IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679)."""
    transactional_id, access = gated.request.transactional_id, gated.access
    if transactional_id is not None:
        if not access.may_on_transaction(AclOperation.WRITE, transactional_id):
            return _without_producer(gated.refuse(_REFUSED))
    elif not access.may_on_cluster(AclOperation.IDEMPOTENT_WRITE) and not access.may_on_some_topic(AclOperation.WRITE):
        return _without_producer(gated.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    return await gated.answer()


def _without_producer(refused: InitProducerIdResponse) -> Message:
    refused.producer_id, refused.producer_epoch = -1, -1
    return refused


async def add_partitions(gated: GatedRequest[AddPartitionsToTxnRequest, AddPartitionsToTxnResponse]) -> Message:
    """WRITE on the transactional id and on each topic; nothing is added if one of them is refused."""
    request, access = gated.request, gated.access
    if not access.may_on_transaction(AclOperation.WRITE, request.v3_and_below_transactional_id):
        return gated.refuse(_REFUSED)
    refused = {
        topic.name
        async for topic in in_slices(request.v3_and_below_topics)
        if not access.may_on_topic(AclOperation.WRITE, topic.name)
    }
    if not refused:
        return await gated.answer()
    response = gated.refuse(ErrorCode.OPERATION_NOT_ATTEMPTED)
    for topic in response.results_by_topic_v3_and_below:
        if topic.name in refused:
            for partition in topic.results_by_partition:
                partition.partition_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return response


def _may_write(access: Access, request: AddOffsetsToTxnRequest | EndTxnRequest) -> bool:
    return access.may_on_transaction(AclOperation.WRITE, request.transactional_id)


end = requires(_may_write, _REFUSED)
add_offsets = requires(
    _may_write,
    _REFUSED,
    requires(
        lambda access, request: access.may_on_group(AclOperation.READ, request.group_id),
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ),
)
write_markers = requires(
    lambda access, _: access.may_on_cluster(AclOperation.CLUSTER_ACTION) or access.may_on_cluster(AclOperation.ALTER),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)


async def describe(gated: GatedRequest[DescribeTransactionsRequest, DescribeTransactionsResponse]) -> Message:
    """DESCRIBE on each transactional id; topics that the client may not DESCRIBE are not shown."""
    access = gated.access
    response = await gated.refuse_items(
        "transactional_ids",
        "transaction_states",
        lambda name: access.may_on_transaction(AclOperation.DESCRIBE, name),
        _REFUSED,
    )
    for state in response.transaction_states:
        state.topics = [topic for topic in state.topics if access.may_on_topic(AclOperation.DESCRIBE, topic.topic)]
    return response


async def list_transactions(gated: GatedRequest[ListTransactionsRequest, ListTransactionsResponse]) -> Message:
    """DESCRIBE on each transactional id; others are not shown."""
    response = await gated.answer()
    response.transaction_states = [
        state
        async for state in in_slices(response.transaction_states)
        if gated.access.may_on_transaction(AclOperation.DESCRIBE, state.transactional_id)
    ]
    return response
