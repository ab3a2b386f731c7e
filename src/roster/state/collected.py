"""What a key keeps of many values, as bytes: lists, sets and sketches. The bytes of several batches are merged.

distinct       16 bytes for each value: numbers and decimals as they are, text and bytes by their BLAKE2b hash
collect_list, collect_set   the values: 8 bytes for each, or of text and bytes its length in 4 bytes and its bytes
hll            a HyperLogLog sketch of Apache DataSketches
quantiles      see `roster.state.quantiles`
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster._extras import missing_error
from roster.state import quantiles
from roster.state.byte_slices import Column, as_bytes, as_int64, cut, raw
from roster.state.keys import is_text
from roster.state.store import StateError, ValueDamagedError

BOUND = 1000
"""Values that a list or a set keeps of a key, unless another number is given."""

_MARK, _NUMBER, _LENGTH = 16, 8, 4
_LEAST_SIZE, _MOST_SIZE = 4, 21
"""Logarithms of the registers that a sketch can have."""


def sketch_size(error: float) -> int:
    """Return the logarithm of the registers that a sketch needs for a relative standard deviation of its count.

    Raises StateError for one that no sketch has.
    """
    size = math.ceil(math.log2((1.04 / error) ** 2)) if 0 < error < 1 else 0
    if not 0 < size <= _MOST_SIZE:
        raise StateError(f"a relative standard deviation of {error} is not between 0.0008 and 1")
    return max(size, _LEAST_SIZE)


@dataclass(frozen=True, slots=True)
class Collected:
    """Encoding of one aggregate's state. kind: the part. arguments: of its aggregate. stored: of a list its type."""

    kind: str
    arguments: tuple[Any, ...]
    stored: pa.DataType

    def __post_init__(self) -> None:
        if self.kind == "hll":
            _library()

    @property
    def function(self) -> str:
        """Arrow's function that gathers the elements of a key: in the order of rows, or only different ones."""
        return "distinct" if self.kind in ("distinct", "hll") else "list"

    def elements(self, column: Column) -> Column:
        """Encode each value, null as b""; concatenated they encode the values of a key."""
        if self.kind in ("distinct", "hll"):
            encoded = marks(column)
        elif self.kind == "quantiles":
            encoded = _wide(_numbers(column).cast(pa.float64(), safe=False))
        else:
            if self.kind == "collect_set" and pa.types.is_floating(column.type):
                column = pa.chunked_array([pa.array(_canonical(column), mask=column.is_null().to_numpy())])
            encoded = _elements(column)
        return encoded.fill_null(b"")

    def part(self, joined: Column) -> Column:
        """Return the parts of a batch, of the joined elements of its keys; `merged` leaves of them what is kept."""
        if self.kind == "quantiles":
            return pc.binary_join_element_wise(pa.scalar(quantiles.NOTHING), joined, b"")
        if self.kind == "hll":
            return pa.array([_sketch(part, self.arguments[0]) for part in joined.to_pylist()], pa.binary())
        return joined

    def merged(self, parts: Sequence[bytes]) -> bytes:
        """Return the parts of a key, in the order of its rows, as one."""
        parts = [part for part in parts if part]
        if self.function == "distinct" and len(parts) == 1:
            return parts[0]
        if self.kind == "quantiles":
            return quantiles.merged(parts, self.arguments[1])
        if self.kind == "hll":
            union = _union(parts, self.arguments[0])
            return bytes(union.get_result(_library().HLL_6).serialize_compact())
        if self.kind == "distinct":
            return b"".join(dict.fromkeys(itertools.chain.from_iterable(map(_marks_of, parts))))
        if self.kind == "collect_list" and not is_text(self.stored.value_type):
            return b"".join(parts)[: _NUMBER * self.arguments[0]]
        values: Iterable[bytes] = itertools.chain.from_iterable(_cut(part, self.stored.value_type) for part in parts)
        if self.kind == "collect_set":
            values = dict.fromkeys(values)
        return b"".join(itertools.islice(values, self.arguments[0] if self.arguments else None))


