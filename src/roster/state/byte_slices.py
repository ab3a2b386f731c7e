"""Slices of bytes, found and gathered by columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster.wire.columns.kernel import Kernel

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Column: TypeAlias = pa.Array | pa.ChunkedArray
"""Values of Arrow's, in one piece or several."""
Structs: TypeAlias = npt.NDArray[np.void]
"""Rows of NumPy's, a field for each column."""
_LARGE = pa.large_binary()
FEW = 64
"""Values for which columns do not pay."""
_AT_ONCE = 1 << 12
"""Rows that are joined together, piece by piece: what they have written stays in the processor's cache."""


_loops: Kernel | None = None


def use(loops: Kernel | None) -> None:
    """Use these loops in this process from now on; None: Python and Arrow."""
    global _loops  # noqa: PLW0603 - of the process, like the code itself
    _loops = loops


def loops_for(rows: int) -> Kernel | None:
    """Return the loops of this process; None if it has none, or there are so few rows that they do not pay."""
    return None if rows <= FEW else _loops


def spread(starts: Numbers, lengths: Numbers) -> Numbers:
    """Return all numbers of ranges, one range after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


def gathered(data: Bytes, starts: Numbers, lengths: Numbers) -> pa.Array:
    """Return pieces of data as binary values."""
    return cut(data[spread(starts, lengths)], np.concatenate([[0], np.cumsum(lengths)]))


def cut(data: npt.ArrayLike | pa.Buffer, offsets: Numbers) -> pa.Array:
    """Return data as binary values that begin at these offsets; the last one is the end."""
    content = pa.py_buffer(np.ascontiguousarray(data) if isinstance(data, np.ndarray) else data)
    where = pa.py_buffer(np.ascontiguousarray(offsets, np.int64))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, [None, where, content])


def offsets_of(column: Column) -> Numbers:
    """Return where the values of a large binary array begin, and the end of the last one."""
    if not len(column):
        return np.zeros(1, np.int64)
    whole = np.frombuffer(column.buffers()[1], np.int64)
    return whole[column.offset : column.offset + len(column) + 1]


def large_binary(values: Column | Iterable[bytes | None]) -> pa.Array:
    """Return binary values, a sequence or a column, as one array."""
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
        return pa.array(values, _LARGE)
    if values.type != _LARGE:  # a cast to the same type costs as much as another one
        values = values.cast(_LARGE)
    if not isinstance(values, pa.ChunkedArray):
        return values
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()  # which copies a single one, too


def joined(kind: pa.DataType, *pieces: bytes | Column) -> Column:
    """Return constants and columns, one behind the other, as texts or bytes; null where a column is.

    kind: string or binary, as the columns are. The first piece is constant, and so is each one behind a column.
    """
    columns = [piece for piece in pieces if not isinstance(piece, bytes)]
    rows = len(columns[0])
    loops = None if any(column.null_count for column in columns) else loops_for(rows)
    parts = [] if loops is None else [as_bytes(column) for column in columns]
    constant_bytes = sum(map(len, pieces[::2]))
    if loops is None or rows * constant_bytes + sum(int(ends[-1] - ends[0]) for _, ends in parts) > _MOST:
        plain = [piece.decode() if isinstance(piece, bytes) and kind == pa.string() else piece for piece in pieces]
        return pc.binary_join_element_wise(*plain, "" if kind == pa.string() else b"")
    lengths = sum((np.diff(ends) for _, ends in parts), np.full(rows, constant_bytes))
    ends = np.concatenate([[0], np.cumsum(lengths)])
    places, out = ends[:-1].copy(), np.empty(ends[-1], np.uint8)
    parts += [(np.zeros(0, np.uint8), np.zeros(rows + 1, np.int64))] * (len(pieces) % 2)
    constants = [(np.frombuffer(constant, np.uint8), len(constant)) for constant in pieces[::2]]
    for begin in range(0, rows, _AT_ONCE):
        count = min(_AT_ONCE, rows - begin)
        for constant, (data, values) in zip(constants, parts, strict=True):
            loops.join(count, *constant, values[begin:], data, places[begin:], out)
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(out)]
    return pa.Array.from_buffers(kind, rows, buffers, 0)


def rows_as_values(rows: Structs, texts: Iterable[Column] = ()) -> pa.Array:
    """Return rows of fixed width as binary values, each with the bytes of the columns `texts` behind it."""
    heads = cut(rows, np.arange(len(rows) + 1) * rows.dtype.itemsize)
    parts = [large_binary(text) for text in texts]
    return pc.binary_join_element_wise(heads, *parts, pa.scalar(b"", pa.large_binary())) if parts else heads


def as_int64(column: Column) -> Column:
    """Return integers, booleans, dates or timestamps as int64."""
    return (column.cast(pa.int32()) if pa.types.is_date32(column.type) else column).cast(pa.int64())


def width_of(kind: pa.DataType) -> int:
    """Return the bytes of a value of fixed width."""
    return 1 if pa.types.is_boolean(kind) else kind.bit_width // 8


def raw(column: Column) -> Structs:
    """Return the bytes of fixed-width values, zero for null."""
    has = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    width = width_of(column.type)
    if not len(column):
        return np.zeros(0, f"V{width}")
    plain = np.frombuffer(column.buffers()[1], f"V{width}", column.offset + len(column))[column.offset :].copy()
    plain[~has] = np.zeros((), f"V{width}")
    return plain


def fixed(data: Structs, kind: pa.DataType, has: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return values of their bytes, null where they have none."""
    stored = pa.uint8() if pa.types.is_boolean(kind) else kind
    valid = None if has is None else pa.array(has).buffers()[1]
    return pa.Array.from_buffers(stored, len(data), [valid, pa.py_buffer(data.tobytes())]).cast(kind)


