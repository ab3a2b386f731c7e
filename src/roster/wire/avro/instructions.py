"""The instructions of programs for the loop over values, as they are made, and those that drop a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from roster.model.arrays import Int64, UInt8
from roster.wire.avro.columns import Column, least_size
from roster.wire.avro.schema import SchemaError, Type
from roster.wire.columns import avro_layout as layout

_MOST = 20_000
"""The most instructions of a program."""
_LONGEST = 4096
"""The most bytes of a default: each value of a list may have it."""
SIZES = {"boolean": 1, "float": 4, "double": 8}
"""Bytes of a value."""


class Instructions:
    """Instructions, with the tables and the pool of defaults that they refer to.

    code: has column numbers where the loop wants places. skips: number of lists that are counted but have no column.
    refused: what the writer's values may be that the reader does not take. first: the present program's instruction.
    """

    def __init__(self) -> None:
        self.code: list[list[int]] = []
        self.tables: list[int] = []
        self.pool = bytearray()
        self.skips = self.first = 0
        self.refused: list[str] = []
        self._default: int | None = None
        self._bounds: dict[int, int] = {}
        self._made: tuple[Int64, Int64, UInt8] | None = None

    def emit(self, op: int, column: Column | None = None, x: int = 0, y: int = 0, data: int = 0, mode: int = 0) -> int:
        """Append an instruction, and return its number."""
        if len(self.code) - self.first >= _MOST:
            raise SchemaError(f"it takes more than {_MOST} instructions to read a value")
        places = [0, -1, -1, 0]
        if column is not None:
            places = [column.dim, column.number if column.is_nullable else -1, column.number, column.width]
            if self._default is not None and column.width == 0:
                column.extra = max(column.extra, self._default)
        self.code.append([op, mode, *places, data, x, y])
        return len(self.code) - 1

    def arrays(self) -> tuple[Int64, Int64, UInt8]:
        """Return code, tables and pool for the loop."""
        if self._made is None or len(self._made[0]) < len(self.code):
            pool = np.frombuffer(bytes(self.pool) or b"\0", np.uint8)
            self._made = np.array(self.code, np.int64), np.array(self.tables or [0], np.int64), pool
        return self._made

    @contextmanager
    def _branches(self, count: int) -> Iterator[Callable[[int], None]]:
        place = len(self.tables)
        self.tables += [0] * count
        self.emit(layout.UNION, x=count, y=place)
        jumps: list[int] = []

        def begin(number: int) -> None:
            if number:
                jumps.append(self.emit(layout.JUMP))
            self.tables[place + number] = len(self.code) * layout.WIDTH

        yield begin
        for jump in jumps:
            self.code[jump][layout.X] = len(self.code) * layout.WIDTH

    @contextmanager
    def _items(self, least: int, dim: int, column: Column | None = None) -> Iterator[None]:
        """Have the instructions within read each item, of at least so many bytes."""
        begin = self.emit(layout.LIST, column, x=dim, data=least)
        yield
        end = self.emit(layout.NEXT, column, x=dim, data=least)
        self.code[begin][layout.Y] = (end + 1) * layout.WIDTH
        self.code[end][layout.Y] = (begin + 1) * layout.WIDTH

    @contextmanager
    def _from_pool(self, value: bytes) -> Iterator[None]:
        """Have the instructions within read this value."""
        if len(value) > _LONGEST:
            raise SchemaError(f"a default has more than {_LONGEST} bytes")
        self._default, place = len(value), len(self.pool)
        self.pool += value
        self.emit(layout.ENTER, x=place, y=len(self.pool))
        try:
            yield
        finally:
            self._default = None
        self.emit(layout.LEAVE)

    def _mark(self) -> tuple[int, int, int]:
        return len(self.code), len(self.tables), len(self.pool)

    def _back(self, mark: tuple[int, int, int]) -> None:
        """Drop what was made since a mark."""
        del self.code[mark[0] :], self.tables[mark[1] :], self.pool[mark[2] :]
        self._bounds = {key: place for key, place in self._bounds.items() if place < mark[1]}

    def skip(self, writer: Type) -> None:
        """Read a value and drop it."""
        kind = writer.kind
        if kind == "record":
            for field in writer.fields:
                self.skip(field.type)
        elif kind == "union":
            with self._branches(len(writer.branches)) as begin:
                for number, branch in enumerate(writer.branches):
                    begin(number)
                    self.skip(branch)
        elif kind in ("array", "map"):
            assert writer.items is not None  # arrays and maps have them
            self.skips += 1
            with self._items(least_size(writer.items) + (kind == "map"), -self.skips):
                if kind == "map":
                    self.emit(layout.SKIP_BYTES)
                self.skip(writer.items)
        elif kind in ("bytes", "string"):
            self.emit(layout.SKIP_BYTES)
        elif kind in ("int", "long", "enum"):
            self.emit(layout.SKIP_VARINT)
        elif kind != "null":
            self.emit(layout.SKIP, x=SIZES.get(kind, writer.size))
