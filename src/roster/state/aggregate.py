"""Aggregates of each key in a store, by columns: takes a batch's rows, returns new results and changes of the store.

No Python code runs per row; the time goes into the store's reads and writes. The state of a key is one fixed-width row:
for each aggregate a byte that tells whether there is a value, and eight bytes of value. Text and bytes follow the row,
which has their length in four bytes. An average is kept as a sum and a count.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster.model.topology import repeated
from roster.state.keys import encode_keys, is_text
from roster.state.store import Snapshot, StateError, Store, ValueDamagedError


class Kind(Enum):
    """An aggregate, by its name in SQL. All but the average are kept as they are, and have the same name in Arrow."""

    COUNT = "count"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    AVG = "avg"


ALL_ROWS = "*"
"""Stands for a column's name in a count: counts all rows."""

FUNCTIONS = {kind.value: kind for kind in Kind} | {"mean": Kind.AVG}
"""Kinds by the names of Spark's functions."""
_WRITTEN = re.compile(r"\s*(\w+)\s*\(\s*(?:`((?:[^`]|``)+)`|([^\s()`'\",+*/%<>=|&!]+|\*))\s*\)\s*")
_ANY = "|".join(FUNCTIONS)
_WAYS_OUT = (
    (r".*\bdistinct\b.*", "deduplicate by the keys and the column in front of it, and count the rows"),
    (rf"(?:{_ANY})\s*(?:\(\s*\*?\s*\))?", "name one column, as in sum(price)"),
    (rf"(?:{_ANY})\b.*", "make the column in map_arrow in front of it; ` around names with other characters"),
    (r".*", "keep others with transform_with_state"),
)
"""Patterns of unsupported aggregates, and what to use instead; the first match is used."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate of a column: count of the rows where it is not null, sum, extreme or average of these values."""

    kind: Kind
    column: str

    @classmethod
    def parse(cls, text: str) -> Aggregate:
        """Read `sum(delay)` or `count(*)`, as SQL writes them. Raises StateError that quotes the text."""
        found = _WRITTEN.fullmatch(text)
        if found is None:
            raise not_kept(text)
        if found[2] is not None:
            return cls.of(found[1], found[2].replace("``", "`"), text)
        return cls.of(found[1], ALL_ROWS if found[1].lower() == "count" and found[3] == "1" else found[3], text)

    @classmethod
    def of(cls, function: str, column: str, text: str) -> Aggregate:
        """Return an aggregate by its function's name in Spark. Raises StateError that quotes `text`."""
        kind = FUNCTIONS.get(function.lower())
        if kind is None or (column == ALL_ROWS and kind is not Kind.COUNT):
            raise not_kept(text)
        return cls(kind, column)

    def stored(self, name: str) -> list[tuple[str, Aggregate]]:
        """Return the stored state of the named result, under the state's column names."""
        if self.kind is not Kind.AVG:
            return [(name, self)]
        return [(name, Aggregate(Kind.SUM, self.column)), (_count_of(name), Aggregate(Kind.COUNT, self.column))]


def not_kept(text: str) -> StateError:
    """Return the error for a text other than an aggregate of one column; it quotes the text and says what to use."""
    way = next(way for sign, way in _WAYS_OUT if re.fullmatch(sign, text.strip(), re.IGNORECASE | re.DOTALL))
    kinds = ", ".join(kind.value for kind in Kind)
    return StateError(f"{text!r} is none of count(*) and {kinds} of a column; {way}")


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
    timer_in_ms: int | None = None
    """Milliseconds until the state's next timer of processing time is due, 0 or less if it is; None: there is none."""


