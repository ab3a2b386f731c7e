"""Entries of a joined store: the rows of both sides that may still find partners.

A row has `side`, `left` or `right`, `key`, the columns of the key, and `value`, all columns of that side. Rows come in
the order of keys, those of the left side first, each side's by the time that they are kept under, then as they came.
Separate entries mark rows of the left side that wait for a partner; they are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pyarrow as pa
from typing_extensions import override

from roster._json import JsonObject
from roster.state.entries import Entries, QueryError, Read, Row, Span, behind, first_of, in_order, kinds_of
from roster.state.keys import decode_keys
from roster.state.rows import RowLayout
from roster.state.store import Readable
from roster.state.stream_join import PREFIX_LENGTH, ROWS_KEYS

SIDES = ("left", "right")


class JoinEntries(Entries):
    """Reads the rows of both sides by their columns. Rows that were written with others raise StateError."""

    part = "side"

    def __init__(self, keys: pa.Schema, sides: Sequence[pa.Schema]) -> None:
        super().__init__(keys)
        self._layouts = dict(zip(SIDES, map(RowLayout.of, sides), strict=True))

    @override
    def check_part(self, part: str | None) -> None:
        if part is not None and part not in SIDES:
            raise QueryError("side", f"{part!r} is not possible", f"Use {SIDES[0]!r} or {SIDES[1]!r}")

    @override
    def described(self, reads: Sequence[Read]) -> JsonObject:
        return {"sides": {side: {"value": kinds_of(layout.columns)} for side, layout in self._layouts.items()}}

    @override
    def read(self, store: Readable, span: Span) -> Read:
        entries: list[tuple[bytes, bytes]] = []
        for side, first in zip(SIDES, ROWS_KEYS, strict=True):
            if span.part in (None, side):
                for prefix in _prefixes(store, first):
                    entries += store.scan(*span.under(prefix), span.limit)
        return Read(first_of(entries, _key_in, span.limit))

    @override
    def rows(self, reads: Sequence[Read], limit: int | None = None) -> list[Row]:
        placed = in_order(reads, _key_in, limit)
        keys = pa.table(decode_keys([entry.key for entry in placed], self.keys.types), self.keys.names).to_pylist()
        side_of = [SIDES[ROWS_KEYS.index(entry.name[:1])] for entry in placed]
        values: dict[str, list[list[Row]]] = {}
        for side, layout in self._layouts.items():
            stored = layout.decode(
                [entry.value for entry, entry_side in zip(placed, side_of, strict=True) if entry_side == side]
            )
            counts = np.bincount(stored.places, minlength=side_of.count(side))
            rows = iter(stored.table.to_pylist())
            values[side] = [list(islice(rows, count)) for count in counts.tolist()]
        next_of = {side: iter(of_side) for side, of_side in values.items()}
        return [
            {"side": side, "key": key, "value": value}
            for side, key in zip(side_of, keys, strict=True)
            for value in next(next_of[side])
        ]

    @override
    def schema(self, reads: Sequence[Read], part: str | None = None) -> pa.Schema:
        self.check_part(part)
        if part is None:
            raise QueryError("side", "the sides have columns of their own", f"Use {SIDES[0]!r} or {SIDES[1]!r}")
        columns = self._layouts[part].columns
        return pa.schema(
            [("side", pa.string()), ("key", pa.struct(list(self.keys))), ("value", pa.struct(list(columns)))]
        )


def _prefixes(store: Readable, first: bytes) -> list[bytes]:
    """Return the key prefixes of one side: one for each time with rows in the store."""
    prefixes: list[bytes] = []
    end = behind(first)
    while following := store.scan(first, end, 1):
        prefixes.append(following[0][0][:PREFIX_LENGTH])
        first = behind(prefixes[-1]) or b""
    return prefixes


def _key_in(name: bytes) -> tuple[bytes, bytes]:
    return name[PREFIX_LENGTH:], name[:PREFIX_LENGTH]
