"""Types of a database's columns: which one a column of rows gets, and which of an existing table can hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from roster.sinks.tasks.sql_values import DELETED, ROW, Limit

MYSQL = ("mysql", "mariadb")
EXACT_COLLATIONS = {"mariadb": "utf8mb4_nopad_bin", "mysql": "utf8mb4_0900_bin"}
"""Of text: others take "a" for "A", or for "a" with a blank behind it."""
SqlType: TypeAlias = "sa.types.TypeEngine[Any]"
TRANSACTIONAL: dict[str, Any] = {f"{dialect}_engine": "InnoDB" for dialect in MYSQL}
"""Options of a table: whatever the server's default is, one with transactions."""
_KEY_CHARACTERS = 765
"""Characters of four bytes in an index of MariaDB's."""
_DIGITS = {1: 3, 2: 5, 4: 10, 8: 19}
"""Bytes of an integer to its digits."""
_BYTES = {"TINYINT": 1, "SMALLINT": 2, "MEDIUMINT": 3, "INTEGER": 4, "BIGINT": 8}
_INTEGERS = {8: sa.SmallInteger, 16: sa.SmallInteger, 32: sa.Integer, 64: sa.BigInteger}
_MOST_BYTES = {
    f"{size}{kind}": 2**bits - 1 for size, bits in (("TINY", 8), ("", 16), ("MEDIUM", 24)) for kind in ("TEXT", "BLOB")
}
_MICROSECONDS = 6
_DOUBLE_BITS = 53