def aggregate(
    table: pa.Table,
    store: Store | Snapshot,
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
) -> Update:
    """Update the aggregates of a batch's keys. Nothing is written: the caller commits the changes.

    aggregates: by the name of the result's column. Sums and extremes of integers are int64, of floats float64, averages
    float64; extremes of dates, timestamps, text and bytes keep their type, and text is compared as its bytes are, as
    Spark does. Raises StateError for missing columns or other types, and for a sum beyond int64.
    """
    layout = Layout.of(table.schema, keys, aggregates)
    by_key = grouped(table, keys, layout)
    key_bytes = encode_keys(by_key, keys)
    key_list = key_bytes.to_pylist()
    old = layout.decode(store.multi_get(key_list))
    new = np.zeros(len(key_list), dtype=layout.memory)
    for name, each in layout.stored.items():
        _merge(each.kind, name, by_key[name], old, new)
    changes = pa.table({"key": key_bytes, "value": pa.array(layout.encode(new), pa.binary())})
    return Update(layout.with_results(by_key.select(list(keys)), new), changes)


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of the state's rows."""

    aggregates: Mapping[str, Aggregate]
    row: np.dtype[Any]
    kinds: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Types of results that are not numbers, by aggregate."""
    stored: Mapping[str, Aggregate] = field(default_factory=dict)
    """Stored state of the aggregates, by columns of the row."""

    @property
    def averages(self) -> list[str]:
        """Results that are a sum divided by a count."""
        return [name for name, each in self.aggregates.items() if each.kind is Kind.AVG]

    def described(self) -> dict[str, dict[str, str]]:
        """Describe the stored state of each result, for people and JSON: kind, column, stored type."""
        numbers = {"<i8": "int64", "<f8": "double"}
        return {
            name: {
                "kind": each.kind.value,
                "column": each.column,
                "type": str(self.kinds[name]) if name in self.kinds else numbers[self.row[name].str],
            }
            for name, each in self.aggregates.items()
        }

    @property
    def texts(self) -> list[str]:
        """Aggregates whose values follow the row."""
        return [name for name, kind in self.kinds.items() if is_text(kind)]

    @property
    def memory(self) -> np.dtype[Any]:
        """Columns of rows in memory, which include the bytes of texts."""
        if not (texts := self.texts):
            return self.row
        return np.dtype([(name, "O" if name in texts else self.row[name]) for name in self.row.names or ()])

    @classmethod
    def of(cls, columns: pa.Schema, keys: Sequence[str], aggregates: Mapping[str, Aggregate]) -> Layout:
        """Return the layout for rows of these columns. Raises StateError as `aggregate` does."""
        if not aggregates:
            raise StateError("aggregates: name at least one")
        if doubled := sorted(set(aggregates).intersection(keys)):
            raise StateError(f"aggregate {doubled[0]!r}: a key column has this name too")
        fields: list[tuple[str, str]] = []
        kinds = {}
        stored = [part for name, each in aggregates.items() for part in each.stored(name)]
        for name, each in stored:
            if each.column not in columns.names and each.column != ALL_ROWS:
                raise StateError(f"aggregate {name!r}: no column {each.column!r} among {', '.join(columns.names)}")
            kind = None if each.column == ALL_ROWS else columns.field(each.column).type
            fields += [(has_of(name), "?"), (name, _number(name, each, kind))]
            if each.kind is not Kind.COUNT and not _is_number(kind):
                kinds[name] = kind
        return cls(aggregates, row_of(fields), kinds=kinds, stored=dict(stored))

    def decode(self, values: Sequence[bytes | None]) -> npt.NDArray[Any]:
        """Return the rows of the state, zeros for missing ones."""
        size = self.row.itemsize
        whole = [bytes(size) if value is None else value for value in values]
        if not self.texts:
            return self.decode_rows(b"".join(whole), fits=all(len(value) == size for value in whole))
        heads = [value[:size] for value in whole]
        rows = self.decode_rows(b"".join(heads), fits=all(len(head) == size for head in heads))
        decoded = np.zeros(len(rows), self.memory)
        for name in rows.dtype.names or ():
            decoded[name] = rows[name]
        for place, value in enumerate(whole):
            for name, text in zip(self.texts, cut(value, rows[place], self.texts), strict=True):
                decoded[name][place] = text
        return decoded

    def decode_rows(self, data: bytes, *, fits: bool) -> npt.NDArray[Any]:
        """Return the rows of concatenated values. Raises ValueDamagedError if they are not whole rows."""
        if not fits:
            raise ValueDamagedError
        return np.frombuffer(data, self.row)

    def with_results(self, table: pa.Table, rows: npt.NDArray[Any], *, as_numbers: bool = False) -> pa.Table:
        """Append the aggregates to a table of their keys; `as_numbers`: the stored numbers instead."""
        for name in self.stored if as_numbers else self.aggregates:
            column = pa.array(rows[name], pa.binary() if name in self.texts else None, mask=~rows[has_of(name)])
            if name in self.averages and not as_numbers:
                column = pa.array(average(rows, name), mask=~rows[has_of(name)])
            elif name in self.kinds and not as_numbers:
                column = result_of(column, self.kinds[name])
            table = table.append_column(name, column)
        return table

    def set_results(self, rows: npt.NDArray[Any], places: Any, table: pa.Table) -> None:
        """Set the stored columns of the rows at these places from a table."""
        for name in self.stored:
            column = table[name]
            rows[has_of(name)][places] = column.is_valid().to_numpy()
            rows[name][places] = column.fill_null(0).to_numpy()

    def of_parts(self) -> Layout:
        """Return the layout that makes one row of several with the numbers of `with_results`."""
        kinds = {Kind.COUNT: Kind.SUM}
        parts = {name: Aggregate(kinds.get(each.kind, each.kind), name) for name, each in self.stored.items()}
        return replace(self, stored=parts)

    def encode(self, rows: npt.NDArray[Any]) -> list[bytes]:
        """Return the bytes of each row."""
        texts: list[list[bytes]] = [rows[name].tolist() for name in self.texts]
        if texts:
            rows, whole = np.zeros(len(rows), self.row), rows
            for name in self.row.names or ():
                rows[name] = [len(text) for text in whole[name]] if name in self.texts else whole[name]
        # A void type keeps the zero bytes at the end, which a bytes type would strip.
        encoded: list[bytes] = rows.view(f"V{self.row.itemsize}").tolist()
        return [b"".join(parts) for parts in zip(encoded, *texts, strict=True)] if texts else encoded


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def cut(value: bytes, row: Any, texts: Sequence[str]) -> list[bytes]:
    """Return the texts after a row of the state. Raises ValueDamagedError if the value has another length."""
    ends = np.cumsum([row.dtype.itemsize, *(int(row[name]) for name in texts)]).tolist()
    if len(value) != ends[-1]:
        raise ValueDamagedError
    return [value[begin:end] for begin, end in itertools.pairwise(ends)]


def result_of(column: Any, kind: pa.DataType) -> Any:
    """Return values of the state, numbers or bytes, as those of a type."""
    return column.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else column.cast(kind)


def _numbers(column: Any) -> Any:
    """Return integers, dates or timestamps as int64."""
    return column.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(column.type) else column.cast(pa.int64())


def average(rows: Any, name: str) -> Any:
    """Return the average of this name in one or several rows of the state; 0 without values."""
    return rows[name] / np.maximum(rows[_count_of(name)], 1)


def row_of(fields: Sequence[tuple[str, str]]) -> np.dtype[Any]:
    """Return the columns of the state's rows. Raises StateError if an aggregate has the name of another column."""
    if twice := repeated([name for name, _ in fields]):
        raise StateError(f"aggregate {twice[0]!r}: the state has a column of this name; choose another")
    return np.dtype(list(fields))


