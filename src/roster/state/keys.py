"""Keys of state as bytes, which sort as the columns' values do; a prefix of the columns is a prefix of the bytes.

    a column   0x00 for null, else 0x01 and the value
    integer, timestamp, date, boolean   8 bytes, big-endian, with the sign bit inverted
    text, bytes   0x00 written as 0x00 0xff, and 0x00 0x00 after the end

Floating-point and nested columns are refused: equal values of these may have several representations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster.model.arrays import Array
from roster.state.byte_slices import Bytes, Column, Numbers, as_bytes, gathered, joined, raw
from roster.state.store import StateError

_NULL, _PRESENT = b"\x00", b"\x01"
_SIGN = np.uint64(1 << 63)


def encode_keys(table: pa.Table, columns: Sequence[str]) -> pa.ChunkedArray:
    """Return the key of each row as bytes. Raises StateError for a column of a type that cannot be a key."""
    if not columns:
        raise StateError("keys: name at least one column")
    pieces: list[bytes | Column] = []
    constant = b""
    for name in columns:
        value, end, is_null = _encoded(table, name)
        if is_null is None:
            pieces += [constant + _PRESENT, value]
            constant = end
        else:
            whole = pc.binary_join_element_wise(_PRESENT, value, end, b"")
            pieces += [constant, pc.if_else(is_null, pa.scalar(_NULL, pa.binary()), whole)]
            constant = b""
    keys = joined(pa.binary(), *pieces, constant)
    return keys if isinstance(keys, pa.ChunkedArray) else pa.chunked_array([keys])


def ordered(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return structs as bytes that sort as Spark compares them, field by field; null for null.

    Raises StateError for a field that is a list or a map.
    """
    structs = column.combine_chunks()
    fields = [_as_key(part, field.name) for part, field in zip(structs.flatten(), structs.type, strict=True)]
    names = [str(place) for place in range(len(fields))]
    keys = encode_keys(pa.table(fields, names), names).combine_chunks()
    return pa.chunked_array([pc.if_else(structs.is_valid(), keys, pa.scalar(None, pa.binary()))])


def _as_key(column: pa.Array, name: str) -> pa.Array:
    """Return a field's values as a column of a key."""
    kind = column.type
    if pa.types.is_struct(kind):
        return ordered(pa.chunked_array([column])).combine_chunks()
    if pa.types.is_decimal128(kind):
        return pa.array(sortable(raw(column)).tolist(), pa.binary(), mask=column.is_null().to_numpy(False))
    if pa.types.is_nested(kind) or pa.types.is_decimal(kind):
        raise StateError(f"field {name!r} is {kind}, whose values are not compared; leave it out")
    return comparable(column)


def comparable(column: Column) -> Column:
    """Return floats as integers that sort as Spark compares the floats, other values as they are."""
    if not pa.types.is_floating(column.type):
        return column
    numbers = column.cast(pa.float64()).fill_null(0).to_numpy()
    return pa.array(sortable(numbers), mask=np.asarray(column.is_null()))


def sortable(values: Array) -> Array:
    """Return values that are ordered as Spark's: NaN is the largest number, zeros are equal."""
    if values.dtype.kind == "V":
        data = np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.itemsize)[:, ::-1].copy()
        data[:, 0] ^= 0x80
        return data.view(f"S{values.itemsize}").ravel()
    if values.dtype.kind != "f":
        return values
    bits = np.where(np.isnan(values), np.nan, values + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & np.iinfo(np.int64).max)


