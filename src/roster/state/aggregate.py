"""Aggregates of each key in a store, by columns: takes a batch's rows, returns new results and changes of the store.

No Python code runs per row; the time goes into the store's reads and writes. The state of a key is one fixed-width row:
for each aggregate a byte that tells whether there is a value, and eight bytes of value, of decimals 16. Text and bytes
follow the row, which has their length in four bytes. `roster.state.aggregate_functions` says which parts of a result
are stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from roster._json import JsonObject
from roster.model.arrays import Array
from roster.model.topology import repeated
from roster.state import decimals
from roster.state.aggregate_functions import (
    CHOSEN,
    COLLECTED,
    FIXED,
    LISTS,
    MOMENTS,
    NUMBERS_ONLY,
    OPAQUE,
    Aggregate,
    Kind,
    count_of,
    has_of,
    mean_of,
    order_of,
)
from roster.state.bad_rows import Failure
from roster.state.byte_slices import (
    Column,
    Structs,
    as_bytes,
    as_int64,
    cut,
    fixed,
    gathered,
    large_binary,
    raw,
    rows_as_values,
    sorted_places,
    spread,
)
from roster.state.collected import Collected, joined, lists_of
from roster.state.event_time import NEVER, NONE_LATE, Lateness, Times
from roster.state.expressions import FUNCTIONS
from roster.state.keys import comparable, encode_keys, is_text, sortable
from roster.state.rows import is_nested, unpacked
from roster.state.store import Snapshot, StateError, ValueDamagedError
from roster.state.type_texts import text_of

_TASK = "\0task"
"""Column of the number of a row's task, where several have their rows in one table."""


@dataclass(frozen=True, slots=True)
class Update:
    """Changes of a batch: `results` has a row for each of its keys, `changes` the rows for store and changelog."""

    results: pa.Table
    changes: pa.Table
    late: int = 0
    """Rows left out because their time was over."""
    retracted: pa.Table | None = None
    """Keys of earlier results that are retracted."""
    retracts: bool = False
    """True if an update of this operator may retract results."""
    late_rows: tuple[pa.Table, ...] = ()
    """Late rows, one table for each set of columns."""
    lateness: Lateness = NONE_LATE
    held_by: int | None = None
    """The source that holds time back, 0 if none does, None if that is unknown."""
    held_ms: int = 0
    """Milliseconds that time is behind that of the source that is furthest."""
    timer_in_ms: int | None = None
    """Milliseconds until the state's next timer of processing time is due, 0 or less if it is; None: there is none."""
    bad: Mapping[int, Exception] = field(default_factory=dict)
    """Rows at which the operator fails, by their number: they are to be left out, and all else here does not count."""
    failures: tuple[Failure, ...] = ()
    hold: int | None = None
    """The least time in microseconds of the sources that hold the task back, None if none does; see `source_times`."""
    has_sources: bool = False
    """True if the task has heard of sources."""
    time_of_sources: int | None = None
    """The task's time by its sources in microseconds, None if it is not told in this batch."""
    waits: bool = False
    """True if results are held back until their time has come."""
    now: int = NEVER
    """The stream time after the batch, of a join that of the side that is behind."""
    times: Times | None = None
    """Of results before steps change them, the times that `Reach` is of, if they were asked for."""


def aggregate(
    table: pa.Table,
    store: Snapshot,
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    *,
    in_order: bool = False,
) -> Update:
    """Update the aggregates of a batch's keys. Nothing is written: the caller commits the changes.

    aggregates: by the name of the result's column. Integers are int64, floats, averages and variances float64; dates,
    timestamps, booleans, text and bytes keep their type, and text is compared as its bytes are, as Spark does; decimals
    keep it, too, but for sums and averages, which have more digits. Raises StateError for missing columns or other
    types, and for a sum beyond int64 or 38 digits. in_order: the update is in the order of keys, else of their first
    rows.
    """
    layout = Layout.of(table.schema, keys, aggregates)
    by_key = grouped(table, keys, layout)
    encoded = large_binary(encode_keys(by_key, keys))
    if in_order:  # as a store in LMDB has them, which then need not sort them for each read and write
        order = pa.array(sorted_places(encoded))
        by_key, encoded = by_key.take(order), encoded.take(order)
    return Update(*_merged(layout, keys, by_key, encoded, store.multi_get(encoded)))


