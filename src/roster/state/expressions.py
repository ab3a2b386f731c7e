"""Expressions over columns, with Spark's types and nulls, evaluated by Arrow.

Where Spark's ANSI mode ends a query with an error (a division by zero, an overflow, a text that is not a number), the
value is null, as with Spark's `try_` functions: so a record cannot stop a partition for ever.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.state import decimals
from roster.state.byte_slices import Column, as_bytes
from roster.state.keys import is_text
from roster.state.store import StateError


@dataclass(frozen=True, slots=True)
class Name:
    """A column."""

    column: str

    def __str__(self) -> str:
        return self.column if re.fullmatch(r"[A-Za-z_]\w*", self.column) else f"`{self.column.replace('`', '``')}`"


@dataclass(frozen=True, slots=True)
class Constant:
    """A value. kind: Spark's name of its type; dates and timestamps are days and microseconds since the epoch."""

    value: bool | int | float | str | Decimal | None
    kind: str

    def __str__(self) -> str:
        if self.value is None or isinstance(self.value, bool):
            return {None: "null", True: "true", False: "false"}[self.value]
        if self.kind == "string":
            return "'" + str(self.value).replace("'", "''") + "'"
        if isinstance(self.value, Decimal) and not self.kind.endswith(",0)"):
            return f"{self.value:f}"
        if isinstance(self.value, Decimal):
            return f"{self.value:f}BD"
        return f"{self.kind} {self.value}" if self.kind in ("date", "timestamp") else str(self.value)


@dataclass(frozen=True, slots=True)
class Call:
    """A function of `FUNCTIONS` with its arguments; `cast to …` has the type in its name."""

    function: str
    arguments: tuple[Expression, ...]

    def __str__(self) -> str:
        texts = [str(argument) for argument in self.arguments]
        if len(texts) == 2 and not self.function[0].isalpha():
            return f"({texts[0]} {self.function} {texts[1]})"
        return f"{self.function}({', '.join(texts)})"


Expression: TypeAlias = Name | Constant | Call

TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "void": pa.null(),
}
"""Types of constants and casts, by Spark's names."""


def names_of(expression: Expression) -> Iterator[str]:
    """Yield the columns of an expression."""
    if isinstance(expression, Name):
        yield expression.column
    elif isinstance(expression, Call):
        for argument in expression.arguments:
            yield from names_of(argument)


def evaluate(expression: Expression, table: pa.Table) -> Column:
    """Return the value of each row. Raises StateError that quotes the part whose types do not fit."""
    value = _evaluate(expression, table)
    return pa.repeat(value, len(table)) if isinstance(value, pa.Scalar) else value


def _evaluate(expression: Expression, table: pa.Table) -> Column:
    """Return an array, or a scalar if all rows have the same value."""
    if isinstance(expression, Name):
        return pa.concat_arrays([pa.array([], table[expression.column].type), *table[expression.column].chunks])
    if isinstance(expression, Constant):
        return pa.scalar(expression.value, type_of(expression.kind))
    arguments = [_evaluate(argument, table) for argument in expression.arguments]
    if expression.function in _OF_TWO and any(pa.types.is_decimal(value.type) for value in arguments):
        pairs = zip(expression.arguments, arguments, strict=True)
        arguments = [_of_digits(argument, value) for argument, value in pairs]
    try:
        return _function_of(expression.function)(*arguments)
    except (pa.ArrowException, _MisfitError) as error:
        kinds = ", ".join(str(value.type) for value in arguments)
        fix = "; cast decimals to double" if any(pa.types.is_decimal(value.type) for value in arguments) else ""
        raise StateError(f"{expression}: {expression.function} does not take {kinds}{fix}") from error


def type_of(name: str) -> pa.DataType | None:
    """Return the type that Spark calls so, None for one that is not supported."""
    return TYPES.get(name) or decimals.type_of_name(name)


def is_function(name: str) -> bool:
    """Return True for what a call may name."""
    return name in FUNCTIONS or _decimal_goal(name) is not None


def _function_of(name: str) -> Callable[..., Column]:
    goal = _decimal_goal(name)
    return FUNCTIONS[name] if goal is None else _cast_to_decimal(goal)


def _decimal_goal(function: str) -> pa.DataType | None:
    """Return the type of a cast to decimals, None for other functions."""
    return decimals.type_of_name(function.removeprefix("cast to ")) if function.startswith("cast to ") else None


