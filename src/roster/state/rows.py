"""Rows as values of a store, several in one value, encoded and decoded by columns.

    4 bytes   fingerprint of the columns
    4 bytes   number of rows
    headers   of fixed width: time of the row; for each column whether there is a value, and the value or its length
    payloads  texts and bytes, row after row

Headers are contiguous, so that rows are found and appended without reading earlier ones. A list is the rows of its
elements in this form, a map those of its pairs, a struct one row of its fields.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.byte_slices import (
    Column,
    Numbers,
    Structs,
    as_bytes,
    cut,
    fixed,
    gathered,
    offsets_of,
    raw,
    spread,
    width_of,
)
from roster.state.keys import is_text
from roster.state.store import StateError, Value, ValueDamagedError
from roster.state.type_texts import text_of

_PREFIX = np.dtype([("fingerprint", "<u4"), ("count", "<u4")])
PREFIX_LENGTH = _PREFIX.itemsize
"""Bytes of a value without rows."""
_TIME = "time"


def has_no_rows(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return whether values have no rows."""
    return pc.equal(pc.binary_slice(values, 4, 8), pa.scalar(bytes(4)))


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows read from values: their columns, their times in microseconds, and the number of the value of each."""

    table: pa.Table
    times: Numbers
    places: Numbers


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Columns of stored rows: numbers, times, booleans, decimals, text, bytes, and lists, maps and structs of them.

    nested: layouts of the lists, maps and structs, by the column's number.
    """

    columns: pa.Schema
    header: np.dtype[np.void]
    nested: Mapping[int, RowLayout]

    @classmethod
    def of(cls, columns: pa.Schema) -> RowLayout:
        """Return the layout. Raises StateError for a column of another type, as a dictionary is."""
        fields: list[Any] = [(_TIME, "<i8")]
        nested: dict[int, RowLayout] = {}
        for number, field in enumerate(columns):
            if not _is_stored(field.type):
                raise StateError(f"join: column {field.name!r} is {field.type}; make text of it, or leave it out")
            if is_nested(field.type):
                nested[number] = _layout_of(field.type)
            width = 4 if number in nested or is_text(field.type) else width_of(field.type)
            fields += [(f"has {number}", "?"), (f"value {number}", f"V{width}")]
        return cls(columns, np.dtype(fields), nested)

    @property
    def fingerprint(self) -> int:
        """Fingerprint at the beginning of a value; values with other columns are refused."""
        return zlib.crc32("\n".join(f"{field.name} {text_of(field.type)}" for field in self.columns).encode())

    def appended(self, old: Sequence[Value] | pa.Array, table: pa.Table, times: Numbers, places: Numbers) -> pa.Array:
        """Return each old value with rows of a table appended; `places` are the indexes of their values.

        Raises StateError as `decode` does.
        """
        known = _Values.of(old, self)
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places, minlength=len(old))
        headers, payloads = self._encoded(table.take(pa.array(order)), times[order])
        ends = np.concatenate([[0], np.cumsum(counts)])
        prefix = np.zeros(len(old), _PREFIX)
        prefix["fingerprint"], prefix["count"] = self.fingerprint, known.counts + counts
        parts = [
            cut(prefix, np.arange(len(old) + 1) * _PREFIX.itemsize),
            known.headers(),
            cut(headers, ends * self.header.itemsize),
            known.payloads(),
            cut(payloads.buffers()[2] or b"", offsets_of(payloads)[ends]),
        ]
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))

    def decode(self, values: Sequence[Value] | pa.Array) -> StoredRows:
        """Return the rows of all values. Raises StateError for rows of other columns."""
        known = _Values.of(values, self)
        size, places = self.header.itemsize, np.repeat(np.arange(len(values)), known.counts)
        starts = known.starts + _PREFIX.itemsize
        positions = spread(starts, known.counts * size)
        headers = known.data[positions].view(self.header) if len(positions) else np.zeros(0, self.header)
        texts = [number for number, field in enumerate(self.columns) if number in self.nested or is_text(field.type)]
        lengths = np.zeros((len(headers), len(texts) + 1), np.int64)
        for column, number in enumerate(texts):
            lengths[:, column + 1] = headers[f"value {number}"].copy().view("<u4")
        of_rows = lengths.sum(axis=1)
        before = np.concatenate([[0], np.cumsum(of_rows)])
        firsts = np.concatenate([[0], np.cumsum(known.counts)])[:-1]
        payloads = (starts + known.counts * size)[places] + before[:-1] - before[firsts][places]
        begins = payloads[:, None] + np.cumsum(lengths, axis=1)
        columns: list[pa.Array] = []
        for number, field in enumerate(self.columns):
            has = headers[f"has {number}"].copy()
            if number in texts:
                column = texts.index(number)
                plain = gathered(known.data, begins[:, column], lengths[:, column + 1])
            else:
                plain = fixed(headers[f"value {number}"], field.type)
            if number in self.nested:
                columns.append(_assembled(self.nested[number].decode(plain), field.type, has))
            else:
                columns.append(pc.if_else(pa.array(has), plain.cast(field.type), pa.scalar(None, field.type)))
        return StoredRows(pa.table(columns, schema=self.columns), headers[_TIME].astype(np.int64), places)

    def _encoded(self, table: pa.Table, times: Numbers) -> tuple[Structs, Column]:
        """Return headers and payloads of rows."""
        headers = np.zeros(len(table), self.header)
        headers[_TIME] = times
        payloads = pa.array([b""], pa.large_binary()).take(pa.array(np.zeros(len(table), np.int64)))
        for number, field in enumerate(self.columns):
            column = table[field.name].combine_chunks()
            headers[f"has {number}"] = column.is_valid().to_numpy(zero_copy_only=False)
            if number in self.nested or is_text(field.type):
                if number in self.nested:
                    plain = self.nested[number].appended(pa.repeat(b"", len(column)), *_rows_of(column))
                else:
                    plain = pc.fill_null(column.cast(pa.binary()).cast(pa.large_binary()), b"")
                headers[f"value {number}"] = np.diff(offsets_of(plain)).astype("<u4").view("V4")
                payloads = pc.binary_join_element_wise(payloads, plain, pa.scalar(b"", pa.large_binary()))
            else:
                headers[f"value {number}"] = raw(column)
        return headers, payloads


