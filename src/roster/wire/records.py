"""Record batches, format v2 (magic 2): the only format of records on the wire and on disk.

Source: Kafka's documentation, "Message Format". A batch is a header of 61 bytes, then its records, which may be
compressed together. The CRC-32C covers all bytes after it. Offset and leader epoch are before it, so a broker can set
them without changing the rest.
"""

from collections.abc import Iterable
from struct import Struct as Packing
from typing import NamedTuple

import google_crc32c

from roster.wire.codec.varint import Buffer, encode_varint, read_varint
from roster.wire.compression import Compression, compress, decompress
from roster.wire.errors import WireError
from roster.wire.record_spans import RecordSpan, record_spans

HEADER_SIZE = 61
NO_PRODUCER = -1

_HEADER = Packing(">qiibIhiqqqhii")
_AFTER_CRC = 21
_CRC_AT = 17
_LENGTH_END = 12
"""The length field of a batch counts the bytes after it."""

_MAGIC = 2
_COMPRESSION = 0b111
_LOG_APPEND_TIME = 1 << 3
_TRANSACTIONAL = 1 << 4
_CONTROL = 1 << 5
_LEAST_RECORD = 7
"""Size of a record without key, value and headers, including its length field."""
_INT32_MAX = 2**31 - 1
LAST_TIME = (2**63 - 1) // 1000
"""The greatest time of a record, in ms, that a timestamp in microseconds holds, and without its sign the least."""


def is_time(stamp: int) -> bool:
    """Return True unless a record's time, in ms, is beyond what a timestamp in microseconds holds."""
    return -LAST_TIME <= stamp <= LAST_TIME


class BatchHeader(NamedTuple):
    """The header, field by field; timestamps in wall-clock ms, -1 where a field says "none"."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def compression(self) -> Compression:
        """Compression of the records. Raises WireError for an unknown number."""
        try:
            return Compression(self.attributes & _COMPRESSION)
        except ValueError:
            raise WireError(f"record batch: attributes: compression {self.attributes & _COMPRESSION}") from None

    def in_compression(self, kind: Compression) -> "BatchHeader":
        """Return the header with this compression."""
        return self._replace(attributes=self.attributes & ~_COMPRESSION | kind)

    @property
    def is_compressed(self) -> bool:
        """True for any compression, known or not."""
        return bool(self.attributes & _COMPRESSION)

    @property
    def is_log_append_time(self) -> bool:
        """True if all records have the broker's time, `max_timestamp`, instead of the producer's."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def newest(self) -> int:
        """The newest time of a record; -1, as for records without one, if it is beyond what a timestamp holds."""
        return self.max_timestamp if is_time(self.max_timestamp) else -1

    def time_of(self, delta: int) -> int:
        """Return the time of a record with this delta; a sum beyond 64 bits wraps, as in Java's clients."""
        if self.is_log_append_time:
            return self.max_timestamp
        return (self.base_timestamp + delta + 2**63) % 2**64 - 2**63

    @property
    def is_transactional(self) -> bool:
        """True for a batch that is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True for control batches (transaction markers)."""
        return bool(self.attributes & _CONTROL)

    @property
    def last_offset(self) -> int:
        """The offset of the last record, even if compaction has removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return _LENGTH_END + self.batch_length


class Record(NamedTuple):
    """One record; `timestamp` is in ms, a header is (name, value). When encoding, offset -1 means the next one."""

    offset: int = -1
    timestamp: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_header(data: Buffer) -> BatchHeader:
    """Decode the header at the start of `data`; the batch may be longer than `data`.

    Raises WireError for fewer than `HEADER_SIZE` bytes, another magic, and invalid counts or lengths.
    """
    if len(data) < HEADER_SIZE:
        raise WireError(f"record batch: a header needs {HEADER_SIZE} bytes, {len(data)} are left")
    header = BatchHeader._make(_HEADER.unpack_from(data))
    if header.magic != _MAGIC:
        raise WireError(f"record batch: magic {header.magic}, only {_MAGIC} is spoken")
    if header.batch_length < HEADER_SIZE - _LENGTH_END:
        raise WireError(f"record batch: batch_length {header.batch_length}")
    if header.last_offset_delta < 0:
        raise WireError(f"record batch: last_offset_delta {header.last_offset_delta}")
    if header.records_count < 0:
        raise WireError(f"record batch: records_count {header.records_count}")
    return header


def split_batches(data: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """Split records into batches, as views into `data`; contents and CRC are not checked."""
    view = memoryview(data)
    batches = []
    pos = 0
    while pos < len(view):
        left = len(view) - pos
        header = read_header(view[pos : pos + HEADER_SIZE])
        if header.size > left:
            raise WireError(f"record batch: batch_length {header.batch_length} with {left - _LENGTH_END} bytes left")
        batches.append((header, view[pos : pos + header.size]))
        pos += header.size
    return batches


def verify_crc(batch: Buffer) -> bool:
    """Return True if the CRC of this whole batch matches its bytes."""
    if len(batch) < HEADER_SIZE:
        return False
    expected = int.from_bytes(batch[_CRC_AT:_AFTER_CRC], "big")
    return crc32c(bytes(batch[_AFTER_CRC:])) == expected


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli)."""
    value: int = google_crc32c.value(data)
    return value


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    last_offset: int | None = None,
) -> bytes:
    """Return a batch with these records, at least one.

    Records with an offset (`base_offset` or higher, ascending) keep it; others get the next one. `last_offset`: the
    last offset of a batch whose last records were removed by compaction.
    """
    records = list(records)
    if not records:
        raise WireError("record batch: no records")
    first_timestamp = records[0].timestamp
    body: list[bytes] = []
    delta = -1
    for record in records:
        following = delta + 1 if record.offset == -1 else record.offset - base_offset
        if following <= delta:
            raise WireError(f"record: offset {record.offset} in a batch that is at {base_offset + delta}")
        delta = following
        body += _record(record, delta, record.timestamp - first_timestamp)
    last_delta = delta if last_offset is None else last_offset - base_offset
    if not delta <= last_delta <= _INT32_MAX:
        raise WireError(f"record batch: last offset {base_offset + last_delta}, a record has {base_offset + delta}")
    packed = compress(compression, b"".join(body))
    attributes = compression | _TRANSACTIONAL * transactional | _CONTROL * control
    head = (attributes, last_delta, first_timestamp, max(record.timestamp for record in records))
    try:
        tail = (producer_id, producer_epoch, base_sequence, len(records))
        covered = _HEADER.pack(0, 0, 0, _MAGIC, 0, *head, *tail)[_AFTER_CRC:] + packed
        length = HEADER_SIZE - _LENGTH_END + len(packed)
        front = _HEADER.pack(base_offset, length, leader_epoch, _MAGIC, crc32c(covered), *head, *tail)
    except Exception as error:
        raise WireError(f"record batch: {error}") from error
    return front[:_AFTER_CRC] + covered