def aggregate_each(
    tables: Sequence[pa.Table],
    stores: Sequence[Snapshot],
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
) -> list[Update]:
    """Return what `aggregate` returns for each of several tasks: few rows of all cost as much as those of one."""
    layout = Layout.of(tables[0].schema, keys, aggregates)
    numbers = pa.array(np.repeat(np.arange(len(tables)), list(map(len, tables))))
    by_key = grouped(pa.concat_tables(tables).append_column(_TASK, numbers), [_TASK, *keys], layout)
    tasks = by_key[_TASK].to_numpy()
    if (np.diff(tasks) < 0).any():  # a key comes later if Arrow finds its hash taken
        order = np.argsort(tasks, kind="stable")
        by_key, tasks = by_key.take(order), tasks[order]
    encoded = large_binary(encode_keys(by_key, keys))
    ends = np.searchsorted(tasks, np.arange(len(tables) + 1)).tolist()
    spans = [(begin, end - begin) for begin, end in pairwise(ends)]
    values = [large_binary(store.multi_get(encoded.slice(*span))) for store, span in zip(stores, spans, strict=True)]
    results, changes = _merged(layout, keys, by_key, encoded, pa.concat_arrays(values))
    return [Update(results.slice(*span), changes.slice(*span)) for span in spans]


