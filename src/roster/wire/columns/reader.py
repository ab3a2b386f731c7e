"""Reads the bytes of a partition in a Fetch response as Arrow columns.

There are two steps, so that a fetcher can send the next request between them. `scan` reads the batch headers of all
partitions of a response, checks every CRC, leaves out control batches, aborted transactions and batches outside the
ranges, and returns the next offsets. `RecordColumns` fills columns from them. Python code runs per batch only if it is
compressed or large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from mmap import mmap
from typing import NamedTuple, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roster.model.arrays import Int64, UInt8
from roster.wire.codec.varint import Buffer
from roster.wire.columns import decode_layout as layout
from roster.wire.columns.kernel import Kernel
from roster.wire.compression import Compression, decompress
from roster.wire.errors import WireError

T = TypeVar("T", bound=np.generic)

MAX_ROWS = 1 << 16
MAX_BYTES = 16 << 20
"""Limit of an Arrow record batch, in rows and in bytes of Kafka's batches; a larger single batch exceeds it."""

_INT32_MAX = 2**31 - 1
_LEAST_RECORD = 7
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_TIMESTAMP = pa.timestamp("us", tz="UTC")


class Unreadable(NamedTuple):
    """A batch whose records cannot be read although its CRC is right: its offsets, the reason, and its bytes."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    problem: str
    data: bytes

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: the batch with offsets {self.first_offset} to {self.last_offset}"
            f" ({len(self.data)} bytes) cannot be read: {self.problem}"
        )


class UnreadableError(WireError):
    """A batch cannot be read."""

    def __init__(self, batch: Unreadable) -> None:
        super().__init__(str(batch))
        self.batch = batch


def refuse(batch: Unreadable) -> None:
    """Raise UnreadableError."""
    raise UnreadableError(batch)


class Aborted(NamedTuple):
    """An aborted transaction in a Fetch response: a producer's records from `first_offset` up to its marker."""

    producer_id: int
    first_offset: int


class Part(NamedTuple):
    """The bytes of a partition in a response, `begin` to `end`: records with offsets from `start` to before `stop` are
    wanted, and `source` is kept with them.
    """

    begin: int
    end: int
    start: int
    stop: int
    source: int = 0
    aborted: Sequence[Aborted] = ()


class Scanned(NamedTuple):
    """Batches with requested records, and the progress of the scan in each part.

    `table` has a row of `layout.BATCH_FIELDS` numbers for each batch. `next_offsets`: the offset after the last batch
    read (at most one batch after the part's `stop` is read), -1 without a whole batch. `leader_epochs`: of the
    last batch read before `stop`, -1 for none.
    """

    table: Int64
    next_offsets: list[int]
    leader_epochs: list[int]


class ScanError(WireError):
    """The bytes of the part with this `source` cannot be read."""

    def __init__(self, source: int, problem: str) -> None:
        super().__init__(problem)
        self.source = source


