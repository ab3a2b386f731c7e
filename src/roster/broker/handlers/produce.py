"""Produce, with and without a transaction."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from roster._clock import wall_ms
from roster.broker.call import Answer, Call
from roster.broker.errors import CloseConnection, RefusedError
from roster.broker.log.partition_log import PartitionLog
from roster.broker.log.producer_state import NO_TRANSACTION, SequenceError
from roster.broker.record_check import InvalidRecordsError, needs_records
from roster.broker.request_limits import in_slices
from roster.broker.services import Services
from roster.broker.topics import Topic
from roster.model import TopicPartition
from roster.wire import ErrorCode, WireError
from roster.wire.messages import ProduceRequest, ProduceResponse
from roster.wire.records import HEADER_SIZE, BatchHeader, read_header, split_batches, verify_crc

IMPLICIT_FROM = 12
"""Produce version that adds its partitions to the transaction."""
ABORTABLE_FROM = 11
"""Produce version that knows TRANSACTION_ABORTABLE."""
BY_ID_FROM = 13
_ATTRIBUTES, _TRANSACTIONAL = 22, 0x10
"""Low byte of a batch's attributes, and its bit of transactions: other batches cost one look."""

_COMES_AGAIN = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS)
"""Refusals after which the client sends the batch again: those behind it still have to wait for it."""

Refusals: TypeAlias = "dict[TopicPartition, tuple[ErrorCode, str]]"


class _Batch(NamedTuple):
    """A transactional batch of the request."""

    partition: TopicPartition
    log: PartitionLog
    header: BatchHeader


async def check_transaction(services: Services, call: Call[ProduceRequest]) -> Refusals:
    """Return the partitions that may not be written to, with error code and reason; none without a transaction."""
    batches = await _transactional_batches(services, call)
    if not batches:
        return {}
    transactional_id = call.message.transactional_id
    if transactional_id is None:
        refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without a transactional id"
        return {batch.partition: refusal for batch in batches}
    unknown = [batch for batch in batches if not _has_begun(batch)]
    refused: Refusals = {}
    by_producer: dict[tuple[int, int], list[_Batch]] = {}
    for batch in unknown:
        batch.log.producers.announce(batch.header, wall_ms())
        by_producer.setdefault((batch.header.producer_id, batch.header.producer_epoch), []).append(batch)
    for producer, its in by_producer.items():
        errors = await services.transaction_coordinator.add(
            transactional_id, producer, [batch.partition for batch in its], verify_only=call.version < IMPLICIT_FROM
        )
        refused.update(_refusals(errors, call.version))
        for batch in its:
            if batch.partition in refused and refused[batch.partition][0] not in _COMES_AGAIN:
                batch.log.producers.withdraw(batch.header)
    return refused


def is_out_of_order(log: PartitionLog, header: BatchHeader, version: int) -> bool:
    """Return True for a transaction that does not begin with the first sequence: a batch before it is lost.

    Up to version 11 of Produce sequences go on from one transaction to the next, and the log may have forgotten them.
    """
    if not header.is_transactional or version < IMPLICIT_FROM or header.base_sequence == 0:
        return False
    return not log.producers.has_epoch(header.producer_id, header.producer_epoch)


async def _transactional_batches(services: Services, call: Call[ProduceRequest]) -> list[_Batch]:
    batches = []
    async for data in in_slices(call.message.topic_data):
        topic = services.topics.by_id(data.topic_id) if call.version >= BY_ID_FROM else services.topics.get(data.name)
        if topic is None or topic.is_internal:
            continue
        async for partition in in_slices(data.partition_data):
            header = _header(partition.records)
            log = topic.log(partition.index) if header is not None else None
            if log is not None and header is not None:
                batches.append(_Batch(TopicPartition(topic.name, partition.index), log, header))
    return batches


def _header(records: bytes | memoryview | None) -> BatchHeader | None:
    """Return the header of a transactional batch; None for any other batch, and for bytes that are not one."""
    if records is None or len(records) < HEADER_SIZE or not records[_ATTRIBUTES] & _TRANSACTIONAL:
        return None
    try:
        return read_header(records[:HEADER_SIZE])
    except WireError:  # refused for that when it is about to be written
        return None


def _has_begun(batch: _Batch) -> bool:
    header = batch.header
    return batch.log.producers.begins_at(header.producer_id, header.producer_epoch) != NO_TRANSACTION


def _refusals(errors: Mapping[TopicPartition, ErrorCode], version: int) -> Refusals:
    return {
        partition: (_for_client(error, version), f"the partition is not in the transaction: {error.name}")
        for partition, error in errors.items()
        if error
    }


def _for_client(error: ErrorCode, version: int) -> ErrorCode:
    """Return the coordinator's error as a Produce of this version knows it."""
    match error:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if version < ABORTABLE_FROM:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CONCURRENT_TRANSACTIONS if version >= IMPLICIT_FROM:
            return error
        case (
            ErrorCode.CONCURRENT_TRANSACTIONS
            | ErrorCode.NOT_COORDINATOR
            | ErrorCode.COORDINATOR_NOT_AVAILABLE
            | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        ):
            return ErrorCode.NOT_ENOUGH_REPLICAS  # which clients try again
        case _:
            return error


ACKS = (-1, 0, 1)

logger = logging.getLogger(__name__)


class _RefusedBatchError(RefusedError):
    """A refusal that Kafka's log makes, and not the request's handler: its answer has the log's start offset."""


