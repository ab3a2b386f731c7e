"""Open sessions: a row for each, with `window_start`, `window_end`, the columns of the key and the results.

The column `ends` is when one of the key's sessions may end, as the store has noted it: never too late. Without
it, that is the first end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from roster.state.aggregate import Layout
from roster.state.byte_slices import as_bytes, cut, rows_as_values
from roster.state.keys import decode_keys, encode_keys
from roster.state.saved.columns import (
    MOMENT,
    AggregateRows,
    duration,
    entry_table,
    joined,
    moments,
    ordered_times,
)
from roster.state.saved.plain import ENTRIES
from roster.state.sessions import ENDS_KEY
from roster.state.windows import END, START

_ENDS = "ends"


class SavedSessions:
    """Open sessions of each key."""

    def __init__(self, keys: pa.Schema, document: Mapping[str, Any], layout: Layout) -> None:
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
        noted = joined(ENDS_KEY, ordered_times(ends[bounds[:-1]]), encoded.dictionary)
        return pa.concat_tables([entry_table(encoded.dictionary, values), entry_table(noted, None)])
