"""AddPartitionsToTxn, AddOffsetsToTxn, and partitions that Produce and TxnOffsetCommit add (transactions version 2)."""

from roster.coordinator_common import Continuation, RequestReceived
from roster.model import TopicPartition
from roster.transactions import metadata as change
from roster.transactions.events import AddPartitions
from roster.transactions.runtime import Runtime
from roster.transactions.states import TransactionState
from roster.wire import ErrorCode
from roster.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from roster.wire.offsets_topic import partition_of

OFFSETS_TOPIC = "__consumer_offsets"
PRODUCER_FENCED_FROM = 2
"""Version of both requests that knows PRODUCER_FENCED; earlier ones get INVALID_PRODUCER_EPOCH."""


def add_partitions(rt: Runtime, event: RequestReceived, request: AddPartitionsToTxnRequest) -> None:
    """Add the partitions that a client named; the shell has already refused those that do not exist."""
    topics = request.v3_and_below_topics

    def answer(error: ErrorCode) -> None:
        code = _for_version(error, event.api_version)
        results = [
            AddPartitionsToTxnResponse.TopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnResponse.PartitionResult(partition_index=index, partition_error_code=code)
                    for index in topic.partitions
                ],
            )
            for topic in topics
        ]
        rt.reply(event.token, AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results))

    wanted = frozenset(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)
    _add(
        rt,
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        wanted,
        answer,
    )


def add_offsets(rt: Runtime, event: RequestReceived, request: AddOffsetsToTxnRequest) -> None:
    """Add the partition of `__consumer_offsets` that has the group."""

    def answer(error: ErrorCode) -> None:
        rt.reply(event.token, AddOffsetsToTxnResponse(error_code=_for_version(error, event.api_version)))

    wanted = TopicPartition(OFFSETS_TOPIC, partition_of(request.group_id, rt.config.offsets_partitions))
    _add(rt, request.transactional_id, request.producer_id, request.producer_epoch, frozenset({wanted}), answer)


def add_or_verify(rt: Runtime, event: AddPartitions) -> None:
    """Add the partitions of a Produce or TxnOffsetCommit, or check that they were added before."""
    if event.verify_only:
        _verify(rt, event)
        return
    _add(
        rt,
        event.transactional_id,
        event.producer_id,
        event.producer_epoch,
        event.partitions,
        lambda error: rt.reply_added(event.token, event.partitions, error),
    )


def _add(
    rt: Runtime,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: frozenset[TopicPartition],
    then: Continuation,
) -> None:
    transaction = rt.find(transactional_id)
    if isinstance(transaction, ErrorCode):
        then(transaction)
        return
    current = transaction.current
    if transaction.is_changing:
        then(ErrorCode.CONCURRENT_TRANSACTIONS)
    elif current.producer_id != producer_id:
        then(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    elif current.producer_epoch != producer_epoch:
        then(ErrorCode.PRODUCER_FENCED)
    elif current.state is TransactionState.ONGOING and partitions <= current.partitions:
        then(ErrorCode.NONE)
    else:
        rt.store(transaction, change.add(current, partitions, rt.wall_ms), then)


def _verify(rt: Runtime, event: AddPartitions) -> None:
    transaction = rt.find(event.transactional_id)
    if isinstance(transaction, ErrorCode):
        rt.reply_added(event.token, event.partitions, transaction)
        return
    current = transaction.current
    error = ErrorCode.NONE
    if current.producer_id != event.producer_id:
        error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    elif current.producer_epoch != event.producer_epoch:
        error = ErrorCode.PRODUCER_FENCED
    elif current.state.is_prepared:
        error = ErrorCode.CONCURRENT_TRANSACTIONS
    missing = error or ErrorCode.TRANSACTION_ABORTABLE
    rt.reply_verified(
        event.token,
        {partition: error if partition in current.partitions else missing for partition in event.partitions},
    )


def _for_version(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED and version < PRODUCER_FENCED_FROM:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
