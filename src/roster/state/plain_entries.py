"""Entries of a store with one value for each key: aggregates, windows, sessions, and times of first rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from roster.state.aggregate import average, cut, result_of
from roster.state.entries import Entries, Read, Row, Span, in_order
from roster.state.event_time import read_time
from roster.state.keys import decode_keys, is_text
from roster.state.sessions import ENDS_KEY
from roster.state.store import Snapshot, Store
from roster.state.windows import START


class _Whole(Entries):
    """A store in which the name of an entry is its key."""

    @override
    def read(self, store: Store | Snapshot, span: Span) -> Read:
        if span.is_key:
            (value,) = store.multi_get([span.start])
            return Read([] if value is None else [(span.start, value)])
        stop = ENDS_KEY if span.stop is None else min(span.stop, ENDS_KEY)
        return Read(store.scan(span.start, stop, span.limit))

    @staticmethod
    def _in_order(reads: Sequence[Read], limit: int | None) -> list[tuple[bytes, bytes]]:
        placed = in_order(reads, lambda name: (name, b""), limit)
        return [(each.key, each.value) for each in placed if each.key < ENDS_KEY]


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
    """Reads keys and values by the JSON of a `Definition`; rows have the columns of the keys and the results.

    kinds: types of results that are not numbers.
    """

    def __init__(self, keys: pa.Schema, document: Mapping[str, Any], kinds: Mapping[str, pa.DataType]) -> None:
        super().__init__(keys)
        self._kinds = kinds
        self._names = list(document.get("aggregates", ()))
        self._averages: list[str] = document.get("averages", [])
        self._row: np.dtype[Any] | None = None
        if "row" in document:
            self._row = np.dtype([(name, kind) for name, kind in document["row"]])
        self._has_sessions = "session" in document

    @override
    def rows(self, reads: Sequence[Read], limit: int | None = None) -> list[Row]:
        plain = self._in_order(reads, limit)
        keys = pa.table(decode_keys([key for key, _ in plain], self.keys.types), self.keys.names).to_pylist()
        return [row | value for row, (_, data) in zip(keys, plain, strict=True) for value in self._values(data)]

    @override
    def schema(self, reads: Sequence[Read], part: str | None = None) -> pa.Schema:
        moment = pa.timestamp("us", "UTC")
        if self._row is None:
            own = [pa.field("first", moment)]
        else:
            own = [pa.field(name, moment) for name in ("first", "last") if self._has_sessions]
            own += [pa.field(name, self._kind(name, self._row)) for name in self._names]
        return pa.schema([*self.keys.remove_metadata(), *own])

    def _kind(self, name: str, row: np.dtype[Any]) -> Any:
        if name in self._averages:
            return pa.float64()
        return self._kinds.get(name) or pa.from_numpy_dtype(row[name])

    def _values(self, value: bytes) -> list[Row]:
        if self._row is None:
            return [{"first": _moment(read_time(value))}]
        if texts := [name for name, kind in self._kinds.items() if is_text(kind)]:
            (row,) = np.frombuffer(value[: self._row.itemsize], self._row)
            found = dict(zip(texts, cut(value, row, texts), strict=True))
            return [self._aggregates(row) | {name: self._result(name, found[name], row) for name in texts}]
        rows = np.frombuffer(value, self._row)
        return [self._times(row) | self._aggregates(row) for row in rows]

    def _times(self, row: Any) -> Row:
        if not self._has_sessions:
            return {}
        return {"first": _moment(row[START].item()), "last": _moment(row["last"].item())}

    def _aggregates(self, row: Any) -> Row:
        return {name: self._result(name, row[name].item(), row) for name in self._names}

    def _result(self, name: str, value: Any, row: Any) -> Any:
        if not row[f"has {name}"]:
            return None
        if name in self._averages:
            return average(row, name).item()
        if name not in self._kinds or (isinstance(value, int) and is_text(self._kinds[name])):
            return value
        return result_of(pa.array([value]), self._kinds[name])[0].as_py()


def _moment(time: int) -> Any:
    return pa.scalar(time, pa.int64()).cast(pa.timestamp("us", "UTC")).as_py()