def _of_digits(expression: Expression, value: Column) -> Column:
    """Return the value of an expression, of a constant that is an integer as a decimal of so many digits as it has."""
    number = expression.value if isinstance(expression, Constant) else None
    return decimals.of_digits(number) if isinstance(number, int) and not isinstance(number, bool) else value


class _MisfitError(Exception):
    """Types of arguments that Spark would not take either, or that are not supported."""


def _is_number(kind: pa.DataType) -> bool:
    is_plain = pa.types.is_signed_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)
    return bool(is_plain or pa.types.is_decimal128(kind))


def _are_decimals(*columns: Column) -> bool:
    """Return True for numbers that are computed as decimals: without floats."""
    kinds = [column.type for column in columns]
    is_exact = all(_is_number(kind) and not pa.types.is_floating(kind) for kind in kinds)
    return is_exact and any(pa.types.is_decimal128(kind) for kind in kinds)


def _as_decimals(*columns: Column) -> list[Column]:
    """Return numbers as decimals; nulls have the type of another one."""
    kind = next((column.type for column in columns if pa.types.is_decimal128(column.type)), None)
    plain = [column.cast(kind) if pa.types.is_null(column.type) else column for column in columns]
    return [decimals.of_integers(column) if pa.types.is_integer(column.type) else column for column in plain]


def _as_floats(column: Column, goal: pa.DataType) -> Column:
    if pa.types.is_decimal(column.type):
        return column.cast(pa.string()).cast(goal)  # the nearest, which Arrow's cast of decimals is not
    return column.cast(goal, safe=False)


def _common(*columns: Column) -> list[Column]:
    """Cast to the type that Spark gives to values of these types together."""
    kinds = [column.type for column in columns if not pa.types.is_null(column.type)]
    if not kinds:
        return list(columns)
    if _are_decimals(*columns):
        exact = _as_decimals(*columns)
        goal = decimals.common_type([column.type for column in exact])
        return [decimals.rounded(column, goal) for column in exact]
    if all(_is_number(kind) for kind in kinds):
        floats = [kind for kind in kinds if pa.types.is_floating(kind)]
        widest = max(kinds, key=lambda kind: kind.bit_width)
        mixed = floats and (len(floats) < len(kinds) or pa.types.is_float64(widest))
        goal = pa.float64() if mixed else widest
    elif all(is_text(kind) for kind in kinds):
        goal = pa.string()
    elif all(pa.types.is_timestamp(kind) for kind in kinds):
        goal = pa.timestamp("us", "UTC")
    elif len(set(kinds)) == 1:
        goal = kinds[0]
    else:
        raise _MisfitError
    return [_as_floats(column, goal) if pa.types.is_floating(goal) else column.cast(goal) for column in columns]


def _numbers(*columns: Column) -> list[Column]:
    if not all(_is_number(column.type) for column in columns):
        raise _MisfitError
    return _common(*columns)


def _doubles(*columns: Column) -> list[Column]:
    return [_as_floats(column, pa.float64()) for column in _numbers(*columns)]


def _by_rows(function: Callable[..., Column]) -> Callable[..., Column]:
    """Return a function of arrays, which gets scalars as often as the others have rows."""

    def apply(*columns: Column) -> Column:
        lengths = [len(column) for column in columns if not isinstance(column, pa.Scalar)]
        rows = lengths[0] if lengths else 1
        result = function(*(pa.repeat(column, rows) if isinstance(column, pa.Scalar) else column for column in columns))
        return result if lengths else result[0]

    return apply


def _of_decimals(operator: str, *columns: Column) -> Column:
    return _by_rows(functools.partial(decimals.computed, operator))(*_as_decimals(*columns))


def _arithmetic(
    checked: Callable[..., Column], plain: Callable[..., Column], operator: str = ""
) -> Callable[..., Column]:
    """Return an operator of numbers; an integer or a decimal beyond its type is null."""

    @_by_rows
    def exactly(*columns: Column) -> Column:
        kind = columns[0].type
        least, most = -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        values = [None if None in row else plain(*row) for row in rows]
        return pa.array([value if value is not None and least <= value <= most else None for value in values], kind)

    def apply(*columns: Column) -> Column:
        if operator and _are_decimals(*columns):
            return _of_decimals(operator, *columns)
        numbers = _numbers(*columns)
        try:
            return checked(*numbers)
        except pa.ArrowInvalid:  # beyond the type
            return exactly(*numbers)

    return apply


def _unless(bad: Column, value: Column) -> Column:
    """Return null where `bad`."""
    return pc.if_else(bad, pa.scalar(None, value.type), value)


