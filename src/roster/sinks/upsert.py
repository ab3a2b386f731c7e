"""Tables with one row a key: which data files a batch's updates change, and these files written anew.

A table's files hold ranges of keys. For each batch,

1. files whose statistics say that they may hold an updated key have their key columns read;
2. a new key goes to the file in whose range it falls, so that files stay apart;
3. each file with an updated, deleted or new key is replaced: its other rows and the updates, cut into files of at most
   the target size. Small neighbours are taken along.

So a batch reads and writes the files of its keys, not the table, and the number of files follows the table's size.
Ranges come from the column statistics that every writer of the format keeps. Where these are missing or inexact, or
ranges overlap, more files are read, and the result is the same.
"""

import contextlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roster.pipeline.tasks.writer import written
from roster.sinks.tasks.parquet import ParquetWriter, WrittenFile
from roster.sinks.tasks.upsert import Updates
from roster.state.keys import encode_keys

TARGET_FILE_BYTES = 16 << 20
"""Bytes of a data file from which on it is divided: what one updated key costs at most."""
_SMALL = 4
"""A file of less than the target size divided by this is taken along when a neighbour is written."""
_THREADS = 4
"""Files that are read or written at once; each is in memory as a whole."""
_ABOVE = b"\xff"
"""Above the encoding of every value of a column."""
_MILLISECOND = 1000
_ID = b"PARQUET:field_id"

Indexes = npt.NDArray[np.int64]


class DataFile(NamedTuple):
    """A data file of a table, and bounds of the encoded keys in it, both inclusive."""

    name: str
    """What the table calls it."""
    path: str
    """Where it is in the writer's file system."""
    rows: int
    """0 if it is unknown."""
    size: int
    """Bytes."""
    low: bytes
    high: bytes
    values: tuple[object, ...] = ()
    """Values of the partition columns."""
    prefix: bytes = b""
    """Their encoding, with which all keys in the file begin."""
    entry: Any = None
    """The table's own entry of it."""


def bounds(statistics: pa.Table, partition_by: Sequence[str], keys: Sequence[str]) -> list[tuple[bytes, bytes, bytes]]:
    """Return bounds of the encoded keys of each file and the keys' common prefix, from a row of statistics for each.

    `statistics` has the columns `partition_by`, with which the keys begin, and for each other one of `keys` its `min.`,
    `max.` and `null_count.`, null where they are unknown.
    """
    lows, highs, is_open = [], [], np.zeros(len(statistics), bool)
    for name in keys:
        if name in partition_by:
            lows.append(_encoded(statistics[name].combine_chunks()))
            highs.append(lows[-1])
            continue
        least, most = statistics[f"min.{name}"].combine_chunks(), statistics[f"max.{name}"].combine_chunks()
        nulls = statistics[f"null_count.{name}"].combine_chunks()
        if pa.types.is_timestamp(most.type):
            most = _end_of_millisecond(most)
        null = pa.scalar(None, least.type)
        low = _encoded(pc.if_else(pc.fill_null(pc.equal(nulls, 0), False), least, null))
        high = _encoded(most)
        is_known = most.is_valid().to_numpy(zero_copy_only=False)
        lows.append(low)
        parts = zip(is_open, is_known, high, strict=True)
        highs.append([b"" if skip else one if known else _ABOVE for skip, known, one in parts])
        is_open |= ~is_known
    count = len(partition_by)
    return [
        (b"".join(low), b"".join(high), b"".join(low[:count]))
        for low, high in zip(_rows(lows), _rows(highs), strict=True)
    ]


def _rows(columns: Sequence[Sequence[bytes]]) -> Iterator[tuple[bytes, ...]]:
    return zip(*columns, strict=True)


def _encoded(column: pa.Array) -> list[bytes]:
    encoded: list[bytes] = encode_keys(pa.table({"key": column}), ["key"]).to_pylist()
    return encoded


def _end_of_millisecond(column: pa.Array) -> pa.Array:
    """Return the last microsecond of each time's millisecond: writers cut off what is below, of a maximum too."""
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    last = pc.add(pc.multiply(pc.divide(micros, _MILLISECOND), _MILLISECOND), _MILLISECOND - 1)
    # Division rounds towards zero, so times before 1970 are rounded up a millisecond further.
    return last.cast(pa.timestamp("us", column.type.tz))


@dataclass(frozen=True)
class Rewrite:
    """Files that are replaced together, in the order of their keys, and the updates that go into the new ones."""

    files: tuple[DataFile, ...]
    updates: Indexes

    @property
    def name(self) -> tuple[tuple[str, ...], bytes]:
        """What tells it from others of the same batch."""
        return tuple(file.name for file in self.files), self.updates.tobytes()


