"""Rows returned by user code, as columns of their declared schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from roster.state.store import StateError


class Rows:
    """Collects rows, and checks them. A row is a tuple; if it has `__fields__`, as PySpark's Row, these are its names.

    Raises StateError for other objects, other names or another number of values, and for a value that does not fit.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema, self._names = schema, list(schema.names)
        self._rows: list[Sequence[object]] = []
        self._orders: dict[tuple[str, ...], list[int | None]] = {}

    def extend(self, rows: Iterable[Any] | None) -> None:
        """Add the rows that a call returned."""
        if rows is None or isinstance(rows, (str, bytes, dict)) or not hasattr(rows, "__iter__"):
            raise StateError(f"it returned {_short(rows)}, not an iterator of rows")
        add, names = self._rows.append, self._names
        for row in rows:
            fields = getattr(row, "__fields__", None)
            if fields == names:
                add(row)
            elif fields is not None:
                add(self._ordered(row, tuple(fields)))
            elif isinstance(row, tuple) and len(row) == len(names):
                add(row)
            else:
                raise StateError(f"it returned {_short(row)}, not a row of ({', '.join(names)})")

    def _ordered(self, row: Sequence[object], fields: tuple[str, ...]) -> tuple[object, ...]:
        order = self._orders.get(fields)
        if order is None:
            if unknown := sorted(set(fields).difference(self._names)):
                raise StateError(
                    f"it returned a row with a field {unknown[0]!r}, the output schema has ({', '.join(self._names)})"
                )
            order = [fields.index(name) if name in fields else None for name in self._names]
            self._orders[fields] = order
        return tuple(None if place is None else row[place] for place in order)

    def table(self) -> pa.Table:
        """Return all rows."""
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * len(self._names)
        arrays = [column_of(values, field) for values, field in zip(columns, self._schema, strict=True)]
        return pa.table(arrays, schema=self._schema)

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.clear()


def column_of(values: Iterable[object], field: pa.Field) -> pa.Array:
    """Return values as a column. Raises StateError that names the column."""
    try:
        if pa.types.is_nested(field.type):
            values = [_as_plain(value) for value in values]
        column = pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError) as error:
        raise StateError(f"column {field.name!r} of the output schema is {field.type}: {error}") from None
    if not field.nullable and column.null_count:
        raise StateError(f"column {field.name!r} of the output schema has a null, but is not nullable")
    return column


def _as_plain(value: Any) -> Any:
    """Return a nested value with rows as dictionaries."""
    fields = getattr(value, "__fields__", None)
    if fields is not None:
        return {name: _as_plain(item) for name, item in zip(fields, value, strict=True)}
    if isinstance(value, dict):
        return {_as_plain(key): _as_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_as_plain(item) for item in value)
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
