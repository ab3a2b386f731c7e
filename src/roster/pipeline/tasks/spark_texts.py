"""Values as the text that Spark makes of them: `to_json`, and numbers as the JVM writes them.

From Java 19 on the text of a number is the shortest that names it. Before, it is longer for some large and some very
small ones: `is_shortest` tells.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.pipeline.tasks.result_records import CAPITALS, escaped, utc_texts
from roster.state.byte_slices import Column

_PLAIN_MOST = 1e7
"""Numbers from here on have an exponent, as those below 0.001."""
_FEWEST = 1e-3
_LONG_BITS = 63


def json_of(values: Column, *, is_shortest: bool) -> Column:
    """Return structs as JSON objects, without the fields that are null, as `to_json` does in UTC; null for null."""
    if isinstance(values, pa.Scalar):
        return json_of(pa.array([values.as_py()], values.type), is_shortest=is_shortest)[0]
    members = [
        _member(field.name, part, is_shortest) for field, part in zip(values.type, values.flatten(), strict=True)
    ]
    body = pc.binary_join_element_wise(*members, "") if members else pa.repeat("", len(values))
    text = pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(body, 1), "}", "")
    return pc.if_else(values.is_valid(), text, pa.scalar(None, pa.string()))


def _member(name: str, values: pa.Array, is_shortest: bool) -> pa.Array:
    """Return a field with a comma in front, "" where it is null."""
    kind = values.type
    quote = '"'
    if pa.types.is_struct(kind):
        text, quote = json_of(values, is_shortest=is_shortest), ""
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        text, quote = values.cast(pa.string()), ""
    elif pa.types.is_floating(kind):
        text, quote = number_texts(values, is_shortest=is_shortest), ""
        is_number = pc.is_finite(values)
        if not pc.all(is_number).as_py():
            text = pc.if_else(is_number, text, pc.binary_join_element_wise('"', text, '"', ""))
    elif pa.types.is_timestamp(kind):
        text = _times(values)
    elif pa.types.is_date(kind):
        text = _days(values)
    else:
        text = escaped(values.cast(pa.string()), CAPITALS)
    named = pc.binary_join_element_wise(f",{_quoted(name)}:{quote}", text, quote, "")
    return pc.fill_null(named, "") if named.null_count else named


def _times(values: pa.Array) -> pa.Array:
    """Return times in UTC to the millisecond; before and behind the years of four digits as Java does."""
    millis = pc.floor_temporal(values, unit="millisecond").cast(pa.timestamp("ms", "UTC"))
    return _years(utc_texts(millis), "Z")


def _days(values: pa.Array) -> pa.Array:
    text = np.datetime_as_string(values.to_numpy(zero_copy_only=False).astype("datetime64[D]"))
    return _years(pa.array(text, pa.string(), mask=np.asarray(values.is_null())), "")


def _years(text: pa.Array, end: str) -> pa.Array:
    """Return dates with years as Java's pattern yyyy writes them."""
    if pc.any(pc.invert(pc.match_substring_regex(text, r"^\d{4}-"))).as_py():
        text = pa.array([None if date is None else _year(date) for date in text.to_pylist()], pa.string())
    return pc.binary_join_element_wise(text, end, "")


def _year(text: str) -> str:
    sign = "-" if text[0] == "-" else ""
    year, _, day = text.lstrip("+-").partition("-")
    number = int(sign + year)
    era = number if number > 0 else 1 - number
    return f"{'+' if era > 9999 else ''}{era:04}-{day}"


def number_texts(values: Column, *, is_shortest: bool) -> Column:
    """Return the texts of doubles or floats as `Double.toString` and `Float.toString` write them."""
    if isinstance(values, pa.Scalar):
        return number_texts(pa.array([values.as_py()], values.type), is_shortest=is_shortest)[0]
    numbers = values.fill_null(1).to_numpy(zero_copy_only=False)
    sizes = np.abs(numbers)
    is_plain = ((sizes >= _FEWEST) & (sizes < _PLAIN_MOST)) | ((sizes == 0) & ~np.signbit(numbers))
    text = values.cast(pa.string())
    is_whole = pa.array(is_plain & (numbers == np.floor(numbers)))
    text = pc.if_else(is_whole, pc.binary_join_element_wise(text, ".0", ""), text)
    if is_plain.all():
        return text
    odd = np.flatnonzero(~is_plain)
    others = pa.array([_number(number, is_shortest=is_shortest) for number in numbers[odd]], pa.string())
    order = np.arange(len(values))
    order[odd] = len(values) + np.arange(len(odd))
    return pa.concat_arrays([text, others]).take(pa.array(order, mask=np.asarray(values.is_null())))


def _number(number: Any, *, is_shortest: bool) -> str:
    """Return the text of a number of NumPy's that is not plain."""
    if np.isnan(number):
        return "NaN"
    sign = "-" if np.signbit(number) else ""
    if np.isinf(number):
        return f"{sign}Infinity"
    if number == 0:
        return f"{sign}0.0"
    size = abs(number)
    bits = np.finfo(size).nmant + 1
    mantissa, power = np.frexp(size)
    if is_shortest or (_FEWEST <= size < 2.0**bits) or (size < _FEWEST and mantissa != 0.5):
        text, _, exponent = np.format_float_scientific(size, unique=True, trim="-").partition("e")
        digits, first = text.replace(".", ""), int(exponent)
    elif power <= _LONG_BITS:
        digits, first = _digits_of_long(int(size), int(power) - bits - 2)
    else:
        digits, first = _digits_within(size, is_power=mantissa == 0.5)
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{first}"


def _digits_of_long(number: int, free_bits: int) -> tuple[str, int]:
    """Return the digits of a whole number without those that its free bits decide, and the exponent of the first."""
    unit = 10 ** (len(str(1 << free_bits)) - 1 if free_bits > 1 else 0)
    digits = str((number + unit // 2) // unit)
    first = len(digits) + len(str(unit)) - 2
    return digits.rstrip("0"), first


def _digits_within(size: Any, *, is_power: bool) -> tuple[str, int]:
    """Return the fewest digits, two at least, less than half a step away from a number; for powers of two a quarter."""
    exact, near = Fraction(float(size)), Fraction(float(np.spacing(size))) / (4 if is_power else 2)
    first = int(np.floor(np.log10(float(size))))
    first += (Fraction(10) ** (first + 1) <= exact) - (Fraction(10) ** first > exact)
    for count in range(2, 20):
        unit = Fraction(10) ** (first - count + 1)
        below, rest = divmod(exact, unit)
        is_low, is_high = rest < near, unit - rest < near
        if is_low or is_high:
            is_up = is_high and (not is_low or 2 * rest > unit or (2 * rest == unit and below % 2 == 1))
            digits = str(int(below) + is_up)
            return digits.rstrip("0"), first + len(digits) - count
    raise AssertionError(size)


def _quoted(name: str) -> str:
    return f'"{escaped(pa.array([name], pa.string()), CAPITALS)[0].as_py()}"'
