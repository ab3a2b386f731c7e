"""A store's entries changed as tables by column name: by a user's function, or to other columns of a join's sides."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from roster.state.definition import Definition, OtherDefinitionError, function_name
from roster.state.pending import WithChanges
from roster.state.saved.columns import entry_table
from roster.state.saved.parts import saved
from roster.state.store import Snapshot, Value
from roster.state.windows import END, START

Function: TypeAlias = Callable[[pa.Table], pa.Table]
"""Makes rows under a new definition of all rows of a store; it changes no key, and keeps their order."""

_OWN = b"\xff"
"""First byte of the keys of the store's own entries, which stay."""


@dataclass(frozen=True)
class TableEvolution:
    """Makes entries of one definition those of another. function: None if only the columns of sides differ."""

    before: Definition
    after: Definition
    function: Function | None

    def check(self) -> None:
        """Try the function on tables without rows. Raises OtherDefinitionError."""
        for part, schema in saved(self.before).schemas().items():
            self._changed(part, schema.empty_table())

    def seen(self, snapshot: Snapshot) -> WithChanges:
        """Return a view of a store that has the new entries."""
        return WithChanges(snapshot, self._changes(snapshot))

    def rewritten(self, snapshot: Snapshot, but: Collection[bytes]) -> pa.Table:
        """Return the new entries of all keys but these, and the removal of old ones, as changes."""
        found = {key: value for key, value in self._changes(snapshot).items() if key not in but}
        columns = [pa.array(list(found), pa.binary()), pa.array(list(found.values()), pa.binary())]
        return pa.table(columns, ["key", "value"])

    def _changes(self, snapshot: Snapshot) -> dict[bytes, Value]:
        keys, values = [], []
        for key, value in snapshot.scan(stop=_OWN):
            keys.append(key)
            values.append(value)
        found: dict[bytes, Value] = dict.fromkeys(keys)
        tables = saved(self.before).tables(entry_table(pa.array(keys, pa.binary()), pa.array(values, pa.binary())))
        new = saved(self.after).entries({part: self._changed(part, table) for part, table in tables.items()})
        return found | dict(zip(new["key"].to_pylist(), new["value"].to_pylist(), strict=True))

    def _changed(self, part: str, table: pa.Table) -> pa.Table:
        """Return a part's rows under the new definition. Raises OtherDefinitionError."""
        schema = saved(self.after).schemas()[part]
        made = self._conformed(part, table, schema) if self.function is None else self._called(table)
        needed = set(schema.names).difference(self.after.document.get("averages", ()))
        if missing := [name for name in schema.names if name in needed and name not in made.column_names]:
            raise self._failed(f"its result has no column {missing[0]!r}")
        try:
            columns = [
                made[each.name].cast(each.type) if each.name in needed else pa.nulls(len(made), each.type)
                for each in schema
            ]
        except pa.ArrowException as error:
            raise self._failed(f"a column does not have its type ({' '.join(str(error).split())})") from None
        return pa.table(columns, schema=schema)

    def _conformed(self, part: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return rows of a side with other columns: those that are new are null. Marks follow the side's columns."""
        own, before, after = self.before.sides or {}, table.column_names, schema.names
        known = len(own[part])
        marks = dict(zip(after[len((self.after.sides or {})[part]) :], before[known:], strict=True))
        columns: dict[str, Any] = {name: table[name] for name in before[:known] if name in after and name not in marks}
        columns |= {new: table[old] for new, old in marks.items()}
        return pa.table({each.name: columns.get(each.name, pa.nulls(len(table), each.type)) for each in schema})

    def _called(self, table: pa.Table) -> pa.Table:
        """Return what the function makes of a table with the same keys."""
        assert self.function is not None  # noqa: S101 - the other way was taken
        try:
            made = self.function(table)
        except Exception as error:
            raise self._failed(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
        if not isinstance(made, pa.Table) or len(made) != len(table):
            what = f"{len(made)} rows of {len(table)}" if isinstance(made, pa.Table) else f"a {type(made).__name__}"
            raise self._failed(f"it must return a pyarrow.Table with a row for each one, not {what}")
        for name in (START, END, *self.before.keys.names):
            if name in table.column_names and (name not in made.column_names or not made[name].equals(table[name])):
                raise self._failed(f"it must leave the column {name!r} as it is")
        return made

    def _failed(self, problem: str) -> OtherDefinitionError:
        return OtherDefinitionError(f"the function {function_name(self.function)} of migrate failed: {problem}", _FIX)


_FIX = "Mend the function: it gets the earlier release's columns, and returns those of this one; nothing was changed"