def plan(
    files: Sequence[DataFile], updates: Updates, indexes: Mapping[str, Indexes], target_file_bytes: int
) -> list[Rewrite]:
    """Return the files to replace. `indexes`: of the updates whose keys each candidate file has, by name."""
    ordered = sorted(files, key=lambda file: (file.low, file.name))
    owner = np.full(len(updates.keys), -1, np.int64)
    touched = set()
    for number, file in enumerate(ordered):
        hits = indexes.get(file.name)
        if hits is not None and len(hits):
            touched.add(number)
            owner[hits[owner[hits] < 0]] = number
    new = np.flatnonzero((owner < 0) & ~updates.deletes)
    if len(new):
        owner[new] = _homes(ordered, updates.keys, new)
        touched.update(np.unique(owner[new]).tolist())
    owner[updates.deletes] = -1
    homeless = new[owner[new] < 0]
    by_owner = np.argsort(owner, kind="stable")
    owners = owner[by_owner]
    rewrites = [Rewrite((), homeless)] if len(homeless) else []
    for group in _groups(ordered, touched, target_file_bytes):
        start, end = np.searchsorted(owners, [group[0], group[-1] + 1])
        rewrites.append(Rewrite(tuple(ordered[number] for number in group), by_owner[start:end]))
    return rewrites


def _homes(ordered: Sequence[DataFile], keys: pa.Array, new: Indexes) -> Indexes:
    """Return for each new key the number of the file that is to have it: one of its partition; -1: there is none."""
    homes = np.full(len(new), -1, np.int64)
    if not ordered:
        return homes
    values = _Values(keys)
    starts = np.array([bisect_left(values, file.low) for file in ordered])
    first = np.array([bisect_left(values, file.prefix) for file in ordered])
    end = np.array([bisect_left(values, file.prefix + _ABOVE) for file in ordered])
    before = np.searchsorted(starts, new, side="right") - 1
    for candidate in (before + 1, before):  # the file that begins at the key or before it, else the next one
        number = np.clip(candidate, 0, len(ordered) - 1)
        is_there = (first[number] <= new) & (new < end[number])
        homes[is_there] = number[is_there]
    return homes


def _groups(files: Sequence[DataFile], touched: set[int], target: int) -> list[list[int]]:
    """Return the touched files, neighbours together up to the target size; small ones beside them are taken along."""
    groups: list[list[int]] = [[]]
    size = 0
    for number, file in enumerate(files):
        is_wanted = number in touched or file.size < target // _SMALL
        before = groups[-1]
        if before and (not is_wanted or size + file.size > target or files[before[-1]].prefix != file.prefix):
            groups.append([])
            size = 0
        if is_wanted:
            groups[-1].append(number)
            size += file.size
    return [group for group in groups if not touched.isdisjoint(group)]


class _Values(Sequence[object]):
    """The values of an array, for a search that looks at a few of them."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        return self._array[index].as_py()


class _Found(NamedTuple):
    """What a file has of a batch's keys."""

    hits: Indexes
    """Indexes of the updates whose keys it has."""
    updates: pa.ChunkedArray
    """Index of the update of each row's key; null: there is none."""


