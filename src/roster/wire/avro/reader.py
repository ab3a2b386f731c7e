"""Avro values as Arrow columns: memory for the loop, and arrays of what it leaves there."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from roster.model.arrays import Array, Bool, Int64, UInt8
from roster.wire.avro.columns import Column, layout
from roster.wire.avro.program import Programs
from roster.wire.avro.schema import Type
from roster.wire.columns import avro_layout
from roster.wire.columns.kernel import Kernel

_ARENA = 64 << 20
"""Bytes of address space for the values that are read together; only what has values takes memory."""
_LARGEST = 1 << 30
"""A single value that may need more is refused."""


class Decoded(NamedTuple):
    """A row for each value, of nulls where it was refused, and 0 or a problem of `avro_layout.PROBLEMS`."""

    rows: pa.RecordBatch
    problems: UInt8


class AvroReader:
    """Reads values of any writers into the columns of one schema."""

    def __init__(self, kernel: Kernel, schema: Type) -> None:
        """Raises SchemaError if the schema has no columns."""
        self._kernel = kernel
        self._columns = layout(schema)
        self._all = list(self._columns.walk())
        self._programs = Programs(schema, self._columns)
        self.schema = pa.schema([field.with_nullable(True) for field in self._columns.schema])
        """The columns of the record, or the one column `value`."""
        self.nulls = self._programs.nulls
        """The program of rows of nulls."""

    def program(self, writer: Type) -> int:
        """Return the program by which a writer's values are read. Raises SchemaError if they cannot be."""
        return self._programs.add(writer)

    def decode(self, programs: Int64, data: UInt8, starts: Int64, ends: Int64) -> Decoded:
        """Read the values at [starts, ends) of an array of bytes, each by its program."""
        rate, one = (self._places(*needed).total for needed in ((0, 1 << 20), (1, 0)))
        needed = (ends - starts) * (rate >> 20) + one + 1
        if (large := needed > _LARGEST).any():
            programs, ends = np.where(large, self.nulls, programs), np.where(large, starts, ends)
            needed[large] = one + 1
        costs = np.cumsum(needed)
        parts, problems, begin = [], np.zeros(len(starts), np.uint8), 0
        while begin < len(starts):
            spent = int(costs[begin - 1]) if begin else 0
            stop = max(int(np.searchsorted(costs, spent + _ARENA, side="right")), begin + 1)
            chunk = slice(begin, stop)
            parts.append(self._decoded(programs[chunk], data, starts[chunk], ends[chunk], problems[chunk]))
            begin = stop
        problems[large] = avro_layout.ITEMS
        if len(parts) == 1:
            return Decoded(parts[0], problems)
        rows = pa.Table.from_batches(parts, self.schema).combine_chunks().to_batches()
        return Decoded(rows[0] if rows else pa.RecordBatch.from_pylist([], self.schema), problems)

    def _places(self, rows: int, size: int) -> "_Places":
        """Return where the arrays go for so many rows of `size` bytes together."""
        places = _Places(rows, size, len(self._all))
        for column in self._all:
            places.add(column)
        return places

    def _decoded(self, programs: Int64, data: UInt8, starts: Int64, ends: Int64, problems: UInt8) -> pa.RecordBatch:
        places = self._places(len(starts), int((ends - starts).sum()))
        memory = np.empty(places.total // 8 + 1, np.int64)
        views: dict[type[np.generic], Array] = {
            kind: memory.view(kind) for kind in (np.uint8, np.int32, np.int64, np.float32, np.float64)
        }
        for column in self._all:
            if column.width == 0:
                views[np.int32][places.values[column.number]] = 0
        dims, rows = len(places.most), len(starts)
        code, tables, pool = self._programs.arrays()
        code = places.placed(code, dims)
        counts, left = np.zeros(dims, np.int64), np.zeros(dims + self._programs.skips + 1, np.int64)
        arguments = (data, np.ascontiguousarray(programs, np.int64), starts, ends)
        read_by = (pool, code.reshape(-1), tables, counts, left)
        self._kernel.avro(rows, self.nulls, *arguments, *read_by, *views.values(), problems)
        is_read = (problems == 0) & (programs != self.nulls)
        arrays = _Arrays(views, places)
        columns = [arrays.array(child, rows, None if is_read.all() else is_read) for child in self._columns.children]
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class _Places:
    """Places of each column's arrays in the memory, and the greatest numbers of values."""

    def __init__(self, rows: int, size: int, columns: int) -> None:
        self.most = {0: rows}
        self.valid, self.values, self.data = np.full((3, columns), -1, np.int64)
        self.total, self._size = 0, size

    def add(self, column: Column) -> None:
        most, number = self.most[column.dim], column.number
        added = most * column.extra
        if column.is_list:
            self.most[column.child_dim] = self._size // column.least + added
        if column.is_nullable:
            self.valid[number] = self._taken(most)
        if column.width > 0:
            self.values[number] = self._taken(most * column.width) // min(column.width, 8)
        elif column.width == 0:
            self.values[number] = self._taken(4 * (most + 1)) // 4
            if not column.is_list:
                self.data[number] = self._taken(self._size + added)

    def _taken(self, size: int) -> int:
        place = self.total
        self.total += -(-size // 8) * 8
        return place

    def placed(self, code: Int64, dims: int) -> Int64:
        """Return the instructions with places in the memory instead of columns."""
        placed = code.copy()
        column = code[:, avro_layout.VALUE]
        has = column >= 0
        for field, places in ((avro_layout.VALUE, self.values), (avro_layout.VALID, self.valid)):
            placed[has, field] = np.where(code[has, field] >= 0, places[column[has]], -1)
        texts = has & np.isin(code[:, avro_layout.OP], (avro_layout.TEXT, avro_layout.BYTES, avro_layout.FIXED))
        placed[texts, avro_layout.DATA] = self.data[column[texts]]
        skips = ~has & np.isin(code[:, avro_layout.OP], (avro_layout.LIST, avro_layout.NEXT))
        placed[skips, avro_layout.X] = dims - code[skips, avro_layout.X]
        return placed


class _Arrays:
    def __init__(self, views: Mapping[type[np.generic], Array], places: _Places) -> None:
        self._views, self._places = views, places

    def array(self, column: Column, length: int, is_read: Bool | None = None) -> pa.Array:
        """Return the first values of a column. is_read: which are not null, whatever the column says; None: all."""
        kind, number = column.type.kind, column.number
        if kind == "null":
            return pa.nulls(length)
        valid, nulls = self._valid(int(self._places.valid[number]), length, is_read)
        if column.is_struct:
            children = [self.array(child, length) for child in column.children]
            return pa.Array.from_buffers(column.arrow, length, [valid], nulls, children=children)
        begin = int(self._places.values[number])
        if column.width == 0:
            return self._varying(column, length, valid, nulls, self._views[np.int32][begin : begin + length + 1])
        if kind == "boolean":
            values = pa.py_buffer(np.packbits(self._views[np.uint8][begin : begin + length], bitorder="little"))
            return pa.Array.from_buffers(pa.bool_(), length, [valid, values], nulls)
        at_byte = begin * min(column.width, 8)
        values = pa.py_buffer(self._views[np.uint8][at_byte : at_byte + length * column.width])
        if kind != "enum":
            return pa.Array.from_buffers(column.arrow, length, [valid, values], nulls)
        indices = pa.Array.from_buffers(pa.int32(), length, [valid, values], nulls)
        return pa.DictionaryArray.from_arrays(indices, pa.array(column.type.symbols)).cast(pa.string())

    def _varying(self, column: Column, length: int, valid: pa.Buffer, nulls: int, ends: Array) -> pa.Array:
        offsets, last = pa.py_buffer(ends), int(ends[-1])
        if not column.is_list:
            begin = int(self._places.data[column.number])
            text = pa.py_buffer(self._views[np.uint8][begin : begin + last])
            return pa.Array.from_buffers(column.arrow, length, [valid, offsets, text], nulls)
        items = [self.array(child, last) for child in column.children]
        kind = column.arrow
        if column.type.kind == "map":
            entries = pa.struct([kind.key_field, kind.item_field])
            items = [pa.Array.from_buffers(entries, last, [None], 0, children=items)]
        return pa.Array.from_buffers(kind, length, [valid, offsets], nulls, children=items)

    def _valid(self, begin: int, length: int, is_read: Bool | None) -> tuple[pa.Buffer, int]:
        """Return the bits of values that are not null, None if all are, and how many are null."""
        flags = is_read if begin < 0 else self._views[np.uint8][begin : begin + length]
        if flags is None:
            return None, 0
        if begin >= 0 and is_read is not None:
            flags = flags & is_read
        nulls = length - int(np.count_nonzero(flags))
        return (pa.py_buffer(np.packbits(flags, bitorder="little")) if nulls else None), nulls
