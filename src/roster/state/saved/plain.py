"""Stores with one value for each key: aggregates, also by window, and times of first rows.

The part `entries` has a row for each key: the columns of the key, behind `window_start` also `window_end`, and the
results; of `deduplicate` the time of the first row, `first`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.aggregate import Layout
from roster.state.byte_slices import as_bytes, cut, rows_as_values
from roster.state.keys import decode_keys, encode_keys
from roster.state.saved.columns import (
    MOMENT,
    AggregateRows,
    duration,
    entry_table,
    free_names,
    moments,
)
from roster.state.store import ValueDamagedError
from roster.state.windows import END, START

ENTRIES = "entries"


class SavedAggregates:
    """Aggregates of each key, and of each window."""

    def __init__(self, keys: pa.Schema, document: Mapping[str, Any], layout: Layout) -> None:
        self._keys, self._size = keys, None
        if "window" in document:
            self._size = duration(document["window"]["size"]) // 1000
        own = [] if self._size is None else [END]
        self._rows = AggregateRows(layout, [*keys.names, *own])

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of the part."""
        ends = [] if self._size is None else [pa.field(END, self._keys.field(START).type)]
        first = list(self._keys)[: len(ends)]
        return {ENTRIES: pa.schema([*first, *ends, *list(self._keys)[len(ends) :], *self._rows.fields])}

    def tables(self, entries: pa.Table) -> dict[str, pa.Table]:
        """Return the table of the part."""
        columns = decode_keys(entries["key"], self._keys.types)
        if self._size is not None:
            end = pc.add(columns[0].cast(pa.int64()), self._size).cast(columns[0].type)
            columns.insert(1, end)
        columns += self._rows.columns(*self._rows.layout.split(entries["value"]))
        return {ENTRIES: pa.table(columns, schema=self.schemas()[ENTRIES])}

    def entries(self, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the entries of the table."""
        table = tables[ENTRIES]
        rows = np.zeros(len(table), self._rows.row)
        texts = self._rows.fill(rows, table)
        return entry_table(encode_keys(table, self._keys.names).combine_chunks(), rows_as_values(rows, texts))


class SavedFirstRows:
    """Times of first rows."""

    def __init__(self, keys: pa.Schema) -> None:
        self._keys = keys
        (self._first,) = free_names(["first"], keys.names)

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of the part."""
        return {ENTRIES: pa.schema([*self._keys, pa.field(self._first, MOMENT)])}

    def tables(self, entries: pa.Table) -> dict[str, pa.Table]:
        """Return the table of the part."""
        data, offsets = as_bytes(entries["value"])
        if (np.diff(offsets) != 8).any():
            raise ValueDamagedError
        times = np.frombuffer(data[offsets[0] : offsets[-1]], "<i8")
        columns = [*decode_keys(entries["key"], self._keys.types), moments(times)]
        return {ENTRIES: pa.table(columns, schema=self.schemas()[ENTRIES])}

    def entries(self, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the entries of the table."""
        table = tables[ENTRIES]
        times = table[self._first].cast(pa.int64()).to_numpy().astype("<i8")
        values = cut(times, np.arange(len(times) + 1) * 8)
        return entry_table(encode_keys(table, self._keys.names).combine_chunks(), values)
