"""The functions of `aggregate`: their names, what is stored of each, and the result that it makes.

A function is stored as one or several parts, each a column of the state's row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa

from roster.state import collected, decimals
from roster.state.byte_slices import fixed
from roster.state.expressions import Expression
from roster.state.keys import ordered
from roster.state.rows import is_nested, packed
from roster.state.store import StateError


class Kind(Enum):
    """A function of a column, or a part that is stored of one."""

    COUNT = "count"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    AVG = "avg"
    VAR_POP = "var_pop"
    VAR_SAMP = "var_samp"
    STDDEV_POP = "stddev_pop"
    STDDEV_SAMP = "stddev_samp"
    FIRST = "first"
    LAST = "last"
    FIRST_VALID = "first ignoring nulls"
    LAST_VALID = "last ignoring nulls"
    MIN_BY = "min_by"
    MAX_BY = "max_by"
    COUNT_DISTINCT = "count_distinct"
    SUM_DISTINCT = "sum_distinct"
    COLLECT_LIST = "collect_list"
    COLLECT_SET = "collect_set"
    APPROX_COUNT_DISTINCT = "approx_count_distinct"
    APPROX_PERCENTILE = "approx_percentile"
    SET = "distinct"
    """The distinct values, as marks."""
    HLL = "hll"
    """A sketch of the distinct values."""
    QUANTILES = "quantiles"
    """Values with bounds of their ranks."""
    MEAN = "mean"
    M2 = "m2"
    """The sum of squared distances from the mean."""


ALL_ROWS = "*"
"""Stands for a column's name in a count: counts all rows."""

FUNCTIONS = {
    "count": Kind.COUNT,
    "sum": Kind.SUM,
    "max": Kind.MAX,
    "min": Kind.MIN,
    "avg": Kind.AVG,
    "mean": Kind.AVG,
    "var_pop": Kind.VAR_POP,
    "var_samp": Kind.VAR_SAMP,
    "variance": Kind.VAR_SAMP,
    "stddev_pop": Kind.STDDEV_POP,
    "stddev_samp": Kind.STDDEV_SAMP,
    "stddev": Kind.STDDEV_SAMP,
    "std": Kind.STDDEV_SAMP,
    "first": Kind.FIRST,
    "first_value": Kind.FIRST,
    "any_value": Kind.FIRST,
    "last": Kind.LAST,
    "last_value": Kind.LAST,
    "collect_list": Kind.COLLECT_LIST,
    "array_agg": Kind.COLLECT_LIST,
    "collect_set": Kind.COLLECT_SET,
    "approx_count_distinct": Kind.APPROX_COUNT_DISTINCT,
    "approx_percentile": Kind.APPROX_PERCENTILE,
    "percentile_approx": Kind.APPROX_PERCENTILE,
    "min_by": Kind.MIN_BY,
    "max_by": Kind.MAX_BY,
    "count_if": Kind.COUNT,
    **dict.fromkeys(("bool_and", "every"), Kind.MIN),
    **dict.fromkeys(("bool_or", "some", "any"), Kind.MAX),
}
"""Functions by Spark's names."""
IGNORING_NULLS = {Kind.FIRST: Kind.FIRST_VALID, Kind.LAST: Kind.LAST_VALID}

