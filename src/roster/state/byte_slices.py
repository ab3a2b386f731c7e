"""Slices of bytes, found and gathered by columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def spread(starts: Numbers, lengths: Numbers) -> Numbers:
    """Return all numbers of ranges, one range after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


def gathered(data: Bytes, starts: Numbers, lengths: Numbers) -> Any:
    """Return pieces of data as binary values."""
    return cut(data[spread(starts, lengths)], np.concatenate([[0], np.cumsum(lengths)]))


def cut(data: Any, offsets: Numbers) -> Any:
    """Return data as binary values that begin at these offsets; the last one is the end."""
    content = pa.py_buffer(data.tobytes() if isinstance(data, np.ndarray) else data)
    where = pa.py_buffer(np.ascontiguousarray(offsets, np.int64))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, [None, where, content])


def offsets_of(column: Any) -> Numbers:
    """Return where the values of a large binary array begin, and the end of the last one."""
    whole = np.frombuffer(column.buffers()[1], np.int64) if len(column) else np.zeros(1, np.int64)
    return whole[column.offset : column.offset + len(column) + 1]


def as_bytes(column: Any) -> tuple[Bytes, Numbers]:
    """Return the bytes of binary values without nulls, and `offsets_of` them."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays([chunk.cast(pa.large_binary()) for chunk in column.chunks] or [_NONE])
    column = column.cast(pa.large_binary())
    content = column.buffers()[2]
    return np.frombuffer(b"" if content is None else content, np.uint8), offsets_of(column)


_NONE = pa.array([], pa.large_binary())
