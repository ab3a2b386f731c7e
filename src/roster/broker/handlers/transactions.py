"""Requests of transactional producers, and those of tools that look at transactions (KIP-98, KIP-664, KIP-890)."""

import asyncio
import logging
from dataclasses import replace
from typing import cast

from roster.broker.call import Call
from roster.broker.log.producer_state import Producer
from roster.broker.request_limits import in_slices
from roster.broker.services import Services
from roster.model import TopicPartition
from roster.wire import ErrorCode, Message
from roster.wire.control_records import ControlType, EndTxnMarker
from roster.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

DESCRIBED_AT_ONCE = 250
"""Transactions described between two turns of the other connections."""

logger = logging.getLogger(__name__)


async def init_producer_id(services: Services, call: Call[InitProducerIdRequest]) -> Message:
    """Answer InitProducerId: by the coordinator with a transactional id, else with any fresh producer id."""
    request = call.message
    if request.transactional_id is not None:
        return await services.transaction_coordinator.handle(call)
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    try:
        producer_id = await services.meta.new_producer_id()
    except OSError as error:
        logger.error("cannot reserve producer ids: %s", error)
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def add_partitions(services: Services, call: Call[AddPartitionsToTxnRequest]) -> Message:
    """Add partitions to a transaction: all of them, or none if one does not exist."""
    topics = call.message.v3_and_below_topics
    missing = {
        (topic.name, index)
        for topic in topics
        for index in topic.partitions
        if services.topics.log(topic.name, index) is None
    }
    if not missing:
        return await services.transaction_coordinator.handle(call)
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnResponse.TopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnResponse.PartitionResult(
                        partition_index=index,
                        partition_error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        if (topic.name, index) in missing
                        else ErrorCode.OPERATION_NOT_ATTEMPTED,
                    )
                    for index in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


async def coordinate(services: Services, call: Call[Message]) -> Message:
    """Give a request to the transaction coordinator."""
    return await services.transaction_coordinator.handle(call)


async def describe(services: Services, call: Call[DescribeTransactionsRequest]) -> Message:
    """Describe transactions, in slices, so that other connections are served in between."""
    ids = call.message.transactional_ids
    response = DescribeTransactionsResponse()
    for start in range(0, max(len(ids), 1), DESCRIBED_AT_ONCE):
        part = replace(call.message, transactional_ids=ids[start : start + DESCRIBED_AT_ONCE])
        described = await services.transaction_coordinator.handle(replace(call, message=part))
        response.transaction_states += cast("DescribeTransactionsResponse", described).transaction_states
        await asyncio.sleep(0)
    return response


async def write_markers(services: Services, call: Call[WriteTxnMarkersRequest]) -> Message:
    """Write markers for a tool that ends a hanging transaction."""
    response = WriteTxnMarkersResponse()
    for marker in call.message.markers:
        kind = ControlType.COMMIT if marker.transaction_result else ControlType.ABORT
        wanted = [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]
        outcomes = await services.transaction_coordinator.write_markers(
            EndTxnMarker(kind, marker.coordinator_epoch), (marker.producer_id, marker.producer_epoch), wanted
        )
        topics = [
            WriteTxnMarkersResponse.Topic(
                name=topic.name,
                partitions=[
                    WriteTxnMarkersResponse.Partition(
                        partition_index=index, error_code=outcomes[TopicPartition(topic.name, index)]
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ]
        response.markers.append(WriteTxnMarkersResponse.Marker(producer_id=marker.producer_id, topics=topics))
    return response


async def describe_producers(services: Services, call: Call[DescribeProducersRequest]) -> Message:
    """Describe the producers that partitions remember, with the transactions they have open."""
    response = DescribeProducersResponse()
    async for requested in in_slices(call.message.topics):
        topic = DescribeProducersResponse.Topic(name=requested.name)
        response.topics.append(topic)
        async for index in in_slices(requested.partition_indexes):
            answer = DescribeProducersResponse.Partition(partition_index=index)
            topic.partitions.append(answer)
            log = services.topics.log(requested.name, index)
            if log is None:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            async for producer in in_slices(list(log.producers)):
                answer.active_producers.append(_describe(*producer))
    return response


def _describe(producer_id: int, known: Producer) -> DescribeProducersResponse.Topic.Partition.Producer:
    return DescribeProducersResponse.Producer(
        producer_id=producer_id,
        producer_epoch=known.epoch,
        last_sequence=known.batches[-1].last_sequence if known.batches else -1,
        last_timestamp=known.last_seen_ms,
        coordinator_epoch=known.coordinator_epoch,
        current_txn_start_offset=known.first_offset,
    )
