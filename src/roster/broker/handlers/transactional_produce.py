"""The checks of a transactional Produce before anything is written (KIP-98, KIP-890).

The partitions must be in the producer's transaction: up to version 11 the client has added them, and that is verified;
from 12 on the Produce adds them. A partition in which the transaction has records needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from roster._clock import wall_ms
from roster.broker.log.producer_state import NO_TRANSACTION
from roster.broker.request_limits import in_slices
from roster.model import TopicPartition
from roster.wire import ErrorCode, WireError
from roster.wire.records import HEADER_SIZE, read_header

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roster.broker.call import Call
    from roster.broker.log.partition_log import PartitionLog
    from roster.broker.services import Services
    from roster.wire.messages import ProduceRequest
    from roster.wire.records import BatchHeader

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

    where: TopicPartition
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
        return {batch.where: refusal for batch in batches}
    unknown = [batch for batch in batches if not _has_begun(batch)]
    refused: Refusals = {}
    by_producer: dict[tuple[int, int], list[_Batch]] = {}
    for batch in unknown:
        batch.log.producers.announce(batch.header, wall_ms())
        by_producer.setdefault((batch.header.producer_id, batch.header.producer_epoch), []).append(batch)
    for producer, its in by_producer.items():
        errors = await services.transaction_coordinator.add(
            transactional_id, producer, [batch.where for batch in its], verify_only=call.version < IMPLICIT_FROM
        )
        refused.update(_refusals(errors, call.version))
        for batch in its:
            if batch.where in refused and refused[batch.where][0] not in _COMES_AGAIN:
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
        where: (_for_client(error, version), f"the partition is not in the transaction: {error.name}")
        for where, error in errors.items()
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
