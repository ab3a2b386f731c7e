"""Entries of a store with variables as rows, in the shape of Spark's state data source.

Rows have `variable`, `key` and, by the kind, `value`, `list_element`, or `user_map_key` and `user_map_value`; of a
variable with a time to live also `expiration_timestamp` in ms since the epoch. Expired entries may still exist.

Each store has its own list of variables, in which a variable may have another number or additional fields. So entries
are read together with the list of their store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

import pyarrow as pa
from typing_extensions import override

from roster._json import JsonObject
from roster.state.entries import Entries, Placed, QueryError, Read, Row, Span, first_of, in_order, kinds_of
from roster.state.keys import decode_keys, key_end
from roster.state.processor.variables import REGISTRY_KEY, Entry, Variable, decode_registry
from roster.state.store import Readable

_LENGTH = Struct("<I")
VALUE_OF = {"value": "value", "list": "list_element", "map": "user_map_value"}
"""Column of the rows of each kind of variable."""


class VariableEntries(Entries):
    """Reads the entries of values, lists and maps by each store's list of them; timers are left out."""

    part = "variable"

    @override
    def check(self, reads: Sequence[Read], part: str | None, *, is_one: bool = False) -> None:
        known = _known(reads)
        if not known:
            return  # no task has run a batch
        if part is not None and part not in known:
            raise QueryError("variable", f"there is no variable {part!r}", f"The store has {', '.join(known)}")
        if not is_one:
            return
        if part is None and len(known) > 1:
            fix = f"Name one of {', '.join(known)}, or use prefix"
            raise QueryError("variable", "a key has rows of each variable", fix)
        name = part or next(iter(known))
        if known[name].kind != "value":
            raise QueryError("variable", f"{name!r} is a {known[name].kind}, of several rows", "Use prefix")

    @override
    def described(self, reads: Sequence[Read]) -> JsonObject:
        return {"variables": {name: _columns(entry) for name, entry in _known(reads).items()}}

    @override
    def read(self, store: Readable, span: Span) -> Read:
        (registry,) = store.multi_get([REGISTRY_KEY])
        entries: list[tuple[bytes, bytes]] = []
        for number, (variable, _) in variables_of(registry).items():
            if span.part in (None, variable.name):
                entries += store.scan(*span.under(bytes([number])), span.limit)
        return Read(first_of(entries, self._key_in, span.limit), registry)

    @override
    def rows(self, reads: Sequence[Read], limit: int | None = None) -> list[Row]:
        placed = in_order(reads, self._key_in, limit)
        variables = [variables_of(read.registry) for read in reads]
        keys = pa.table(decode_keys([entry.key for entry in placed], self.keys.types), self.keys.names).to_pylist()
        return [
            row
            for entry, key in zip(placed, keys, strict=True)
            for row in _rows(variables[entry.number][entry.name[0]], key, entry)
        ]

    @override
    def schema(self, reads: Sequence[Read], part: str | None = None) -> pa.Schema:
        self.check(reads, part)
        known = _known(reads)
        if not known:
            problem = "no task has had a batch, so its variables are not known"
            raise QueryError("store", problem, "Ask again behind the first batch")
        if part is None and len(known) > 1:
            fix = f"Name one of {', '.join(known)}"
            raise QueryError("variable", "the variables have columns of their own", fix)
        entry = known[part or next(iter(known))]
        columns = [pa.field("variable", pa.string()), pa.field("key", pa.struct(list(self.keys)))]
        if entry.map_key is not None:
            columns.append(pa.field("user_map_key", pa.struct(list(entry.map_key))))
        columns.append(pa.field(VALUE_OF[entry.kind], pa.struct(list(entry.written[-1].schema))))
        if any(written.expires for written in entry.written):
            columns.append(pa.field("expiration_timestamp", pa.int64()))
        return pa.schema(columns)

    def _key_in(self, name: bytes) -> tuple[bytes, bytes]:
        end = key_end(name, 1, self.keys.types)
        return name[1:end], name[:1] + name[end:]


class Known(NamedTuple):
    """A variable of a store, and its entry in the list."""

    variable: Variable
    entry: Entry


@lru_cache(maxsize=256)
def variables_of(registry: bytes | None) -> dict[int, Known]:
    """Return a store's variables by their numbers."""
    return {
        entry.number: Known(
            Variable(name, entry, None, lambda fields, values: dict(zip(fields, values, strict=True))), entry
        )
        for name, entry in sorted(decode_registry(registry).items(), key=lambda item: item[1].number)
    }


def _known(reads: Sequence[Read]) -> dict[str, Entry]:
    """Return the variables of all stores by name, each from the list with most of its schemas."""
    known: dict[str, Entry] = {}
    for registry in dict.fromkeys(read.registry for read in reads):
        for variable, entry in variables_of(registry).values():
            if variable.name not in known or len(known[variable.name].written) < len(entry.written):
                known[variable.name] = entry
    return known


def _columns(entry: Entry) -> JsonObject:
    """Return a variable's own columns, with the fields in each."""
    key = {} if entry.map_key is None else {"user_map_key": kinds_of(entry.map_key)}
    return key | {VALUE_OF[entry.kind]: kinds_of(entry.written[-1].schema)}


def _rows(known: Known, key: Row, entry: Placed) -> Iterator[Row]:
    """Return the rows of an entry of a key."""
    for row in rows_of_entry(known, entry.name, 1 + len(entry.key), entry.value):
        yield {"variable": known.variable.name, "key": key} | row


def rows_of_entry(known: Known, name: bytes, end: int, data: bytes) -> Iterator[Row]:
    """Return the rows of an entry whose key ends there in its name, without the key."""
    variable, entry = known
    if variable.map_key is not None and entry.map_key is not None:
        row: Row = {"user_map_key": _struct(entry.map_key, variable.map_key.decode(name, end))}
        yield row | _value(known, data, 1)
    elif variable.kind == "list":
        start = 1
        while start < len(data):
            yield _value(known, data, start + _LENGTH.size)
            start += _LENGTH.size + int(_LENGTH.unpack_from(data, start)[0])
    else:
        yield _value(known, data, 1)


def _value(known: Known, data: bytes, start: int) -> Row:
    values, _, expiry = known.variable.decode(data, start, data[0])
    row: Row = {VALUE_OF[known.variable.kind]: _struct(known.entry.written[-1].schema, values)}
    return row if expiry is None else row | {"expiration_timestamp": expiry}


def _struct(schema: pa.Schema, values: Sequence[object]) -> Row:
    return {field.name: _in_utc(value, field.type) for field, value in zip(schema, values, strict=True)}


def _in_utc(value: Any, kind: pa.DataType) -> Any:
    """Return a value with times in UTC: user code gets them without a zone, in its process's zone."""
    if value is None or not pa.types.is_nested(kind):
        return value.astimezone(UTC) if value is not None and pa.types.is_timestamp(kind) and kind.tz else value
    if pa.types.is_struct(kind):
        return {field.name: _in_utc(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {_in_utc(key, kind.key_type): _in_utc(item, kind.item_type) for key, item in value.items()}
    return [_in_utc(item, kind.value_type) for item in value]