def joined(lists: Column) -> Column:
    """Return the elements of each list as one value."""
    whole = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    content, offsets = as_bytes(whole.values)
    return cut(content, offsets[whole.offsets.to_numpy()]).cast(pa.binary())


def result(kind: str, arguments: tuple[Any, ...], parts: Column, goal: pa.DataType) -> Column:
    """Return the result of each part, bytes of Arrow's; `goal` is its type. Null without a value, but of counts."""
    if kind == "distinct":
        return pc.divide(pc.binary_length(parts).cast(pa.int64()), _MARK)
    if kind == "hll":
        return pa.array([_estimate(part) for part in parts.to_pylist()], pa.int64())
    if kind == "collect_set":
        return pa.array([_sum(part, goal) for part in parts.to_pylist()], goal)
    wanted = arguments[0] if isinstance(arguments[0], tuple) else arguments[:1]
    rows = [None if part is None else quantiles.at(part, wanted) for part in parts.to_pylist()]
    is_list, missing = pa.types.is_list(goal), np.array([row is None for row in rows], np.bool_)
    values = np.array([value for row in rows for value in row or ()], np.float64)
    flat = _as(values, goal.value_type if is_list else goal)
    starts = np.cumsum([0, *(len(row or ()) for row in rows)])
    if is_list:
        return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), flat, mask=pa.array(missing, pa.bool_()))
    return flat.take(pa.array(starts[:-1], mask=missing))


def lists_of(data: Column, kind: pa.DataType) -> Column:
    """Return the lists that parts of `collect_list` or `collect_set` hold; null for null."""
    element, missing = kind.value_type, data.is_null()
    plain = data.fill_null(b"")
    if is_text(element):
        rows = [[text[_LENGTH:] for text in _cut(part, element)] for part in plain.to_pylist()]
        lists = pa.array(rows, pa.list_(pa.binary())).cast(kind)
        return pc.if_else(missing, pa.scalar(None, kind), lists)
    content, offsets = as_bytes(plain)
    if (np.diff(offsets) % _NUMBER).any():
        raise ValueDamagedError
    numbers = content[offsets[0] : offsets[-1]].view("<f8" if pa.types.is_floating(element) else "<i8")
    places = pa.array((offsets - offsets[0]) // _NUMBER, pa.int32())
    return pa.ListArray.from_arrays(places, _as(numbers, element), mask=missing)


def data_of(lists: Column) -> Column:
    """Return lists as the parts that hold them; an empty one for null."""
    offsets = np.concatenate([[0], np.cumsum(pc.list_value_length(lists).fill_null(0).to_numpy())])
    elements = _elements(pa.chunked_array([lists.flatten()])).combine_chunks().cast(pa.binary())
    return joined(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements))


def marks(column: Column) -> Column:
    """Return 16 bytes for each value of a column of one type, the same for equal ones; null for null.

    Floats are equal as in Spark: NaN to itself, and 0.0 to -0.0.
    """
    if is_text(column.type):
        encoded = column.cast(pa.binary()).combine_chunks().dictionary_encode()
        hashes = [hashlib.blake2b(value, digest_size=_MARK).digest() for value in encoded.dictionary.to_pylist()]
        return pa.chunked_array([pa.array(hashes, pa.binary()).take(encoded.indices)])
    if pa.types.is_decimal(column.type):
        return _where_valid(column, raw(column.combine_chunks()), _MARK)
    if pa.types.is_floating(column.type):
        numbers = _canonical(column).view(np.int64)
    else:
        numbers = as_int64(column).fill_null(0).to_numpy()
    wide = np.zeros((len(numbers), 2), "<i8")
    wide[:, 0] = numbers
    return _where_valid(column, wide, _MARK)


def rows_of(columns: Sequence[Column]) -> Column:
    """Return bytes for each row of several columns, the same for equal ones; null if a value is."""
    return pc.binary_join_element_wise(*map(marks, columns), b"")


