"""Entries of a store with one value for each key: aggregates, windows, sessions, and times of first rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from typing_extensions import override

from roster.state.aggregate import Layout
from roster.state.entries import Entries, Read, Row, Span, in_order
from roster.state.event_time import read_time
from roster.state.keys import decode_keys
from roster.state.sessions import ENDS_KEY
from roster.state.store import Readable
from roster.state.windows import START


class _Whole(Entries):
    """A store in which the name of an entry is its key."""

    @override
    def read(self, store: Readable, span: Span) -> Read:
        if span.is_key:
            (value,) = store.multi_get([span.start])
            return Read([] if value is None else [(span.start, value)])
        stop = ENDS_KEY if span.stop is None else min(span.stop, ENDS_KEY)
        return Read(store.scan(span.start, stop, span.limit))

    @staticmethod
    def _in_order(reads: Sequence[Read], limit: int | None) -> list[tuple[bytes, bytes]]:
        placed = in_order(reads, lambda name: (name, b""), limit)
        return [(entry.key, entry.value) for entry in placed if entry.key < ENDS_KEY]


class HexEntries(_Whole):
    """Entries without a definition, in hexadecimal."""

    def __init__(self) -> None:
        super().__init__(pa.schema([("key", pa.string())]))

    @override
    def key_of(self, texts: Sequence[str]) -> bytes:
        return bytes.fromhex(texts[0])

    @override
    def rows(self, reads: Sequence[Read], limit: int | None = None) -> list[Row]:
        return [{"key": key.hex(), "value": value.hex()} for key, value in self._in_order(reads, limit)]

    @override
    def schema(self, reads: Sequence[Read], part: str | None = None) -> pa.Schema:
        return pa.schema([("key", pa.string()), ("value", pa.string())])


class PlainEntries(_Whole):
    """Rows with the columns of the keys and of the results. layout: None for times of first rows.

    has_sessions: a value has several rows, each with the times of its first and its last row.
    """

    def __init__(self, keys: pa.Schema, layout: Layout | None, *, has_sessions: bool) -> None:
        super().__init__(keys)
        self._layout, self._has_sessions = layout, has_sessions

    @override
    def rows(self, reads: Sequence[Read], limit: int | None = None) -> list[Row]:
        plain = self._in_order(reads, limit)
        keys = decode_keys([key for key, _ in plain], self.keys.types)
        rows: list[Row] = self._with_values(pa.table(keys, self.keys.names), [data for _, data in plain]).to_pylist()
        return rows

    @override
    def schema(self, reads: Sequence[Read], part: str | None = None) -> pa.Schema:
        nothing = self._with_values(pa.schema(self.keys).empty_table(), [])
        return nothing.schema.remove_metadata()

    def _with_values(self, keys: pa.Table, values: Sequence[bytes]) -> pa.Table:
        if self._layout is None:
            return keys.append_column("first", _moments([read_time(value) for value in values]))
        if not self._has_sessions:
            return self._layout.with_results(keys, self._layout.decode(values))
        parts, places = self._layout.apart(values)
        rows, keys = self._layout.decode(parts), keys.take(pa.array(places))
        for name, column in (("first", START), ("last", "last")):
            keys = keys.append_column(name, _moments(rows[column]))
        return self._layout.with_results(keys, rows)


def _moments(times: object) -> pa.Array:
    return pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC"))
