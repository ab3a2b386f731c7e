"""Produce, with and without a transaction."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from roster._clock import wall_ms
from roster.broker.errors import CloseConnection, RefusedError
from roster.broker.handlers.transactional_produce import check_transaction, is_out_of_order
from roster.broker.log.producer_state import SequenceError
from roster.broker.record_check import InvalidRecordsError, needs_records
from roster.broker.request_limits import in_slices
from roster.model import TopicPartition
from roster.wire import ErrorCode, WireError
from roster.wire.messages import ProduceRequest, ProduceResponse
from roster.wire.records import read_header, split_batches, verify_crc

if TYPE_CHECKING:
    from roster.broker.call import Answer, Call
    from roster.broker.log.partition_log import PartitionLog
    from roster.broker.services import Services
    from roster.broker.topics import Topic
    from roster.wire.records import BatchHeader

ACKS = (-1, 0, 1)

logger = logging.getLogger(__name__)


class _RefusedBatchError(RefusedError):
    """A refusal that Kafka's log makes, and not the request's handler: its answer has the log's start offset."""


async def produce(services: Services, call: Call[ProduceRequest]) -> Answer:
    """Append, then return what waits until it is durable and gives the response.

    The caller awaits this for one request of a connection after the other, so that records keep their order.
    With acks=0 there is no response, and a failure closes the connection, as in Kafka.
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
                if (where := TopicPartition(topic.name, data.index)) in refused:
                    raise RefusedError(*refused[where])
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
