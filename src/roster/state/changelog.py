"""Changelogs as columns. Restoring, standby copies and commits are one operation: apply the log up to an offset.

A changelog partition has one record for each change of a key, its value null where the key was removed. Callers pass
committed records only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.byte_slices import Column
from roster.state.definition import STATE_KEY
from roster.state.store import Position, StateError, Written

SCHEMA = pa.schema([("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
"""Columns that `restore` reads, one row per record; others are ignored."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a restore: records and bytes applied, the offset reached, the end offset."""

    records: int
    bytes: int
    offset: int
    end: int


def latest(table: pa.Table) -> pa.Table:
    """Return the row with the last value of each key, in the order in which the keys came first."""
    keys = table["key"].combine_chunks()
    if not len(keys):
        return table
    encoded = keys.dictionary_encode()
    if len(encoded.dictionary) == len(keys):
        return table.select(["key", "value"])
    last = np.empty(len(encoded.dictionary), dtype=np.int64)
    last[encoded.indices.to_numpy()] = np.arange(len(keys))
    return pa.table({"key": encoded.dictionary, "value": table["value"].take(pa.array(last))})


def restore(
    store: Written,
    batches: Iterable[pa.Table | pa.RecordBatch],
    end: int,
    *,
    inputs: Mapping[str, int] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    is_over: Callable[[], bool] = lambda: False,
    is_unsaid: Callable[[int], bool] = lambda _: False,
) -> int:
    """Apply a changelog to a store from its position up to before the offset `end`; return the records applied.

    batches: in the order of offsets, with the columns of `SCHEMA`; records that the store has already are skipped.
    inputs: the input position at `end`. on_progress: called for each batch. is_over: asked after each batch; True stops
    there, with the store at that batch's end. is_unsaid: asked at the end of each transaction; True for an offset at
    which the store must not have a definition. After a crash it resumes from the last transaction. Raises StateError
    for offsets that do not ascend, for null keys, and for a store beyond `end`.
    """
    position = store.position()
    if position.changelog > end:
        raise StateError(f"the store is at {position.changelog} of its changelog, beyond {end}: discard it")
    done = _Done(end, on_progress)
    cut = _Cut(batches, is_over)
    fresh = _fresh(cut, position.changelog, end)
    rest = next(fresh, None)
    while rest is not None:
        share = _Share(rest, fresh, done, is_unsaid, rows=store.entries_at_once, size=store.sorted_bytes)
        store.load(share, functools.partial(_position_of, share, position))
        rest = share.rest
    if not cut.is_short:
        store.commit([], [], Position(end, position.inputs if inputs is None else inputs))
    return done.records


def _position_of(share: _Share, before: Position) -> Position:
    return Position(share.offset, before.inputs)


class _Cut:
    """The batches up to the one after which `is_over` is true."""

    def __init__(self, batches: Iterable[pa.RecordBatch | pa.Table], is_over: Callable[[], bool]) -> None:
        self.is_short = False
        self._batches, self._is_over = batches, is_over

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            yield batch
            if self._is_over():
                self.is_short = True
                return


class _Done:
    def __init__(self, end: int, on_progress: Callable[[Progress], None] | None) -> None:
        self.records = self.bytes = 0
        self._end, self._on_progress = end, on_progress

    def add(self, table: pa.Table, offset: int) -> None:
        self.records += len(table)
        self.bytes += int(pc.sum(pc.binary_length(table["key"])).as_py() or 0)
        self.bytes += int(pc.sum(pc.binary_length(table["value"])).as_py() or 0)
        if self._on_progress is not None:
            self._on_progress(Progress(self.records, self.bytes, offset, self._end))


class _Share:
    """Batches for one transaction of the store, as many as fit: at most these rows, and about these bytes in each."""

    def __init__(
        self,
        first: pa.Table,
        others: Iterator[pa.Table],
        done: _Done,
        is_unsaid: Callable[[int], bool],
        *,
        rows: int,
        size: int,
    ) -> None:
        self.offset = 0
        self.rest: pa.Table | None = first
        self._others, self._done, self._is_unsaid, self._rows, self._size = others, done, is_unsaid, rows, size

    def __iter__(self) -> Iterator[tuple[Column, Column]]:
        taken = size = 0
        tables: list[pa.Table] = []
        while self.rest is not None and (not taken or taken + len(self.rest) <= self._rows):
            table = self.rest
            taken, size = taken + len(table), size + table.nbytes
            self.offset = table["offset"][-1].as_py() + 1
            tables.append(table)
            self._done.add(table, self.offset)
            if size >= self._size:
                yield _columns(tables)
                tables, size = [], 0
            self.rest = next(self._others, None)
        if tables:
            yield _columns(tables)
        if self._is_unsaid(self.offset):
            yield [STATE_KEY], [None]


def _columns(tables: list[pa.Table]) -> tuple[Column, Column]:
    table = pa.concat_tables(tables)
    return table["key"], table["value"]


def _fresh(batches: Iterable[pa.RecordBatch | pa.Table], begin: int, end: int) -> Iterator[pa.Table]:
    """Yield the rows from `begin` up to before `end`, and check them."""
    last = -1
    for batch in batches:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        table = table.select(SCHEMA.names)
        offsets = table["offset"].to_numpy()
        if len(offsets) and (offsets[0] <= last or (np.diff(offsets) <= 0).any()):
            raise StateError("changelog: offsets do not ascend")
        last = int(offsets[-1]) if len(offsets) else last
        if table["key"].null_count:
            raise StateError("changelog: a record has no key; the topic is written by something else than this group")
        first, stop = np.searchsorted(offsets, [begin, end])
        if stop > first:
            yield table.slice(first, stop - first)