@dataclass
class Merge:
    """A batch's updates, merged into whatever version of the table the commit meets.

    What was written for an earlier version stays in use as long as the table has its files.
    """

    writer: ParquetWriter
    keys: tuple[str, ...]
    updates: Updates
    target_file_bytes: int
    read: Callable[[DataFile, Sequence[str]], pa.Table]
    """Returns columns of a file."""
    left: tuple[str, ...] = ()
    """Columns that the updates do not have: a row keeps what its key has there."""
    refused: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
    """Why rows are not among the updates, by task and row."""
    _found: dict[str, _Found] = field(default_factory=dict)
    _written: dict[tuple[tuple[str, ...], bytes], list[WrittenFile]] = field(default_factory=dict)

    def over(self, files: Sequence[DataFile]) -> tuple[list[WrittenFile], list[DataFile]]:
        """Return the files to add to a version with these files, and those to remove."""
        candidates = [file for file in files if file.name not in self._found and len(self._span(file))]
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            self._found.update(zip((file.name for file in candidates), pool.map(self._find, candidates), strict=True))
            hits = {name: matched.hits for name, matched in self._found.items()}
            rewrites = plan(files, self.updates, hits, self.target_file_bytes)
            missing = [rewrite for rewrite in rewrites if rewrite.name not in self._written]
            for rewrite, files_made in zip(missing, pool.map(self._rewritten, missing), strict=True):
                self._written[rewrite.name] = files_made
        names = {rewrite.name for rewrite in rewrites}
        for name in [name for name in self._written if name not in names]:
            self._remove(self._written.pop(name))
        added = [file for rewrite in rewrites for file in self._written[rewrite.name]]
        return added, [file for rewrite in rewrites for file in rewrite.files]

    def drop(self) -> None:
        """Remove the files that were written."""
        for files in self._written.values():
            self._remove(files)
        self._written.clear()

    def _remove(self, files: Iterable[WrittenFile]) -> None:
        for file in files:
            with contextlib.suppress(OSError):
                self.writer.remove(file.name)

    def _span(self, file: DataFile) -> range:
        """Return the indexes of the updates whose keys are within a file's bounds."""
        values = _Values(self.updates.keys)
        return range(bisect_left(values, file.low), bisect_right(values, file.high))

    def _find(self, file: DataFile) -> _Found:
        span = self._span(file)
        keys = encode_keys(self.read(file, self.keys), self.keys)
        indexes = pc.index_in(keys, value_set=self.updates.keys[span.start : span.stop]).cast(pa.int64())
        indexes = pc.add(indexes, pa.scalar(span.start, pa.int64()))
        return _Found(np.unique(indexes.drop_null().to_numpy()), indexes)

    def _rewritten(self, rewrite: Rewrite) -> list[WrittenFile]:
        parts, replaced = [], []
        for file in rewrite.files:
            rows, matched = self.read(file, self.writer.schema.names), self._found.get(file.name)
            parts.append(rows if matched is None else rows.filter(matched.updates.is_null()))
            if matched is not None and self.left:
                is_old = matched.updates.is_valid()
                replaced.append(rows.filter(is_old).select(self.left).append_column("", matched.updates.filter(is_old)))
        rows = self.updates.rows.take(rewrite.updates)
        if replaced:
            old = pa.concat_tables(replaced).combine_chunks()
            kept = old.take(pc.index_in(pa.array(rewrite.updates), value_set=old[""].combine_chunks()))
            for name in self.left:
                rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), kept[name])
        rows = pa.concat_tables([rows, *parts])
        size = sum(file.size for file in rewrite.files)
        before = sum(file.rows for file in rewrite.files)
        # Without files to tell, half of what the rows take in memory.
        per_row = size / before if before else rows.nbytes / max(len(rows), 1) / 2
        pieces = max(int(np.ceil(len(rows) * per_row / self.target_file_bytes)), 1)
        if pieces > 1:
            rows = rows.take(pc.sort_indices(encode_keys(rows, self.keys)))
        return [file for piece in _cut(rows, pieces) for file in self._write(piece)]

    def _write(self, rows: pa.Table) -> list[WrittenFile]:
        files: list[WrittenFile] = written(self.writer, iter(rows.combine_chunks().to_batches()))
        return files


def file_rows(writer: ParquetWriter, path: str, values: Sequence[object], names: Sequence[str]) -> pa.Table:
    """Return columns of a file with the types of the table; values: of its partition columns."""
    partition_values = dict(zip(writer.partition_by, values, strict=True))
    wanted = [name for name in names if name not in partition_values]
    with writer.files.open_input_file(path) as opened:
        parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        there = _names_there(parquet.schema_arrow, writer.schema)
        rows = parquet.read([there[name] for name in wanted if name in there])
        count = parquet.metadata.num_rows
    columns = []
    for name in names:
        kind = writer.schema.field(name).type
        if name in partition_values:
            columns.append(pa.chunked_array([pa.repeat(pa.scalar(partition_values[name], kind), count)]))
        elif name in there:
            columns.append(rows[there[name]].cast(kind))
        else:  # the column was added to the table later
            columns.append(pa.chunked_array([pa.nulls(count, kind)]))
    return pa.table(columns, schema=pa.schema([writer.schema.field(name) for name in names]))


def _names_there(own: pa.Schema, wanted: pa.Schema) -> dict[str, str]:
    """Return the name in a file of each column of the table that it has: by ids if both have them, else by names."""
    there = {column.name: (column.metadata or {}).get(_ID) for column in own}
    known = {column.name: (column.metadata or {}).get(_ID) for column in wanted}
    if None in there.values() or None in known.values():
        return {name: name for name in known if name in there}
    names = {number: name for name, number in there.items()}
    return {name: names[number] for name, number in known.items() if number in names}


def _cut(rows: pa.Table, pieces: int) -> Iterator[pa.Table]:
    """Yield the rows in pieces of equal length."""
    ends = [len(rows) * number // pieces for number in range(pieces + 1)]
    for start, end in pairwise(ends):
        if end > start:
            yield rows.slice(start, end - start)
