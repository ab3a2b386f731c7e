"""Expressions over columns: what an aggregate keeps of one, and Arrow's functions with Spark's values and nulls.

Arguments have the types that Spark casts them to. Where Spark's ANSI mode ends a query with an error (a division by
zero, an overflow, a text that is not a number), the value is null, as with Spark's `try_` functions: so a record cannot
stop a partition for ever.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.state import decimals
from roster.state.byte_slices import Column, as_bytes


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression over columns of a table.

    text: as definitions have it. columns: the names of those that it is made of. compute: makes its values.
    """

    text: str
    columns: tuple[str, ...]
    compute: Callable[[pa.RecordBatch], pa.RecordBatch] = field(compare=False, repr=False)

    def values(self, table: pa.Table) -> Column:
        """Return the value of each row. Raises ArithmeticError for values that a function does not take."""
        names = self.columns or table.column_names[:1]
        arrays = [pa.concat_arrays([pa.array([], table[name].type), *table[name].chunks]) for name in names]
        return self.compute(pa.RecordBatch.from_arrays(arrays, list(names))).column(0)


def quoted(column: str) -> str:
    """Return a column's name as texts of expressions have it."""
    return column if re.fullmatch(r"[A-Za-z_]\w*", column) else f"`{column.replace('`', '``')}`"


def _as_floats(column: Column, goal: pa.DataType) -> Column:
    if pa.types.is_decimal(column.type):
        return column.cast(pa.string()).cast(goal)  # the nearest, which Arrow's cast of decimals is not
    return column.cast(goal, safe=False)


def by_rows(function: Callable[..., Column]) -> Callable[..., Column]:
    """Return a function of arrays, which gets scalars as often as the others have rows."""

    def apply(*columns: Column) -> Column:
        lengths = [len(column) for column in columns if not isinstance(column, pa.Scalar)]
        rows = lengths[0] if lengths else 1
        result = function(*(pa.repeat(column, rows) if isinstance(column, pa.Scalar) else column for column in columns))
        return result if lengths else result[0]

    return apply


def _of_decimals(operator: str, *columns: Column) -> Column:
    return by_rows(functools.partial(decimals.computed, operator))(*columns)


def _arithmetic(
    checked: Callable[..., Column], plain: Callable[..., Column], operator: str = ""
) -> Callable[..., Column]:
    """Return an operator of numbers; an integer or a decimal beyond its type is null."""

    @by_rows
    def exactly(*columns: Column) -> Column:
        kind = columns[0].type
        least, most = -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        values = [None if None in row else plain(*row) for row in rows]
        return pa.array([value if value is not None and least <= value <= most else None for value in values], kind)

    def apply(*columns: Column) -> Column:
        if operator and pa.types.is_decimal(columns[0].type):
            return _of_decimals(operator, *columns)
        try:
            return checked(*columns)
        except pa.ArrowInvalid:  # beyond the type
            return exactly(*columns)

    return apply


def _unless(bad: Column, value: Column) -> Column:
    """Return null where `bad`."""
    return pc.if_else(bad, pa.scalar(None, value.type), value)


def _divide(left: Column, right: Column) -> Column:
    if pa.types.is_decimal(left.type):
        return _of_decimals("/", left, right)
    return _unless(pc.equal(right, 0.0), pc.divide(left, right))


@by_rows
def _remainder(left: Column, right: Column) -> Column:
    if pa.types.is_decimal(left.type):
        return _of_decimals("%", left, right)
    by = _unless(pc.equal(right, 0), right)
    missing = pc.is_null(pc.add(left, by)).to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):  # of an infinity: NaN
        result = np.fmod(*(side.fill_null(1).to_numpy(zero_copy_only=False) for side in (left, by)))
    return pa.array(result, left.type, mask=missing)


