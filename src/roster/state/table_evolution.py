"""A store's entries changed as tables by column name: by functions, or to other columns of a join's sides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from roster.state.definition import Definition, OtherDefinitionError, function_name
from roster.state.join_entries import SIDES
from roster.state.pending import WithChanges
from roster.state.processor.entries import variables_of
from roster.state.processor.variables import REGISTRY_KEY
from roster.state.saved.columns import entry_table
from roster.state.saved.parts import saved
from roster.state.saved.variables import EXPIRY, KEY, MAP_KEY, SCHEMA, part_of
from roster.state.store import Snapshot
from roster.state.windows import END, START

Function: TypeAlias = Callable[[pa.Table], pa.Table]
"""Makes rows under a new definition of all rows of a part of a store; it changes no key, and keeps their order."""

_OWN = b"\xff"
"""First byte of the keys of the store's own entries, which stay."""
_ENTRY = pa.schema([("key", pa.binary()), ("value", pa.binary())])


@dataclass(frozen=True)
class TableEvolution:
    """Makes entries of one definition those of another. functions: by part; other sides only get other columns.

    For processors, both definitions list the variables; variables without a function are kept.
    """

    before: Definition
    after: Definition
    functions: Mapping[str, Function]

    def check(self) -> None:
        """Try the functions on tables without rows. Raises OtherDefinitionError."""
        for part, schema in saved(self.before).schemas().items():
            if part in self.functions or not self.before.has_variables:
                self._changed(part, schema.empty_table())

    def seen(self, snapshot: Snapshot) -> Changed:
        """Return a view of a store that has the new entries. Raises OtherDefinitionError."""
        spans = [(b"", _OWN)]
        if self.before.has_variables:
            variables = variables_of(self.before.registry).items()
            mine = [number for number, known in variables if part_of(known.variable.name) in self.functions]
            spans = [(bytes([number]), bytes([number + 1])) for number in mine]
        entries = [entry for span in spans for entry in snapshot.scan(*span)]
        keys = pa.array([key for key, _ in entries], pa.binary())
        old = entry_table(keys, pa.array([value for _, value in entries], pa.binary()))
        del entries
        tables = {part: self._changed(part, table) for part, table in saved(self.before).tables(old).items()}
        registry = {REGISTRY_KEY: self.after.registry} if self.after.registry else {}
        return Changed(snapshot, keys, saved(self.after).entries(tables).cast(_ENTRY), registry)

    def _changed(self, part: str, table: pa.Table) -> pa.Table:
        """Return a part's rows under the new definition. Raises OtherDefinitionError."""
        schema, function = saved(self.after).schemas()[part], self.functions.get(part)
        if self.before.has_variables:
            wanted = pa.schema([field for field in schema if field.name != SCHEMA])
            if EXPIRY in wanted.names and EXPIRY not in table.column_names:
                table = table.append_column(EXPIRY, pa.nulls(len(table), pa.int64()))
            assert function is not None
            return self._made(function, table.drop_columns(SCHEMA), wanted, [KEY, MAP_KEY])
        sides = self.before.sides, self.after.sides
        if sides[0] is None or sides[1] is None:
            assert function is not None
            return self._made(function, table, schema, [START, END, *self.before.keys.names])
        # Marks follow the columns of a side, and are the store's own.
        own, new = len(sides[0][part]), len(sides[1][part])
        columns, wanted = table.select(range(own)), pa.schema(list(schema)[:new])
        time = self.before.document["times"][SIDES.index(part)]
        if function is None:
            kept = {field.name: columns[field.name] for field in wanted if field.name in columns.column_names}
            result = pa.table({field.name: kept.get(field.name, pa.nulls(len(table), field.type)) for field in wanted})
        else:
            result = self._made(function, columns, wanted, [*self.before.keys.names, time])
        return pa.table([*result.columns, *table.columns[own:]], schema=schema)

    def _made(self, function: Function, table: pa.Table, schema: pa.Schema, fixed: Sequence[str]) -> pa.Table:
        """Return the columns that a function makes of a table; those that are `fixed` it must leave as they are."""
        try:
            result = function(table)
        except Exception as error:
            raise _failed(function, f"{type(error).__name__}: {' '.join(str(error).split())}") from error
        if not isinstance(result, pa.Table) or len(result) != len(table):
            what = (
                f"{len(result)} rows of {len(table)}" if isinstance(result, pa.Table) else f"a {type(result).__name__}"
            )
            raise _failed(function, f"it must return a pyarrow.Table with a row for each one, not {what}")
        for name in fixed:
            if name in table.column_names and (name not in result.column_names or not result[name].equals(table[name])):
                raise _failed(function, f"it must leave the column {name!r} as it is")
        results = self.after.layout.aggregates if "aggregates" in self.after.document else {}
        needed = set(schema.names).difference(name for name, aggregate in results.items() if aggregate.is_derived)
        if missing := [name for name in schema.names if name in needed and name not in result.column_names]:
            raise _failed(function, f"its result has no column {missing[0]!r}")
        for field in schema:
            if field.name in needed and _fields(result[field.name].type) != _fields(field.type):
                raise _failed(
                    function, f"its column {field.name!r} has not the fields {', '.join(_fields(field.type))}"
                )
        try:
            columns = [
                result[field.name].cast(field.type) if field.name in needed else pa.nulls(len(result), field.type)
                for field in schema
            ]
        except pa.ArrowException as error:
            raise _failed(function, f"a column does not have its type ({' '.join(str(error).split())})") from None
        return pa.table(columns, schema=schema)


class Changed(WithChanges):
    """A store with changed entries. keys: the earlier ones. entries: the new ones. own: of the store's own."""

    def __init__(self, snapshot: Snapshot, keys: Any, entries: pa.Table, own: dict[bytes, bytes]) -> None:
        gone = keys.filter(pc.invert(pc.is_in(keys, value_set=entries["key"])))
        self._table = pa.concat_tables([entries, pa.table([gone, pa.nulls(len(gone), pa.binary())], schema=_ENTRY)])
        changed = dict(zip(*(column.to_pylist() for column in self._table.columns), strict=True))
        super().__init__(snapshot, changed | own)

    def rewritten(self, but: Collection[bytes]) -> pa.Table:
        """Return the new entries of all keys but these and the store's own, and the removal of old ones, as changes."""
        return self._table.filter(pc.invert(pc.is_in(self._table["key"], value_set=pa.array(list(but), pa.binary()))))


def _fields(kind: pa.DataType) -> list[str]:
    return [field.name for field in kind] if pa.types.is_struct(kind) else []


def _failed(function: Function | None, problem: str) -> OtherDefinitionError:
    return OtherDefinitionError(f"the function {function_name(function)} of migrate failed: {problem}", _FIX)


_FIX = "Mend the function: it gets the earlier release's columns, and returns those of this one; nothing was changed"