def _merged(
    layout: Layout, keys: Sequence[str], by_key: pa.Table, encoded: pa.Array, values: Sequence[bytes | None] | pa.Array
) -> tuple[pa.Table, pa.Table]:
    """Return results and changes of keys that a batch has rows of. values: of these keys before it."""
    old, new = layout.decode(values), np.zeros(len(encoded), dtype=layout.memory)
    _merge(layout, by_key, old, new)
    changes = pa.table([encoded.cast(pa.binary()), layout.encode(new).cast(pa.binary())], ["key", "value"])
    return layout.with_results(by_key.select(list(keys)), new), changes


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of the state's rows."""

    aggregates: Mapping[str, Aggregate]
    row: np.dtype[np.void]
    kinds: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Types of results that are not numbers, by aggregate."""
    stored: Mapping[str, Aggregate] = field(default_factory=dict)
    """Stored state of the aggregates, by columns of the row."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Types of the columns that results of `FIXED` kinds are made of."""
    merges: bool = False
    """True if its rows are made of the stored parts of others."""
    nested: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Types of nested columns, by aggregate; the state has bytes of their values."""
    breaks_ties: bool = False
    """True if of rows with an equal order that of the least value is chosen, whichever comes first."""

    def described(self) -> dict[str, JsonObject]:
        """Describe the stored state of each result, for people and JSON: kind, column, stored type."""
        return {
            name: {
                "kind": aggregate.kind.value,
                "column": f"{aggregate.text} {self.fixed[name]}" if name in self.fixed else aggregate.text,
                "type": str(self.kinds[name]) if name in self.kinds else _NUMBERS[self.row[name].str],
            }
            | ({"arguments": list(aggregate.arguments)} if aggregate.arguments else {})
            for name, aggregate in self.aggregates.items()
        }

    @property
    def texts(self) -> list[str]:
        """Stored parts whose values follow the row."""
        return [name for name in self.stored if self.row[name] == _LENGTH]

    def part(self, name: str, rows: Structs) -> Column:
        """Return a stored part of rows that is not text, null without a value; decimals have their type."""
        has = rows[has_of(name)]
        if self.row[name] != _DECIMAL:
            return pa.array(rows[name], mask=~has)
        return fixed(rows[name], self.part_type(name), has)

    def part_type(self, name: str) -> pa.DataType | None:
        """Return the type of a stored part, None for a number."""
        kind = self.kinds.get(name)
        if kind is None or name not in self.aggregates or self.aggregates[name].kind is not Kind.AVG:
            return kind
        return decimals.summed_of(kind)

    @property
    def collected(self) -> dict[str, Collected]:
        """Stored parts that are made of many values."""
        return {
            name: Collected(aggregate.kind.value, aggregate.arguments, self.kinds[name])
            for name, aggregate in self.stored.items()
            if aggregate.kind in COLLECTED
        }

    @property
    def memory(self) -> np.dtype[np.void]:
        """Columns of rows in memory, which include the bytes of texts."""
        if not (texts := self.texts):
            return self.row
        return np.dtype([(name, "O" if name in texts else self.row[name]) for name in self.row.names or ()])

    @classmethod
    def of(cls, columns: pa.Schema, keys: Sequence[str], aggregates: Mapping[str, Aggregate]) -> Layout:
        """Return the layout for rows of these columns. Raises StateError as `aggregate` does."""
        return _layout(columns, tuple(keys), tuple(aggregates.items()))

    @classmethod
    def _of(cls, columns: pa.Schema, keys: Sequence[str], aggregates: Mapping[str, Aggregate]) -> Layout:
        if not aggregates:
            raise StateError("aggregates: name at least one")
        if doubled := sorted(set(aggregates).intersection(keys)):
            raise StateError(f"aggregate {doubled[0]!r}: a key column has this name too")
        fields: list[tuple[str, str]] = []
        kinds = {}
        stored = [part for name, aggregate in aggregates.items() for part in aggregate.stored(name)]
        nothing = columns.empty_table()
        for name, aggregate in aggregates.items():
            if aggregate.kind is Kind.SUM_DISTINCT:
                _number(name, aggregate, _values(name, aggregate, nothing).type)
        nested = _nested(aggregates, nothing)
        for name, aggregate in stored:
            kind = _values(name, aggregate, nothing).type
            fields += [(has_of(name), "?"), (name, _number(name, aggregate, kind))]
            if aggregate.kind in COLLECTED:
                kinds[name] = _collected_type(aggregate, kind)
            elif fields[-1][1] == _DECIMAL and aggregate.kind is Kind.SUM:
                kinds[name] = decimals.sum_type(kind)
                if aggregates[name].kind is Kind.AVG:
                    kinds[name] = _mean_type(name, aggregate, kind)
            elif aggregate.kind not in _NUMBERS_MADE and not _is_number(kind):
                kinds[name] = kind
        fixed = {
            name: ", ".join(
                str(_stored_type(_values(name, replace(argument, by=None), nothing).type))
                for argument in (aggregate.chain() if aggregate.kind not in CHOSEN else aggregate.chain()[1:])
            )
            for name, aggregate in aggregates.items()
            if aggregate.kind in FIXED
        }
        fixed |= {name: text_of(kind) for name, kind in nested.items()}
        return cls(aggregates, row_of(fields), kinds=kinds, stored=dict(stored), fixed=fixed, nested=nested)

    def decode(self, values: Sequence[bytes | None] | pa.Array) -> Structs:
        """Return the rows of the state, zeros for missing ones. Raises ValueDamagedError."""
        column = large_binary(values)
        rows, texts = self.split(column.fill_null(bytes(self.row.itemsize)) if column.null_count else column)
        if not texts:
            return rows
        decoded = np.zeros(len(rows), self.memory)
        for name in rows.dtype.names or ():
            decoded[name] = texts[name].to_pylist() if name in texts else rows[name]
        return decoded

    def split(self, values: Column) -> tuple[Structs, dict[str, Column]]:
        """Return the row of each value, and the texts behind it by name. Raises ValueDamagedError."""
        data, offsets = as_bytes(values)
        size, names = self.row.itemsize, self.texts
        if not names:
            if (np.diff(offsets) != size).any():
                raise ValueDamagedError
            return np.frombuffer(data[offsets[0] : offsets[-1]], self.row), {}
        if (np.diff(offsets) < size).any():
            raise ValueDamagedError
        rows: Any = data[spread(offsets[:-1], np.full(len(offsets) - 1, size))].view(self.row)
        position, texts = offsets[:-1] + size, {}
        for name in names:
            length = rows[name].astype(np.int64)
            if (position + length > offsets[1:]).any():
                raise ValueDamagedError
            texts[name], position = gathered(data, position, length), position + length
        if (position != offsets[1:]).any():
            raise ValueDamagedError
        return rows, texts

    def apart(self, values: Column) -> tuple[pa.Array, npt.NDArray[np.int64]]:
        """Return the value of each row of values that have several, and the place of the value it comes from."""
        column, size, texts = large_binary(values), self.row.itemsize, self.texts
        if not texts:
            data, offsets = as_bytes(column)
            repeats, rest = np.divmod(np.diff(offsets), size)
            if rest.any():
                raise ValueDamagedError
            bounds = np.arange(repeats.sum() + 1) * size
            return cut(data[offsets[0] : offsets[-1]], bounds), np.repeat(np.arange(len(repeats)), repeats)
        parts, counts = list[bytes](), list[int]()
        for value in column.to_pylist():
            begin, before = 0, len(parts)
            while begin < len(value):
                end = begin + size
                if end <= len(value):
                    row = np.frombuffer(value, self.row, 1, begin)[0]
                    end += sum(int(row[name]) for name in texts)
                if end > len(value):
                    raise ValueDamagedError
                parts.append(value[begin:end])
                begin = end
            counts.append(len(parts) - before)
        return large_binary(parts), np.repeat(np.arange(len(counts)), counts)

    def together(self, rows: Structs, counts: npt.NDArray[np.int64]) -> pa.Array:
        """Return values that have several rows, so many each."""
        data, offsets = as_bytes(self.encode(rows))
        return cut(data, offsets[np.concatenate([[0], np.cumsum(counts)])]).cast(pa.binary())

    def with_results(self, table: pa.Table, rows: Structs, *, as_numbers: bool = False) -> pa.Table:
        """Append the aggregates to a table of their keys; `as_numbers`: the stored parts instead."""
        texts = self.texts
        for name in self.stored if as_numbers else self.aggregates:
            if not as_numbers and self.aggregates[name].is_derived:
                parts = {part: rows[part] for part, _ in self.aggregates[name].stored(name)}
                if name in texts:
                    parts[name] = pa.array(rows[name], pa.binary(), mask=~rows[has_of(name)])
                column = self.aggregates[name].derived(name, parts, self.kinds.get(name))
            else:
                if name in texts:
                    column = pa.array(rows[name], pa.binary(), mask=~rows[has_of(name)])
                else:
                    column = self.part(name, rows)
                if name in self.kinds and not as_numbers:
                    column = result_of(column, self.kinds[name])
                if name in self.nested and not as_numbers:
                    column = _unpacked(column, self.nested[name])
            table = table.append_column(name, column)
        return table

    def set_results(self, rows: Structs, places: npt.NDArray[np.int64], table: pa.Table) -> None:
        """Set the stored columns of the rows at these places from a table."""
        for name in self.stored:
            column = table[name]
            rows[has_of(name)][places] = column.is_valid().to_numpy()
            rows[name][places] = _cells(column)

    def of_parts(self) -> Layout:
        """Return the layout that makes one row of several with the numbers of `with_results`, but for `set_moments`."""
        kinds = dict.fromkeys((Kind.COUNT, Kind.MEAN, Kind.M2), Kind.SUM)
        parts = {
            name: Aggregate(kinds.get(aggregate.kind, aggregate.kind), name, arguments=aggregate.arguments)
            for name, aggregate in self.stored.items()
        }
        return replace(self, stored=parts, merges=True)

    def encode(self, rows: Structs) -> pa.Array:
        """Return the value of each row."""
        texts = {name: pa.array(rows[name], pa.large_binary()) for name in self.texts}
        if texts:
            rows, whole = np.zeros(len(rows), self.row), rows
            for name in self.row.names or ():
                rows[name] = pc.binary_length(texts[name]).to_numpy() if name in texts else whole[name]
        return rows_as_values(rows, texts.values())


@functools.lru_cache(maxsize=64)
def _layout(columns: pa.Schema, keys: tuple[str, ...], aggregates: tuple[tuple[str, Aggregate], ...]) -> Layout:
    """Return the layout for a schema, kept for the next batch: its types take a run of all expressions."""
    return Layout._of(columns, keys, dict(aggregates))


_NUMBERS = {"<i8": "int64", "<f8": "double"}
_LENGTH = "<u4"
"""Type of a part whose bytes follow the row, which has their length."""
_DECIMAL = "V16"
"""Type of a decimal: the bytes that Arrow has of it."""
_NUMBERS_MADE = frozenset({Kind.COUNT, Kind.MEAN, Kind.M2})
"""Parts that are numbers whatever their column is."""


def _collected_type(aggregate: Aggregate, kind: pa.DataType) -> pa.DataType:
    """Return the type of a list, or of the result of percentiles; other parts are bytes."""
    if aggregate.kind in LISTS:
        return pa.list_(_stored_type(kind))
    if aggregate.kind is Kind.QUANTILES:
        return pa.list_(_stored_type(kind)) if isinstance(aggregate.arguments[0], tuple) else _stored_type(kind)
    return pa.binary()


def _mean_type(name: str, aggregate: Aggregate, kind: pa.DataType) -> pa.DataType:
    if kind.scale > decimals.DIGITS - 4:
        problem = "whose average would have a scale beyond 38; cast it to double"
        raise StateError(f"aggregate {name!r}: column {aggregate.column!r} is {kind}, {problem}")
    return decimals.mean_type(kind)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that numbers of a type are stored as."""
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else kind


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _cells(column: Column) -> Array:
    """Return a chunked column of stored parts as rows in memory have them; zero or nothing for null."""
    if pa.types.is_decimal(column.type):
        cells: Array = raw(column.combine_chunks())
    else:
        cells = column.fill_null(b"" if pa.types.is_binary(column.type) else 0).to_numpy()
    return cells


