"""A history read in tasks: commits thinned before a shuffle, and packed, so that a row has many of them.

A partition keeps its last commit of each minute, the last that moves its offset with the one just before it, the
first after a minute without any, and the first two that are read together. Around the rebalances of its group all
stay. So lag by the minute, lag and standstill at rebalances, and medians over the last steps of minutes are those of
all commits; only where offsets were set back is the end of a standstill known to a minute.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from roster.assignors.arrays import distinct
from roster.history.derived import ENDS, EVENTS, TIME
from roster.history.tables import COMMITS, GROUPS
from roster.model.arrays import Int64
from roster.records.native import OFFSETS, Compiled, kernel
from roster.wire.columns.kernel import Kernel

PACKED = pa.schema([field for field in EVENTS if field.name not in ("partition", "offset")])
"""Rows of EVENTS; of commits and ends `value` has many rows of one topic, and what they have not in common is null."""
_NAMES = ("partition", "offset", "at", "log_offset")
_ROW = np.dtype(list(zip(_NAMES, ("<i4", "<i8", "<i8", "<i8"), strict=True)))
_BATCH = 1 << 20
"""Rows that are read at once."""
_AT_ONCE = 1 << 22
"""Rows that are packed together."""
_MINUTE = 60_000_000


def read(files: Sequence[str], names: Sequence[str], wanted: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
    """Yield columns of Parquet files, text as dictionaries, and `wanted` rows only."""
    texts = {"group", "topic", "topic_id"} & set(names)
    form = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(dictionary_columns=texts))
    dataset = ds.dataset(list(files), format=form, partitioning="hive")
    yield from dataset.to_batches(columns=list(names), filter=wanted, batch_size=_BATCH, use_threads=False)


def topics_read(files: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the distinct pairs of group and topic in commits of some files."""
    for batch in read(files, ["group", "topic"], pc.field("table") == COMMITS):
        group, topic = batch["group"], batch["topic"]
        size = len(topic.dictionary) or 1
        pairs, _, _ = distinct(_codes(group) * size + _codes(topic), len(group.dictionary) * size)
        columns = [group.dictionary.take(pa.array(pairs // size)), topic.dictionary.take(pa.array(pairs % size))]
        yield pa.RecordBatch.from_arrays(columns, names=["group", "topic"])


def packed_events(code: Compiled, rebalances: pa.Table, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the records of groups and the thinned commits of some files; `rebalances`: group and time of each."""
    loops, (names, minutes) = kernel(code, OFFSETS), _around(rebalances)

    def thinned() -> Iterator[pa.RecordBatch]:
        for batch in read(files, ["group", "topic", *_NAMES], pc.field("table") == COMMITS):
            yield _thinned(loops, batch.drop_null(), names, minutes)  # a removal has no offset

    for batch in read(files, ["table", "group", "key", "value", "at", "log_offset"], pc.field("table") == GROUPS):
        yield _of_schema(PACKED, {name: batch[name] for name in batch.schema.names}, len(batch))
    yield from _packed(COMMITS, thinned())


def packed_ends(files: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the ends in some files by topic, without groups."""

    def of_topics() -> Iterator[pa.RecordBatch]:
        for batch in read(files, ["topic_id", "topic", "partition", "end", "at"]):
            columns = [*batch.columns, pa.array(np.zeros(len(batch), np.int64))]
            yield pa.RecordBatch.from_arrays(columns, ["topic_id", "topic", *_NAMES])

    yield from _packed(ENDS, of_topics())


def unpacked(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of EVENTS of each group, of rows of PACKED."""
    rows = rows.select(PACKED.names).cast(PACKED)  # Spark names the time zone otherwise
    for group in pc.unique(rows["group"]):
        yield _unpacked(rows.filter(pc.equal(rows["group"], group)))


def _unpacked(rows: pa.Table) -> pa.Table:
    tables = [rows.filter(pc.equal(rows["table"], GROUPS))]
    for table in (COMMITS, ENDS):
        packed = rows.filter(pc.equal(rows["table"], table))
        numbers = np.frombuffer(b"".join(packed["value"].to_pylist()), _ROW)
        sizes = pc.binary_length(packed["value"]).to_numpy() // _ROW.itemsize
        columns = packed.select(["table", "group", "topic", "topic_id"]).take(np.repeat(np.arange(len(packed)), sizes))
        for name in _NAMES:
            columns = columns.append_column(
                EVENTS.field(name), pa.array(numbers[name].copy()).cast(EVENTS.field(name).type)
            )
        tables.append(columns)
    return pa.concat_tables([EVENTS.empty_table(), *tables], promote_options="default")


def _codes(column: pa.DictionaryArray) -> Int64:
    """Return the numbers of values in the dictionary; -1: null."""
    return np.asarray(column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64))


def _of_schema(schema: pa.Schema, columns: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
    """Return rows of a schema; columns that are not there are null."""
    every = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(every, schema=schema)


def _around(rebalances: pa.Table) -> tuple[pa.Array, Int64]:
    """Return the names of groups, and ascending the minutes around their rebalances as number of the name << 32."""
    group = rebalances["group"].combine_chunks().dictionary_encode()
    minute = rebalances["at"].cast(pa.int64()).to_numpy() // _MINUTE
    keys = (_codes(group) << 32) + minute
    return group.dictionary, np.unique(np.concatenate([keys - 1, keys, keys + 1]))


def _thinned(loops: Kernel, batch: pa.RecordBatch, names: pa.Array, minutes: Int64) -> pa.RecordBatch:
    """Return the rows that stay, of commits in the order of their log."""
    rows, group = len(batch), batch["group"]
    number = pc.index_in(group.dictionary, names).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    slots, kept = np.zeros(1 << (2 * rows).bit_length(), np.int64), np.empty(rows, np.uint8)
    loops.commits_to_keep(
        *(rows, _codes(group), _codes(batch["topic"]), batch["partition"].to_numpy()),
        *(batch["at"].cast(pa.int64()).to_numpy(), batch["offset"].to_numpy(), number << 32, minutes, len(minutes)),
        *(slots, len(slots), np.empty(2 * rows, np.int64), np.zeros(2 * len(number), np.int64), kept),
    )
    return batch.filter(pa.array(kept.view(np.bool_)))


def _packed(table: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of PACKED, each with many rows that have the first two columns in common."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= _AT_ONCE:
            yield _pack(table, waiting)
            waiting = []
    if waiting:
        yield _pack(table, waiting)


def _pack(table: str, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    rows = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
    by = {name: rows[name].combine_chunks() for name in rows.column_names[:2]}
    outer, topic = by.values()
    key = (_codes(outer) + 1) * len(topic.dictionary) + _codes(topic)
    order = np.argsort(key, kind="stable")
    packed = np.empty(len(rows), _ROW)
    for name in _NAMES:
        values = rows[name] if name != "at" else rows[name].cast(TIME).cast(pa.int64())
        packed[name] = values.to_numpy()[order]
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    ends = (np.append(first, len(rows)) * _ROW.itemsize).astype(np.int32)
    value = pa.Array.from_buffers(pa.binary(), len(first), [None, pa.py_buffer(ends), pa.py_buffer(packed)])
    columns = {name: column.take(pa.array(order[first])) for name, column in by.items()}
    return _of_schema(PACKED, {"table": pa.repeat(table, len(first)), "value": value, **columns}, len(first))
