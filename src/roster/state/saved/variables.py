"""A processor's state: the parts `variables/<name>`, `timers` and `initial`.

A variable's part has the columns of a query: `key`, `value`, `list_element`, or `user_map_key` and `user_map_value`,
and `expiration_timestamp` in ms since the epoch; the rows of a list are in its order. The column `schema` is the number
of the schema that a value was written with, without it the present one. `timers` has `key` and
`expiration_timestamp_ms`, `initial` the keys that have taken their initial state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from roster.state.byte_slices import as_bytes
from roster.state.keys import encode_keys, read_keys
from roster.state.processor.batch import TAKEN
from roster.state.processor.codec import RowCodec
from roster.state.processor.entries import VALUE_OF, Known, rows_of_entry, variables_of
from roster.state.processor.states import NEVER
from roster.state.processor.timers import BY_KEY, BY_TIME
from roster.state.processor.variables import Entry
from roster.state.saved.columns import entry_table, joined, ordered_times, times_at
from roster.state.store import ValueDamagedError

TIMERS, INITIAL = "timers", "initial"
KEY, MAP_KEY, EXPIRY, SCHEMA, POSITION = "key", "user_map_key", "expiration_timestamp", "schema", "position"
"""Columns of a variable. The position orders the elements of lists, where rows have no order of their own."""
_AT = "expiration_timestamp_ms"
_LENGTH = Struct("<I")


class SavedVariables:
    """Variables, timers and initial state by a store's list of variables."""

    def __init__(self, keys: pa.Schema, registry: bytes | None) -> None:
        self._keys = keys
        self._variables = variables_of(registry)

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of each part."""
        key = pa.field(KEY, pa.struct(list(self._keys)))
        schemas = {
            part_of(known.variable.name): pa.schema([key, *_own_fields(known)]) for known in self._variables.values()
        }
        return schemas | {TIMERS: pa.schema([key, pa.field(_AT, pa.int64())]), INITIAL: pa.schema([key])}

    def tables(self, entries: pa.Table) -> dict[str, pa.Table]:
        """Return the table of each part that has rows."""
        data, offsets = as_bytes(entries["key"])
        first, schemas = data[offsets[:-1]], self.schemas()
        if strange := set(np.unique(first).tolist()) - {*self._variables, BY_KEY[0], BY_TIME[0], TAKEN[0]}:
            raise ValueError(f"there is no variable {strange.pop()}")
        tables: dict[str, pa.Table] = {}
        for number, known in self._variables.items():
            mine = np.flatnonzero(first == number)
            if len(mine):
                part = part_of(known.variable.name)
                keys, ends = self._read(data, offsets[:-1][mine] + 1)
                values = entries["value"].take(pa.array(mine)).to_pylist()
                rest = [data[end:stop].tobytes() for end, stop in zip(ends, offsets[1:][mine], strict=True)]
                tables[part] = _table(known, keys, rest, values, schemas[part])
        timed = np.flatnonzero(first == BY_TIME[0])
        if len(timed):
            starts = offsets[:-1][timed] + 1
            keys, _ = self._read(data, starts + 8)
            tables[TIMERS] = pa.table([keys, pa.array(times_at(data, starts))], schema=schemas[TIMERS])
        taken = np.flatnonzero(first == TAKEN[0])
        if len(taken):
            keys, _ = self._read(data, offsets[:-1][taken] + 1)
            tables[INITIAL] = pa.table([keys], schema=schemas[INITIAL])
        return tables

    def _read(self, data: Any, starts: Any) -> tuple[Any, Any]:
        columns, ends = read_keys(data, starts, self._keys.types)
        return pa.StructArray.from_arrays(columns, fields=list(self._keys)), ends

    def entries(self, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the entries of the tables."""
        parts = [entry_table(pa.array([], pa.binary()), pa.array([], pa.binary()))]
        for known in self._variables.values():
            table = tables.get(part_of(known.variable.name))
            if table is not None and len(table):
                ordered = table.sort_by(POSITION) if POSITION in table.column_names else table
                parts.append(_entries(known, self._encoded(ordered), ordered))
        if TIMERS in tables and len(tables[TIMERS]):
            parts += self._timers(tables[TIMERS])
        if INITIAL in tables and len(tables[INITIAL]):
            keys = joined(TAKEN, self._encoded(tables[INITIAL]))
            parts.append(entry_table(keys, pa.array([b"\x00"] * len(keys), pa.binary())))
        return pa.concat_tables(parts)

    def _encoded(self, table: pa.Table) -> Any:
        column = table[KEY].combine_chunks()
        column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
        return encode_keys(pa.table(column.flatten(), schema=self._keys), self._keys.names).combine_chunks()

    def _timers(self, table: pa.Table) -> Iterable[pa.Table]:
        times = ordered_times(table[_AT].to_numpy())
        encoded = self._encoded(table)
        by_time = joined(BY_TIME, times, encoded)
        of_key: dict[bytes, list[bytes]] = {}
        for key, time in zip(encoded.to_pylist(), times.to_pylist(), strict=True):
            of_key.setdefault(key, []).append(time)
        keys = joined(BY_KEY, pa.array(of_key, pa.large_binary()))
        lists = pa.array([b"".join(sorted(times)) for times in of_key.values()], pa.large_binary())
        return entry_table(by_time, pa.array([b"\x00"] * len(by_time), pa.binary())), entry_table(keys, lists)


