"""Resolution of writers' schemas to the columns of a reader's, as programs for the loop over values.

Source: Apache Avro 1.12, Specification, "Schema Resolution".
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np

from roster.model.arrays import Int64, UInt8
from roster.wire.avro.columns import TIMES, Column, least_size, without_null
from roster.wire.avro.defaults import encoded
from roster.wire.avro.schema import NULL, Field, SchemaError, Type
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


_OPS = {
    "boolean": layout.BOOLEAN,
    "int": layout.INT,
    "long": layout.LONG,
    "float": layout.FLOAT,
    "double": layout.DOUBLE,
    "bytes": layout.BYTES,
    "string": layout.TEXT,
}
_CONVERTED = {
    ("int", "float"): layout.LONG_TO_FLOAT,
    ("long", "float"): layout.LONG_TO_FLOAT,
    ("int", "double"): layout.LONG_TO_DOUBLE,
    ("long", "double"): layout.LONG_TO_DOUBLE,
    ("float", "double"): layout.FLOAT_TO_DOUBLE,
}

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


class Programs(Instructions):
    """How values of any writers become the columns of a reader: their programs one after the other.

    nulls: where the program begins that makes a row of nulls, or of what is hidden under them.
    """

    nulls = 0

    def __init__(self, reader: Type, columns: Column) -> None:
        """`columns` are those that `layout` made of `reader`."""
        super().__init__()
        self._reader, self._columns = reader, columns
        for child in columns.children:
            self.null(child)
        self.emit(layout.END)

    def add(self, writer: Type) -> int:
        """Append the program for a writer's values, and return where it begins; `refused` says what it does not take.

        Raises SchemaError if no value of the writer fits, and for a program of more than 20,000 instructions.
        """
        before, self.refused = self._mark(), []
        self.first = before[0]
        columns = self._columns if self._reader.kind == "record" else self._columns.children[0]
        try:
            self.value(writer, self._reader, columns)
            self.emit(layout.END)
        except SchemaError:
            self._back(before)
            raise
        return self.first * layout.WIDTH

    def value(self, writer: Type, reader: Type, column: Column) -> None:
        """Read a value into a column. Raises SchemaError if none of its branches fits."""
        if writer.kind == "union":
            self._union(writer, reader, column)
        elif reader.kind == "union":
            self._into_union(writer, reader, column)
        elif (problem := misfit(writer, reader)) is not None:
            raise SchemaError(problem)
        else:
            self._alone(writer, reader, column)

    def _union(self, writer: Type, reader: Type, column: Column) -> None:
        if len(writer.branches) == 2 and self._fused(writer, reader, column):
            return
        problems = []
        with self._branches(len(writer.branches)) as begin:
            for number, branch in enumerate(writer.branches):
                begin(number)
                before = self._mark()
                try:
                    self.value(branch, reader, column)
                except SchemaError as error:
                    problems.append(str(error))
                    self._back(before)
                    self.emit(layout.REFUSE)
        if len(problems) == len(writer.branches):
            raise SchemaError(problems[0])
        self.refused += problems

    def _fused(self, writer: Type, reader: Type, column: Column) -> bool:
        """Read a simple value or null by one instruction; return False if it takes more."""
        kinds = [branch.kind for branch in writer.branches]
        if "null" not in kinds or not column.is_nullable or column.is_struct or column.is_list:
            return False
        number = kinds.index("null")
        before = self._mark()
        with suppress(SchemaError):
            self.value(writer.branches[1 - number], reader, column)
            if len(self.code) == before[0] + 1 and self.code[-1][layout.OP] != layout.NOTE:
                self.code[-1][layout.MODE] = (layout.NULL_FIRST, layout.NULL_LAST)[number]
                return True
        self._back(before)
        return False

    def _into_union(self, writer: Type, reader: Type, column: Column) -> None:
        if writer.kind == "null":
            if not column.is_nullable:
                raise SchemaError(f"the writer's null cannot be read as {reader}")
            self.null(column)
            return
        branches, _ = without_null(reader)
        fitting = [n for n, branch in enumerate(branches) if misfit(writer, branch) is None]
        if not fitting:
            raise SchemaError(
                misfit(writer, branches[0])
                if len(branches) == 1
                else f"the writer's {writer} cannot be read as {reader}"
            )
        same = [n for n in fitting if branches[n].kind == writer.kind and branches[n].name == writer.name]
        chosen = (same or fitting)[0]
        if column.type.kind != "union":
            self._alone(writer, branches[chosen] if len(branches) == 1 else column.type, column)
            return
        if column.is_nullable:
            self.emit(layout.NOTE, column)
        for number, child in enumerate(column.children):
            if number == chosen:
                self._alone(writer, branches[chosen], child)
            else:
                self.null(child)

    def null(self, column: Column) -> None:
        """Append nothing: null, or what is hidden under one."""
        if column.type.kind != "null" and (column.width >= 0 or column.is_nullable):
            self.emit(layout.NOTE, column, mode=layout.NULL)
        if column.is_struct:
            for child in column.children:
                self.null(child)

    def _alone(self, writer: Type, reader: Type, column: Column) -> None:
        """Read a value that fits, of a type other than a union."""
        kind = writer.kind
        if kind == "record":
            self._record(writer, reader, column)
        elif kind in ("array", "map"):
            self._list(writer, reader, column)
        elif kind == "enum" and reader.kind != "enum":
            self._symbols(writer, column)
        elif kind == "enum":
            self._enum(writer, reader, column)
        elif kind == "null":
            self.null(column)
        else:
            self._simple(writer, reader, column)

    def _simple(self, writer: Type, reader: Type, column: Column) -> None:
        kinds = writer.kind, reader.kind
        if reader.logical == "decimal":
            op = layout.FIXED_DECIMAL if writer.kind == "fixed" else layout.DECIMAL
            self.emit(op, column, x=writer.size, y=self._bound(reader.precision))
        elif writer.kind == "fixed":
            self.emit(layout.FIXED, column, x=writer.size)
        elif reader.kind == "long" and reader.logical in TIMES:
            scale = TIMES[writer.logical if writer.logical in TIMES else reader.logical][1]
            self.emit(layout.SCALED if scale > 1 else layout.LONG, column, x=scale)
        else:
            self.emit(_CONVERTED.get(kinds, _OPS[reader.kind]), column, x=SIZES.get(writer.kind, 0))

    def _bound(self, precision: int) -> int:
        if precision not in self._bounds:
            high, low = divmod(10**precision - 1, 1 << 64)
            self._bounds[precision] = len(self.tables)
            self.tables += [high, low - (low >> 63 << 64)]
        return self._bounds[precision]

    def _enum(self, writer: Type, reader: Type, column: Column) -> None:
        known = {symbol: number for number, symbol in enumerate(reader.symbols)}
        other = -1 if reader.default_symbol is None else known[reader.default_symbol]
        self.emit(layout.ENUM, column, x=len(writer.symbols), y=len(self.tables))
        self.tables += [known.get(symbol, other) for symbol in writer.symbols]
        if other < 0 and (lost := [symbol for symbol in writer.symbols if symbol not in known]):
            self.refused.append(f"the writer's {writer} has {', '.join(lost)}, and the reader's has no default")

    def _symbols(self, writer: Type, column: Column) -> None:
        """Read a symbol as text."""
        with self._branches(len(writer.symbols)) as begin:
            for number, symbol in enumerate(writer.symbols):
                begin(number)
                with self._from_pool(encoded(symbol, Type("string"))):
                    self.emit(layout.TEXT, column)

    def _list(self, writer: Type, reader: Type, column: Column) -> None:
        assert writer.items is not None and reader.items is not None  # noqa: PT018 - they fit
        is_map = writer.kind == "map"
        least = least_size(writer.items) + is_map
        if least == 0:
            raise SchemaError(f"items of the writer's array of {writer.items} have no bytes")
        column.least = min(column.least, least)
        with self._items(least, column.child_dim, column):
            if is_map:
                self.emit(layout.TEXT, column.children[0])
            self.value(writer.items, reader.items, column.children[-1])

    def _record(self, writer: Type, reader: Type, column: Column) -> None:
        if column.is_nullable:
            self.emit(layout.NOTE, column)
        pairs = paired(writer, reader)
        read = {number for number in pairs if number is not None}
        wanted = {theirs: ours for ours, theirs in enumerate(pairs) if theirs is not None}
        for number, written in enumerate(writer.fields):
            if number not in read:
                self.skip(written.type)
                continue
            ours = wanted[number]
            try:
                self.value(written.type, reader.fields[ours].type, column.children[ours])
            except SchemaError as error:
                raise SchemaError(f"field {reader.fields[ours].name}: {error}") from None
        for field, child, theirs in zip(reader.fields, column.children, pairs, strict=True):
            if theirs is None:
                self._defaulted(field, child)

    def _defaulted(self, field: Field, column: Column) -> None:
        if not field.has_default:
            raise SchemaError(f"field {field.name}: the writer has none, and it has no default")
        if field.default is None and column.is_nullable:
            self.null(column)
            return
        with self._from_pool(encoded(field.default, field.type)):
            self.value(field.type, field.type, column)


def paired(writer: Type, reader: Type) -> list[int | None]:
    """Return for each field of the reader the number of the writer's that it is read from, None without one."""
    names = {field.name: number for number, field in enumerate(writer.fields)}
    if reader.is_loose:  # a column may have the field's name of before
        names = {name: number for number, field in enumerate(writer.fields) for name in field.aliases} | names
    numbers_read: list[int | None] = []
    for field in reader.fields:
        numbers = (names.get(name) for name in (field.name, *field.aliases))
        numbers_read.append(
            next((number for number in numbers if number is not None and number not in numbers_read), None)
        )
    return numbers_read