def result_of(column: Column, kind: pa.DataType) -> Column:
    """Return values of the state, numbers or bytes, as values of a type."""
    if pa.types.is_list(kind):
        return lists_of(column, kind)
    return column.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else column.cast(kind)


def row_of(fields: Sequence[tuple[str, str]]) -> np.dtype[np.void]:
    """Return the columns of the state's rows. Raises StateError if an aggregate has the name of another column."""
    if twice := repeated([name for name, _ in fields]):
        raise StateError(f"aggregate {twice[0]!r}: the state has a column of this name; choose another")
    return np.dtype(list(fields))


def _unpacked(column: Column, kind: pa.DataType) -> Column:
    """Return nested values, or lists of them, of their bytes."""
    if not pa.types.is_list(column.type):
        return unpacked(column, kind)
    return pa.ListArray.from_arrays(column.offsets, unpacked(column.values, kind), mask=column.is_null())


def _values(name: str, aggregate: Aggregate, table: pa.Table) -> Column:
    """Return the values of an aggregate's column. Raises StateError that names the aggregate."""
    return _naming(name, aggregate.values, table)


def _naming(name: str, values: Callable[[pa.Table], Column], table: pa.Table) -> Column:
    try:
        return values(table)
    except StateError as error:
        raise StateError(f"aggregate {name!r}: {error}") from None