def part_of(variable: str) -> str:
    """Return the name of a variable's part, which can be a folder."""
    text = quote(variable, safe="")
    # Spark takes files in folders with these first letters for hidden ones.
    return f"variables/%{ord(text[0]):02X}{text[1:]}" if text[:1] in {".", "_"} else f"variables/{text}"


def _own_fields(known: Known) -> list[pa.Field]:
    """Return the columns behind the key."""
    entry, fields = known.entry, []
    if entry.map_key is not None:
        fields.append(pa.field(MAP_KEY, pa.struct(list(entry.map_key))))
    fields.append(pa.field(VALUE_OF[entry.kind], pa.struct(list(entry.written[-1].schema))))
    fields += [pa.field(EXPIRY, pa.int64())] if any(written.expires for written in entry.written) else []
    return [*fields, pa.field(SCHEMA, pa.int16())]


def _table(known: Known, keys: Any, rest: Sequence[bytes], values: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Return the rows of a variable's entries. rest: the map's keys behind the keys of the entries."""
    rows: list[dict[str, Any]] = []
    counts = np.zeros(len(values), np.int64)
    for place, (name, data) in enumerate(zip(rest, values, strict=True)):
        before = len(rows)
        rows += ({**row, SCHEMA: data[0]} for row in rows_of_entry(known, name, 0, data))
        counts[place] = len(rows) - before
    own = pa.schema(list(schema)[1:])
    places = pa.array(np.repeat(np.arange(len(values)), counts))
    return pa.table([keys.take(places), *pa.Table.from_pylist(rows, own).columns], schema=schema)


def _entries(known: Known, keys: Any, table: pa.Table) -> pa.Table:
    """Return the entries of a variable's rows."""
    variable, entry = known.variable, known.entry
    codecs = [RowCodec(written.schema) for written in entry.written]
    numbers, last = _numbers(entry), len(entry.written) - 1
    values: dict[bytes, bytes] = {}
    for key, row in zip(keys.to_pylist(), table.to_pylist(), strict=True):
        number = numbers[row.get(SCHEMA, last)]
        written = entry.written[number]
        value = row[VALUE_OF[entry.kind]]
        data = codecs[number].encode([_for_codec(value[field.name], field.type) for field in written.schema])
        if written.expires:
            expiry = row[EXPIRY]
            data = (NEVER if expiry is None else expiry).to_bytes(8, "big") + data
        name = variable.prefix + key
        if entry.map_key is not None and variable.map_key is not None:
            map_key = [_for_codec(row[MAP_KEY][field.name], field.type) for field in entry.map_key]
            name += variable.map_key.encode(map_key)
        if entry.kind == "list":
            before = values.setdefault(name, bytes([number]))
            if before[0] != number:
                raise ValueDamagedError
            values[name] = before + _LENGTH.pack(len(data)) + data
        else:
            values[name] = bytes([number]) + data
    return entry_table(pa.array(values, pa.large_binary()), pa.array(values.values(), pa.large_binary()))


def _numbers(entry: Entry) -> list[int]:
    """Return the schema that values of each schema are written in: the present one if theirs has other fields now."""
    fields = {field.name: field.type for field in entry.written[-1].schema}
    return [
        number if all(fields.get(field.name) == field.type for field in written.schema) else len(entry.written) - 1
        for number, written in enumerate(entry.written)
    ]


def _for_codec(value: Any, kind: pa.DataType) -> Any:
    """Return a value of Arrow as a row's codec takes it: a map as a dictionary."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        return {_for_codec(key, kind.key_type): _for_codec(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _for_codec(value[field.name], field.type) for field in kind}
    return [_for_codec(item, kind.value_type) for item in value]
