"""Types of a database's columns: which one a column of rows gets, and which of an existing table can hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

MYSQL = ("mysql", "mariadb")
EXACT_COLLATIONS = {"mariadb": "utf8mb4_nopad_bin", "mysql": "utf8mb4_0900_bin"}
"""Of text: others take "a" for "A", or for "a" with a blank behind it."""
_KEY_CHARACTERS = 765
"""Characters of four bytes in an index of MariaDB's."""
_DIGITS = {1: 3, 2: 5, 4: 10, 8: 19}
"""Bytes of an integer to its digits."""
_BYTES = {"TINYINT": 1, "SMALLINT": 2, "MEDIUMINT": 3, "INTEGER": 4, "BIGINT": 8}
_MICROSECONDS = 6
_DOUBLE_BITS = 53


def is_nested(kind: pa.DataType) -> bool:
    """Return True for a column that is stored as JSON."""
    return bool(pa.types.is_nested(kind))


def column_type(kind: pa.DataType, dialect: str, keys: int = 0) -> sa.types.TypeEngine[Any] | None:
    """Return the type of a new column, one of so many key columns or with 0 none; None if no type fits."""
    of = pa.types
    if of.is_boolean(kind) or of.is_integer(kind) or of.is_floating(kind) or of.is_decimal(kind):
        return _number(kind, dialect)
    if of.is_date(kind):
        return sa.Date()
    if of.is_timestamp(kind):
        return mysql.DATETIME(fsp=_MICROSECONDS) if dialect in MYSQL else sa.DateTime(timezone=kind.tz is not None)
    if of.is_string(kind) or of.is_large_string(kind):
        return _text(dialect, keys)
    if of.is_binary(kind) or of.is_large_binary(kind):
        if dialect in MYSQL:
            return mysql.VARBINARY(_KEY_CHARACTERS // keys) if keys else mysql.LONGBLOB()
        return sa.LargeBinary()
    return _json(dialect) if is_nested(kind) else None


def _number(kind: pa.DataType, dialect: str) -> sa.types.TypeEngine[Any]:
    of = pa.types
    if of.is_boolean(kind):
        return sa.Boolean()
    if of.is_integer(kind):
        return sa.SmallInteger() if kind.bit_width <= 16 else sa.Integer() if kind.bit_width == 32 else sa.BigInteger()
    if of.is_floating(kind):
        return sa.Double() if kind.bit_width == 64 else mysql.FLOAT() if dialect in MYSQL else sa.REAL()
    # SQLite has no decimals: a number would be rounded to a double.
    return sa.Text() if dialect == "sqlite" else sa.Numeric(kind.precision, kind.scale)


def _text(dialect: str, keys: int) -> sa.types.TypeEngine[str]:
    if dialect not in MYSQL:
        return sa.Text()
    if keys:
        return mysql.VARCHAR(_KEY_CHARACTERS // keys, collation=EXACT_COLLATIONS[dialect])
    return mysql.LONGTEXT(collation=EXACT_COLLATIONS[dialect])


def _json(dialect: str) -> sa.types.TypeEngine[Any]:
    return postgresql.JSONB() if dialect == "postgresql" else sa.JSON()


def staged_type(kind: pa.DataType, dialect: str, keys: int = 0) -> sa.types.TypeEngine[Any]:
    """Return the type of a column of staging, whose values are those that `prepared` makes."""
    found = sa.Text() if is_nested(kind) and dialect not in MYSQL else column_type(kind, dialect, keys)
    if is_nested(kind) and dialect in MYSQL:
        found = mysql.LONGTEXT(collation=EXACT_COLLATIONS[dialect])
    assert found is not None  # noqa: S101 - columns without a type were refused
    return found


def staging_columns(schema: pa.Schema, dialect: str, keys: Sequence[str]) -> list[sa.Column[object]]:
    """Return the columns of staging for rows with these columns."""
    return [
        sa.Column(field.name, staged_type(field.type, dialect, len(keys) if field.name in keys else 0))
        for field in schema
    ]


def fits(kind: pa.DataType, column: sa.types.TypeEngine[Any], dialect: str) -> bool:
    """Return True if every value of rows' columns of this type is the same in a table's column."""
    of = pa.types
    if of.is_boolean(kind):
        return isinstance(column, sa.Boolean) or (isinstance(column, mysql.TINYINT) and column.display_width == 1)
    if of.is_integer(kind):
        return _holds_integer(kind.bit_width // 8, column, dialect)
    if of.is_floating(kind):
        return _holds_fraction(kind, column, dialect)
    if of.is_decimal(kind):
        if dialect == "sqlite":
            return isinstance(column, sa.Text)
        return _holds_digits(kind.precision - kind.scale, kind.scale, column)
    if of.is_date(kind):
        return isinstance(column, sa.Date)
    if of.is_timestamp(kind):
        return _holds_time(kind, column, dialect)
    if of.is_string(kind) or of.is_large_string(kind):
        return isinstance(column, sa.String) and not isinstance(column, sa.Enum)
    if of.is_binary(kind) or of.is_large_binary(kind):
        return isinstance(column, sa.types._Binary)
    return isinstance(column, sa.JSON) or (dialect in MYSQL and isinstance(column, sa.String))


def _holds_integer(size: int, column: sa.types.TypeEngine[Any], dialect: str) -> bool:
    if isinstance(column, sa.Integer):
        return dialect == "sqlite" or _BYTES.get(column.__visit_name__, 0) >= size
    return dialect != "sqlite" and _holds_digits(_DIGITS[size], 0, column)


def _holds_digits(before: int, after: int, column: sa.types.TypeEngine[Any]) -> bool:
    if not isinstance(column, sa.Numeric) or isinstance(column, sa.Float):
        return False
    precision, scale = column.precision, column.scale or 0
    return precision is None or (precision - scale >= before and scale >= after)


def _holds_fraction(kind: pa.DataType, column: sa.types.TypeEngine[Any], dialect: str) -> bool:
    if not isinstance(column, sa.Float):
        return False
    if kind.bit_width == 32 or dialect == "sqlite":
        return True
    return isinstance(column, sa.Double) or (column.precision or 0) >= _DOUBLE_BITS


def _holds_time(kind: pa.DataType, column: sa.types.TypeEngine[Any], dialect: str) -> bool:
    if not isinstance(column, sa.DateTime):
        return False
    if dialect in MYSQL:
        return isinstance(column, mysql.DATETIME) and column.fsp == _MICROSECONDS
    if dialect == "postgresql" and getattr(column, "precision", None) not in (None, _MICROSECONDS):
        return False
    return dialect == "sqlite" or column.timezone == (kind.tz is not None)
