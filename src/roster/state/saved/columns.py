"""Names, times and fixed-width rows, as the tables of saved state have them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.aggregate import Layout, result_of
from roster.state.aggregate_functions import has_of
from roster.state.byte_slices import Column, Structs, as_bytes, as_int64, raw
from roster.state.collected import data_of, lists_of
from roster.state.event_time import Times, microseconds
from roster.state.keys import big_endian

MOMENT = pa.timestamp("us", "UTC")
_SIGN = np.uint64(1 << 63)
_DURATION = re.compile(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d)(?:\.(\d{6}))?")


class Saved(Protocol):
    """Makes tables of the entries of one kind of store, and entries of the tables; an entry is a key and a value."""

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of each part."""

    def tables(self, entries: pa.Table) -> dict[str, pa.Table]:
        """Return the table of each part that has rows. Raises ValueDamagedError for entries of another kind."""

    def entries(self, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the entries of the tables, which have all rows of their keys."""


def duration(text: str) -> int:
    """Return microseconds of a duration as a definition has it, the text of a timedelta. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration")
    days, hours, minutes, seconds, fraction = (int(part or 0) for part in match.groups())
    return microseconds(timedelta(days, seconds, fraction, 0, minutes, hours))


def free_names(wanted: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return names for columns beside others: a name that is taken gets underscores."""
    names: list[str] = []
    for name in wanted:
        while name in taken or name in names:
            name += "_"  # noqa: PLW2901 - that is the new name
        names.append(name)
    return names


def ordered_times(times: Times) -> pa.Array:
    """Return `ordered_time` of each time as bytes."""
    return big_endian(pa.array(times, pa.int64())).cast(pa.large_binary())


def times_at(data: Any, starts: Any) -> Times:
    """Return the ordered times that begin at these places."""
    plain: Any = data[starts[:, None] + np.arange(8)].view(">u8").ravel().astype(np.uint64) ^ _SIGN
    times: Times = plain.view(np.int64)
    return times


def moments(times: Times) -> pa.Array:
    """Return microseconds since the epoch as timestamps in UTC."""
    return pa.array(times, pa.int64()).cast(MOMENT)


def entry_table(keys: Column, values: Column | None) -> pa.Table:
    """Return keys and values as entries; a value of None stands for the empty value of all."""
    if values is None:
        values = pa.array([b""], pa.large_binary()).take(pa.array(np.zeros(len(keys), np.int64)))
    return pa.table([_large(keys), _large(values)], ["key", "value"])


def _large(column: Column) -> pa.Array:
    return column.cast(pa.large_binary())


def joined(*parts: Column | bytes) -> pa.Array:
    """Return the parts of each row as one binary value; a part may be bytes, the same for all rows."""
    columns = [part if isinstance(part, bytes) else _large(part) for part in parts]
    plain = [pa.scalar(part, pa.large_binary()) if isinstance(part, bytes) else part for part in columns]
    return pc.binary_join_element_wise(*plain, pa.scalar(b"", pa.large_binary()))


class AggregateRows:
    """Values of aggregates as columns: the results, and the parts of those that are computed of several.

    The columns are nullable; a null is an aggregate without a value.
    """

    def __init__(self, layout: Layout, taken: Sequence[str]) -> None:
        self.layout = layout
        self.row, self._kinds, self._texts = layout.row, layout.kinds, layout.texts
        self._results, self._lists = layout.aggregates, [name for name in layout.texts if _is_list(layout, name)]
        wanted = [
            f"{aggregate.kind.value} of {part}" if part in self._derived else part
            for part, aggregate in layout.stored.items()
            if part not in self._results or part in self._derived
        ]
        self._parts = free_names(wanted, [*taken, *self._results])
        own = iter(self._parts)
        self.stored = {
            part: part if part in self._results and part not in self._derived else next(own) for part in layout.stored
        }
        """Columns by the names of the state's row; results that are computed are not among them."""

    @property
    def _derived(self) -> list[str]:
        return [name for name, aggregate in self._results.items() if aggregate.is_derived]

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [*self._results, *self._parts]

    @property
    def fields(self) -> list[pa.Field]:
        """The columns."""
        kinds = {column: self._kind(name) for name, column in self.stored.items()}
        derived = {name: self._results[name].derived_type(self._kinds.get(name)) for name in self._derived}
        kinds = derived | kinds
        return [pa.field(name, kinds[name]) for name in self.names]

    def _kind(self, name: str) -> pa.DataType:
        if name in self._texts and name in self._derived:
            return pa.binary()
        return self.layout.part_type(name) or pa.from_numpy_dtype(self.row[name])

    def columns(self, rows: Structs, texts: Mapping[str, Column]) -> list[Column]:
        """Return the columns of rows; `texts` are those behind them, by name."""
        columns = {}
        for name in self._derived:
            parts = {part: rows[part] for part, _ in self._results[name].stored(name)}
            if name in texts:
                parts[name] = _valid(texts[name], rows[has_of(name)])
            columns[name] = self._results[name].derived(name, parts, self._kinds.get(name))
        for name, column in self.stored.items():
            missing = ~rows[has_of(name)]
            if name in texts:
                plain = _valid(texts[name], ~missing)
                columns[column] = (
                    lists_of(plain, self._kinds[name]) if name in self._lists else plain.cast(self._kind(name))
                )
            else:
                plain = self.layout.part(name, rows)
                columns[column] = result_of(plain, self._kind(name)) if name in self._kinds else plain
        return [columns[name] for name in self.names]

    def fill(self, rows: Structs, table: pa.Table) -> list[Column]:
        """Set the rows of a state from the columns; return the texts behind each row."""
        texts: list[Column] = []
        for name, column in self.stored.items():
            plain = table[column].combine_chunks()
            rows[has_of(name)] = plain.is_valid().to_numpy(zero_copy_only=False)
            if name in self._texts:
                plain = data_of(plain) if name in self._lists else plain
                content = pc.fill_null(plain.cast(pa.binary()).cast(pa.large_binary()), b"")
                rows[name] = np.diff(as_bytes(content)[1])
                texts.append(content)
            elif pa.types.is_decimal(plain.type):
                rows[name] = raw(plain)
            else:
                numbers = plain if pa.types.is_floating(plain.type) else as_int64(plain)
                rows[name] = numbers.fill_null(0).to_numpy(zero_copy_only=False)
        return texts


def _is_list(layout: Layout, name: str) -> bool:
    return name in layout.aggregates and not layout.aggregates[name].is_derived and pa.types.is_list(layout.kinds[name])


def _valid(values: Column, has: npt.NDArray[np.bool_]) -> Any:
    return pc.if_else(pa.array(has), values, pa.scalar(None, values.type))
