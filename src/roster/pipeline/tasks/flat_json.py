"""JSON objects of flat fields read into columns by a compiled loop; objects that it does not decide are told apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roster.records.native import JSON, Compiled, kernel
from roster.state.byte_slices import gathered
from roster.wire.columns import json_layout as at

_KINDS = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), at.INTEGER),
    pa.float64(): at.DOUBLE,
    pa.float32(): at.FLOAT,
    pa.bool_(): at.BOOLEAN,
    pa.string(): at.TEXT,
    pa.date32(): at.DATE,
    pa.timestamp("us"): at.MOMENT,
    pa.timestamp("us", "UTC"): at.INSTANT,
}
_CELLS = 1 << 22
"""Cells that are read together: 36 MB."""
_LENGTH = (1 << at.LENGTH_BITS) - 1


def is_flat(fields: pa.Schema) -> bool:
    """Return True if the loop reads columns of these types."""
    return 0 < len(fields) == len(set(fields.names)) and all(field.type in _KINDS for field in fields)


class FlatJson:
    """Reads JSON objects into the columns of one flat schema, in this process."""

    def __init__(self, fields: pa.Schema, compiled: Compiled | None, loops: Any = None) -> None:
        self._loops = kernel(compiled, JSON) if loops is None else loops
        self._fields = fields
        names = [field.name.encode() for field in fields]
        self._names = np.frombuffer(b"".join(names) + b"\0", np.uint8)
        self._name_ends = np.cumsum([0, *map(len, names)], dtype=np.int32)
        self._mask = (4 << len(names).bit_length()) - 1
        self._table = np.full(self._mask + 1, -1, np.int32)
        for column, name in enumerate(names):
            self._table[self._free_place(name)] = column
        self._kinds = np.array([_KINDS[field.type] for field in fields], np.uint8)
        self._most = np.array([_most(field.type) for field in fields], np.int64)

    def _free_place(self, name: bytes) -> int:
        """Return where the loop looks for a name."""
        place = 0
        for byte in name:
            place = (place * 33 ^ byte) & self._mask
        while self._table[place] >= 0:
            place = (place + 1) & self._mask
        return place

    def read(self, values: pa.Array) -> tuple[list[pa.RecordBatch], npt.NDArray[np.int64]]:
        """Return the rows of binary values in parts, and the numbers of those that are odd, which have nulls."""
        parts, odd, rows = [], [np.zeros(0, np.int64)], max(_CELLS // len(self._fields), 1)
        for start in range(0, len(values), rows):
            part, odd_rows = self._read(values.slice(start, rows))
            parts.append(part)
            odd.append(odd_rows + start)
        return parts, np.concatenate(odd)

    def _read(self, values: pa.Array) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        rows, columns, (_, offsets, content) = len(values), len(self._fields), values.buffers()
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + rows + 1]
        data = np.frombuffer(content if content is not None and content.size else b"\0", np.uint8)
        is_valid = np.asarray(values.is_valid()).view(np.uint8)
        cells, has, odd = np.zeros((columns, rows), np.int64), np.zeros((columns, rows), np.uint8), np.empty(rows, "u1")
        named = (self._names, self._name_ends, self._table, self._mask)
        kinds = (columns, self._kinds, self._most)
        outputs = (cells.reshape(-1), cells.reshape(-1).view(np.float64), has.reshape(-1), odd)
        self._loops.json_cells(rows, ends, data, is_valid, *named, *kinds, *outputs)
        arrays = [
            self._array(*column, data) for column in zip(self._kinds, cells, has, self._fields.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._fields), np.flatnonzero(odd)

    def _array(
        self,
        kind: int,
        cells: npt.NDArray[np.int64],
        has: npt.NDArray[np.uint8],
        kind_of: pa.DataType,
        data: npt.NDArray[np.uint8],
    ) -> pa.Array:
        """Return a column."""
        rows, nulls = len(cells), len(cells) - int(np.count_nonzero(has))
        valid = pa.py_buffer(np.packbits(has, bitorder="little")) if nulls else None
        if kind == at.TEXT:
            ends = np.zeros(rows + 1, np.int32)
            np.cumsum(cells & _LENGTH, out=ends[1:])
            text = np.empty(max(int(ends[-1]), 1), np.uint8)
            self._loops.json_texts(rows, cells, ends, data, text)
            return pa.Array.from_buffers(kind_of, rows, [valid, pa.py_buffer(ends), pa.py_buffer(text)], nulls)
        if kind == at.BOOLEAN:
            content_array = np.packbits(cells.astype(np.uint8), bitorder="little")
        elif kind in (at.DOUBLE, at.FLOAT):
            content_array = cells.view(np.float64)
            if len(spans := np.flatnonzero(has == at.SPAN)):
                numbers = gathered(data, cells[spans] >> at.LENGTH_BITS, cells[spans] & _LENGTH)
                content_array[spans] = numbers.cast(pa.large_string()).cast(kind_of).to_numpy()
            content_array = content_array if kind == at.DOUBLE else content_array.astype(np.float32)
        else:
            content_array = cells.astype(f"i{kind_of.bit_width // 8}", copy=False)
        return pa.Array.from_buffers(kind_of, rows, [valid, pa.py_buffer(content_array)], nulls)


def _most(kind_of: pa.DataType) -> int:
    """Return the largest integer that a column has exactly, whatever its sign."""
    if pa.types.is_floating(kind_of):
        return 1 << (53 if kind_of == pa.float64() else 24)
    return (1 << kind_of.bit_width - 1) - 1 if pa.types.is_integer(kind_of) else 0