def with_body(header: BatchHeader, body: bytes) -> bytes:
    """Return a batch with the fields of a header, except length and CRC, and with these uncompressed records."""
    packed = compress(header.compression, body)
    length = HEADER_SIZE - _LENGTH_END + len(packed)
    covered = _HEADER.pack(*header)[_AFTER_CRC:] + packed
    return _HEADER.pack(*header._replace(batch_length=length, crc=crc32c(covered)))[:_AFTER_CRC] + covered


def _record(record: Record, offset_delta: int, timestamp_delta: int) -> tuple[bytes, bytes]:
    try:
        parts = [b"\0", encode_varint(timestamp_delta), encode_varint(offset_delta)]
        for data in (record.key, record.value):
            parts += (b"\x01",) if data is None else (encode_varint(len(data)), data)
        parts.append(encode_varint(len(record.headers)))
        for name, value in record.headers:
            text = name.encode()
            parts += (encode_varint(len(text)), text)
            parts += (b"\x01",) if value is None else (encode_varint(len(value)), value)
        body = b"".join(parts)
    except Exception as error:
        raise WireError(f"record: {error}") from error
    return encode_varint(len(body)), body


def read_batch(batch: Buffer, *, limit: int | None = None) -> list[Record]:
    """Decode the records of one whole batch, with absolute offsets and timestamps. The CRC is not checked.

    `limit`: most bytes to which a compressed batch may expand (None: `most_expanded`).
    """
    header = read_header(batch)
    if header.size != len(batch):
        raise WireError(f"record batch: batch_length {header.batch_length} with {len(batch) - _LENGTH_END} bytes left")
    body = decompress(header.compression, bytes(batch[HEADER_SIZE:]), limit)
    count = header.records_count
    if count > len(body) // _LEAST_RECORD:
        raise WireError(f"record batch: records_count {count} with {len(body)} bytes left")
    return [_record_of(span, header) for span in record_spans((body,), count)]


def _record_of(span: RecordSpan, header: BatchHeader) -> Record:
    if not 0 <= span.offset_delta <= header.last_offset_delta:
        raise WireError(f"record: offset_delta {span.offset_delta} in a batch that ends at {header.last_offset_delta}")
    stamp = header.time_of(span.timestamp_delta)
    return Record(header.base_offset + span.offset_delta, stamp, span.key, span.value, _headers(span))


def _headers(span: RecordSpan) -> tuple[tuple[str, bytes | None], ...]:
    """Decode a record's headers; their sizes have been checked."""
    data, pos = span.data, span.headers_start
    count, pos = read_varint(data, pos, span.end, "record: headers")
    headers = []
    for _ in range(count):
        size, pos = read_varint(data, pos, span.end, "record: header name")
        name, pos = data[pos : pos + size], pos + size
        size, pos = read_varint(data, pos, span.end, "record: header value")
        value = None if size < 0 else data[pos : pos + size]
        pos += max(size, 0)
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError as error:
            raise WireError(f"record: header name: not UTF-8 ({error.reason})") from error
    return tuple(headers)