async def produce(services: Services, call: Call[ProduceRequest]) -> Answer:
    """Append, then return what waits until it is durable and gives the response.

    The caller awaits this for one request of a connection after the other, so that records keep their order.
    With acks=0 the broker sends no response, and a failure closes the connection, as in Kafka.
    """
    request = call.message
    refused = await check_transaction(services, call)
    response = ProduceResponse()
    written: list[tuple[ProduceResponse.Topic.Partition, asyncio.Future[None]]] = []
    async for topic_data in in_slices(request.topic_data):
        known = _topic(services, call.version, topic_data)
        topic_response = ProduceResponse.Topic(name=topic_data.name, topic_id=topic_data.topic_id)
        response.responses.append(topic_response)
        async for data in in_slices(topic_data.partition_data):
            answer = ProduceResponse.Partition(index=data.index)
            topic_response.partition_responses.append(answer)
            try:
                topic, log = _log(request, call.version, known, data.index)
                if (partition := TopicPartition(topic.name, data.index)) in refused:
                    raise RefusedError(*refused[partition])
                appended = log.append(*await _batch(services, call.version, topic, log, data.records), wall_ms())
            except RefusedError as refusal:
                _refuse(answer, refusal)
                if isinstance(refusal, (SequenceError, InvalidRecordsError, _RefusedBatchError)):
                    answer.log_start_offset = log.log_start_offset
            except OSError as error:
                logger.error("cannot write to %s-%d: %s", topic_data.name, data.index, error)
                answer.error_code, answer.base_offset = ErrorCode.KAFKA_STORAGE_ERROR, -1
                answer.error_message = f"cannot write to disk: {error.strerror}"
            else:
                answer.base_offset = appended.base_offset
                answer.log_start_offset = log.log_start_offset
                written.append((answer, services.flusher.durable(log)))
    return partial(_answer, request.acks, response, written)


def _refuse(answer: ProduceResponse.Topic.Partition, refusal: RefusedError) -> None:
    """Say why a batch was not written; for records at fault, which (KIP-467)."""
    answer.error_code, answer.error_message, answer.base_offset = refusal.code, str(refusal), -1
    if isinstance(refusal, InvalidRecordsError):
        answer.record_errors = [
            ProduceResponse.Topic.Partition.RecordError(batch_index=index, batch_index_error_message=problem)
            for index, problem in refusal.errors.items()
        ]


async def _answer(
    acks: int, response: ProduceResponse, written: list[tuple[ProduceResponse.Topic.Partition, asyncio.Future[None]]]
) -> ProduceResponse | None:
    for answer, durable in written:
        try:
            await durable
        except OSError as error:
            answer.error_code, answer.base_offset = ErrorCode.KAFKA_STORAGE_ERROR, -1
            answer.error_message = f"cannot write to disk: {error.strerror}"
    if acks != 0:
        return response
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code != ErrorCode.NONE:
                raise CloseConnection(f"a Produce with acks=0 failed: {answer.error_message}")
    return None


def _topic(services: Services, version: int, data: ProduceRequest.Topic) -> Topic | None:
    return services.topics.by_id(data.topic_id) if version >= 13 else services.topics.get(data.name)


def _log(request: ProduceRequest, version: int, topic: Topic | None, partition: int) -> tuple[Topic, PartitionLog]:
    """Return the topic and the log to write to; raise RefusedError if this request may not write there."""
    if request.acks not in ACKS:
        raise RefusedError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {request.acks} is not -1, 0 or 1")
    if topic is None and version >= 13:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic with this id")
    log = topic.log(partition) if topic is not None else None
    if topic is None or log is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic or partition")
    if topic.is_internal:
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is written by the broker only")
    return topic, log


async def _batch(
    services: Services, version: int, topic: Topic, log: PartitionLog, records: bytes | memoryview | None
) -> tuple[BatchHeader, memoryview]:
    """Return the one batch of a partition's records, as it is to be written; RefusedError unless it may be."""
    header, batch = _checked(log, records)
    if needs_records(topic, header):
        batch = await services.record_check.prepared(topic, header, batch)
        header = read_header(batch)
        _check_size(log, batch)
        if log.removed:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
    if is_out_of_order(log, header, version):
        raise _RefusedBatchError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} begins epoch {header.producer_epoch} at {header.base_sequence}",
        )
    return header, batch


def _check_size(log: PartitionLog, batch: memoryview) -> None:
    if len(batch) > log.config.max_message_bytes:
        raise RefusedError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(batch)} bytes, at most {log.config.max_message_bytes} are allowed",
        )


def _checked(log: PartitionLog, records: bytes | memoryview | None) -> tuple[BatchHeader, memoryview]:
    """Return the one batch of a partition's records, its header checked."""
    try:
        batches = split_batches(memoryview(records or b""))
    except WireError as error:
        raise RefusedError(ErrorCode.INVALID_RECORD, str(error)) from error
    if len(batches) != 1:
        raise RefusedError(ErrorCode.INVALID_RECORD, f"{len(batches)} record batches where exactly one belongs")
    header, batch = batches[0]
    _check_size(log, batch)
    if not verify_crc(batch):
        raise RefusedError(ErrorCode.CORRUPT_MESSAGE, "the batch fails its CRC")
    if header.is_control or header.records_count < 1 or header.last_offset_delta != header.records_count - 1:
        raise _RefusedBatchError(ErrorCode.INVALID_RECORD, "not a batch of records with consecutive offsets")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise RefusedError(ErrorCode.INVALID_RECORD, "a producer id without epoch or sequence")
    return header, batch
