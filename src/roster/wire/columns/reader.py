"""From the bytes of a partition in a Fetch response to Arrow columns.

Two steps, so that a fetcher can ask for more between them: `scan` walks the batch headers of a partition, checks every
CRC, leaves out control batches, aborted transactions and what lies outside the range, and says where to go on;
`RecordColumns` fills columns from all partitions of a response. Both spend Python per partition, and per batch where
one is compressed or large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import google_crc32c
import numpy as np
import pyarrow as pa

from roster.wire.columns import layout as at
from roster.wire.compression import MAX_EXPANDED, Compression, decompress
from roster.wire.errors import WireError

MAX_ROWS = 1 << 16
MAX_BYTES = 16 << 20
"""A record batch ends at so many rows, or bytes of batches unless one alone has more."""

_INT32_MAX = 2**31 - 1
_LEAST_RECORD = 7
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_TIMESTAMP = pa.timestamp("us", tz="UTC")


class Kernel(Protocol):
    """The loops of `roster.wire.columns.kernel`, compiled or not."""

    def scan(self, *arguments: Any) -> int:
        """Walk batches."""
        ...

    def fill(self, *arguments: Any) -> int:
        """Copy records into columns."""
        ...


class Aborted(NamedTuple):
    """An aborted transaction of a Fetch response: a producer's records from `first_offset` on, up to its marker."""

    producer_id: int
    first_offset: int


class Scanned(NamedTuple):
    """Batches of one partition with wanted records, and how far the walk came.

    `table` has a row of `layout.BATCH_FIELDS` numbers for each batch. `next_offset` is the offset behind the last batch
    seen (at most one past `stop` is looked at), -1 when not one whole batch was there. `leader_epoch` is that of
    the last batch seen before `stop`, -1 for none.
    """

    table: Any
    next_offset: int
    leader_epoch: int