def with_aliases(columns: Type, latest: Type) -> Type:
    """Return the type of named columns with the names that the latest schema has for their fields."""
    columns, latest = _inner(columns), _inner(latest)
    if columns.kind != latest.kind:
        return columns
    if columns.items is not None and latest.items is not None:
        return replace(columns, items=_optionally(with_aliases(columns.items, latest.items)))
    theirs = {name: field for field in reversed(latest.fields) for name in field.aliases}
    theirs |= {field.name: field for field in latest.fields}
    return replace(columns, fields=tuple(_renamed(field, theirs.get(field.name)) for field in columns.fields))


def _renamed(column: Field, field: Field | None) -> Field:
    if field is None:
        return column
    names = tuple(name for name in (field.name, *field.aliases) if name != column.name)
    return replace(column, aliases=names, type=_optionally(with_aliases(column.type, field.type)))


def _inner(kind: Type) -> Type:
    """Return the type of a value that is not null, if it is only one."""
    branches, _ = without_null(kind)
    return branches[0] if len(branches) == 1 else kind


def _optionally(kind: Type) -> Type:
    return kind if kind.kind == "union" else Type("union", branches=(NULL, kind))


def lacking(writer: Type, columns: Type, path: str = "") -> Iterator[str]:
    """Yield the paths of columns for which a writer has no field."""
    writer, columns = _inner(writer), _inner(columns)
    if writer.kind != columns.kind:
        return
    if writer.items is not None and columns.items is not None:
        yield from lacking(writer.items, columns.items, path)
    pairs = paired(writer, columns) if columns.kind == "record" else ()
    for field, number in zip(columns.fields, pairs, strict=True):
        if number is None:
            yield path + field.name
        else:
            yield from lacking(writer.fields[number].type, field.type, f"{path}{field.name}.")