def _divide(left: Column, right: Column) -> Column:
    if _are_decimals(left, right):
        return _of_decimals("/", left, right)
    left, right = _doubles(left, right)
    return _unless(pc.equal(right, 0.0), pc.divide(left, right))


@_by_rows
def _remainder(left: Column, right: Column) -> Column:
    if _are_decimals(left, right):
        return _of_decimals("%", left, right)
    left, right = _numbers(left, right)
    by = _unless(pc.equal(right, 0), right)
    missing = pc.is_null(pc.add(left, by)).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):  # of an infinity: NaN
        result = np.fmod(*(side.fill_null(1).to_numpy(zero_copy_only=False) for side in (left, by)))
    return pa.array(result, left.type, mask=missing)


def _compare(operator: Callable[..., Column], *, of_nan: Callable[[Column, Column], Column]) -> Callable[..., Column]:
    """Return a comparison in which NaN is equal to itself and greater than all other numbers, as in Spark."""

    def apply(left: Column, right: Column) -> Column:
        left, right = _common(left, right)
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


def _booleans(function: Callable[..., Column]) -> Callable[..., Column]:
    def apply(*columns: Column) -> Column:
        if not all(pa.types.is_boolean(column.type) or pa.types.is_null(column.type) for column in columns):
            raise _MisfitError
        return function(*(column.cast(pa.bool_()) for column in columns))

    return apply


def _case(*columns: Column) -> Column:
    """Conditions with their values in turn, and the value if no condition holds."""
    *pairs, other = columns if len(columns) % 2 else (*columns, pa.scalar(None))
    other, *values = _common(other, *pairs[1::2])
    for condition, value in reversed(list(zip(pairs[::2], values, strict=True))):
        if not pa.types.is_boolean(condition.type):
            raise _MisfitError
        other = pc.if_else(pc.fill_null(condition, False), value, other)
    return other


def _is_in(value: Column, *others: Column) -> Column:
    return functools.reduce(pc.or_kleene, (_equal(value, other) for other in others))


def _texts(function: Callable[..., Column]) -> Callable[..., Column]:
    def apply(*columns: Column) -> Column:
        if not all(pa.types.is_string(column.type) or pa.types.is_large_string(column.type) for column in columns):
            raise _MisfitError
        return function(*columns)

    return apply


def _by_pattern(function: Callable[..., Column]) -> Callable[..., Column]:
    """Return a function of texts whose second argument is a constant."""

    def apply(value: Column, pattern: Column) -> Column:
        if not isinstance(pattern, pa.Scalar):
            raise _MisfitError
        return function(value, pattern.as_py())

    return _texts(apply)


def _whole(function: Callable[..., Column]) -> Callable[..., Column]:
    """Return a function that makes whole numbers of floats."""

    def apply(value: Column) -> Column:
        (value,) = _numbers(value)
        if pa.types.is_decimal(value.type):
            raise _MisfitError
        return _to_integers(function(value), pa.int64())

    return apply


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
    def apply(value: Column) -> Column:
        kind = value.type
        if kind == goal or pa.types.is_null(kind):
            return value.cast(goal)
        if pa.types.is_string(kind) and (pa.types.is_integer(goal) or pa.types.is_floating(goal)):
            return _from_text(value, goal)
        if pa.types.is_decimal(kind):
            return _from_decimal(value, goal)
        if _is_number(kind) or pa.types.is_boolean(kind):
            if pa.types.is_integer(goal):
                return _to_integers(value.cast(pa.int8()) if pa.types.is_boolean(kind) else value, goal)
            is_exact = not pa.types.is_floating(kind)
            if pa.types.is_floating(goal) or (pa.types.is_string(goal) and is_exact) or pa.types.is_boolean(goal):
                return value.cast(goal, safe=False)
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(goal):
            return value.cast(goal)
        raise _MisfitError

    return apply


def _from_decimal(value: Column, goal: pa.DataType) -> Column:
    if pa.types.is_integer(goal):
        return decimals.truncated(value, goal)
    if pa.types.is_floating(goal):
        return _as_floats(value, goal)
    raise _MisfitError


