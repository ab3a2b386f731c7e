"""Records that a test writes and reads."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roster.broker.log.partition_log import PartitionLog
from roster.testing.errors import KitArgumentError
from roster.wire.columns.murmur2 import murmur2
from roster.wire.records import Record, read_batch

_KEY_AND_VALUE = 2


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record of a topic; `timestamp` is milliseconds since 1970."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def text(self) -> str:
        """The value as text in UTF-8."""
        return (self.value or b"").decode()

    @property
    def json(self) -> Any:
        """The value, parsed as JSON."""
        return json.loads(self.value or b"null")


def as_record(given: object, now_ms: int) -> Record:
    """Return the record for a value, or for a key and a value, that a test produces."""
    if isinstance(given, tuple):
        if len(given) != _KEY_AND_VALUE:
            raise KitArgumentError(f"a record is a value, or a key and a value; not {given!r}")
        return Record(timestamp=now_ms, key=_bytes(given[0]), value=_bytes(given[1]))
    return Record(timestamp=now_ms, key=None, value=_bytes(given))


def _bytes(given: Any) -> bytes | None:
    match given:
        case None | bytes():
            return given
        case str():
            return given.encode()
        case Mapping():
            return json.dumps(given).encode()
    raise KitArgumentError(f"a key or value is text, bytes, a mapping for JSON, or None; not {given!r}")


def committed_records(log: PartitionLog, partition: int) -> Iterator[StoredRecord]:
    """Yield the records that a `read_committed` consumer gets."""
    end = log.last_stable_offset
    aborted = list(log.producers.aborted)
    for header, batch in log.batches():
        if header.base_offset >= end:
            return
        gone = header.is_transactional and any(
            transaction.producer_id == header.producer_id
            and transaction.first_offset <= header.base_offset <= transaction.last_offset
            for transaction in aborted
        )
        if header.is_control or gone:
            continue
        for record in read_batch(batch):
            if record.offset >= log.log_start_offset:
                yield StoredRecord(
                    partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers)
                )


def partition_for(record: Record, number: int, partitions: int) -> int:
    """Return the partition of a record: by its key as in Kafka's Java client, without a key by its `number` in turn."""
    if record.key is None:
        return number % partitions
    return int(murmur2(record.key, 0, len(record.key)) & 0x7FFFFFFF) % partitions  # type: ignore[no-untyped-call]
