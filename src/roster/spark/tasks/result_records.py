"""Results as records: the key columns as the record key, all columns as a JSON object; built column by column."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from roster.state.byte_slices import as_bytes


def as_records(results: pa.Table, keys: Sequence[str]) -> tuple[Any, Any]:
    """Return keys and values of the records for these results.

    A key of one column is its text, or null; of several columns a JSON array; of none null. A value is a JSON object
    with all columns: numbers and booleans as they are, dates and times in ISO 8601, NaN and infinities as null, bytes
    that are not UTF-8 in base64.
    """
    cells = {name: _cells(results[name]) for name in results.column_names}
    return key_of_records(results, keys, cells), _joined("{", cells.values(), "}", [f"{json.dumps(n)}:" for n in cells])


def key_of_records(rows: pa.Table, keys: Sequence[str], cells: Mapping[str, _Cells] | None = None) -> Any:
    """Return the keys that `as_records` describes; `cells` are columns already converted to JSON."""
    if not keys:
        return pa.chunked_array([pa.nulls(len(rows), pa.binary())])
    if len(keys) == 1:
        return record_keys(rows[keys[0]])
    return _joined("[", [_cells(rows[name]) if cells is None else cells[name] for name in keys], "]")


def json_column(column: Any) -> Any:
    """Return each value of a column as JSON text."""
    cells = _cells(column)
    return _joined("", [cells], "") if cells.quote else cells.text


class _Cells(NamedTuple):
    """Values of a column as JSON, but for the quote before and after each."""

    text: Any
    quote: str = ""


def _cells(column: Any) -> _Cells:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        text = column.cast(pa.string())
    elif pa.types.is_floating(kind):
        text, is_number = column.cast(pa.string()), pc.is_finite(column)
        if not pc.all(is_number).as_py():
            text = pc.if_else(is_number, text, pa.scalar(None, pa.string()))
    elif pa.types.is_nested(kind):
        text = pa.chunked_array(
            [[json.dumps(_plain_json(value, kind), ensure_ascii=False) for value in column.to_pylist()]], pa.string()
        )
    else:
        text = _escaped(_text(column))
        if not text.null_count:
            return _Cells(text, '"')
        text = pc.binary_join_element_wise('"', text, '"', "")
    return _Cells(pc.fill_null(text, "null") if text.null_count else text)


def _plain_json(value: Any, kind: pa.DataType) -> Any:
    """Convert a nested value for JSON: a map becomes an object named by the keys' texts."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if pa.types.is_map(kind):
        return {str(key): _plain_json(each, kind.item_type) for key, each in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain_json(value[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind):
        return [_plain_json(each, kind.value_type) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return _decoded(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def record_keys(column: Any) -> Any:
    """Return the values of a column as record keys: text and bytes as they are, others as their text."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.binary())
    return _text(column).cast(pa.binary())


def _text(column: Any) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _text(column.cast(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pc.replace_substring(column.cast(pa.string()), " ", "T")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        try:
            return column.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            decoded = [_decoded(value) for value in column.to_pylist()]
            return pa.chunked_array([pa.array(decoded, pa.string())])
    return column.cast(pa.string())


def _decoded(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _escaped(text: Any) -> Any:
    data, _ = as_bytes(text)
    if (data < 0x20).any() or (data == ord('"')).any() or (data == ord("\\")).any():
        for char in ("\\", '"', *map(chr, range(0x20))):
            text = pc.replace_substring(text, char, json.dumps(char)[1:-1])
    return text


def _joined(begin: str, columns: Collection[_Cells], end: str, names: Sequence[str] = ()) -> Any:
    """Join cells with commas, each after its name; in one step, as each makes all texts anew."""
    pieces, before = [], begin
    for name, (text, quote) in zip(names or [""] * len(columns), columns, strict=True):
        pieces += [f"{before}{name}{quote}", text]
        before = f"{quote},"
    return pc.binary_join_element_wise(*pieces, f"{before[:-1]}{end}", "")