def _canonical(column: Column) -> Column:
    """Return floats with one representation of zero and of NaN; 0.0 for null."""
    values = column.cast(pa.float64()).fill_null(0).to_numpy() + 0.0
    return np.where(np.isnan(values), np.nan, values)


def _numbers(column: Column) -> Column:
    return column.cast(pa.float64()) if pa.types.is_floating(column.type) else as_int64(column)


def _where_valid(column: Column, values: Any, width: int) -> Any:
    data = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(values.tobytes())])
    encoded = data.cast(pa.binary())
    return pa.chunked_array([pc.if_else(column.combine_chunks().is_valid(), encoded, pa.scalar(None, pa.binary()))])


def _wide(column: Column) -> Column:
    return _where_valid(column, column.fill_null(0).to_numpy(), _NUMBER)


def _elements(column: Column) -> Column:
    if not is_text(column.type):
        return _wide(_numbers(column))
    plain = column.cast(pa.binary())
    lengths = pc.binary_length(plain).cast(pa.int32()).fill_null(0).to_numpy().astype("<u4")
    return pc.binary_join_element_wise(_where_valid(column, lengths, _LENGTH), plain, b"")


def _cut(data: bytes, kind: pa.DataType) -> Iterator[bytes]:
    """Yield the elements of a list, of text with their lengths in front."""
    start, width = 0, _NUMBER
    while start < len(data):
        if is_text(kind):
            width = _LENGTH + int.from_bytes(data[start : start + _LENGTH], "little")
        if start + width > len(data):
            raise ValueDamagedError
        yield data[start : start + width]
        start += width


def _marks_of(data: bytes) -> Iterator[bytes]:
    return (data[start : start + _MARK] for start in range(0, len(data), _MARK))


def _as(numbers: Column, kind: pa.DataType) -> Column:
    """Return stored numbers as values of a type; float64 as whole numbers towards zero, beyond int64 its last."""
    if pa.types.is_floating(kind):
        return pa.array(numbers, pa.float64()).cast(kind)
    if numbers.dtype.kind != "i":
        below = np.minimum(numbers, np.nextafter(2.0**63, 0)).astype(np.int64)
        numbers = np.where(numbers < 2.0**63, below, np.iinfo(np.int64).max)
    whole = pa.array(numbers)
    return (whole.cast(pa.int32()) if pa.types.is_date32(kind) else whole).cast(kind)


def _sum(data: bytes | None, kind: pa.DataType) -> float | int | None:
    """Return the sum of a list of numbers, null without one or beyond the type."""
    if not data:
        return None
    values = np.frombuffer(data, "<f8" if pa.types.is_floating(kind) else "<i8").tolist()
    total = math.fsum(values) if pa.types.is_floating(kind) and np.isfinite(values).all() else sum(values)
    return total if pa.types.is_floating(kind) or -(1 << 63) <= total < 1 << 63 else None


@functools.cache
def _library() -> Any:
    try:
        import datasketches  # noqa: PLC0415 - only these sketches need it
    except ModuleNotFoundError as missing:
        raise missing_error("approx_count_distinct", "state", ["datasketches"]) from missing
    return datasketches


def _sketch(data: bytes, size: int) -> bytes:
    """Return a sketch of marks, by their first eight bytes."""
    sketch = _library().hll_sketch(size, _library().HLL_6)
    for number in np.frombuffer(data, "<i8")[::2].tolist():
        sketch.update(number)
    return bytes(sketch.serialize_compact())


def _union(parts: Iterable[bytes], size: int) -> Any:
    union = _library().hll_union(size)
    for part in parts:
        if part:
            union.update(_library().hll_sketch.deserialize(part))
    return union


def _estimate(data: bytes | None) -> int:
    """Return the count of a sketch: by the estimator of a union of two, which does not depend on the order of rows."""
    return round(_union([data, data], _MOST_SIZE).get_estimate()) if data else 0