def scan(kernel: Kernel, data: UInt8, parts: Sequence[Part], *, committed: bool = False) -> Scanned:
    """Scan the batches of partitions in `data`, an array of bytes; the last one of each may be cut off.

    With `committed` only records of committed transactions are visible, as with `read_committed`.
    Raises ScanError for a wrong CRC, an older message format, and invalid batch headers.
    """
    rows = np.zeros((len(parts), layout.PART_FIELDS), np.int64)
    rows[:, [layout.PART_NEXT, layout.PART_EPOCH]] = -1
    rows[:, : layout.PART_ABORTED] = [part[:5] for part in parts]
    aborted = [
        transaction
        for part in parts
        for transaction in sorted(part.aborted, key=lambda transaction: transaction.first_offset)
    ]
    rows[:, layout.PART_ABORTED_END] = np.cumsum([len(part.aborted) for part in parts])
    rows[1:, layout.PART_ABORTED] = rows[1:, layout.PART_BEGUN] = rows[:-1, layout.PART_ABORTED_END]
    transactions = np.array(aborted, np.int64).reshape(-1, 2)
    producers, firsts = np.ascontiguousarray(transactions.T)
    active, state = np.zeros(len(aborted), np.uint8), np.zeros(layout.SCAN_STATE, np.int64)
    pieces = []
    room = min(1024, 1 + int((rows[:, layout.PART_END] - rows[:, layout.PART_POS]).sum()) // layout.HEADER)
    while state[layout.SCAN_PART] < len(parts):
        table = np.zeros((room, layout.BATCH_FIELDS), np.int64)
        kept = kernel.scan(
            *(data, rows.reshape(-1), len(parts), int(committed)),
            *(producers, firsts, active, state, table.reshape(-1), room),
        )
        if kept < 0:
            part = rows[state[layout.SCAN_PART]]
            offset = part[layout.PART_START] if part[layout.PART_NEXT] < 0 else part[layout.PART_NEXT]
            problem = f"offset {offset}: {_error(kept, state[layout.SCAN_DETAIL])}"
            raise ScanError(int(part[layout.PART_SOURCE]), problem)
        pieces.append(table[:kept])
    table = np.concatenate(pieces) if pieces else np.empty((0, layout.BATCH_FIELDS), np.int64)
    _check_crcs(data, table)
    wanted = table[table[:, layout.COUNT] > 0]
    return Scanned(wanted, rows[:, layout.PART_NEXT].tolist(), rows[:, layout.PART_EPOCH].tolist())


def _error(code: int, detail: int) -> str:
    return layout.ERRORS[code].format(int(detail))


def _check_crcs(data: UInt8, table: Int64) -> None:
    """Check the CRCs of the batches that are too large for the loop."""
    value = google_crc32c.value
    unchecked = table[table[:, layout.UNCHECKED] >= 0]
    for pos, end, source in unchecked[:, [layout.UNCHECKED, layout.END, layout.SOURCE]].tolist():
        if value(data[pos + 21 : end]) != int.from_bytes(data[pos + 17 : pos + 21], "big"):
            offset = int.from_bytes(data[pos : pos + 8], "big")
            raise ScanError(source, f"offset {offset}: {_error(layout.BAD_CRC, pos)}")


class RecordColumns:
    """Arrow record batches of scanned partitions, with the columns of Spark's Kafka source.

    `partitions[source]`: topic and number of the partition that was scanned with this `source`.
    """

    def __init__(
        self, kernel: Kernel, partitions: Sequence[tuple[str, int]], *, headers: bool = False, max_rows: int = MAX_ROWS
    ) -> None:
        self._kernel, self._headers, self._max_rows = kernel, headers, max_rows
        topics = sorted({topic for topic, _ in partitions})
        self._topics = pa.array(topics, pa.string())
        self._topic_of = np.array([topics.index(topic) for topic, _ in partitions], np.int32)
        self._number_of = np.array([number for _, number in partitions], np.int32)
        self._topic: pa.Array | None = None
        """Column for record batches with rows of one topic; as long as the longest so far."""

    def batches(
        self, data: UInt8, table: Int64, on_unreadable: Callable[[Unreadable], None] = refuse
    ) -> Iterator[pa.RecordBatch]:
        """Yield record batches of at least one row; `table` is what was scanned in `data`.

        `on_unreadable` is called with each batch whose records cannot be read; if it returns, the batch is left out,
        except records of it that were already yielded.
        """

        def report(index: int, problem: str) -> None:
            on_unreadable(self._unreadable(data, table[index], problem))

        for run in _runs(data, table, report):
            yield from self._fill(run, report)
            del run  # before the next is expanded

    def _unreadable(self, data: UInt8, row: Int64, problem: str) -> Unreadable:
        source, first = int(row[layout.SOURCE]), int(row[layout.BASE_OFFSET])
        topic = self._topics[int(self._topic_of[source])].as_py()
        whole = data[row[layout.POS] - layout.HEADER : row[layout.END]].tobytes()
        return Unreadable(
            topic, int(self._number_of[source]), first, first + int(row[layout.LAST_DELTA]), problem, whole
        )

    def _fill(self, run: _Run, report: Callable[[int, str], None]) -> Iterator[pa.RecordBatch]:
        data, table, numbers = run
        sizes = table[:, layout.END] - table[:, layout.POS]
        rows = int(min(np.minimum(table[:, layout.COUNT], sizes // _LEAST_RECORD).sum(), self._max_rows))
        room = int(min(sizes.sum(), _INT32_MAX))
        state = np.zeros(layout.FILL_STATE, np.int64)
        upto = len(table)
        while (begun := int(state[layout.AT_BATCH])) < len(table):
            before, out = state[: layout.AT_ROW].copy(), _Outputs(rows, room, self._headers)
            try:
                batch = self._filled(data, table[:upto], out, state)
            except _BadBatchError as error:
                state[: layout.AT_ROW] = before
                if error.index > begun:
                    upto = error.index  # those before it first
                    continue
                report(numbers[begun], str(error))
                state[layout.AT_BATCH], state[layout.AT_RECORD], upto = begun + 1, 0, len(table)
                continue
            if batch is not None:
                yield batch
            if state[layout.AT_BATCH] == upto:
                upto = len(table)

    def _filled(self, data: UInt8, table: Int64, out: _Outputs, state: Int64) -> pa.RecordBatch | None:
        """Return as many rows as the outputs have room for, None if there are none. Raises _BadBatchError."""
        state[layout.AT_ROW :] = 0
        table[:, layout.ROWS] = 0
        outcome = self._kernel.fill(
            *(data, table.reshape(-1), len(table), int(self._headers)), *(out.limits, state, *out.arrays)
        )
        if outcome < 0:
            raise _BadBatchError(int(state[layout.AT_BATCH]), _error(outcome, state[layout.FILL_DETAIL]))
        if state[layout.AT_ROW]:
            return self._batch(out, state, table)
        if outcome == layout.FULL:
            raise _BadBatchError(int(state[layout.AT_BATCH]), "a record is too large for a column")
        return None

    def _batch(self, out: _Outputs, state: Int64, table: Int64) -> pa.RecordBatch:
        """Return the written rows as a record batch."""
        rows = int(state[layout.AT_ROW])
        per_batch = table[:, layout.ROWS]
        numbers = self._number_of[table[:, layout.SOURCE]]
        columns = {
            "key": out.keys.array(rows, int(state[layout.KEY_NULLS])),
            "value": out.values.array(rows, int(state[layout.VALUE_NULLS])),
            "topic": self._topic_column(table, rows),
            "partition": pa.array(np.repeat(numbers, per_batch)),
            "offset": pa.array(out.offsets[:rows]),
            "timestamp": _times(out.timestamps[:rows]),
            "timestampType": pa.array(np.repeat((table[:, layout.ATTRIBUTES] >> 3 & 1).astype(np.int32), per_batch)),
        }
        if self._headers:
            columns["headers"] = out.headers(rows, state, table)
        return pa.RecordBatch.from_pydict(columns)

    def _topic_column(self, table: Int64, rows: int) -> pa.Array:
        if len(self._topics) == 1:
            if self._topic is None or len(self._topic) < rows:
                self._topic = pa.repeat(self._topics[0], rows)
            return self._topic.slice(0, rows)
        topic = np.repeat(self._topic_of[table[:, layout.SOURCE]], table[:, layout.ROWS])
        return pa.DictionaryArray.from_arrays(pa.array(topic), self._topics).dictionary_decode()


class _BadBatchError(Exception):
    """A batch cannot be read; the error has its number in the table."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index


class _Run(NamedTuple):
    """Batches that fit into one record batch: their bytes, a table with positions in them, the numbers of its rows."""

    data: UInt8
    table: Int64
    numbers: Sequence[int]


def _runs(data: UInt8, table: Int64, report: Callable[[int, str], None]) -> Iterator[_Run]:
    """Divide a table into runs; without compression, nothing is copied."""
    if (table[:, layout.ATTRIBUTES] & 7).any():
        yield from _expanded(data, table, report)
        return
    ends = np.cumsum(table[:, layout.END] - table[:, layout.POS])
    start = before = 0
    while start < len(table):
        stop = max(start + 1, int(np.searchsorted(ends, before + MAX_BYTES, "right")))
        yield _Run(data, table[start:stop], range(start, stop))
        start, before = stop, int(ends[stop - 1])


def _expanded(data: UInt8, table: Int64, report: Callable[[int, str], None]) -> Iterator[_Run]:
    """Divide a table into runs so that only one run and the next batch, or one larger batch, is decompressed at a time.

    `report` is called with batches that cannot be decompressed, after those before them have been yielded.
    """
    numbers: list[int] = []
    bodies: list[Buffer] = []
    size = 0
    for number, (body, problem) in enumerate(_bodies(data, table)):
        if numbers and (problem is not None or size + len(body) > MAX_BYTES):
            yield _joined(table, numbers, bodies)
            numbers, bodies, size = [], [], 0
        if problem is not None:
            report(number, problem)
            continue
        numbers.append(number)
        bodies.append(body)
        size += len(body)
        del body
        if size >= MAX_BYTES:
            yield _joined(table, numbers, bodies)
            numbers, bodies, size = [], [], 0
    if numbers:
        yield _joined(table, numbers, bodies)


def _bodies(data: UInt8, table: Int64) -> Iterator[tuple[Buffer, str | None]]:
    """Yield the decompressed records of each batch, and why they cannot be decompressed or None."""
    view = data.data
    codecs = (table[:, layout.ATTRIBUTES] & 7).tolist()
    for codec, pos, end in zip(codecs, table[:, layout.POS].tolist(), table[:, layout.END].tolist(), strict=True):
        try:
            yield (decompress(Compression(codec), bytes(view[pos:end])) if codec else view[pos:end]), None
        except WireError as error:
            yield b"", str(error)


def _joined(table: Int64, numbers: list[int], bodies: list[Buffer]) -> _Run:
    table, ends = table[numbers], np.cumsum([len(body) for body in bodies])
    table[:, layout.END] = ends
    table[1:, layout.POS] = ends[:-1]
    table[0, layout.POS] = 0
    return _Run(np.frombuffer(bodies[0] if len(bodies) == 1 else b"".join(bodies), np.uint8), table, numbers)


class _Outputs:
    """Buffers of one record batch. Their unused pages are never touched, so they cost no memory."""

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

    def headers(self, rows: int, state: Int64, table: Int64) -> pa.Array:
        """Return the column of headers. Raises _BadBatchError."""
        count = int(state[layout.AT_HEADER])
        names = self.names.array(count, 0, pa.string())
        if not _is_text(names):
            row = int(np.searchsorted(self.header_ends[1 : rows + 1], _first_no_text(names), "right"))
            index = int(np.searchsorted(np.cumsum(table[:, layout.ROWS]), row, "right"))
            raise _BadBatchError(index, "record: header name: not UTF-8")
        datas = self.datas.array(count, int(state[layout.DATA_NULLS]))
        entries = pa.StructArray.from_arrays([names, datas], fields=_HEADER)
        ends = pa.py_buffer(self.header_ends[: rows + 1])
        bits = pa.py_buffer(self.header_bits) if state[layout.HEADERS_NULLS] else None
        return pa.Array.from_buffers(
            pa.list_(_HEADER), rows, [bits, ends], null_count=int(state[layout.HEADERS_NULLS]), children=[entries]
        )


def _times(stamps: Int64) -> pa.Array:
    """Return the column of times; null where one does not fit."""
    unfit = stamps == layout.NO_TIME
    return pa.array(stamps, mask=unfit if unfit.any() else None).view(_TIMESTAMP)


def _is_text(names: pa.Array) -> bool:
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _first_no_text(names: pa.Array) -> int:
    """Return the number of the first name that is not UTF-8; there must be one."""
    first, behind = 0, len(names)
    while behind - first > 1:
        middle = (first + behind) // 2
        if _is_text(names[first:middle]):
            first = middle
        else:
            behind = middle
    return first


def _untouched(count: int, kind: type[T]) -> npt.NDArray[T]:
    """Return an uninitialised array; a large one gets new pages, since pages of freed memory were touched before."""
    size = count * np.dtype(kind).itemsize
    return np.frombuffer(mmap(-1, size), kind) if size > MAX_BYTES else np.empty(count, kind)


class _Binary:
    """A binary column under construction: ends, bytes, and bits of validity."""

    def __init__(self, rows: int, room: int) -> None:
        self.ends = _untouched(rows + 1, np.int32)
        self.ends[0] = 0
        self.bytes = _untouched(room, np.uint8)
        self.bits = np.zeros((rows + 7) // 8, np.uint8)
        self.arrays = (self.ends, self.bytes, self.bits)

    def array(self, rows: int, nulls: int, kind: pa.DataType | None = None) -> pa.Array:
        """Return the first `rows` values."""
        bits = pa.py_buffer(self.bits[: (rows + 7) // 8]) if nulls else None
        ends = self.ends[: rows + 1]
        buffers = [bits, pa.py_buffer(ends), pa.py_buffer(self.bytes[: ends[-1]])]
        return pa.Array.from_buffers(kind or pa.binary(), rows, buffers, null_count=nulls)
