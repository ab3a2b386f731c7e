"""Rows as a database takes them: nested values as JSON, times in UTC, and values it has not refused by column."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from roster.records.produce import WriteError
from roster.spark.tasks.result_records import json_column

ROW, DELETED = "roster_row", "roster_deleted"
"""Columns of staging in upsert mode: the order of an attempt's rows; true for a row that deletes its key."""
_NUL_IN_JSON = r"(^|[^\\])(\\\\)*\\u0000"


def final_error(problem: str) -> WriteError:
    """Return the error of rows that a retry would not write either."""
    error = WriteError(problem)
    error.is_final = True
    return error


def prepared(rows: pa.RecordBatch, dialect: str) -> pa.RecordBatch:
    """Return the rows with values that the database's driver takes. Raises WriteError for one that it does not."""
    columns = {
        field.name: _prepared(field.name, column, dialect)
        for field, column in zip(rows.schema, rows.columns, strict=True)
    }
    return pa.RecordBatch.from_pydict(columns)


def _prepared(name: str, column: pa.Array, dialect: str) -> pa.Array:
    kind = column.type
    if pa.types.is_nested(kind):
        texts = json_column(pa.chunked_array([column])).combine_chunks()
        texts = pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string()))
        _check_nul(name, pc.match_substring_regex(texts, _NUL_IN_JSON), dialect)
        return texts
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise final_error(f"column `{name}` has text that is not UTF-8") from None
        _check_nul(name, pc.match_substring(column, "\0"), dialect)
    if dialect == "postgresql":
        return column
    if pa.types.is_floating(kind):
        refused = pc.is_nan(column) if dialect == "sqlite" else pc.invert(pc.is_finite(column))
        if _any(refused):
            problem = f"column `{name}` has NaN or an infinity, which {dialect} does not store"
            raise final_error(f"{problem}. Make it null, for example with nanvl")
    if dialect == "sqlite" and pa.types.is_decimal(kind):
        return pa.array([None if value is None else format(value, "f") for value in column.to_pylist()], pa.string())
    return column.cast(pa.timestamp("us")) if pa.types.is_timestamp(kind) else column


def _check_nul(name: str, found: pa.Array, dialect: str) -> None:
    if dialect == "postgresql" and _any(found):
        problem = f"column `{name}` has text with the character NUL, which PostgreSQL does not take"
        raise final_error(f"{problem}. Remove it, for example with translate(text, '\\u0000', ''), or store bytes")


def _any(found: pa.Array) -> bool:
    return bool(pc.any(found).as_py())
