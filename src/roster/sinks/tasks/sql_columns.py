"""Types of PostgreSQL's columns: which one a column of rows gets, and which of an existing table can hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from roster.sinks.tasks.sql_values import DELETED, ROW, Limit

SqlType: TypeAlias = "sa.types.TypeEngine[Any]"
_DIGITS = {1: 3, 2: 5, 4: 10, 8: 19}
"""Bytes of an integer to its digits."""
_BYTES = {"SMALLINT": 2, "INTEGER": 4, "BIGINT": 8}
_INTEGERS = {8: sa.SmallInteger, 16: sa.SmallInteger, 32: sa.Integer, 64: sa.BigInteger}
_MICROSECONDS = 6
_DOUBLE_BITS = 53


def column_type(kind: pa.DataType) -> SqlType | None:
    """Return the type of a new column; None if no type fits."""
    types = pa.types
    if types.is_boolean(kind):
        return sa.Boolean()
    if types.is_integer(kind):
        return _INTEGERS[kind.bit_width]()
    if types.is_floating(kind):
        return sa.Double() if kind.bit_width == 64 else sa.REAL()
    if types.is_decimal(kind):
        return sa.Numeric(kind.precision, kind.scale)
    if types.is_date(kind):
        return sa.Date()
    if types.is_timestamp(kind):
        return sa.DateTime(timezone=kind.tz is not None)
    if types.is_string(kind) or types.is_large_string(kind):
        return sa.Text()
    if types.is_binary(kind) or types.is_large_binary(kind):
        return sa.LargeBinary()
    return postgresql.JSONB() if types.is_nested(kind) else None


def staging_table(
    name: str, namespace: str | None, schema: pa.Schema, keys: Sequence[str], *, is_numbered: bool
) -> sa.Table:
    """Return the staging table of an attempt, for the values that `prepared` makes: nested ones are JSON in text.

    With keys it has the mark of deletes; with `is_numbered`, which keys need, the order of the rows.
    """
    kinds = {field.name: pa.string() if pa.types.is_nested(field.type) else field.type for field in schema}
    columns: list[sa.Column[Any]] = [sa.Column(name, column_type(kind)) for name, kind in kinds.items()]
    columns += [sa.Column(DELETED, sa.Boolean())] if keys else []
    columns += [sa.Column(ROW, sa.BigInteger())] if is_numbered else []
    return sa.Table(name, sa.MetaData(), *columns, schema=namespace, prefixes=["UNLOGGED"])


def fits(kind: pa.DataType, column: SqlType) -> bool:
    """Return True if every value of rows' columns of this type is the same in a table's column."""
    types = pa.types
    if types.is_boolean(kind):
        return isinstance(column, sa.Boolean)
    if types.is_integer(kind):
        size = kind.bit_width // 8
        if isinstance(column, sa.Integer):
            return bool(_BYTES.get(column.__visit_name__, 0) >= size)
        return _holds_digits(_DIGITS[size], 0, column)
    if types.is_floating(kind):
        is_wide = kind.bit_width == 32 or isinstance(column, sa.Double)
        return isinstance(column, sa.Float) and (is_wide or (column.precision or 0) >= _DOUBLE_BITS)
    if types.is_decimal(kind):
        return _holds_digits(kind.precision - kind.scale, kind.scale, column)
    if types.is_date(kind):
        return isinstance(column, sa.Date)
    if types.is_timestamp(kind):
        is_whole = getattr(column, "precision", None) in (None, _MICROSECONDS)
        return isinstance(column, sa.DateTime) and is_whole and column.timezone == (kind.tz is not None)
    if types.is_string(kind) or types.is_large_string(kind):
        # PostgreSQL's name and "char", which cut off what is longer, are such to SQLAlchemy.
        is_unsaid = type(column) is sa.String
        return isinstance(column, sa.String) and not (is_unsaid or isinstance(column, sa.Enum))
    if types.is_binary(kind) or types.is_large_binary(kind):
        return isinstance(column, sa.types._Binary)
    return isinstance(column, sa.JSON)


def limit_of(column: SqlType) -> Limit | None:
    """Return what a table's column would change, None if nothing."""
    name, length = column.__visit_name__, getattr(column, "length", None)
    if not length or not isinstance(column, sa.CHAR | sa.VARCHAR):
        return None
    return Limit(f"{name}({length})", length, length if isinstance(column, sa.CHAR) else 0)


def is_folding(column: SqlType) -> bool:
    """Return True for a type whose different values are equal, whatever they are compared as."""
    return isinstance(column, postgresql.CITEXT | sa.CHAR)


def _holds_digits(before: int, after: int, column: SqlType) -> bool:
    if not isinstance(column, sa.Numeric) or isinstance(column, sa.Float):
        return False
    precision, scale = column.precision, column.scale or 0
    return precision is None or (precision - scale >= before and scale >= after)
