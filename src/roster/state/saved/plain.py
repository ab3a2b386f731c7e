"""Stores of aggregates by key, window or session, and of times of first rows.

The part `entries` has a row for each key: the columns of the key, behind `window_start` also `window_end`, and the
results; for `deduplicate` the time of the first row, `first`. Each open session has a row too, whose column `ends` is
when one of the key's sessions may end, as the store has noted it: never too late. Without it, that is the first end.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.aggregate import Layout
from roster.state.byte_slices import as_bytes, cut, rows_as_values
from roster.state.definition import Document
from roster.state.keys import decode_keys, encode_keys
from roster.state.saved.columns import (
    MOMENT,
    AggregateRows,
    duration,
    entry_table,
    free_names,
    joined,
    moments,
    ordered_times,
)
from roster.state.sessions import ENDS_KEY
from roster.state.store import ValueDamagedError
from roster.state.windows import END, START

ENTRIES = "entries"


class SavedAggregates:
    """Aggregates of each key, and of each window."""

    def __init__(self, keys: pa.Schema, document: Document, layout: Layout) -> None:
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


_ENDS = "ends"


class SavedSessions:
    """Open sessions of each key."""

    def __init__(self, keys: pa.Schema, document: Document, layout: Layout) -> None:
        self._keys, self._gap = keys, duration(document["session"]["gap"])
        # The state's row has columns of these names, so no aggregate has; a key may.
        self._ends = _ENDS if _ENDS not in keys.names else f"{_ENDS}_"
        self._rows = AggregateRows(layout, [*keys.names, START, END, self._ends])

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of the part."""
        times = [pa.field(name, MOMENT) for name in (START, END)]
        return {ENTRIES: pa.schema([*times, *self._keys, *self._rows.fields, pa.field(self._ends, MOMENT)])}

    def tables(self, entries: pa.Table) -> dict[str, pa.Table]:
        """Return the table of the part."""
        keys, key_starts = as_bytes(entries["key"])
        is_plain = pa.array(keys[key_starts[:-1]] != ENDS_KEY[0])
        entries = entries.filter(is_plain)
        values, places = self._rows.layout.apart(entries["value"])
        rows, texts = self._rows.layout.split(values)
        columns = [moments(rows[START]), moments(rows["last"] + self._gap)]
        columns += [column.take(pa.array(places)) for column in decode_keys(entries["key"], self._keys.types)]
        columns += [*self._rows.columns(rows, texts), moments(rows["ends"])]
        return {ENTRIES: pa.table(columns, schema=self.schemas()[ENTRIES])}

    def entries(self, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the entries of the table: the sessions of each key, and when the first of them may end."""
        table = tables[ENTRIES].combine_chunks()
        encoded = encode_keys(table, self._keys.names).combine_chunks().dictionary_encode()
        places = encoded.indices.to_numpy()
        order = np.lexsort((table[START].cast(pa.int64()).to_numpy(), places))
        table = table.take(pa.array(order))
        rows = np.zeros(len(table), self._rows.row)
        texts = self._rows.fill(rows, table)
        counts = np.bincount(places, minlength=len(encoded.dictionary))
        bounds = np.concatenate([[0], np.cumsum(counts)])
        start, end = (table[name].cast(pa.int64()).to_numpy() for name in (START, END))
        if self._ends in table.column_names:
            ends = table[self._ends].cast(pa.int64()).to_numpy()
        else:
            ends = np.repeat(np.minimum.reduceat(end, bounds[:-1]), counts)
        rows[START], rows["last"], rows["ends"] = start, end - self._gap, ends
        data, offsets = as_bytes(rows_as_values(rows, texts))
        values = cut(data, offsets[bounds])
        session_ends = joined(ENDS_KEY, ordered_times(ends[bounds[:-1]]), encoded.dictionary)
        return pa.concat_tables([entry_table(encoded.dictionary, values), entry_table(session_ends, None)])
