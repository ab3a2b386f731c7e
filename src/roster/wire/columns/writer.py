"""Encodes Arrow columns as record batches (format v2), partition by partition.

`Encoder` chooses partitions as Kafka's Java client does (the key's murmur2 hash; rows without a key fill one partition
after the other) and encodes the rows of each in compiled code; Python code runs per batch. `framed` makes a batch of a
`Body` when the producer's id and the sequence number are known, since the CRC covers both.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct as Packing
from typing import NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from roster.model.arrays import Int32, Int64, UInt8
from roster.wire.codec.varint import Buffer
from roster.wire.columns import encode_layout as layout
from roster.wire.columns.kernel import Kernel
from roster.wire.compression import Compression, compress, decompress, most_expanded
from roster.wire.errors import WireError
from roster.wire.records import HEADER_SIZE, NO_PRODUCER, Record, build_batch, read_batch

_COVERED = Packing(">hiqqqhii")
_FRONT = Packing(">qiibI")
_TRANSACTIONAL = 1 << 4
_MAGIC = 2
_LENGTH_END = 12


class Body(NamedTuple):
    """The records of a batch, perhaps compressed; timestamps are wall-clock ms."""

    records: int
    data: bytes
    compression: Compression
    base_timestamp: int
    max_timestamp: int
    size: int
    """Bytes of the batch, its header included."""

    @classmethod
    def of(cls, records: int, data: bytes, compression: Compression, base_timestamp: int, max_timestamp: int) -> "Body":
        """Return them with the size that the batch will have."""
        return cls(records, data, compression, base_timestamp, max_timestamp, HEADER_SIZE + len(data))


def framed(
    body: Body,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    *,
    transactional: bool = False,
) -> bytes:
    """Return the whole batch, with offset 0, as producers send it."""
    attributes = body.compression | _TRANSACTIONAL * transactional
    times = (body.base_timestamp, body.max_timestamp)
    numbers = (producer_id, producer_epoch, base_sequence, body.records)
    head = _COVERED.pack(attributes, body.records - 1, *times, *numbers)
    crc = google_crc32c.extend(google_crc32c.value(head), body.data)
    front = _FRONT.pack(0, body.size - _LENGTH_END, -1, _MAGIC, crc)
    return b"".join((front, head, body.data))


def halves(body: Body) -> tuple[Body, Body]:
    """Split a body of several records in two, for a broker that refused the batch as too large."""
    records = read_batch(framed(body))
    middle = len(records) // 2
    first, second = (
        build_batch([r._replace(offset=-1) for r in part], compression=body.compression)
        for part in (records[:middle], records[middle:])
    )
    return _body(first, records[:middle], body.compression), _body(second, records[middle:], body.compression)


def _body(batch: Buffer, records: Sequence[Record], compression: Compression) -> Body:
    times = [record.timestamp for record in records]
    return Body.of(len(records), bytes(batch[HEADER_SIZE:]), compression, times[0], max(times))


class Placed(NamedTuple):
    """A batch's records and their partition."""

    partition: int
    body: Body


class Encoder:
    """Encoder for the rows of one topic."""

    def __init__(
        self,
        kernel: Kernel,
        partitions: int,
        *,
        compression: Compression = Compression.NONE,
        batch_bytes: int = 900_000,
        first_partition: int = 0,
        sticky_bytes: int | None = None,
    ) -> None:
        """`batch_bytes` limits the records of a batch before compression; a larger single record exceeds it.

        Rows without a key start at `first_partition`, which should differ between tasks, and change to the next
        partition after `sticky_bytes` (None: `batch_bytes`), as in KIP-794. Records are not compressed if that does not
        make them smaller, or makes them so small that readers would refuse to decompress them.
        """
        self._sticky_bytes = batch_bytes if sticky_bytes is None else sticky_bytes
        self._kernel, self._partitions = kernel, partitions
        self._compression, self._batch_bytes = compression, batch_bytes
        self._sticky = np.zeros(layout.PLACE_STATE, np.int64)
        self._sticky[layout.STICKY] = (first_partition - 1) % partitions

    def encode(self, rows: pa.RecordBatch, timestamps: Int64) -> Iterator[Placed]:
        """Yield batches with all rows; the batches of one partition keep the order of the rows.

        `rows` has the column value, and optionally key (strings or binary), partition (int; null: chosen here) and
        headers (list of struct of name and binary). `timestamps` is an int64 array of wall-clock ms. Raises WireError
        for a partition that the topic does not have, and for a header without a name.
        """
        count = rows.num_rows
        columns = _columns(rows)
        places, order = np.empty(count, np.int32), np.empty(count, np.int64)
        sizes, starts = np.empty(count, np.int64), np.empty(self._partitions + 1, np.int64)
        partitions = _named_partitions(rows)
        outcome = self._kernel.place(
            *(count, *columns, partitions, self._partitions, self._sticky_bytes),
            *(self._sticky, places, sizes, starts, order),
        )
        if outcome == layout.BAD_PARTITION:
            wrong = int(partitions[self._sticky[layout.PLACE_DETAIL]])
            raise WireError(f"partition {wrong} of a topic with {self._partitions}")
        out = np.empty(max(self._batch_bytes, int(sizes.max(initial=0))), np.uint8)
        state = np.zeros(layout.ENCODE_STATE, np.int64)
        for partition, (start, stop) in enumerate(pairwise(starts.tolist())):
            done = start
            while done < stop:
                taken = self._kernel.encode(
                    order, done, stop, self._batch_bytes, *columns, timestamps, sizes, out, state
                )
                data = out[: state[layout.AT]].tobytes()
                times = int(state[layout.BASE_TIMESTAMP]), int(state[layout.MAX_TIMESTAMP])
                yield Placed(partition, self._body(taken, data, times))
                done += taken

    def _body(self, records: int, data: bytes, times: tuple[int, int]) -> Body:
        packed = compress(self._compression, data)
        if len(packed) < len(data) <= most_expanded(len(packed)):
            return Body.of(records, packed, self._compression, *times)
        return Body.of(records, data, Compression.NONE, *times)