def listed(values: Column | Sequence[bytes]) -> Sequence[bytes]:
    """Return binary values, a sequence or a column, as a sequence."""
    return values if isinstance(values, Sequence) else values.to_pylist()


def ascends(column: Column) -> bool:
    """Return True if each value is greater than the one before."""
    return pc.all(pc.less(column[:-1], column[1:])).as_py() is not False


def as_bytes(column: Column) -> tuple[Bytes, Numbers]:
    """Return the bytes of binary values without nulls, and `offsets_of` them."""
    column = large_binary(column)
    content = column.buffers()[2]
    return np.frombuffer(b"" if content is None else content, np.uint8), offsets_of(column)


def sorted_places(column: Column) -> Numbers:
    """Return the places of binary values in ascending order, equal ones in that of their places.

    column: without nulls. The eight bytes behind what all have in common are compared as numbers, the rest by Arrow.
    """
    data, offsets = as_bytes(column)
    if len(column) <= FEW:
        values = column.to_pylist()
        return np.array(sorted(range(len(values)), key=values.__getitem__), np.int64)
    least, most = pc.min_max(column).as_py().values()
    shared = next((place for place, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), len(least))
    starts, lengths = offsets[:-1] + shared, np.minimum(np.diff(offsets) - shared, _WORD)
    padded = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    numbers = np.ndarray((len(data) + 1,), ">u8", padded, strides=(1,))[starts].astype(np.uint64) & _MASKS[lengths]
    order: Numbers = np.argsort(numbers)
    numbers = numbers[order]
    same = numbers[1:] == numbers[:-1]
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = np.sort(order[tied])
        order[tied] = rows[pc.sort_indices(column.take(pa.array(rows))).to_numpy()]
    return order


def last_places(column: Column) -> tuple[Numbers, Column]:
    """Return the place of the last one of equal binary values, in ascending order of the values, and these values."""
    places = sorted_places(column)
    ordered = column.take(pa.array(places))
    is_last = pc.not_equal(ordered[:-1], ordered[1:]).to_numpy(zero_copy_only=False)
    if is_last.all():
        return places, ordered
    is_last = np.append(is_last, True)
    return places[is_last], ordered.filter(pa.array(is_last))


_WORD, _MOST = 8, (1 << 31) - 1
"""Bytes that are compared at once; most of a column of text."""
_MASKS = np.array([(1 << 64) - (1 << 8 * (_WORD - length)) for length in range(_WORD + 1)], np.uint64)
"""Bits of the first bytes of a word, by their number."""