@dataclass(frozen=True, slots=True)
class _Values:
    """All values: their bytes, and the start and row count of each."""

    data: npt.NDArray[np.uint8]
    starts: Numbers
    lengths: Numbers
    counts: Numbers
    size: int

    @classmethod
    def of(cls, values: Sequence[Value] | pa.Array, layout: RowLayout) -> _Values:
        column = values if isinstance(values, pa.Array) else pa.array(values, pa.large_binary())
        data, offsets = as_bytes(column.fill_null(b""))
        starts, lengths = offsets[:-1], np.diff(offsets)
        counts = np.zeros(len(values), np.int64)
        there = lengths >= _PREFIX.itemsize
        positions = spread(starts[there], np.full(int(there.sum()), _PREFIX.itemsize))
        prefixes = data[positions].view(_PREFIX) if len(positions) else np.zeros(0, _PREFIX)
        counts[there] = prefixes["count"]
        size = layout.header.itemsize
        if (prefixes["fingerprint"] != layout.fingerprint).any() or (lengths[~there] > 0).any():
            raise ValueDamagedError
        return cls(data, starts, lengths, counts, size)

    def headers(self) -> pa.Array:
        return gathered(self.data, self.starts + _PREFIX.itemsize, self.counts * self.size)

    def payloads(self) -> pa.Array:
        skipped = np.minimum(self.lengths, _PREFIX.itemsize + self.counts * self.size)
        return gathered(self.data, self.starts + skipped, self.lengths - skipped)


def is_nested(kind: pa.DataType) -> bool:
    """Return True for lists, maps and structs."""
    return bool(_parts_of(kind))


def packed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return lists, maps or structs as bytes, null for null. Raises StateError as `RowLayout.of` does."""
    values = column.combine_chunks()
    data = _layout_of(column.type).appended(pa.repeat(b"", len(values)), *_rows_of(values)).cast(pa.binary())
    return pa.chunked_array([pc.if_else(values.is_valid(), data, pa.scalar(None, pa.binary()))])


def unpacked(data: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the lists, maps or structs of this type that `packed` has made bytes of."""
    layout, has = _layout_of(kind), data.is_valid().to_numpy(zero_copy_only=False)
    nothing = layout.appended(pa.repeat(b"", 1), *_rows_of(pa.nulls(1, kind)))[0]
    return _assembled(layout.decode(data.cast(pa.large_binary()).fill_null(nothing)), kind, has)


def _layout_of(kind: pa.DataType) -> RowLayout:
    return RowLayout.of(pa.schema([(str(place), part) for place, part in enumerate(_parts_of(kind))]))


def _is_stored(kind: pa.DataType) -> bool:
    if parts := _parts_of(kind):
        return all(map(_is_stored, parts))
    return is_text(kind) or bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _parts_of(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of the columns that a list, map or struct has in its rows; none for other types."""
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_type]
    return [field.type for field in kind] if pa.types.is_struct(kind) else []


def _rows_of(column: pa.Array) -> tuple[pa.Table, Numbers, Numbers]:
    """Return the rows of a column of lists, maps or structs: table, times (0), and the index of the value of each."""
    if pa.types.is_struct(column.type):
        parts, places = column.flatten(), np.arange(len(column))
    else:
        if is_map := pa.types.is_map(column.type):
            column = column.cast(pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])))
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        elements = pc.list_flatten(column)
        parts = elements.flatten() if is_map else [elements]
        places = np.repeat(np.arange(len(column)), lengths)
    return pa.table(parts, [str(place) for place in range(len(parts))]), np.zeros(len(places), np.int64), places


def _assembled(stored: StoredRows, kind: pa.DataType, has: npt.NDArray[np.bool_]) -> pa.Array:
    """Return lists, maps or structs of their rows; null where there is none."""
    parts = [column.combine_chunks() for column in stored.table.columns]
    missing = pa.array(~has)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=missing)
    ends = np.cumsum(np.bincount(stored.places, minlength=len(has)))
    if pa.types.is_large_list(kind):
        array, width = pa.LargeListArray, pa.int64()
    else:
        array, width = pa.MapArray if pa.types.is_map(kind) else pa.ListArray, pa.int32()
    return array.from_arrays(pa.array(np.append(0, ends), width), *parts, type=kind, mask=missing)
