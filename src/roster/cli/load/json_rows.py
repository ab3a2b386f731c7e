"""Arrow batches to one JSON object a row, column by column, so that no Python loop runs over rows.

Numbers keep the digits they were read with; null, NaN and the infinities become null (JSON has no word for the last
three); timestamps and dates are ISO 8601 text, UTC with a Z where the type has a zone; binary is base64.
"""

import base64
import datetime
import decimal
import json
import math

import pyarrow as pa
import pyarrow.compute as pc

JSON_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_CONTROL = r"[\x00-\x1f]"


def json_rows(batch: pa.RecordBatch, raw: frozenset[str] = frozenset()) -> pa.Array:
    """One JSON object a row, as a string array; string columns named in `raw` already hold JSON (or null)."""
    if not batch.num_columns:
        return pa.array(["{}"] * batch.num_rows, pa.string())
    pieces: list[object] = []
    for index, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        lead = ("{" if index == 0 else ", ") + json.dumps(name, ensure_ascii=False) + ": "
        values = column if name in raw else json_values(column)
        pieces += [lead, pc.fill_null(values, "null")]
    return pc.binary_join_element_wise(*pieces, "}", "")


def json_values(column: pa.Array) -> pa.Array:
    """Each value of a column as JSON text; null stays null."""
    column = _plain_text(column)
    kind = column.type
    if pa.types.is_string(kind):
        return _quoted(column)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return pc.cast(column, pa.string())
    if pa.types.is_floating(kind):
        return pc.cast(pc.if_else(pc.is_finite(column), column, None), pa.string())
    if pa.types.is_timestamp(kind):
        utc = column if kind.tz is None else pc.cast(column, pa.timestamp(kind.unit, "UTC"))
        return _quoted(pc.replace_substring(pc.cast(utc, pa.string()), " ", "T", max_replacements=1))
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return _quoted(pc.cast(column, pa.string()))
    return pa.array([None if value is None else _dumps(value) for value in column.to_pylist()], pa.string())


def text_values(column: pa.Array) -> pa.Array:
    """Each value as the text a record key carries: strings as they are, the rest as their JSON without quotes."""
    column = _plain_text(column)
    return column if pa.types.is_string(column.type) else pc.utf8_trim(json_values(column), '"')


def _plain_text(column: pa.Array) -> pa.Array:
    """Take a column out of its dictionary, and text to its usual type."""
    if pa.types.is_dictionary(column.type):
        return _plain_text(column.dictionary_decode())
    is_text = pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type)
    return pc.cast(column, pa.string()) if is_text else column


def json_keys(columns: list[pa.Array]) -> pa.Array:
    """Record keys: one column's text (null when it is null), or a JSON array of several columns' texts."""
    if len(columns) == 1:
        return text_values(columns[0])
    pieces: list[object] = []
    for index, column in enumerate(columns):
        pieces += ["[" if index == 0 else ", ", pc.fill_null(_quoted(text_values(column)), "null")]
    return pc.binary_join_element_wise(*pieces, "]", "")


def _quoted(strings: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(strings, _CONTROL), min_count=0).as_py():
        texts = strings.to_pylist()
        return pa.array([None if text is None else json.dumps(text, ensure_ascii=False) for text in texts], pa.string())
    escaped = pc.replace_substring(pc.replace_substring(strings, "\\", "\\\\"), '"', '\\"')
    return pc.binary_join_element_wise('"', escaped, '"', "")


def _dumps(value: object) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: object) -> object:
    """Nested values as types that the json module can write."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
