"""Records of the broker's own topics, written and read for the coordinators that keep their state in them."""

from collections.abc import Iterable, Iterator

from roster.broker.log.partition_log import PartitionLog
from roster.coordinator.events import LoadedRecord, TransactionalRecord, TransactionEnd
from roster.wire import WireError
from roster.wire.control_records import ControlType, read_marker
from roster.wire.records import BatchHeader, Record, build_batch, read_batch, read_header, verify_crc


def append_records(
    log: PartitionLog,
    records: Iterable[tuple[bytes, bytes | None]],
    now_ms: int,
    producer: tuple[int, int] | None = None,
) -> None:
    """Append keys and values as one batch, in the transaction of a producer (id, epoch) if one is given.

    Raises OSError, and SequenceError if the producer is fenced.
    """
    rows = [Record(timestamp=now_ms, key=key, value=value) for key, value in records]
    if producer is None:
        batch = memoryview(build_batch(rows))
        log.append(read_header(batch), batch, now_ms)
        return
    producer_id, epoch = producer
    batch = memoryview(build_batch(rows, producer_id=producer_id, producer_epoch=epoch, transactional=True))
    log.append_transactional(batch, now_ms)


def read_records(log: PartitionLog) -> tuple[tuple[bytes, bytes | None], ...]:
    """Read every record of a partition without transactions, in order; WireError if one is malformed."""
    return tuple(
        (record.key, record.value)
        for _, batch in _checked(log)
        for record in read_batch(batch)
        if record.key is not None
    )


def read_transactional_records(log: PartitionLog) -> tuple[LoadedRecord, ...]:
    """Read every record of a partition of `__consumer_offsets`, in order, with the ends of transactions."""
    records: list[LoadedRecord] = []
    for header, batch in _checked(log):
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None:
                records.append(TransactionEnd(header.producer_id, marker.control_type is ControlType.COMMIT))
            continue
        for record in read_batch(batch):
            if record.key is None:
                continue
            if header.is_transactional:
                records.append(TransactionalRecord(header.producer_id, record.key, record.value))
            else:
                records.append((record.key, record.value))
    return tuple(records)


def _checked(log: PartitionLog) -> Iterator[tuple[BatchHeader, memoryview]]:
    for header, batch in log.batches():
        if not verify_crc(batch):
            raise WireError(f"{log.directory}: the batch at offset {header.base_offset} fails its CRC")
        yield header, batch