def _number(name: str, aggregate: Aggregate, kind: pa.DataType) -> str:
    """Return the type of a part in the row. Raises StateError if it cannot be made of the column."""
    stored, is_decimal = _number_of(kind), pa.types.is_decimal(kind)
    is_number = is_decimal or _is_number(kind)
    if aggregate.kind in _NUMBERS_MADE and (is_number or aggregate.kind is Kind.COUNT):
        return "<i8" if aggregate.kind is Kind.COUNT else "<f8"
    if is_decimal and (aggregate.kind in (LISTS | {Kind.QUANTILES, Kind.SUM_DISTINCT})):
        problem = "which lists, sets, percentiles and distinct sums do not take; cast it to double"
    elif aggregate.kind in NUMBERS_ONLY and not (is_number and stored):
        problem = "no number of up to 64 bits with a sign, or decimal of up to 38 digits; cast it to double"
        problem += ", or make one in map_arrow in front of it"
    elif aggregate.kind is Kind.QUANTILES and (stored == _LENGTH or pa.types.is_boolean(kind)):
        problem = "no number, date or timestamp"
    elif stored:
        return _LENGTH if aggregate.kind in COLLECTED else stored
    else:
        problem = "no number of up to 64 bits with a sign, decimal of up to 38 digits, boolean, date, timestamp, "
        problem += "text or bytes" + ("; cast it to double" if is_decimal else "")
    raise StateError(f"aggregate {name!r}: column {aggregate.column!r} is {kind}, {problem}")


def _nested(aggregates: Mapping[str, Aggregate], nothing: pa.Table) -> dict[str, pa.DataType]:
    """Return the types of results with nested columns. Raises StateError where their values would be compared."""
    nested = {}
    for name, aggregate in aggregates.items():
        for argument in aggregate.chain():
            if not is_nested(kind := _naming(name, argument.column_of, nothing).type):
                continue
            if argument is not aggregate and aggregate.kind in (Kind.MIN_BY, Kind.MAX_BY) and pa.types.is_struct(kind):
                continue
            if argument is not aggregate or aggregate.kind not in OPAQUE:
                problem = f"column {argument.column!r} is {kind}, whose values are not compared or added up"
                fix = "take a field of it, or first, last, min_by, max_by or collect_list"
                raise StateError(f"aggregate {name!r}: {problem}; {fix}")
            if aggregate.kind is not Kind.COUNT:
                nested[name] = kind
    return nested


