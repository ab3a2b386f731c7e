"""Rows as PostgreSQL takes them: nested values as JSON, and values that it would change or refuse told by column."""

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from roster.pipeline.tasks.result_records import json_column
from roster.records.produce import WriteError

ROW, DELETED = "roster_row", "roster_deleted"
"""Columns of staging in upsert mode: the order of an attempt's rows; true for a row that deletes its key."""
_DAYS = -2_440_588, 2_145_042_905
"""First and last day since 1970 that PostgreSQL holds: from 4713 BC to the year 5874897."""
_DAY_US = 86_400_000_000
_NUL_IN_JSON = r"(^|[^\\])(\\\\)*\\u0000"


class Limit(NamedTuple):
    """Which texts a column of a table changes without an error. kind: of the column, for messages.

    longest: characters behind which blanks are cut off; shortest: up to which it pads.
    """

    kind: str
    longest: int
    shortest: int

    def check(self, name: str, column: pa.Array) -> None:
        """Raise WriteError if there is a value that the column would change."""
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            return
        size = pc.utf8_length(column)
        if _any(pc.and_(pc.greater(size, self.longest), pc.ends_with(column, " "))):
            raise final_error(f"column `{name}` has a value whose end {self.kind} cuts off")
        if _any(pc.less(size, self.shortest)):
            raise final_error(f"column `{name}` has a value that {self.kind} pads")


def final_error(problem: str) -> WriteError:
    """Return the error of rows that a retry would not write either."""
    error = WriteError(problem)
    error.is_final = True
    return error


def prepared(rows: pa.RecordBatch, limits: Mapping[str, Limit]) -> pa.RecordBatch:
    """Return the rows with values that the database's driver takes.

    limits: of columns. Raises WriteError for a value that the driver does not take, or a column would change.
    """
    columns = {
        field.name: _prepared(field.name, column) for field, column in zip(rows.schema, rows.columns, strict=True)
    }
    for name, limit in limits.items():
        limit.check(name, columns[name])
    return pa.RecordBatch.from_pydict(columns)


def _prepared(name: str, column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_nested(kind):
        texts = json_column(pa.chunked_array([column])).combine_chunks()
        texts = pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string()))
        _check_nul(name, pc.match_substring_regex(texts, _NUL_IN_JSON))
        return texts
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise final_error(f"column `{name}` has text that is not UTF-8") from None
        _check_nul(name, pc.match_substring(column, "\0"))
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        _check_days(name, column)
    return column


def _check_days(name: str, column: pa.Array) -> None:
    first, last = _DAYS
    if pa.types.is_timestamp(column.type):
        unit, number = _DAY_US, column.cast(pa.timestamp("us")).cast(pa.int64())
    else:
        unit, number = 1, column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    is_early = pc.less(number, first * unit)
    if _any(pc.or_(is_early, pc.greater(number, min((last + 1) * unit - 1, 2**63 - 1)))):
        years = "before 4713 BC or after 5874897"
        raise final_error(f"column `{name}` has a time {years}, which PostgreSQL does not store. Make it null")


def _check_nul(name: str, contains_nul: pa.Array) -> None:
    if _any(contains_nul):
        problem = f"column `{name}` has text with the character NUL, which PostgreSQL does not take"
        raise final_error(f"{problem}. Remove it, for example with translate(text, '\\u0000', ''), or store bytes")


def _any(flags: pa.Array) -> bool:
    return bool(pc.any(flags).as_py())