def _compare(operator: Callable[..., Column], *, of_nan: Callable[[Column, Column], Column]) -> Callable[..., Column]:
    """Return a comparison in which NaN is equal to itself and greater than all other numbers, as in Spark."""

    def apply(left: Column, right: Column) -> Column:
        result = operator(left, right)
        if pa.types.is_floating(left.type):
            nans = pc.is_nan(left), pc.is_nan(right)
            result = pc.if_else(pc.or_(*nans), of_nan(*nans), result)
        return result

    return apply


_equal = _compare(pc.equal, of_nan=pc.and_)
_less = _compare(pc.less, of_nan=lambda left, right: pc.and_(pc.invert(left), right))
_less_or_equal = _compare(pc.less_equal, of_nan=lambda left, right: right)


def _null_safe_equal(left: Column, right: Column) -> Column:
    return pc.if_else(pc.and_(pc.is_null(left), pc.is_null(right)), True, pc.fill_null(_equal(left, right), False))


def _case(*columns: Column) -> Column:
    """Conditions with their values in turn, and the value if no condition holds."""
    *pairs, other = columns if len(columns) % 2 else (*columns, pa.scalar(None, columns[1].type))
    for condition, value in reversed(list(zip(pairs[::2], pairs[1::2], strict=True))):
        other = pc.if_else(pc.fill_null(condition, False), value, other)
    return other


def _is_in(value: Column, *others: Column) -> Column:
    return functools.reduce(pc.or_kleene, (_equal(value, other) for other in others))


def _by_pattern(function: Callable[..., Column]) -> Callable[..., Column]:
    """Return a function of texts whose second argument is a constant."""

    def apply(value: Column, pattern: pa.Scalar) -> Column:
        return function(value, pattern.as_py()) if pattern.is_valid else pc.equal(value, pattern)

    return apply


def _whole(function: Callable[..., Column]) -> Callable[..., Column]:
    """Return a function that makes whole numbers of floats."""
    return lambda value: _to_integers(function(value), pa.int64())


def _to_integers(value: Column, goal: pa.DataType) -> Column:
    """Cast numbers towards zero; null beyond the type."""
    if pa.types.is_floating(value.type):
        value = pc.trunc(value.cast(pa.float64()))
        edge = 2.0 ** (goal.bit_width - 1)
        fits = pc.and_(pc.greater_equal(value, -edge), pc.less(value, edge))
    else:
        edge = 1 << (goal.bit_width - 1)
        wide = value.cast(pa.int64())
        fits = pc.and_(pc.greater_equal(wide, -edge), pc.less_equal(wide, edge - 1))
    return _unless(pc.invert(fits), value).cast(goal)


def _cast(goal: pa.DataType) -> Callable[..., Column]:
    """Return a cast of numbers, booleans and texts to numbers; null beyond the type, and for other texts."""

    def apply(value: Column) -> Column:
        kind = value.type
        if pa.types.is_string(kind):
            return _from_text(value, goal)
        if pa.types.is_integer(goal) and pa.types.is_decimal(kind):
            return decimals.truncated(value, goal)
        if pa.types.is_integer(goal):
            return _to_integers(value.cast(pa.int8()) if pa.types.is_boolean(kind) else value, goal)
        return _as_floats(value, goal)

    return apply


def _cast_to_decimal(value: Column, goal: pa.DataType) -> Column:
    """Round half away from zero; null beyond the type, and for texts that are not numbers."""
    return by_rows(functools.partial(_decimals, goal=goal))(value)


def _decimals(value: Column, goal: pa.DataType) -> Column:
    if pa.types.is_floating(value.type):
        return decimals.by_rows(lambda number: Decimal(repr(number)), [value.to_pylist()], goal)
    if pa.types.is_string(value.type):
        trimmed = pc.ascii_trim(value, _BLANKS)
        plain = _unless(pc.invert(pc.match_substring_regex(trimmed, _DECIMAL)), trimmed)
        return decimals.by_rows(Decimal, [plain.to_pylist()], goal)
    return decimals.rounded(decimals.of_integers(value) if pa.types.is_integer(value.type) else value, goal)