def has_of(name: str) -> str:
    """Return the column of a row that says whether there is a value of this name."""
    return f"has {name}"


def _count_of(name: str) -> str:
    return f"count of {name}"


def _number(name: str, each: Aggregate, kind: Any) -> str:
    if each.kind is Kind.COUNT:
        return "<i8"
    if pa.types.is_floating(kind):
        return "<f8"
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return "<i8"
    if each.kind is Kind.SUM:
        problem = "no number of up to 64 bits with a sign"
    elif pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return "<i8"
    elif is_text(kind):
        return "<u4"
    else:
        problem = "no number of up to 64 bits with a sign, date, timestamp, text or bytes"
    raise StateError(f"aggregate {name!r}: column {each.column!r} is {kind}, {problem}")


def grouped(table: pa.Table, keys: Sequence[str], layout: Layout) -> pa.Table:
    """Return a row for each key with the aggregates of these rows alone. Raises StateError as `aggregate` does."""
    numbers: dict[str, Any] = {key: table[key] for key in keys if key in table.column_names}
    if missing := [key for key in keys if key not in numbers]:
        raise StateError(f"keys: there is no column {missing[0]!r} among {', '.join(table.column_names)}")
    wanted: list[tuple[str, str]] = []
    names: list[str] = []
    ordered: dict[str, Any] = {}
    for name, each in layout.stored.items():
        source = f"{len(numbers)} {name}"
        column = _ones(len(table)) if each.column == ALL_ROWS else table[each.column]
        if name in layout.texts:
            column, ordered[name] = _ranked(column)
        elif each.kind is not Kind.COUNT:
            column = column.cast(pa.float64()) if layout.row[name] == "<f8" else _numbers(column)
        numbers[source] = column
        wanted.append((source, each.kind.value))
        names.append(name)
        if each.kind is Kind.SUM and layout.row[name] == "<i8":
            numbers[f"{source} float"] = column.cast(pa.float64(), safe=False)
            wanted.append((f"{source} float", "sum"))
            names.append(f"float {name}")
    found = pa.table(numbers).group_by(list(keys), use_threads=False).aggregate(wanted)
    by_name = {name: found[f"{source}_{kind}"] for name, (source, kind) in zip(names, wanted, strict=True)}
    for name, texts in ordered.items():
        by_name[name] = texts.take(by_name[name])
    for name, sums in by_name.items():
        if name.startswith("float ") and name not in layout.stored:
            _check_sum(name.removeprefix("float "), np.nan_to_num(sums.to_numpy()))
    return pa.table({key: found[key] for key in keys} | {name: by_name[name] for name in layout.stored})