MOMENTS = frozenset({Kind.VAR_POP, Kind.VAR_SAMP, Kind.STDDEV_POP, Kind.STDDEV_SAMP})
"""Functions of the rows' mean and distances from it."""
CHOSEN = frozenset({Kind.FIRST, Kind.LAST, Kind.FIRST_VALID, Kind.LAST_VALID, Kind.MIN_BY, Kind.MAX_BY})
"""Functions whose value is that of one row."""
LISTS = frozenset({Kind.COLLECT_LIST, Kind.COLLECT_SET})
COLLECTED = LISTS | {Kind.SET, Kind.HLL, Kind.QUANTILES}
"""Parts that are bytes made of many values."""
_SUMMARIES = {
    Kind.COUNT_DISTINCT: Kind.SET,
    Kind.SUM_DISTINCT: Kind.COLLECT_SET,
    Kind.APPROX_COUNT_DISTINCT: Kind.HLL,
    Kind.APPROX_PERCENTILE: Kind.QUANTILES,
}
"""Results of collected values, and what is stored of them."""
FIXED = frozenset({Kind.MIN_BY, Kind.MAX_BY, *LISTS, *_SUMMARIES})
"""Functions whose state says nothing about other columns, or columns of another type."""
OPAQUE = frozenset({*CHOSEN, Kind.COLLECT_LIST, Kind.COUNT})
"""Parts that a nested column may have: its values are not compared."""
NUMBERS_ONLY = frozenset({Kind.SUM, Kind.MEAN, Kind.M2, Kind.SUM_DISTINCT})
"""Parts that only numbers have."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function of a column, or of an expression over columns.

    column: its name; of an expression its text. by: the column that orders the rows, of `min_by` and `max_by`; of
    distinct rows the next column. arguments: of lists and sets the most values, of a sketch the logarithm of its size,
    of percentiles the percentages, a number or a tuple, and the accuracy.
    """

    kind: Kind
    column: str
    expression: Expression | None = None
    by: Aggregate | None = None
    arguments: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        """The arguments, for people and definitions."""
        by = [] if self.by is None else [self.by.text]
        arguments = (list(argument) if isinstance(argument, tuple) else argument for argument in self.arguments)
        return ", ".join([self.column, *by, *map(str, arguments)])

    @property
    def source(self) -> tuple[Any, ...]:
        """What the values are computed from, the same for aggregates of the same column or expression."""
        is_ordered = self.kind in (Kind.MIN, Kind.MAX)  # of structs others are bytes that do not sort
        return self.column, self.expression, self.by if self.kind is Kind.SET else None, is_ordered

    def stored(self, name: str) -> list[tuple[str, Aggregate]]:
        """Return the parts of the named result, by columns of the state's row; the first has the result's name."""
        if self.kind is Kind.AVG:
            return [(name, self._part(Kind.SUM)), (count_of(name), self._part(Kind.COUNT))]
        if self.kind in _SUMMARIES:
            return [(name, self._part(_SUMMARIES[self.kind]))]
        if self.kind in MOMENTS:
            parts = (name, Kind.M2), (mean_of(name), Kind.MEAN), (count_of(name), Kind.COUNT)
            return [(part, self._part(kind)) for part, kind in parts]
        if self.kind is Kind.FIRST:
            return [(name, self), (count_of(name), Aggregate(Kind.COUNT, ALL_ROWS))]
        if self.kind in (Kind.MIN_BY, Kind.MAX_BY):
            order = self.by or self  # a definition that was read has the text of both
            extreme = Kind.MIN if self.kind is Kind.MIN_BY else Kind.MAX
            return [(name, self), (order_of(name), Aggregate(extreme, order.column, order.expression))]
        return [(name, self)]

    def _part(self, kind: Kind) -> Aggregate:
        return replace(self, kind=kind)

    def values(self, table: pa.Table) -> Any:
        """Return the column of a table, bytes if it is nested.

        Raises StateError if there is none, or its types do not fit.
        """
        if self.kind is Kind.SET and self.by is not None:
            return collected.rows_of([replace(argument, by=None).values(table) for argument in self.chain()])
        column = self.column_of(table)
        if not is_nested(column.type):
            return column
        return ordered(column) if self.kind in (Kind.MIN, Kind.MAX) else packed(column)

    def column_of(self, table: pa.Table) -> Any:
        """Return the column of a table as it is. Raises StateError as `values` does."""
        if self.column == ALL_ROWS:
            return pa.chunked_array([pa.array(np.ones(len(table), np.int8))])
        needed = (self.column,) if self.expression is None else self.expression.columns
        if missing := [name for name in needed if name not in table.column_names]:
            raise StateError(f"no column {missing[0]!r} among {', '.join(table.column_names)}")
        if self.expression is None:
            return table[self.column]
        return pa.chunked_array([self.expression.values(table)])

    def chain(self) -> list[Aggregate]:
        """Return it with those behind it in `by`."""
        return [self] if self.by is None else [self, *self.by.chain()]

    @property
    def is_derived(self) -> bool:
        """True if the result is computed from its parts."""
        return self.kind is Kind.AVG or self.kind in _SUMMARIES or self.kind in MOMENTS

    def derived_type(self, stored: pa.DataType | None) -> pa.DataType:
        """Return the type of a derived result. stored: of its name in the layout's kinds, None for a number."""
        if self.kind is Kind.APPROX_PERCENTILE:
            return stored
        if self.kind is Kind.SUM_DISTINCT and stored is not None:
            return stored.value_type
        if self.kind is Kind.AVG and stored is not None:
            return stored
        return pa.int64() if self.kind in _SUMMARIES else pa.float64()

    def derived(self, name: str, parts: Mapping[str, Any], stored: pa.DataType | None) -> Any:
        """Return the results of a state's parts by name: arrays of NumPy, of bytes Arrow's."""
        whole, kind = parts[name], self.derived_type(stored)
        if self.kind in _SUMMARIES:
            return collected.result(_SUMMARIES[self.kind].value, self.arguments, whole, kind)
        count = parts[count_of(name)]
        if pa.types.is_decimal(kind):
            return decimals.means(fixed(whole, decimals.summed_of(kind)), pa.array(count), kind)
        if self.kind in (Kind.AVG, Kind.VAR_POP, Kind.STDDEV_POP):
            result, has = whole / np.maximum(count, 1), count > 0
        else:
            result, has = whole / np.maximum(count - 1, 1), count > 1
        return pa.array(
            np.sqrt(result) if self.kind in (Kind.STDDEV_POP, Kind.STDDEV_SAMP) else result, kind, mask=~has
        )


def has_of(name: str) -> str:
    """Return the column of a row that says whether there is a value of this name."""
    return f"has {name}"


def count_of(name: str) -> str:
    """Return the column of a row with the rows that a result of this name has seen."""
    return f"count of {name}"


def mean_of(name: str) -> str:
    """Return the column of a row with the mean of a result of this name."""
    return f"mean of {name}"


def order_of(name: str) -> str:
    """Return the column of a row with the value that orders the chosen row of this name."""
    return f"order of {name}"