def expanded(body: Body) -> bytes:
    """Return the decompressed records of a body."""
    return decompress(body.compression, body.data)


_NO_ENDS, _NO_BYTES = np.zeros(1, np.int32), np.zeros(0, np.uint8)


def _columns(rows: pa.RecordBatch) -> tuple[object, ...]:
    """Return the arguments of both loops for the columns."""
    names = rows.schema.names
    key = binary_parts(rows.column("key")) if "key" in names else _nothing(rows.num_rows)
    value = binary_parts(rows.column("value"))
    if "headers" not in names or rows.column("headers").null_count == rows.num_rows:
        headers: tuple[object, ...] = (0, _NO_ENDS, _NO_BYTES, _NO_ENDS, _NO_BYTES, _NO_ENDS, _NO_BYTES, _NO_BYTES)
    else:
        headers = (1, *_headers(rows.column("headers")))
    return (*key, *value, *headers)


def _nothing(rows: int) -> tuple[Int32, UInt8, UInt8]:
    """Return a column of nulls."""
    return np.zeros(rows + 1, np.int32), _NO_BYTES, np.zeros(rows, np.uint8)


def binary_parts(column: pa.Array) -> tuple[Int32, UInt8, UInt8]:
    """Return ends, bytes and validity (a byte for each row) of a column of strings or bytes, as numpy arrays."""
    if pa.types.is_null(column.type):
        return _nothing(len(column))
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        column = column.cast(pa.binary())
    _, ends, data = column.buffers()
    if ends is None or not len(column):
        return _nothing(len(column))
    offsets = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
    return offsets, _NO_BYTES if data is None else np.frombuffer(data, np.uint8), _validity(column)


def _validity(column: pa.Array) -> UInt8:
    if column.null_count == 0:
        return np.ones(len(column), np.uint8)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.uint8)


def _headers(column: pa.Array) -> tuple[object, ...]:
    if pa.types.is_large_list(column.type):
        column = column.cast(pa.list_(column.type.value_field))
    ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    entries = column.values
    names, datas = entries.field(0), entries.field(1)
    name_ends, name_bytes, name_valid = binary_parts(names)
    used = slice(int(ends[0]), int(ends[-1]))
    if not name_valid[used].all() or entries.slice(used.start, used.stop - used.start).null_count:
        raise WireError("record: header name: null")
    return ends, _validity(column), name_ends, name_bytes, *binary_parts(datas)


def _named_partitions(rows: pa.RecordBatch) -> Int32:
    """Return the partitions that the rows name, -1 where they name none."""
    if "partition" not in rows.schema.names:
        return np.full(rows.num_rows, -1, np.int32)
    column = rows.column("partition").cast(pa.int32())
    if column.null_count == rows.num_rows:
        return np.full(rows.num_rows, -1, np.int32)
    named = _validity(column)
    partitions = np.asarray(column.fill_null(-1).to_numpy(zero_copy_only=False), np.int32)
    if ((partitions < 0) & (named > 0)).any():
        raise WireError(f"partition {int(partitions[(partitions < 0) & (named > 0)][0])}")
    return partitions