def _number_of(kind: pa.DataType) -> str:
    """Return the type of a column's values in the row, "" if it has none."""
    if is_text(kind):
        return _LENGTH
    if pa.types.is_decimal128(kind):
        return _DECIMAL
    if pa.types.is_floating(kind):
        return "<f8"
    is_time = pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    is_whole = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    return "<i8" if is_time or is_whole or pa.types.is_boolean(kind) else ""


def grouped(table: pa.Table, keys: Sequence[str], layout: Layout) -> pa.Table:
    """Return a row for each key with the stored parts of these rows alone. Raises StateError as `aggregate` does."""
    columns: dict[str, Column] = {key: table[key] for key in keys if key in table.column_names}
    if missing := [key for key in keys if key not in columns]:
        raise StateError(f"keys: there is no column {missing[0]!r} among {', '.join(table.column_names)}")
    values_of: dict[object, object] = {}  # the parts of a result, and often several results, are of one expression
    for name, aggregate in layout.stored.items():
        if aggregate.source not in values_of:
            values_of[aggregate.source] = _values(name, aggregate, table)
    collected = layout.collected
    parts = [part for name in layout.stored for part in _grouping(name, layout, values_of, collected.get(name))]
    places = [f"{number} {part.name}" for number, part in enumerate(parts)]
    columns |= {place: part.column for place, part in zip(places, parts, strict=True)}
    wanted = [(place, part.function, part.options) for place, part in zip(places, parts, strict=True)]
    groups = pa.table(columns).group_by(list(keys), use_threads=False).aggregate(wanted)
    by_name = {}
    for place, part in zip(places, parts, strict=True):
        values = groups[f"{place}_{part.function}"]
        if (encoding := collected.get(part.name)) is not None and layout.merges:
            values = pa.array([encoding.merged(pieces) for pieces in values.to_pylist()], pa.binary())
        elif encoding is not None:
            values = encoding.part(joined(values))
        by_name[part.name] = values if part.values is None else part.values.take(values)
    for name, aggregate in layout.stored.items():
        if aggregate.kind is Kind.M2:
            by_name[name] = pc.multiply(by_name[name], by_name[count_of(name)].cast(pa.float64()))
        elif aggregate.kind is Kind.SUM:
            by_name[name] = _sums(name, layout, by_name)
    return pa.table({key: groups[key] for key in keys} | {name: by_name[name] for name in layout.stored})


def _sums(name: str, layout: Layout, by_name: Mapping[str, Column]) -> Column:
    """Return the sums of a batch. Raises StateError for one beyond its type."""
    if layout.row[name] == _DECIMAL:
        return _bounded(name, by_name[name], layout)
    if (floats := by_name.get(f"float {name}")) is not None:
        _check_sum(name, np.nan_to_num(floats.to_numpy()))
    return by_name[name]


@dataclass(frozen=True, slots=True)
class _Grouping:
    """A column to group, Arrow's function of it, and the values that its results are places of."""

    name: str
    column: Column
    function: str
    options: object = None
    values: Column | None = None


