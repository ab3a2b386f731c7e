"""Decimals of up to 38 digits, computed exactly and bounded as Spark does."""

from __future__ import annotations

import operator as operators
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext

import pyarrow as pa
import pyarrow.compute as pc

from roster.state.byte_slices import Column

DIGITS = 38
"""Most digits of a decimal."""
_WIDEST = 76


def wide(values: Column) -> Column:
    """Return decimals with the most digits that Arrow computes with."""
    return values.cast(pa.decimal256(_WIDEST, values.type.scale))


def sum_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of sums of decimals."""
    return pa.decimal128(min(kind.precision + 10, DIGITS), kind.scale)


def mean_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of averages of decimals, whose scale has four digits more."""
    return pa.decimal128(min(kind.precision + 4, DIGITS), kind.scale + 4)


def summed_of(mean: pa.DataType) -> pa.DataType:
    """Return the type of the sums that averages are made of."""
    return pa.decimal128(DIGITS, mean.scale - 4)


def means(sums: Column, counts: Column, kind: pa.DataType) -> Column:
    """Return averages of a type; null without rows, or beyond its digits."""
    by = pc.if_else(pc.greater(counts, 0), counts, pa.scalar(None, pa.int64())).cast(pa.decimal256(19, 0))
    return rounded(pc.divide(sums.cast(pa.decimal256(DIGITS, sums.type.scale)), by), kind)


def added(one: Column, other: Column) -> Column:
    """Return the sums of decimals of one type, with a digit more."""
    kind = pa.decimal256(DIGITS, one.type.scale)
    return pc.add(one.cast(kind), other.cast(kind))


def rounded(values: Column, kind: pa.DataType) -> Column:
    """Round decimals to a type, half away from zero; null beyond its digits."""
    whole = values.type.precision - values.type.scale
    if values.type.scale <= kind.scale and whole <= kind.precision - kind.scale:
        return values.cast(kind)
    values = wide(values)
    if values.type.scale > kind.scale:
        values = pc.round(values, kind.scale, "half_towards_infinity")
    values = values.cast(pa.decimal256(_WIDEST, kind.scale))
    edge = pa.scalar(Decimal(10).scaleb(kind.precision - kind.scale - 1), values.type)
    return pc.if_else(pc.less(pc.abs(values), edge), values, pa.scalar(None, values.type)).cast(kind)


def type_of_name(name: str) -> pa.DataType | None:
    """Return the decimal type that Spark calls so, None for another type."""
    match = _NAME.fullmatch(name)
    return pa.decimal128(int(match[1]), int(match[2])) if match else None


def of_integers(values: Column) -> Column:
    """Return integers as decimals that hold all values of their type."""
    return values.cast(pa.decimal128(_DIGITS_OF[values.type.bit_width], 0))


def truncated(values: Column, kind: pa.DataType) -> Column:
    """Return decimals as integers of a type, towards zero; null beyond it."""
    whole = pc.round(wide(values), 0, "towards_zero").cast(pa.decimal256(_WIDEST, 0))
    edge = 1 << (kind.bit_width - 1)
    least, most = (pa.scalar(Decimal(bound), whole.type) for bound in (-edge, edge - 1))
    fits = pc.and_(pc.greater_equal(whole, least), pc.less_equal(whole, most))
    return pc.if_else(fits, whole, pa.scalar(None, whole.type)).cast(kind)


def computed(operator: str, left: Column, right: Column) -> Column:
    """Return the results of an operator on two columns; null beyond the type, and of a division by zero."""
    plain, of_columns, type_of = _OPERATORS[operator]
    kind = _adjusted(*type_of(left.type, right.type))
    try:
        return rounded(of_columns(left, right, kind.scale), kind)
    except pa.ArrowInvalid:  # Arrow would need more than 76 digits
        return by_rows(plain, [left.to_pylist(), right.to_pylist()], kind)


def by_rows(function: Callable[..., Decimal], columns: Sequence[Column], kind: pa.DataType) -> Column:
    """Return the function of each row as decimals of a type, half away from zero; null beyond it or without a value."""
    step, most, results = Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale), []
    with localcontext(Context(prec=_EXACT, rounding=ROUND_HALF_UP)):
        for row in zip(*columns, strict=True):
            try:
                value = None if None in row else function(*row).quantize(step)
                results.append(value if value is not None and abs(value) < most else None)
            except ArithmeticError:
                results.append(None)
    return pa.array(results, kind)


def _adjusted(precision: int, scale: int) -> pa.DataType:
    """Return a type of at most 38 digits: the last ones behind the point are given up, but for six."""
    kept = scale if precision <= DIGITS else max(DIGITS - (precision - scale), min(scale, _LEAST_SCALE))
    return pa.decimal128(min(precision, DIGITS), kept)


def _sum_of(left: pa.DataType, right: pa.DataType) -> tuple[int, int]:
    scale = max(left.scale, right.scale)
    return max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale


def _product_of(left: pa.DataType, right: pa.DataType) -> tuple[int, int]:
    return left.precision + right.precision + 1, left.scale + right.scale


def _quotient_of(left: pa.DataType, right: pa.DataType) -> tuple[int, int]:
    scale = max(_LEAST_SCALE, left.scale + right.precision + 1)
    return left.precision - left.scale + right.scale + scale, scale


def _rest_of(left: pa.DataType, right: pa.DataType) -> tuple[int, int]:
    scale = max(left.scale, right.scale)
    return min(left.precision - left.scale, right.precision - right.scale) + scale, scale


def _larger(values: Column) -> Column:
    return values.cast(pa.decimal256(values.type.precision, values.type.scale))


def _exactly(function: Callable[..., Column]) -> Callable[..., Column]:
    return lambda left, right, _: function(_larger(left), _larger(right))


def _divided(left: Column, right: Column, scale: int) -> Column:
    """Return quotients that are cut off at least a digit behind the scale."""
    divisor = _larger(pc.if_else(pc.equal(right, pa.scalar(0, right.type)), pa.scalar(None, right.type), right))
    more = max(scale + right.type.scale - right.type.precision - left.type.scale, 0)
    dividend = left.cast(pa.decimal256(left.type.precision + more, left.type.scale + more))
    return pc.divide(dividend, divisor)


def _none(left: Column, right: Column, scale: int) -> Column:
    raise pa.ArrowInvalid("Arrow has no such function")


_NAME = re.compile(r"decimal\((\d+),(\d+)\)")
_DIGITS_OF = {8: 3, 16: 5, 32: 10, 64: 20}
"""Digits of integers by their bits."""
_LEAST_SCALE = 6
_EXACT = 160
"""Digits with which quotients of decimals round as exact ones do; all other results are exact."""
_OPERATORS: dict[str, tuple[Callable[..., Column], Callable[..., Column], Callable[..., tuple[int, int]]]] = {
    "+": (operators.add, _exactly(pc.add), _sum_of),
    "-": (operators.sub, _exactly(pc.subtract), _sum_of),
    "*": (operators.mul, _exactly(pc.multiply), _product_of),
    "/": (operators.truediv, _divided, _quotient_of),
    "%": (operators.mod, _none, _rest_of),
}
"""Each operator by rows and by columns, and digits and scale of its results."""