def misfit(writer: Type, reader: Type) -> str | None:
    """Return why no value of the writer's type is one of the reader's, None if some may be; neither is a union."""
    problem = f"the writer's {writer} cannot be read as {reader}"
    one, other = writer.kind, reader.kind
    if reader.is_loose and other != "record":
        return None if _is_loosely(writer, reader) else problem
    if reader.logical == writer.logical == "decimal" and not _same_decimal(writer, reader):
        return problem
    if other in _PROMOTED.get(one, ()):
        return None
    if one != other:
        return problem
    if one in ("record", "enum", "fixed") and not reader.is_loose and not _same_name(writer, reader):
        return problem
    return problem if one == "fixed" and writer.size != reader.size else None


def _same_name(writer: Type, reader: Type) -> bool:
    """Return whether the unqualified names are equal, or the reader has the writer's as an alias."""
    last = writer.name.rpartition(".")[2]
    return last == reader.name.rpartition(".")[2] or writer.name in reader.aliases or last in reader.aliases


def _same_decimal(writer: Type, reader: Type) -> bool:
    is_one = writer.logical == reader.logical and writer.scale == reader.scale
    return is_one and writer.precision <= reader.precision and (writer.kind == reader.kind or reader.is_loose)


def _is_loosely(writer: Type, reader: Type) -> bool:
    """Return whether a column of Spark may have the writer's values."""
    kind = writer.kind
    if "decimal" in (writer.logical, reader.logical):
        return _same_decimal(writer, reader)
    if reader.logical == "date":
        return kind == "int" and writer.logical == "date"
    if reader.logical in TIMES:
        return writer.logical in TIMES and TIMES[writer.logical][0] == TIMES[reader.logical][0]
    if kind == "enum":
        return reader.kind == "string"
    if kind == "fixed":
        return reader.kind == "bytes"
    return kind == reader.kind or (reader.kind in _PROMOTED.get(kind, ()) and kind not in ("string", "bytes"))