def _grouping(
    name: str, layout: Layout, values_of: Mapping[Any, Any], collected: Collected | None
) -> Iterator[_Grouping]:
    """Yield what makes a stored part of a batch's rows, from their values by `Aggregate.source`."""
    aggregate = layout.stored[name]
    column = values_of[aggregate.source]
    if aggregate.kind is Kind.COUNT:
        yield _Grouping(name, column, "count")
    elif collected is not None:
        elements = column if layout.merges else collected.elements(column)
        yield _Grouping(name, elements, "list" if layout.merges else collected.function)
    elif aggregate.kind in CHOSEN:
        order = layout.stored.get(order_of(name))
        by = [] if order is None else [values_of[order.source], *([column] if layout.breaks_ties else [])]
        places, rows = _choices(aggregate.kind, column, *by)
        yield _Grouping(name, places, "min", values=_as_stored(column, layout, name).take(rows))
    elif name in layout.texts:
        ranks, texts = _ranked(column)
        yield _Grouping(name, ranks, aggregate.kind.value, values=texts)
    elif aggregate.kind is Kind.M2:
        yield _Grouping(name, _as_stored(column, layout, name), "variance", pc.VarianceOptions(ddof=0))
    else:
        numbers = _as_stored(column, layout, name)
        if aggregate.kind is Kind.SUM and layout.row[name] == _DECIMAL:
            numbers = decimals.wide(numbers)
        if aggregate.kind is Kind.MAX and layout.row[name] == "<f8" and pc.any(pc.is_nan(numbers)).as_py():
            places, rows = _choices(Kind.MAX_BY, numbers, numbers)  # Arrow's maximum passes over NaN
            yield _Grouping(name, places, "min", values=numbers.take(rows))
            return
        yield _Grouping(name, numbers, aggregate.kind.value)
        if aggregate.kind is Kind.SUM and layout.row[name] == "<i8":
            yield _Grouping(f"float {name}", numbers.cast(pa.float64(), safe=False), "sum")


def _as_stored(column: Column, layout: Layout, name: str) -> Column:
    """Return values as the state's row has them."""
    if name in layout.texts:
        return column.cast(pa.binary())
    if layout.row[name] == _DECIMAL:
        return column
    return FUNCTIONS["try double"](column) if layout.row[name] == "<f8" else as_int64(column)


def _choices(kind: Kind, column: Column, *by: Column) -> tuple[object, object]:
    """Return the place of each row, and the row at each place; a group's least place is chosen.

    The place of a row that cannot be chosen is null.
    """
    count, missing = len(column), np.zeros(len(column), np.bool_)
    if by:
        directions = ["ascending" if kind is Kind.MIN_BY else "descending", "ascending"]
        orders = [order.cast(pa.binary()) if is_text(order.type) else comparable(order) for order in by]
        names = [str(number) for number in range(len(by))]
        sort_keys = list(zip(names, directions, strict=False))
        rows = pc.sort_indices(pa.table(orders, names), sort_keys=sort_keys).to_numpy()
        missing = by[0].is_null().to_numpy()
    else:
        rows = np.arange(count) if kind in (Kind.FIRST, Kind.FIRST_VALID) else np.arange(count)[::-1]
    if kind in (Kind.FIRST_VALID, Kind.LAST_VALID):
        missing = column.is_null().to_numpy()
    places = np.empty(count, np.int64)
    places[rows] = np.arange(count)
    return pa.array(places, mask=missing), pa.array(rows)


def _ranked(column: Column) -> tuple[object, object]:
    """Return the place of each text, and the texts as bytes in their order."""
    encoded = column.cast(pa.binary()).combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    return pa.array(rank).take(encoded.indices), encoded.dictionary.take(order)


def _merge(layout: Layout, by_key: pa.Table, old: Structs, new: Structs) -> None:
    """Set the new rows from the batch's rows and the old ones."""
    batch: dict[str, Array] = {}
    for name in layout.stored:
        column = by_key[name]
        batch[has_of(name)] = column.is_valid().to_numpy()
        batch[name] = _cells(column)
    collected = layout.collected
    for name, aggregate in layout.stored.items():
        kind, has, had = aggregate.kind, batch[has_of(name)], old[has_of(name)]
        new[has_of(name)] = has | had
        if kind in CHOSEN or kind in (Kind.MIN, Kind.MAX):
            kept = _is_kept(kind, name, old, batch)
            new[name] = np.where(kept, old[name], batch[name])
            new[has_of(name)] = np.where(kept, had, has)
        elif kind in COLLECTED:
            pairs = zip(old[name].tolist(), batch[name].tolist(), strict=True)
            new[name] = [collected[name].merged(pair) for pair in pairs]
        elif kind in (Kind.COUNT, Kind.SUM):
            if new.dtype[name] == _DECIMAL:
                sums = (fixed(side[name], layout.part_type(name)) for side in (old, batch))
                new[name] = raw(_bounded(name, decimals.added(*sums), layout))
                continue
            if kind is Kind.SUM and new.dtype[name].kind == "i":
                _check_sum(name, old[name].astype(np.float64) + batch[name].astype(np.float64))
            new[name] = old[name] + batch[name]
    for name, result in layout.aggregates.items():
        if result.kind in MOMENTS:
            _merge_moments(name, old, batch, new)


