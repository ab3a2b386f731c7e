"""Decimals of up to 38 digits, computed exactly and bounded as Spark does."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

DIGITS = 38
"""Most digits of a decimal."""
_WIDEST = 76


def wide(values: Any) -> Any:
    """Return decimals as those of the most digits that Arrow computes with."""
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


def means(sums: Any, counts: Any, kind: pa.DataType) -> Any:
    """Return averages of a type; null without rows, or beyond its digits."""
    by = pc.if_else(pc.greater(counts, 0), counts, pa.scalar(None, pa.int64())).cast(pa.decimal256(19, 0))
    return rounded(pc.divide(sums.cast(pa.decimal256(DIGITS, sums.type.scale)), by), kind)


def added(one: Any, other: Any) -> Any:
    """Return the sums of decimals of one type, with a digit more."""
    kind = pa.decimal256(DIGITS, one.type.scale)
    return pc.add(one.cast(kind), other.cast(kind))


def rounded(values: Any, kind: pa.DataType) -> Any:
    """Return decimals as those of a type, half away from zero; null beyond its digits."""
    values = wide(values)
    if values.type.scale > kind.scale:
        values = pc.round(values, kind.scale, "half_towards_infinity")
    values = values.cast(pa.decimal256(_WIDEST, kind.scale))
    edge = pa.scalar(Decimal(10).scaleb(kind.precision - kind.scale - 1), values.type)
    return pc.if_else(pc.less(pc.abs(values), edge), values, pa.scalar(None, values.type)).cast(kind)