def _cast_to_decimal(goal: pa.DataType) -> Callable[..., Column]:
    """Return a cast that rounds half away from zero; null beyond the type, and for texts that are not numbers."""

    def apply(value: Column) -> Column:
        kind = value.type
        if pa.types.is_null(kind):
            return value.cast(goal)
        if pa.types.is_floating(kind):
            return decimals.by_rows(lambda number: Decimal(repr(number)), [value.to_pylist()], goal)
        if pa.types.is_string(kind):
            trimmed = pc.utf8_trim(value, _BLANKS)
            plain = _unless(pc.invert(pc.match_substring_regex(trimmed, _DECIMAL)), trimmed)
            return decimals.by_rows(Decimal, [plain.to_pylist()], goal)
        if pa.types.is_signed_integer(kind) or pa.types.is_decimal128(kind):
            return decimals.rounded(_as_decimals(value)[0], goal)
        raise _MisfitError

    return _by_rows(apply)


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
    trimmed = pc.utf8_trim(value, _BLANKS if is_whole else _BLANKS[:-1])
    plain = _unless(pc.invert(pc.match_substring_regex(trimmed, _INTEGER if is_whole else _FLOAT)), trimmed)
    plain = pc.replace_substring_regex(plain, r"^\+", "")
    if not is_whole:
        return pc.replace_substring_regex(plain, r"(\d\.?)[dDfF]$", r"\1").cast(goal)
    try:
        return _to_integers(plain.cast(pa.int64()), goal)
    except pa.ArrowInvalid:  # 19 digits may be beyond the type
        return _to_integers(_unless(_is_beyond(plain), plain).cast(pa.int64()), goal)


@_by_rows
def _is_beyond(texts: Column) -> Column:
    return pa.array([text is not None and not -(2**63) <= int(text) < 2**63 for text in texts.to_pylist()])


def _of_doubles(function: Callable[..., Column], *, only: Callable[..., Column] | None = None) -> Callable[..., Column]:
    """Return a function of float64. only: where it has a value."""

    def apply(*columns: Column) -> Column:
        doubles = _doubles(*columns)
        result = function(*doubles)
        return result if only is None else _unless(pc.invert(only(*doubles)), result)

    return apply


_OF_TWO = frozenset({"+", "-", "*", "/", "%", "=", "<=>", "<", "<=", ">", ">=", "between"})
"""Operators in which an integer constant beside a decimal is one of as many digits."""
FUNCTIONS: dict[str, Callable[..., Column]] = {
    "+": _arithmetic(pc.add_checked, lambda left, right: left + right, "+"),
    "-": _arithmetic(pc.subtract_checked, lambda left, right: left - right, "-"),
    "*": _arithmetic(pc.multiply_checked, lambda left, right: left * right, "*"),
    "/": _divide,
    "%": _remainder,
    "negative": _arithmetic(pc.negate_checked, lambda value: -value),
    "abs": _arithmetic(pc.abs_checked, abs),
    "ceil": _whole(pc.ceil),
    "floor": _whole(pc.floor),
    "sqrt": _of_doubles(pc.sqrt),
    "exp": _of_doubles(pc.exp),
    "ln": _of_doubles(pc.ln, only=lambda value: pc.invert(pc.less_equal(value, 0.0))),
    "power": _of_doubles(pc.power),
    "=": _equal,
    "<=>": _null_safe_equal,
    "<": _less,
    "<=": _less_or_equal,
    ">": lambda left, right: _less(right, left),
    ">=": lambda left, right: _less_or_equal(right, left),
    "and": _booleans(pc.and_kleene),
    "or": _booleans(pc.or_kleene),
    "not": _booleans(pc.invert),
    "in": _is_in,
    "between": lambda value, low, high: pc.and_kleene(_less_or_equal(low, value), _less_or_equal(value, high)),
    "case": _case,
    "isnull": pc.is_null,
    "isnotnull": pc.is_valid,
    "isnan": lambda value: pc.fill_null(pc.is_nan(_doubles(value)[0]), False),
    "coalesce": lambda *columns: pc.coalesce(*_common(*columns)),
    "nullif": lambda left, right: _unless(pc.fill_null(_equal(left, right), False), left),
    "length": _texts(pc.utf8_length),
    "lower": _texts(pc.utf8_lower),
    "upper": _texts(pc.utf8_upper),
    "trim": _texts(lambda value: pc.utf8_trim(value, " ")),
    "concat": _texts(lambda *columns: pc.binary_join_element_wise(*columns, "")),
    "contains": _by_pattern(pc.match_substring),
    "startswith": _by_pattern(pc.starts_with),
    "endswith": _by_pattern(pc.ends_with),
    "like": _by_pattern(pc.match_like),
} | {
    f"cast to {name}": _cast(kind)
    for name, kind in TYPES.items()
    if name in {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "timestamp"}
}
"""What an expression may call, by Spark's names: arrays or scalars in, an array or a scalar out."""