def _is_kept(kind: Kind, name: str, old: Structs, batch: Mapping[str, Array]) -> Any:
    """Return where the value that was chosen before the batch stays."""
    if kind is Kind.FIRST:
        return old[count_of(name)] > 0
    if kind is Kind.FIRST_VALID:
        return old[has_of(name)]
    if kind in (Kind.LAST, Kind.LAST_VALID):
        return ~batch[has_of(name)] if kind is Kind.LAST_VALID else np.zeros(len(old), np.bool_)
    order = name if kind in (Kind.MIN, Kind.MAX) else order_of(name)
    now, before = sortable(batch[order]), sortable(old[order])
    is_better = now < before if kind in (Kind.MIN, Kind.MIN_BY) else now > before
    return old[has_of(order)] & ~(batch[has_of(order)] & is_better)


def _merge_moments(name: str, old: Structs, batch: Mapping[str, Array], new: Structs) -> None:
    """Set mean and squared distances, by the formula of Chan, Golub and LeVeque."""
    mean, count = mean_of(name), count_of(name)
    total = np.maximum(old[count] + batch[count], 1)
    apart = np.where((old[count] > 0) & (batch[count] > 0), batch[mean] - old[mean], 0.0)
    new[mean] = np.where(old[count] > 0, old[mean], batch[mean]) + apart * batch[count] / total
    new[name] = old[name] + batch[name] + apart * apart * (old[count] * batch[count] / total)


def set_moments(layout: Layout, rows: Structs, places: npt.NDArray[np.int64], parts: pa.Table) -> None:
    """Set means and squared distances of rows from their parts; `places` has the row of each part."""
    touched = np.unique(places)
    for name, aggregate in layout.aggregates.items():
        if aggregate.kind in MOMENTS:
            mean = mean_of(name)
            counts, means, m2s = (parts[part].fill_null(0).to_numpy() for part in (count_of(name), mean, name))
            total = np.maximum(np.bincount(places, counts), 1)
            middle = np.bincount(places, counts * means) / total
            rows[mean][touched] = middle[touched]
            rows[name][touched] = np.bincount(places, m2s + counts * (means - middle[places]) ** 2)[touched]


def _bounded(name: str, sums: Column, layout: Layout) -> Column:
    """Return sums of decimals in the type of their part."""
    kind = layout.part_type(name)
    assert kind is not None  # a decimal's
    try:
        return sums.cast(kind)
    except pa.ArrowInvalid:
        problem = f"a sum is beyond {kind.precision} digits; cast its column to double"
        raise StateError(f"aggregate {name!r}: {problem}") from None


def _check_sum(name: str, sums: npt.NDArray[np.float64]) -> None:
    # Floats are exact to a part in 2^52, so a sum this close to the limit is treated as beyond it.
    if (np.abs(sums) >= 2.0**63 - 2.0**12).any():
        raise StateError(f"aggregate {name!r}: a sum is beyond int64; cast its column to double")


@dataclass(frozen=True, slots=True)
class Keyed:
    """An operator that keeps something of each key; can be pickled."""

    keys: tuple[str, ...]

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Columns that identify a result, and form the record key."""
        return self.keys

    def key_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of the state's keys."""
        return pa.schema([columns.field(name) for name in self.keys])

    def layout(self, columns: pa.Schema) -> Layout | None:
        """Return the layout of the state's values, None for values that are not aggregates."""
        return None


@dataclass(frozen=True, slots=True)
class Aggregation(Keyed):
    """Running aggregates of each key: the operator of `aggregate`. Raises as `aggregate` does."""

    aggregates: Mapping[str, Aggregate]

    @property
    def kept(self) -> Mapping[str, object]:
        """What is kept, by name."""
        return {"operator": "aggregate"}

    @override
    def layout(self, columns: pa.Schema) -> Layout | None:
        return Layout.of(columns, self.keys, self.aggregates)

    def __call__(self, table: pa.Table, store: Snapshot) -> Update:
        """Return the results and changes of a batch's rows."""
        return aggregate(table, store, self.keys, self.aggregates)

    def each(self, tables: Sequence[pa.Table], stores: Sequence[Snapshot]) -> list[Update]:
        """Return the results and changes of several tasks."""
        return aggregate_each(tables, stores, self.keys, self.aggregates)