def decode_keys(keys: Column | Sequence[bytes], kinds: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return the columns of keys made by `encode_keys`, with these types.

    keys: a list of bytes, or an array. Raises ValueError or IndexError for keys of other columns.
    """
    column = keys if isinstance(keys, (pa.Array, pa.ChunkedArray)) else pa.array(keys, pa.large_binary())
    data, offsets = as_bytes(column)
    columns, ends = read_keys(data, offsets[:-1], kinds)
    if (ends != offsets[1:]).any():
        raise ValueError("a key does not end where its columns do")
    return columns


def read_keys(data: Bytes, starts: Numbers, kinds: Sequence[pa.DataType]) -> tuple[list[pa.Array], Numbers]:
    """Return the columns of keys that begin at `starts`, and where each key ends; other bytes may follow."""
    position, columns = starts, []
    ends: Numbers | None = None
    for kind in kinds:
        has = data[position] != _NULL[0]
        if is_text(kind):
            ends = _text_ends(data) if ends is None else ends
            column, position = _texts(data, position + 1, has, ends, kind)
        else:
            column, position = _numbers(data, position + 1, has, kind), position + 1 + 8 * has
        columns.append(pc.if_else(pa.array(has), column, pa.scalar(None, kind)))
    return columns, position


def _text_ends(data: Bytes) -> Numbers:
    """Return the places of two zero bytes; the first one behind the begin of a text is its end."""
    return np.flatnonzero((data[:-1] == 0) & (data[1:] == 0))


def _texts(
    data: Bytes, start: Numbers, has: npt.NDArray[np.bool_], ends: Numbers, kind: pa.DataType
) -> tuple[pa.Array, Numbers]:
    end = start.copy()
    end[has] = ends[np.searchsorted(ends, start[has])]
    plain = pc.replace_substring(gathered(data, start, end - start), b"\x00\xff", b"\x00")
    return plain.cast(pa.binary()).cast(kind), end + 2 * has


def _numbers(data: Bytes, start: Numbers, has: npt.NDArray[np.bool_], kind: pa.DataType) -> Any:
    whole = np.zeros(len(start), np.uint64)
    whole[has] = data[start[has][:, None] + np.arange(8)].view(">u8").ravel()
    if pa.types.is_uint64(kind):
        return pa.array(whole)
    numbers = pa.array(np.where(has, (whole ^ _SIGN).view(np.int64), 0))
    width = pa.int32() if kind in (pa.date32(), pa.time32("s"), pa.time32("ms")) else None
    return (numbers if width is None else numbers.cast(width)).cast(kind)


def _encoded(table: pa.Table, name: str) -> tuple[pa.Array, bytes, pa.Array | None]:
    """Return a column's values as bytes, what ends each, and which are null, None if none is."""
    if name not in table.column_names:
        raise StateError(f"keys: there is no column {name!r} among {', '.join(table.column_names)}")
    column = table[name].combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind, is_null = column.type, column.is_null() if column.null_count else None
    if is_text(kind):
        text = column.cast(pa.binary())
        if not as_bytes(text)[0].all():
            text = pc.replace_substring(text, b"\x00", b"\x00\xff")
        return text, b"\x00\x00", is_null
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        return big_endian(column), b"", is_null
    raise StateError(f"keys: column {name!r} is {kind}; a key is of integers, text, bytes, booleans, times")


def key_end(data: bytes, position: int, kinds: Sequence[pa.DataType]) -> int:
    """Return the end of a key of these types that begins there and has other bytes after it."""
    for kind in kinds:
        if data[position : position + 1] == _NULL:
            position += 1
        elif is_text(kind):
            position += 1
            while data[(position := data.index(b"\x00", position)) + 1] == 0xFF:
                position += 2
            position += 2
        else:
            position += 9
    return position


def is_text(kind: pa.DataType) -> bool:
    """Return True for text and bytes."""
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
        )
    )


def big_endian(column: Any) -> Any:
    """Return integers or times as eight bytes that sort as they do; of null those of 0."""
    kind = column.type
    if pa.types.is_uint64(kind):
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    else:
        width = pa.int32() if kind in (pa.date32(), pa.time32("s"), pa.time32("ms")) else None
        signed = column.cast(width).cast(pa.int64()) if width is not None else column.cast(pa.int64())
        numbers = signed.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64) ^ _SIGN
    data = np.ascontiguousarray(numbers.astype(">u8"))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(data), [None, pa.py_buffer(data)]).cast(pa.binary())