def _ranked(column: Any) -> tuple[Any, Any]:
    """Return the place of each text, and the texts as bytes in their order."""
    encoded = column.cast(pa.binary()).combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    return pa.array(rank).take(encoded.indices), encoded.dictionary.take(order)


def _ones(rows: int) -> Any:
    return pa.chunked_array([pa.array(np.ones(rows, np.int8))])


def _merge(kind: Kind, name: str, column: Any, old: npt.NDArray[Any], new: npt.NDArray[Any]) -> None:
    """Set the new value of an aggregate from the batch's and the old one."""
    has = column.is_valid().to_numpy()
    is_bytes = pa.types.is_binary(column.type)
    batch = column.fill_null(b"" if is_bytes else 0).to_numpy().astype(new.dtype[name], copy=False)
    had, before = old[has_of(name)], old[name]
    new[has_of(name)] = has | had
    if kind in (Kind.COUNT, Kind.SUM):
        if kind is Kind.SUM and new.dtype[name].kind == "i":
            _check_sum(name, before.astype(np.float64) + batch.astype(np.float64))
        new[name] = before + batch
        return
    best = np.maximum(before, batch) if kind is Kind.MAX else np.minimum(before, batch)
    new[name] = np.where(has & had, best, np.where(has, batch, before))


def _check_sum(name: str, sums: npt.NDArray[np.float64]) -> None:
    # Floats are exact to a part in 2^52, so a sum this close to the limit is treated as beyond it.
    if (np.abs(sums) >= 2.0**63 - 2.0**12).any():
        raise StateError(f"aggregate {name!r}: a sum is beyond int64; cast its column to float64")


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Running aggregates of each key: the operator of `aggregate`, can be pickled. Raises as `aggregate` does."""

    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Columns that identify a result."""
        return self.keys

    def key_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of the state's keys."""
        return pa.schema([columns.field(name) for name in self.keys])

    @property
    def kept(self) -> Mapping[str, Any]:
        """What is kept, by name."""
        return {"operator": "aggregate"}

    def layout(self, columns: pa.Schema) -> Layout | None:
        """Return the layout of the state's values."""
        return Layout.of(columns, self.keys, self.aggregates)

    def __call__(self, table: pa.Table, store: Store | Snapshot) -> Update:
        """Return the results and changes of a batch's rows."""
        return aggregate(table, store, self.keys, self.aggregates)