def scan(
    kernel: Kernel,
    data: Any,
    begin: int,
    end: int,
    wanted: tuple[int, int],
    source: int = 0,
    aborted: Sequence[Aborted] | None = None,
) -> Scanned:
    """Walk the batches of one partition in `data[begin:end]`, an array of bytes, up to a last one that is cut off.

    Records of offsets from `wanted[0]` up to before `wanted[1]` are kept; `source` is kept with them. With `aborted`
    (also an empty one) only those of committed transactions are visible, as with `read_committed`.
    Raises WireError for a CRC that does not match, an older message format, and headers no batch can have.
    """
    ordered = sorted(aborted or (), key=lambda transaction: transaction.first_offset)
    producers = np.array([transaction.producer_id for transaction in ordered], np.int64)
    firsts = np.array([transaction.first_offset for transaction in ordered], np.int64)
    active = np.zeros(len(ordered), np.uint8)
    state = np.zeros(at.SCAN_STATE, np.int64)
    state[at.SCAN_POS], state[at.SCAN_NEXT], state[at.SCAN_EPOCH] = begin, -1, -1
    pieces = []
    room = min(1024, 1 + (end - begin) // at.HEADER)
    while state[at.SCAN_POS] < end:
        table = np.zeros((room, at.BATCH_FIELDS), np.int64)
        kept = kernel.scan(
            *(data, end, *wanted, source, int(aborted is not None)),
            *(producers, firsts, len(ordered), active, state, table.reshape(-1), room),
        )
        if kept < 0:
            raise _error(kept, state[at.SCAN_DETAIL])
        pieces.append(table[:kept])
    table = np.concatenate(pieces) if pieces else np.empty((0, at.BATCH_FIELDS), np.int64)
    _check_crcs(data, table)
    return Scanned(table[table[:, at.COUNT] > 0], int(state[at.SCAN_NEXT]), int(state[at.SCAN_EPOCH]))


def _error(code: int, detail: int) -> WireError:
    return WireError(at.ERRORS[code].format(int(detail)))


def _check_crcs(data: Any, table: Any) -> None:
    """Check the CRCs of the batches that were too large for the loop to do so."""
    value = google_crc32c.value
    unchecked = table[table[:, at.UNCHECKED] >= 0]
    for pos, end in unchecked[:, [at.UNCHECKED, at.END]].tolist():
        if value(data[pos + 21 : end]) != int.from_bytes(data[pos + 17 : pos + 21], "big"):
            raise _error(at.BAD_CRC, pos)


class RecordColumns:
    """Record batches of scanned partitions, with the columns of Spark's Kafka source.

    `partitions[source]` is the topic and number of the partition that was scanned with that `source`.
    """

    def __init__(
        self,
        kernel: Kernel,
        partitions: Sequence[tuple[str, int]],
        *,
        headers: bool = False,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self._kernel, self._headers, self._max_rows = kernel, headers, max_rows
        topics = sorted({topic for topic, _ in partitions})
        self._topics = pa.array(topics, pa.string())
        self._topic_of = np.array([topics.index(topic) for topic, _ in partitions], np.int32)
        self._number_of = np.array([number for _, number in partitions], np.int32)
        self._topic: pa.Array | None = None
        """The column of a record batch whose rows are of one topic, as long as any was."""

    def batches(self, data: Any, tables: Sequence[Any], limit: int = MAX_EXPANDED) -> Iterator[pa.RecordBatch]:
        """Yield record batches of at least one row. `limit` bounds the bytes one compressed batch may expand to.

        `tables` are those of partitions scanned in `data`. Raises WireError for damaged records.
        """
        if not tables:
            return
        for group in _groups(np.concatenate(tables)):
            yield from self._fill(*_expanded(data, group, limit))

    def _fill(self, data: Any, table: Any) -> Iterator[pa.RecordBatch]:
        sizes = table[:, at.END] - table[:, at.POS]
        rows = int(min(np.minimum(table[:, at.COUNT], sizes // _LEAST_RECORD).sum(), self._max_rows))
        room = int(min(sizes.sum(), _INT32_MAX))
        state = np.zeros(at.FILL_STATE, np.int64)
        outcome = at.FULL
        while outcome == at.FULL:
            out = _Outputs(rows, room, self._headers)
            state[at.AT_ROW :] = 0
            table[:, at.ROWS] = 0
            outcome = self._kernel.fill(
                *(data, table.reshape(-1), len(table), int(self._headers)), *(out.limits, state, *out.arrays)
            )
            if outcome < 0:
                raise _error(outcome, state[at.FILL_DETAIL])
            if state[at.AT_ROW]:
                yield self._batch(out, state, table)
            elif outcome == at.FULL:
                raise WireError("record: too large for a column")

    def _batch(self, out: _Outputs, state: Any, table: Any) -> pa.RecordBatch:
        """The rows written, as a record batch."""
        rows = int(state[at.AT_ROW])
        per_batch = table[:, at.ROWS]
        numbers = self._number_of[table[:, at.SOURCE]]
        columns = {
            "key": out.keys.array(rows, int(state[at.KEY_NULLS])),
            "value": out.values.array(rows, int(state[at.VALUE_NULLS])),
            "topic": self._topic_column(table, rows),
            "partition": pa.array(np.repeat(numbers, per_batch)),
            "offset": pa.array(out.offsets[:rows]),
            "timestamp": pa.array(out.timestamps[:rows]).view(_TIMESTAMP),
            "timestampType": pa.array(np.repeat((table[:, at.ATTRIBUTES] >> 3 & 1).astype(np.int32), per_batch)),
        }
        if self._headers:
            columns["headers"] = out.headers(rows, state)
        return pa.RecordBatch.from_pydict(columns)

    def _topic_column(self, table: Any, rows: int) -> pa.Array:
        if len(self._topics) == 1:
            if self._topic is None or len(self._topic) < rows:
                self._topic = pa.repeat(self._topics[0], rows)
            return self._topic.slice(0, rows)
        topic = np.repeat(self._topic_of[table[:, at.SOURCE]], table[:, at.ROWS])
        return pa.DictionaryArray.from_arrays(pa.array(topic), self._topics).dictionary_decode()


def _groups(table: Any) -> Iterator[Any]:
    """Runs of batches that fit into a record batch together: compressed ones are expanded one run at a time."""
    start = size = 0
    sizes = (table[:, at.END] - table[:, at.POS]).tolist()
    # Compressed text of log lines expands 5- to 20-fold.
    weights = np.where(table[:, at.ATTRIBUTES] & 7, 8, 1).tolist()
    for index, (bytes_, weight) in enumerate(zip(sizes, weights, strict=True)):
        if index > start and size + bytes_ * weight > MAX_BYTES:
            yield table[start:index]
            start, size = index, 0
        size += bytes_ * weight
    if start < len(table):
        yield table[start:]


def _expanded(data: Any, table: Any, limit: int) -> tuple[Any, Any]:
    """The bytes that the positions in the returned copy of `table` point into, none of them compressed."""
    table = np.ascontiguousarray(table).copy()
    codecs = table[:, at.ATTRIBUTES] & 7
    if not codecs.any():
        return data, table
    view = memoryview(data)
    bodies = [
        decompress(Compression(codec), bytes(view[pos:end]), limit)
        for codec, pos, end in zip(codecs.tolist(), table[:, at.POS].tolist(), table[:, at.END].tolist(), strict=True)
    ]
    ends = np.cumsum([len(body) for body in bodies])
    table[:, at.END] = ends
    table[1:, at.POS] = ends[:-1]
    table[0, at.POS] = 0
    return np.frombuffer(b"".join(bodies), np.uint8), table


class _Outputs:
    """Buffers of one record batch. Pages of theirs that stay unused are never touched, and so cost no memory."""

    def __init__(self, rows: int, room: int, headers: bool) -> None:
        header_room = room if headers else 0
        most_headers = header_room // 2
        self.limits = np.array([rows, room, room, most_headers, header_room, header_room], np.int64)
        self.offsets, self.timestamps = np.empty(rows, np.int64), np.empty(rows, np.int64)
        self.keys, self.values = _Binary(rows, room), _Binary(rows, room)
        self.header_ends = np.zeros(1 + rows * headers, np.int32)
        self.header_bits = np.zeros((rows * headers + 7) // 8, np.uint8)
        self.names, self.datas = _Binary(most_headers, header_room), _Binary(most_headers, header_room)
        binaries = (*self.keys.arrays, *self.values.arrays)
        names = (self.header_ends, self.header_bits, self.names.ends, self.names.bytes)
        self.arrays = (self.offsets, self.timestamps, *binaries, *names, *self.datas.arrays)

    def headers(self, rows: int, state: Any) -> pa.Array:
        """The column of headers."""
        count = int(state[at.AT_HEADER])
        names = self.names.array(count, 0, pa.string())
        try:
            names.validate(full=True)
        except pa.ArrowInvalid:
            raise WireError("record: header name: not UTF-8") from None
        datas = self.datas.array(count, int(state[at.DATA_NULLS]))
        entries = pa.StructArray.from_arrays([names, datas], fields=_HEADER)
        ends = pa.py_buffer(self.header_ends[: rows + 1])
        bits = pa.py_buffer(self.header_bits) if state[at.HEADERS_NULLS] else None
        return pa.Array.from_buffers(
            pa.list_(_HEADER), rows, [bits, ends], null_count=int(state[at.HEADERS_NULLS]), children=[entries]
        )


class _Binary:
    """A binary column under construction: ends, bytes, and bits of validity."""

    def __init__(self, rows: int, room: int) -> None:
        self.ends = np.empty(rows + 1, np.int32)
        self.ends[0] = 0
        self.bytes = np.empty(room, np.uint8)
        self.bits = np.zeros((rows + 7) // 8, np.uint8)
        self.arrays = (self.ends, self.bytes, self.bits)

    def array(self, rows: int, nulls: int, kind: Any = None) -> pa.Array:
        """The first `rows` values."""
        bits = pa.py_buffer(self.bits[: (rows + 7) // 8]) if nulls else None
        ends = self.ends[: rows + 1]
        buffers = [bits, pa.py_buffer(ends), pa.py_buffer(self.bytes[: ends[-1]])]
        return pa.Array.from_buffers(kind or pa.binary(), rows, buffers, null_count=nulls)
