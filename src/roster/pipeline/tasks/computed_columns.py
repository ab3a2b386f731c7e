"""Columns computed of others inside a task, with Spark's values: what `select`, `where` and `from_json` say."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from roster.pipeline.tasks.json_values import JsonReader, times_of
from roster.pipeline.tasks.spark_texts import json_of, number_texts
from roster.state.byte_slices import Column
from roster.state.expressions import FUNCTIONS, by_rows


@dataclass(frozen=True, eq=False)
class Given:
    """A column of the rows."""

    name: str


@dataclass(frozen=True, eq=False)
class Constant:
    """The same value in all rows."""

    value: pa.Scalar


@dataclass(frozen=True, eq=False)
class Field:
    """A field of the JSON objects in a column, which all its fields are read of together."""

    objects: Objects
    name: str


@dataclass(frozen=True, eq=False)
class Objects:
    """JSON objects in a column of text or bytes."""

    text: Computed
    reader: JsonReader


@dataclass(frozen=True, eq=False)
class Call:
    """A function of `COMPUTED` with its arguments. kind: type of the result. can_fail: for some values."""

    function: str
    arguments: tuple[Computed, ...]
    kind: pa.DataType
    can_fail: bool = False


Computed: TypeAlias = Given | Constant | Field | Call
"""What makes a column; parts that are one object are computed once."""


class ComputedColumns:
    """Maps record batches to columns computed of theirs, of the rows for which conditions hold; can be pickled."""

    def __init__(self, given: pa.Schema, conditions: Sequence[Computed], columns: Mapping[str, Computed]) -> None:
        """given: columns that the rows are cast to first. conditions: each is asked of the rows that the ones before
        have left.
        """
        self._given, self._conditions, self._columns = given, conditions, columns

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns. Raises ArithmeticError for a value that Spark stops at, too."""
        values = _Values(batch, self._given)
        for condition in self._conditions:
            values.keep(values.of(condition))
        columns = {name: values.column(column) for name, column in self._columns.items()}
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


class _Values:
    """What has been computed of the rows of a batch."""

    def __init__(self, batch: pa.RecordBatch, given: pa.Schema) -> None:
        self._batch, self._given, self._rows = batch, given, batch.num_rows
        self._known: dict[Computed | Objects, Column] = {}

    def column(self, computed: Computed) -> pa.Array:
        """Return a value for each row."""
        value = self.of(computed)
        return pa.repeat(value, self._rows) if isinstance(value, pa.Scalar) else value

    def of(self, computed: Computed | Objects) -> Column:
        """Return an array; a scalar if all rows have the same value; rows of objects."""
        if computed not in self._known:
            self._known[computed] = self._computed(computed)
        return self._known[computed]

    def _computed(self, computed: Computed | Objects) -> Column:
        if isinstance(computed, Given):
            kind = self._given.field(computed.name).type
            value = self._batch.column(computed.name)
            return value if value.type == kind else value.cast(kind)
        if isinstance(computed, Constant):
            return computed.value
        if isinstance(computed, Objects):
            return computed.reader.read(self.column(computed.text).cast(pa.binary()))[0]
        if isinstance(computed, Field):
            return self.of(computed.objects).column(computed.name)
        arguments = [self.of(argument) for argument in computed.arguments]
        function = COMPUTED[computed.function]
        try:
            return function(*arguments, computed.kind) if function in _TYPED else function(*arguments)
        except pa.ArrowInvalid as error:
            raise ArithmeticError(f"{computed.function}: {str(error).splitlines()[0]}, at which Spark stops") from None

    def keep(self, condition: Column) -> None:
        """Leave out the rows for which a condition is false or null."""
        if isinstance(condition, pa.Scalar):
            condition = pa.repeat(condition, self._rows)
        if condition.true_count == self._rows:
            return
        self._batch = self._batch.filter(condition)
        self._rows = self._batch.num_rows
        self._known = {
            computed: value if isinstance(value, pa.Scalar) else value.filter(condition)
            for computed, value in self._known.items()
        }


def _whole(function: Callable[..., Column]) -> Callable[..., Column]:
    """Return a function that fails where it makes null of values."""

    def apply(*columns: Any) -> Column:
        result = function(*columns)
        is_whole = result.is_valid if isinstance(result, pa.Scalar) else not result.null_count
        is_bad = pc.is_null(result)
        for column in () if is_whole else columns:
            if not isinstance(column, pa.DataType):
                is_bad = pc.and_(is_bad, pc.is_valid(column))
        if not is_whole and pc.any(is_bad if isinstance(is_bad, pa.Array) else pa.array([is_bad.as_py()])).as_py():
            raise pa.ArrowInvalid("a division by zero, a value beyond the type, or a text that says none")
        return result

    return apply


def _converted(column: Column, kind: pa.DataType) -> Column:
    """Return values of a wider type, or as text: bytes whether or not they are UTF-8."""
    return column.cast(kind, safe=False)


def _times(column: Column, kind: pa.DataType) -> Column:
    if isinstance(column, pa.Scalar):
        return times_of(pa.array([column.as_py()], pa.string()), kind)[0]
    return times_of(column, kind)


def _days(column: Column, _: pa.DataType) -> Column:
    return pc.floor_temporal(column, unit="day").cast(pa.timestamp("us")).cast(pa.date32())


def _seconds(column: Column, _: pa.DataType) -> Column:
    return pc.floor_temporal(column, unit="second").cast(pa.timestamp("s", "UTC")).cast(pa.int64())


def _struct(*columns_and_kind: Column) -> Column:
    *columns, kind = columns_and_kind
    return by_rows(lambda *fields: pa.StructArray.from_arrays(fields, fields=list(kind)))(*columns)


def _concat(*columns: Column) -> Column:
    return pc.binary_join_element_wise(*columns, "")


_MAY_STOP = [name.removeprefix("try ") for name in FUNCTIONS if name.startswith("try ")]
COMPUTED: dict[str, Callable[..., Column]] = {
    **FUNCTIONS,
    **{f"checked {name}": _whole(FUNCTIONS[f"try {name}"]) for name in _MAY_STOP},
    "+": pc.add,
    "-": pc.subtract,
    "*": pc.multiply,
    "negative": pc.negate,
    "abs": pc.abs,
    "concat": _concat,
    **dict.fromkeys(("text", "wider"), _converted),
    "time": _times,
    "day": _days,
    "seconds": _seconds,
    "struct": _struct,
    "to_json": functools.partial(json_of, is_shortest=True),
    "to_json before Java 19": functools.partial(json_of, is_shortest=False),
    "number text": functools.partial(number_texts, is_shortest=True),
    "number text before Java 19": functools.partial(number_texts, is_shortest=False),
}
"""Functions of arrays and scalars: `checked` ones fail where Spark stops."""
_TYPED = {_converted, _times, _days, _seconds, _struct, COMPUTED["try decimal"], COMPUTED["checked decimal"]}
"""Functions that are given the type of their result, too."""
