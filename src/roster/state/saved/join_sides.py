"""Rows of a join that may still find a partner: the parts `left` and `right`, with all columns of a side.

The column `waits` is true for rows that have had no partner so far, of the sides whose rows wait for their first one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.byte_slices import as_bytes, gathered
from roster.state.definition import Document
from roster.state.event_time import times_of
from roster.state.join_entries import SIDES
from roster.state.keys import encode_keys
from roster.state.rows import RowLayout
from roster.state.saved.columns import duration, entry_table, free_names, joined, ordered_times
from roster.state.stream_join import PREFIX_LENGTH, ROWS_KEYS, WAITING_KEYS, WAITING_SIDES

_PRESENT = b"\x01"
"""In front of a number in a key, which is never null here."""


class SavedSides:
    """Rows of both sides of a stream join."""

    def __init__(self, keys: pa.Schema, sides: Mapping[str, pa.Schema], document: Document) -> None:
        self._keys = keys
        self._layouts = {side: RowLayout.of(sides[side]) for side in SIDES}
        self._times = dict(zip(SIDES, document["times"], strict=True))
        self._within = duration(document["within"])
        marked = [SIDES[number] for number in WAITING_SIDES[document["how"]]]
        self._waits = {side: free_names(["waits"], sides[side].names)[0] for side in marked}

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of each part."""
        marks = {side: [pa.field(name, pa.bool_())] for side, name in self._waits.items()}
        return {side: pa.schema([*layout.columns, *marks.get(side, [])]) for side, layout in self._layouts.items()}

    def tables(self, entries: pa.Table) -> dict[str, pa.Table]:
        """Return the rows of each side."""
        keys, starts = as_bytes(entries["key"])
        first, sides = keys[starts[:-1]], {}
        for (side, layout), prefix, mark in zip(self._layouts.items(), ROWS_KEYS, WAITING_KEYS, strict=True):
            mine = np.flatnonzero(first == prefix[0])
            if not len(mine):
                continue
            stored = layout.decode(entries["value"].take(pa.array(mine)).combine_chunks())
            table = stored.table
            if side in self._waits:
                waiting = entries["key"].filter(pa.array(first == mark[0])).cast(pa.large_binary())
                plain_starts = starts[:-1][mine] + PREFIX_LENGTH
                plain = gathered(keys, plain_starts, starts[1:][mine] - plain_starts).take(pa.array(stored.places))
                names = joined(mark + _PRESENT, ordered_times(stored.times), plain)
                table = table.append_column(self._waits[side], pc.is_in(names, value_set=waiting))
            sides[side] = table
        return sides

    def entries(self, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the entries of both sides' rows."""
        parts = [entry_table(pa.array([], pa.binary()), pa.array([], pa.binary()))]
        for (side, layout), prefix, mark in zip(self._layouts.items(), ROWS_KEYS, WAITING_KEYS, strict=True):
            table = tables.get(side)
            if table is None or not len(table):
                continue
            table = table.combine_chunks()
            times, _ = times_of(table, self._times[side])
            keys = encode_keys(table, self._keys.names).combine_chunks()
            stretch = ordered_times(np.floor_divide(times, self._within))
            encoded = joined(prefix + _PRESENT, stretch, keys).dictionary_encode()
            count = len(encoded.dictionary)
            rows = table.select(layout.columns.names)
            parts.append(
                entry_table(encoded.dictionary, layout.appended([b""] * count, rows, times, encoded.indices.to_numpy()))
            )
            if side in self._waits:
                names = joined(mark + _PRESENT, ordered_times(times), keys)
                parts.append(entry_table(pc.unique(names.filter(table[self._waits[side]].combine_chunks())), None))
        return pa.concat_tables(parts)
