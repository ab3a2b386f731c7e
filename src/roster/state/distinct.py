"""Distinct values of a key as bytes: 16 for each, numbers as they are, text and bytes by their BLAKE2b hash."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.keys import is_text

WIDTH = 16


def marks(column: Any) -> Any:
    """Return 16 bytes for each value of a column of one type, the same for equal ones; null for null.

    Floats are equal as in Spark: NaN to itself, and 0.0 to -0.0.
    """
    if is_text(column.type):
        encoded = column.cast(pa.binary()).combine_chunks().dictionary_encode()
        hashes = [hashlib.blake2b(value, digest_size=WIDTH).digest() for value in encoded.dictionary.to_pylist()]
        return pa.chunked_array([pa.array(hashes, pa.binary()).take(encoded.indices)])
    if pa.types.is_floating(column.type):
        values = column.cast(pa.float64()).fill_null(0).to_numpy() + 0.0
        numbers = np.where(np.isnan(values), np.nan, values).view(np.int64)
    else:
        plain = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
        numbers = plain.cast(pa.int64()).fill_null(0).to_numpy()
    wide = np.zeros((len(numbers), 2), "<i8")
    wide[:, 0] = numbers
    data = pa.FixedSizeBinaryArray.from_buffers(pa.binary(WIDTH), len(wide), [None, pa.py_buffer(wide.tobytes())])
    found = data.cast(pa.binary())
    return pa.chunked_array([pc.if_else(column.combine_chunks().is_valid(), found, pa.scalar(None, pa.binary()))])


def joined(lists: Any) -> Any:
    """Return the marks of each list as one value."""
    whole = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    return pc.binary_join(whole, b"")


def union(known: bytes, more: bytes) -> bytes:
    """Return the marks of both."""
    if not known or not more:
        return known or more
    there = {known[at : at + WIDTH] for at in range(0, len(known), WIDTH)}
    parts = (more[at : at + WIDTH] for at in range(0, len(more), WIDTH))
    return b"".join([known, *(part for part in parts if part not in there)])