_INTEGER = r"^[+-]?0*\d{1,19}$"
_DECIMAL = r"(?i)^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$"
_FLOAT = r"(?i)^([+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[df]?|[+-]?inf(inity)?|nan)$"
_BLANKS = "".join(map(chr, (*range(33), 127)))


def _from_text(value: Column, goal: pa.DataType) -> Column:
    """Return the numbers that texts say, null for others."""
    is_whole = pa.types.is_integer(goal)
    if isinstance(value, pa.Array) and not (as_bytes(value)[0] > ord("9")).any():
        # Without letters Arrow reads no text that Spark does not; where it stops, the patterns tell which ones.
        with contextlib.suppress(pa.ArrowInvalid):
            return _to_integers(value.cast(pa.int64()), goal) if is_whole else value.cast(goal)
    trimmed = pc.ascii_trim(value, _BLANKS if is_whole else _BLANKS[:-1])
    plain = _unless(pc.invert(pc.match_substring_regex(trimmed, _INTEGER if is_whole else _FLOAT)), trimmed)
    plain = pc.replace_substring_regex(plain, r"^\+", "")
    if not is_whole:
        return pc.replace_substring_regex(plain, r"(\d\.?)[dDfF]$", r"\1").cast(goal)
    try:
        return _to_integers(plain.cast(pa.int64()), goal)
    except pa.ArrowInvalid:  # 19 digits may be beyond the type
        return _to_integers(_unless(_is_beyond(plain), plain).cast(pa.int64()), goal)


@by_rows
def _is_beyond(texts: Column) -> Column:
    return pa.array([text is not None and not -(2**63) <= int(text) < 2**63 for text in texts.to_pylist()])


FUNCTIONS: dict[str, Callable[..., Column]] = {
    "try +": _arithmetic(pc.add_checked, lambda left, right: left + right, "+"),
    "try -": _arithmetic(pc.subtract_checked, lambda left, right: left - right, "-"),
    "try *": _arithmetic(pc.multiply_checked, lambda left, right: left * right, "*"),
    "try /": _divide,
    "try %": _remainder,
    "try negative": _arithmetic(pc.negate_checked, lambda value: -value),
    "try abs": _arithmetic(pc.abs_checked, abs),
    "try tinyint": _cast(pa.int8()),
    "try smallint": _cast(pa.int16()),
    "try int": _cast(pa.int32()),
    "try bigint": _cast(pa.int64()),
    "try float": _cast(pa.float32()),
    "try double": _cast(pa.float64()),
    "try decimal": _cast_to_decimal,
    "ceil": _whole(pc.ceil),
    "floor": _whole(pc.floor),
    "sqrt": pc.sqrt,
    "exp": pc.exp,
    "ln": lambda value: _unless(pc.less_equal(value, 0.0), pc.ln(value)),
    "power": pc.power,
    "=": _equal,
    "<=>": _null_safe_equal,
    "<": _less,
    "<=": _less_or_equal,
    ">": lambda left, right: _less(right, left),
    ">=": lambda left, right: _less_or_equal(right, left),
    "and": pc.and_kleene,
    "or": pc.or_kleene,
    "not": pc.invert,
    "in": _is_in,
    "case": _case,
    "isnull": pc.is_null,
    "isnotnull": pc.is_valid,
    "isnan": lambda value: pc.fill_null(pc.is_nan(value), False),
    "coalesce": pc.coalesce,
    "length": pc.utf8_length,
    "lower": pc.utf8_lower,
    "upper": pc.utf8_upper,
    "trim": lambda value: pc.ascii_trim(value, " "),
    "contains": _by_pattern(pc.match_substring),
    "startswith": _by_pattern(pc.starts_with),
    "endswith": _by_pattern(pc.ends_with),
    "like": _by_pattern(pc.match_like),
}
"""Functions by Spark's names, of a conversion its goal: arrays or scalars in, an array or a scalar out.

`try` marks those that have null where Spark may stop. That of decimals gets their type, too.
"""