def column_type(kind: pa.DataType, dialect: str, keys: int = 0) -> SqlType | None:
    """Return the type of a new column, one of so many key columns or with 0 none; None if no type fits."""
    types = pa.types
    if types.is_boolean(kind):
        return sa.Boolean()
    if types.is_integer(kind):
        return _INTEGERS[kind.bit_width]()
    if types.is_floating(kind):
        # Queries show six digits of MariaDB's float.
        return sa.Double() if kind.bit_width == 64 or dialect in MYSQL else sa.REAL()
    if types.is_decimal(kind):  # SQLite has none: a number would be rounded to a double
        return sa.Text() if dialect == "sqlite" else sa.Numeric(kind.precision, kind.scale)
    if types.is_date(kind):
        return sa.Date()
    if types.is_timestamp(kind):
        return mysql.DATETIME(fsp=_MICROSECONDS) if dialect in MYSQL else sa.DateTime(timezone=kind.tz is not None)
    if types.is_string(kind) or types.is_large_string(kind):
        return _text(dialect, keys)
    if types.is_binary(kind) or types.is_large_binary(kind):
        if dialect not in MYSQL:
            return sa.LargeBinary()
        return mysql.VARBINARY(_KEY_CHARACTERS // keys) if keys else mysql.LONGBLOB()
    json = postgresql.JSONB() if dialect == "postgresql" else sa.JSON()
    return json if types.is_nested(kind) else None


def _text(dialect: str, keys: int) -> sa.types.TypeEngine[str]:
    if dialect not in MYSQL:
        return sa.Text()
    if keys:
        return mysql.VARCHAR(_KEY_CHARACTERS // keys, collation=EXACT_COLLATIONS[dialect])
    return mysql.LONGTEXT(collation=EXACT_COLLATIONS[dialect])


def staging_table(
    name: str, namespace: str | None, schema: pa.Schema, dialect: str, keys: Sequence[str], *, is_numbered: bool
) -> sa.Table:
    """Return the staging table of an attempt, for the values that `prepared` makes: nested ones are JSON in text.

    With keys it has the mark of deletes; with `is_numbered`, which keys need, the order of the rows.
    """
    columns: list[sa.Column[Any]] = []
    for field in schema:
        kind = pa.string() if pa.types.is_nested(field.type) else field.type
        columns.append(sa.Column(field.name, column_type(kind, dialect, len(keys) if field.name in keys else 0)))
    columns += [sa.Column(DELETED, sa.Boolean())] if keys else []
    columns += [sa.Column(ROW, sa.BigInteger())] if is_numbered else []
    prefixes = ["UNLOGGED"] if dialect == "postgresql" else []
    return sa.Table(name, sa.MetaData(), *columns, schema=namespace, prefixes=prefixes, **TRANSACTIONAL)


def fits(kind: pa.DataType, column: SqlType, dialect: str) -> bool:
    """Return True if every value of rows' columns of this type is the same in a table's column."""
    types = pa.types
    if types.is_boolean(kind):
        return isinstance(column, sa.Boolean) or (isinstance(column, mysql.TINYINT) and column.display_width == 1)
    if types.is_integer(kind):
        return _holds_integer(kind.bit_width // 8, column, dialect)
    if types.is_floating(kind):
        return _holds_fraction(kind, column, dialect)
    if types.is_decimal(kind):
        if dialect == "sqlite":
            return isinstance(column, sa.Text)
        return _holds_digits(kind.precision - kind.scale, kind.scale, column)
    if types.is_date(kind):
        return isinstance(column, sa.Date)
    if types.is_timestamp(kind):
        return _holds_time(kind, column, dialect)
    if types.is_string(kind) or types.is_large_string(kind):
        return _holds_text(column)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return isinstance(column, sa.types._Binary)
    return isinstance(column, sa.JSON) or (dialect in MYSQL and _holds_text(column))


def limit_of(column: SqlType, dialect: str, keys: int, *, is_numbered: bool) -> Limit | None:
    """Return what a table's column would change, None if nothing. keys: as of `column_type`.

    is_numbered: a null becomes a number.
    """
    name, length, is_mysql = column.__visit_name__, getattr(column, "length", None), dialect in MYSQL
    limit = Limit(f"{name}({length})" if length else name, numbers_nulls=is_numbered)
    if dialect == "sqlite":
        pass
    elif length and (name == "BINARY" or (isinstance(column, sa.CHAR) and not is_mysql)):
        limit = limit._replace(longest=length, shortest=length)
    elif isinstance(column, sa.CHAR):
        limit = limit._replace(cuts_blanks=is_mysql)
    elif is_mysql and name in _MOST_BYTES:
        limit = limit._replace(longest=_MOST_BYTES[name], counts_bytes=True)
    elif isinstance(column, sa.VARCHAR) and (length or (is_mysql and keys)):
        of_staging = _KEY_CHARACTERS // keys if is_mysql and keys else limit.longest
        limit = limit._replace(longest=min(length or of_staging, of_staging))
    return limit if limit != Limit(limit.kind) else None


def is_folding(column: SqlType, dialect: str) -> bool:
    """Return True for a type whose different values are equal, whatever they are compared as."""
    is_padded = isinstance(column, sa.CHAR) or column.__visit_name__ == "BINARY"
    return isinstance(column, postgresql.CITEXT) or (is_padded and dialect != "sqlite")


def _holds_text(column: SqlType) -> bool:
    # PostgreSQL's name and "char", which cut off what is longer, are such to SQLAlchemy.
    is_unsaid = type(column) is sa.String
    return isinstance(column, sa.String) and not (is_unsaid or isinstance(column, (sa.Enum, mysql.SET)))


def _holds_integer(size: int, column: SqlType, dialect: str) -> bool:
    if isinstance(column, sa.Integer):
        return dialect == "sqlite" or _BYTES.get(column.__visit_name__, 0) >= size
    return dialect != "sqlite" and _holds_digits(_DIGITS[size], 0, column)


def _holds_digits(before: int, after: int, column: SqlType) -> bool:
    if not isinstance(column, sa.Numeric) or isinstance(column, sa.Float):
        return False
    precision, scale = column.precision, column.scale or 0
    return precision is None or (precision - scale >= before and scale >= after)


def _holds_fraction(kind: pa.DataType, column: SqlType, dialect: str) -> bool:
    if dialect in MYSQL:
        return isinstance(column, sa.Double) and column.scale is None
    is_wide = kind.bit_width == 32 or dialect == "sqlite" or isinstance(column, sa.Double)
    return isinstance(column, sa.Float) and (is_wide or (column.precision or 0) >= _DOUBLE_BITS)


def _holds_time(kind: pa.DataType, column: SqlType, dialect: str) -> bool:
    if not isinstance(column, sa.DateTime):
        return False
    if dialect in MYSQL:
        return isinstance(column, mysql.DATETIME) and column.fsp == _MICROSECONDS
    if dialect == "postgresql" and getattr(column, "precision", None) not in (None, _MICROSECONDS):
        return False
    return dialect == "sqlite" or column.timezone == (kind.tz is not None)
