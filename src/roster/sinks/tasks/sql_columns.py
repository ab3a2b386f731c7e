"""Types of PostgreSQL's columns: which one a column of rows gets, and which of an existing table can hold it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from roster.sinks.tasks.sql_values import DELETED, ROW, Limit

_INTEGERS = {8: "smallint", 16: "smallint", 32: "integer", 64: "bigint"}
_BYTES = {"smallint": 2, "integer": 4, "bigint": 8}
_DIGITS = {1: 3, 2: 5, 4: 10, 8: 19}
"""Bytes of an integer to its digits."""
_TEXTS = ("text", "character varying", "character", "bpchar", "citext")
_FOLDING = ("character", "bpchar", "citext")
"""Types whose different values are equal, whatever they are compared as."""
_TYPE = re.compile(r"([a-z ]+?)(?:\((\d+)(?:,(-?\d+))?\))?( with(?:out)? time zone)?")
_MICROSECONDS = 6


def quoted(*names: str | None) -> str:
    """Return a name as SQL has it, behind the name of its schema where there is one."""
    return ".".join('"{}"'.format(name.replace('"', '""')) for name in names if name is not None)


def column_type(kind: pa.DataType) -> str | None:
    """Return the type of a new column; None if no type fits."""
    types = pa.types
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind):
        return _INTEGERS[kind.bit_width]
    if types.is_floating(kind):
        return "double precision" if kind.bit_width == 64 else "real"
    if types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if types.is_date(kind):
        return "date"
    if types.is_timestamp(kind):
        return f"timestamp with{'out' if kind.tz is None else ''} time zone"
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "bytea"
    return "jsonb" if types.is_nested(kind) else None


def staging_table(table: str, schema: pa.Schema, keys: Sequence[str], *, is_numbered: bool) -> str:
    """Return the statement that makes the staging table of an attempt, for the values that `prepared` makes.

    table: its name in SQL. Nested values are JSON in text. With keys it has the mark of deletes; with `is_numbered`,
    which keys need, the order of the rows.
    """
    kinds = {field.name: pa.string() if pa.types.is_nested(field.type) else field.type for field in schema}
    columns = [f"{quoted(name)} {column_type(kind)}" for name, kind in kinds.items()]
    columns += [f"{DELETED} boolean"] if keys else []
    columns += [f"{ROW} bigint"] if is_numbered else []
    return f"create unlogged table {table} ({', '.join(columns)})"


class _Declared(NamedTuple):
    """A type as PostgreSQL's `format_type` has it, in its parts."""

    name: str
    size: int | None = None
    scale: int = 0

    @classmethod
    def of(cls, text: str) -> _Declared:
        if (match := _TYPE.fullmatch(text)) is None:
            return cls(text)
        return cls(match[1] + (match[4] or ""), None if match[2] is None else int(match[2]), int(match[3] or 0))

    def holds(self, before: int, after: int) -> bool:
        """Return True if it has so many digits before and after the point."""
        fits = self.size is None or (self.size - self.scale >= before and self.scale >= after)
        return self.name == "numeric" and fits


def fits(kind: pa.DataType, text: str) -> bool:
    """Return True if every value of rows' columns of this type is the same in a table's column of that type."""
    types, column = pa.types, _Declared.of(text)
    if types.is_integer(kind):
        size = kind.bit_width // 8
        return _BYTES.get(column.name, 0) >= size or column.holds(_DIGITS[size], 0)
    if types.is_floating(kind):
        return column.name == "double precision" or (column.name == "real" and kind.bit_width == 32)
    if types.is_decimal(kind):
        return column.holds(kind.precision - kind.scale, kind.scale)
    if types.is_timestamp(kind):
        return column.name == column_type(kind) and column.size in (None, _MICROSECONDS)
    if types.is_string(kind) or types.is_large_string(kind):
        return column.name in _TEXTS
    return column.name == column_type(kind) or (types.is_nested(kind) and column.name == "json")


def limit_of(text: str) -> Limit | None:
    """Return what a table's column of a type would change, None if nothing."""
    column = _Declared.of(text)
    if column.size is None or column.name not in ("character", "character varying"):
        return None
    return Limit(text, column.size, column.size if column.name == "character" else 0)


def is_folding(text: str) -> bool:
    """Return True for a type whose different values are equal, whatever they are compared as."""
    return _Declared.of(text).name in _FOLDING
