"""Keys of state as bytes: columns encoded so that they sort as their values do, and a prefix of columns is a prefix.

    a column   0x00 for null, else 0x01 and the value
    integer, timestamp, date, boolean   8 bytes, big-endian, the sign bit turned
    text, bytes   0x00 written as 0x00 0xff, and 0x00 0x00 behind the end

Floating-point and nested columns are refused: equal values of these may have several representations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.store import StateError

_NULL, _PRESENT = b"\x00", b"\x01"


def encode_keys(table: pa.Table, columns: Sequence[str]) -> pa.ChunkedArray:
    """Return the key of each row as bytes. Raises StateError for a column of a type that cannot be a key."""
    if not columns:
        raise StateError("keys: name at least one column")
    joined = pc.binary_join_element_wise(*(_encoded(table, name) for name in columns), pa.scalar(b"", pa.binary()))
    return joined if isinstance(joined, pa.ChunkedArray) else pa.chunked_array([joined])


def decode_keys(keys: Sequence[bytes], kinds: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return the columns of keys made by `encode_keys`, with these types. For few keys: runs Python for each."""
    columns: list[list[Any]] = [[] for _ in kinds]
    for key in keys:
        at = 0
        for column, kind in zip(columns, kinds, strict=True):
            value, at = _value_at(key, at, kind)
            column.append(value)
    return [_column(values, kind) for values, kind in zip(columns, kinds, strict=True)]


def _value_at(key: bytes, at: int, kind: pa.DataType) -> tuple[Any, int]:
    """Return the value that begins there, and where the next one does."""
    if key[at : at + 1] == _NULL:
        return None, at + 1
    at += 1
    if not is_text(kind):
        number = int.from_bytes(key[at : at + 8], "big")
        return number if pa.types.is_uint64(kind) else number - (1 << 63), at + 8
    end = at
    while key[(end := key.index(b"\x00", end)) + 1] == 0xFF:
        end += 2
    return key[at:end].replace(b"\x00\xff", b"\x00"), end + 2


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if is_text(kind):
        return pa.array(values, pa.binary()).cast(kind)
    if pa.types.is_uint64(kind):
        return pa.array(values, kind)
    numbers = pa.array(values, pa.int64())
    width = pa.int32() if kind in (pa.date32(), pa.time32("s"), pa.time32("ms")) else None
    return (numbers if width is None else numbers.cast(width)).cast(kind)


def _encoded(table: pa.Table, name: str) -> Any:
    if name not in table.column_names:
        raise StateError(f"keys: there is no column {name!r} among {', '.join(table.column_names)}")
    column = table[name].combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if is_text(kind):
        plain = column.cast(pa.binary())
        value = pc.binary_join_element_wise(pc.replace_substring(plain, b"\x00", b"\x00\xff"), b"\x00\x00", b"")
    elif pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        value = _big_endian(column)
    else:
        raise StateError(f"keys: column {name!r} is {kind}; a key is of integers, text, bytes, booleans, times")
    return pc.if_else(
        column.is_null(), pa.scalar(_NULL, pa.binary()), pc.binary_join_element_wise(_PRESENT, value, b"")
    )


def key_end(data: bytes, at: int, kinds: Sequence[pa.DataType]) -> int:
    """Return the end of a key of these types that begins there and has other bytes after it."""
    for kind in kinds:
        _, at = _value_at(data, at, kind)
    return at


def is_text(kind: Any) -> bool:
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


def _big_endian(column: Any) -> Any:
    kind = column.type
    if pa.types.is_uint64(kind):
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    else:
        width = pa.int32() if kind in (pa.date32(), pa.time32("s"), pa.time32("ms")) else None
        signed = column.cast(width).cast(pa.int64()) if width is not None else column.cast(pa.int64())
        numbers = signed.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64) ^ np.uint64(1 << 63)
    data = np.ascontiguousarray(numbers.astype(">u8"))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(data), [None, pa.py_buffer(data)]).cast(pa.binary())
