"""Rows as a database takes them: nested values as JSON, times in UTC, and values it has not refused by column."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from roster.records.produce import WriteError

ROW, DELETED = "roster_row", "roster_deleted"
"""Columns of staging in upsert mode: the order of an attempt's rows; true for a row that deletes its key."""
_NUL_IN_JSON = r"(^|[^\\])(\\\\)*\\u0000"


class UnfitValueError(WriteError):
    """A value cannot be stored; a retry would find it again."""

    is_final = True

    def __init__(self, column: str, problem: str, fix: str) -> None:
        super().__init__(f"column `{column}` has {problem}. {fix}")


def prepared(rows: pa.RecordBatch, dialect: str) -> pa.RecordBatch:
    """Return the rows with values that the database's driver takes. Raises UnfitValueError."""
    columns = {
        field.name: _prepared(field.name, column, dialect)
        for field, column in zip(rows.schema, rows.columns, strict=True)
    }
    return pa.RecordBatch.from_pydict(columns)


def _prepared(name: str, column: pa.Array, dialect: str) -> pa.Array:
    kind, is_postgres = column.type, dialect == "postgresql"
    if pa.types.is_nested(kind):
        write = _json_writer(kind)
        texts = pa.array([None if value is None else write(value) for value in column.to_pylist()], pa.string())
        if is_postgres and _any(pc.match_substring_regex(texts, _NUL_IN_JSON)):
            raise UnfitValueError(name, "text with the character NUL, which PostgreSQL does not take", _WITHOUT_NUL)
        return texts
    if is_postgres:
        if (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and _any(pc.match_substring(column, "\0")):
            raise UnfitValueError(name, "text with the character NUL, which PostgreSQL does not take", _WITHOUT_NUL)
        return column
    if pa.types.is_floating(kind):
        refused = pc.is_nan(column) if dialect == "sqlite" else pc.invert(pc.is_finite(column))
        if _any(refused):
            raise UnfitValueError(
                name, f"NaN or an infinity, which {dialect} does not store", "Make it null, for example with nanvl"
            )
    if dialect == "sqlite" and pa.types.is_decimal(kind):
        return pa.array([None if value is None else format(value, "f") for value in column.to_pylist()], pa.string())
    return column.cast(pa.timestamp("us")) if pa.types.is_timestamp(kind) else column


_WITHOUT_NUL = "Remove it, for example with translate(text, '\\u0000', ''), or store bytes"


def _any(found: pa.Array) -> bool:
    return bool(pc.any(found).as_py())


def _json_writer(kind: pa.DataType) -> Callable[[Any], str]:
    """Return the function that writes values of a type as Spark's `to_json` does: bytes as base64, NaN as text."""
    of = pa.types
    if of.is_struct(kind):
        fields = [(json.dumps(f.name, ensure_ascii=False), f.name, _or_null(_json_writer(f.type))) for f in kind]
        return lambda value: "{" + ",".join(f"{key}:{write(value[name])}" for key, name, write in fields) + "}"
    if of.is_map(kind):
        item, key_of = _or_null(_json_writer(kind.item_type)), _json_writer(kind.key_type)
        return lambda value: "{" + ",".join(f"{_quoted(key_of(key))}:{item(each)}" for key, each in value) + "}"
    if of.is_nested(kind):
        item = _or_null(_json_writer(kind.value_type))
        return lambda value: "[" + ",".join(map(item, value)) + "]"
    if of.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if of.is_floating(kind):
        return lambda value: repr(value) if math.isfinite(value) else f'"{_NOT_FINITE[str(value)]}"'
    if of.is_decimal(kind):
        return lambda value: format(value, "f")
    if of.is_integer(kind):
        return str
    if of.is_binary(kind) or of.is_large_binary(kind):
        return lambda value: f'"{base64.b64encode(value).decode()}"'
    if of.is_date(kind) or of.is_timestamp(kind):
        return lambda value: f'"{value.isoformat()}"'
    return lambda value: json.dumps(value, ensure_ascii=False)


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _or_null(write: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "null" if value is None else write(value)


def _quoted(text: str) -> str:
    return text if text.startswith('"') else json.dumps(text)
