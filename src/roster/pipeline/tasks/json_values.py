"""JSON values parsed into columns; no Python runs for a row that fits the schema.

A compiled loop reads flat fields (`flat_json`). Rows that it does not decide, and other schemas, are parsed by Arrow.
Rows that Arrow refuses, such as malformed ones and numbers in place of text, are parsed one by one with the meaning of
Spark's `from_json`: a field that does not fit is null, a row that is not a JSON object has only nulls.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from roster.model.arrays import Bool
from roster.pipeline.tasks.flat_json import FlatJson, is_flat
from roster.pipeline.tasks.json_times import days_of, micros_of
from roster.pipeline.tasks.spark_texts import number_texts
from roster.pipeline.tasks.value_columns import BadValuesError, Read, ValueColumns, in_order
from roster.records.native import JSON, compiled

_FEW = 16
"""If Arrow refuses so few rows, all of them are parsed one by one."""
_TOGETHER = 4096
_DENSE = 64
"""If a bad row follows fewer good rows than this, as many rows after it are parsed one by one too."""
_MOST_BYTES = 1 << 30
_END = (1 << 31) - 1
_ROW = re.compile(r"in row (\d+)$")


class JsonError(BadValuesError):
    """A value is not a JSON object with the fields of the schema; raised in mode FAILFAST."""


class JsonColumns(ValueColumns):
    """Maps record batches to the fields of the JSON objects in a column, and kept columns; can be pickled."""

    method = "json_columns"

    def __init__(self, fields: pa.Schema, column: str, mode: str, keep: Sequence[str] = ()) -> None:
        super().__init__(fields, column, mode, keep)
        self._reader = JsonReader(fields)

    def _read(self, _: pa.RecordBatch, values: pa.Array) -> Read:
        rows, bad = self._reader.read(values)
        return Read(rows, JsonError, bad)


def unsupported(fields: pa.Schema) -> str | None:
    """Return the name of a field with an unsupported type, None if there is none."""
    return next((field.name for field in fields if not _is_supported(field.type)), None)


def _is_supported(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_is_supported(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _is_supported(kind.value_type)
    return not (pa.types.is_map(kind) or pa.types.is_binary(kind) or pa.types.is_duration(kind))


class JsonReader:
    """Reads JSON objects into the columns of a schema; made on the driver, can be pickled."""

    def __init__(self, fields: pa.Schema) -> None:
        self._fields = fields
        self._compiled = compiled(JSON) if is_flat(fields) else None
        self._flat: FlatJson | None = None

    def __getstate__(self) -> Mapping[str, object]:
        """Leave out machine code that is loaded."""
        return self.__dict__ | {"_flat": None}

    def read(self, values: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Return a row for each binary value, of nulls for null, and the problems by row number in ascending order.

        Other fields of the objects are ignored. A missing field is null, as is a value that does not fit.
        """
        rows, bad = self._read(values)
        zeros = np.flatnonzero(_are_negative_zeros(rows))
        if len(zeros):  # of a whole number, -0, they are positive
            parser = _Parser(self._fields)
            again = parser.one_by_one(values.take(pa.array(zeros)), zeros.tolist()).combine_chunks()
            order = np.arange(len(values))
            order[zeros] = len(values) + np.arange(len(zeros))
            rows = in_order([rows, *again.to_batches()], order, self._fields)
        return rows, bad

    def _read(self, values: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
        if self._compiled is None:
            return parsed(values, self._fields, range(len(values)))
        if self._flat is None:
            self._flat = FlatJson(self._fields, self._compiled)
        parts, odd = self._flat.read(values)
        order, bad = np.arange(len(values)), dict[int, str]()
        if len(odd):
            rest, bad = parsed(values.take(pa.array(odd)), self._fields, odd.tolist())
            order[odd] = np.arange(len(values), len(values) + len(odd))
            parts.append(rest)
        return in_order(parts, order, self._fields), bad


def parsed(values: pa.Array, fields: pa.Schema, numbers: Sequence[int]) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return the rows of the values with these numbers as Arrow reads them, and the problems, without the loop."""
    parser = _Parser(fields)
    parts = list(parser.parsed(values, numbers))
    table = pa.concat_tables(parts) if parts else fields.empty_table()
    columns = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=fields), dict(sorted(parser.bad.items()))


class _Parser:
    """Parses values by columns, and values that Arrow refuses one by one; `bad` has the problems by row number."""

    def __init__(self, fields: pa.Schema) -> None:
        wanted = pa.schema([pa.field(field.name, _read_as(field.type)) for field in fields])
        self._fields = pa.schema([pa.field(field.name, field.type) for field in fields])
        self.bad: dict[int, str] = {}
        self._parse_options = pa.json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")

    def parsed(self, values: pa.Array, numbers: Sequence[int]) -> Iterator[pa.Table]:
        """Yield the rows of the values with these numbers, in order."""
        # Rows after a bad one may be parsed again: in slices, so that they are never all of a large batch.
        for start in range(0, len(values), _TOGETHER):
            yield from self._together(values.slice(start, _TOGETHER), numbers[start : start + _TOGETHER])

    def _together(self, values: pa.Array, numbers: Sequence[int]) -> Iterator[pa.Table]:
        """Yield the rows of one slice."""
        while len(values):
            if len(values) > 1 and values.nbytes > _MOST_BYTES:
                good, odd = len(values) // 2, 0
            else:
                try:
                    yield self._by_columns(values)
                except pa.ArrowInvalid as error:
                    good, odd = _odd_row(error, len(values))
                else:
                    return
            yield from self._together(values.slice(0, good), numbers[:good])
            yield self.one_by_one(values.slice(good, odd), numbers[good : good + odd])
            values, numbers = values.slice(good + odd), numbers[good + odd :]

    def _by_columns(self, values: pa.Array) -> pa.Table:
        """Return the rows. Raises ArrowInvalid for a value that Arrow refuses."""
        whole = values.fill_null(b"{}") if values.null_count else values
        if _first_unbraced(whole) >= 0:
            whole = pc.replace_substring_regex(whole, r"^[ \t\r\n]+|[ \t\r\n]+$", "")
            if (odd := _first_unbraced(whole)) >= 0:
                raise pa.ArrowInvalid(f"a value is not an object in row {odd}")
        whole.cast(pa.string())  # the reader does not check that text is UTF-8
        if (pc.max(pc.binary_length(whole)).as_py() or 0) > _MOST_NESTED:
            is_odd = pc.or_(
                pc.greater(pc.count_substring_regex(whole, r"[\[{]"), _MOST_NESTED),
                pc.match_substring_regex(whole, rf"[0-9]{{{_MOST_DIGITS}}}|[0-9]{{500}}[.eE+-]+[0-9]{{500}}"),
            )
            if (odd := int(pc.index(is_odd, True).as_py())) >= 0:
                raise pa.ArrowInvalid(f"a value may be beyond Spark's limits in row {odd}")
        joined = pc.binary_join(pa.LargeListArray.from_arrays(pa.array([0, len(whole)], pa.int64()), whole), b"\n")
        data = joined[0].as_buffer()
        options = pa.json.ReadOptions(use_threads=False, block_size=max(data.size + 1, 16))
        table = pa.json.read_json(pa.BufferReader(data), read_options=options, parse_options=self._parse_options)
        # Every value begins and ends with a brace: if there are as many objects as values, each value is one.
        if len(table) != len(values):
            raise pa.ArrowInvalid("a value has several objects")
        columns = [_typed(table.column(field.name).combine_chunks(), field.type, is_row=True) for field in self._fields]
        return pa.Table.from_arrays(columns, schema=self._fields) if columns else table

    def one_by_one(self, values: pa.Array, numbers: Sequence[int]) -> pa.Table:
        """Return the rows of the values with these numbers, each read with Spark's meaning."""
        rows = [self._row(value, number) for value, number in zip(values.to_pylist(), numbers, strict=True)]
        columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in self._fields]
        return pa.Table.from_arrays(columns, schema=self._fields) if columns else pa.Table.from_pylist(rows)

    def _row(self, value: bytes | None, number: int) -> dict[str, object]:
        if not value or not value.strip():
            return {}
        row, bad = dict[str, object](), list[str]()
        limit = sys.getrecursionlimit()
        try:
            sys.setrecursionlimit(limit + 4 * _MOST_NESTED)
            decoded, rest = _decoded(value.decode(errors="replace").strip(_SPACE))
            row = _object(decoded, list(self._fields), bad)
            bad += [f"text follows its object: {rest[:50]!r}"] if rest else []
        except ValueError as error:
            row, bad = {}, [str(error)]
        finally:
            sys.setrecursionlimit(limit)
        if bad:
            self.bad[number] = f"the value is not JSON of this schema: {bad[0]}"
        return row


def _are_negative_zeros(rows: pa.RecordBatch) -> Bool:
    """Return for each row whether one of its numbers is -0.0."""
    are_negative = np.zeros(rows.num_rows, bool)
    for column in rows.columns:
        if pa.types.is_floating(column.type):
            numbers = column.to_numpy(zero_copy_only=False)
            are_negative |= (numbers == 0) & np.signbit(numbers)
    return are_negative


def _first_unbraced(values: pa.Array) -> int:
    """Return the index of the first value not enclosed in braces, -1 if all are."""
    return int(pc.index(pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}")), False).as_py())


def _odd_row(error: pa.ArrowInvalid, rows: int) -> tuple[int, int]:
    """Return how many rows Arrow accepts, and how many after them must be parsed one by one."""
    if rows <= _FEW:
        return 0, rows
    match = _ROW.search(str(error))
    if match is not None and int(match[1]) < rows:
        good = int(match[1])
        return good, 1 if good > _DENSE else min(_DENSE, rows - good)
    return rows // 2, 0


def _read_as(kind: pa.DataType) -> pa.DataType:
    """Return the type by which the reader reads values of a type."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _read_as(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_read_as(kind.value_type))
    return pa.string() if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else kind


def _typed(values: pa.Array, kind: pa.DataType, *, is_row: bool = False) -> pa.Array:
    """Return an array, read as `_read_as(kind)`, of its type. Raises ArrowInvalid; is_row: its items are rows."""
    if pa.types.is_struct(kind):
        parts = [_typed(part, field.type, is_row=is_row) for part, field in zip(values.flatten(), kind, strict=True)]
        fields = [field.with_nullable(True) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=values.is_null()) if parts else values
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(values.offsets, _typed(values.values, kind.value_type), mask=values.is_null())
    if not pa.types.is_date(kind) and not pa.types.is_timestamp(kind):
        return values
    with suppress(pa.ArrowInvalid):
        if pc.all(pc.match_substring_regex(values, _PLAIN[kind])).as_py() is not False:
            return values.cast(kind)
    texts = values.dictionary_encode()
    times = pa.array([_time(text, kind) for text in texts.dictionary.to_pylist()], kind).take(texts.indices)
    if times.null_count > values.null_count:
        odd = np.flatnonzero(pc.and_(times.is_null(), values.is_valid()))[0]
        raise pa.ArrowInvalid(f"a text is not a time in row {odd}" if is_row else "a text is not a time")
    return times


def times_of(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the times, in UTC, or the dates that texts say. Raises ArrowInvalid for a text that says none."""
    return _typed(texts, kind)


def _time(text: str, kind: pa.DataType) -> int | None:
    try:
        return int(pa.scalar(_moment(text, kind) if pa.types.is_timestamp(kind) else _date(text, kind), kind).value)
    except (ValueError, OverflowError):
        return None


_PLAIN = {
    pa.date32(): r"^\d{4}-\d\d-\d\d$",
    pa.timestamp("us"): r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?$",
    pa.timestamp("us", "UTC"): r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-](0\d|1[0-7]):[0-5]\d)$",
}
"""Texts that Arrow reads as Spark does; one with a zone is read with it."""
_NOT_FINITE = {"NaN": "nan", "Infinity": "inf", "+Infinity": "inf", "+INF": "inf", "-Infinity": "-inf", "-INF": "-inf"}
_SPACE = " \t\r\n"
_TOO_LARGE = 1 << 63
_MOST_NESTED = _MOST_DIGITS = 1000
"""Jackson's limits, by which Spark reads."""
_TOKEN = re.compile(
    r'"(?P<double>(?:[^"\\]|\\.)*+)"|\'(?P<single>(?:[^\'\\]|\\.)*+)\'|(?P<open>[\[{])|(?P<close>[\]}])'
    r"|(?P<number>-?\d[\d.eE+-]*+)|(?<![\w.+-])(?P<sign>[+-])(?:Infinity|INF)\b",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\u....|\\.|[\ud800-\udfff\U00010000-\U0010ffff]")
"""Escapes, and what Jackson escapes, too, with capital digits."""
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class _Fraction(float):
    """A number with its digits."""

    def __init__(self, digits: str) -> None:
        self.digits = digits


class _Pairs(list[Any]):
    """The names and values of an object."""


_DECODER = json.JSONDecoder(parse_float=_Fraction, object_pairs_hook=_Pairs)


def _decoded(text: str) -> tuple[Any, str]:
    """Return the first value of a text, and the text behind it. Raises ValueError."""
    if len(text) > _MOST_NESTED and _goes_too_far(text):
        raise ValueError(f"it is nested deeper than {_MOST_NESTED} levels, or has longer numbers than {_MOST_DIGITS}")
    try:
        decoded, end = _DECODER.raw_decode(text)
    except ValueError:
        text = _TOKEN.sub(_as_json, text)
        decoded, end = _DECODER.raw_decode(text)
    return decoded, text[end:].strip(_SPACE)


def _goes_too_far(text: str) -> bool:
    """Return whether the first value of a text goes beyond Jackson's limits."""
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token.lastgroup == "open") - (token.lastgroup == "close")
        if depth > _MOST_NESTED or (token.lastgroup == "number" and len(token[0].lstrip("-")) > _MOST_DIGITS):
            return True
        if depth <= 0:
            return False
    return False


def _as_json(token: re.Match[str]) -> str:
    """Return a token that Spark reads, too, as JSON: in single quotes, or a sign in front of infinity."""
    if token.lastgroup == "sign":
        return "-Infinity" if token["sign"] == "-" else "Infinity"
    if token.lastgroup == "single":
        plain = re.sub(
            r'\\.|"',
            lambda escape: {"\\'": "'", '"': '\\"'}.get(escape[0], escape[0]),
            token["single"],
            flags=re.DOTALL,
        )
        return f'"{plain}"'
    return re.sub(r"\\.", lambda escape: "'" if escape[0] == "\\'" else escape[0], token[0], flags=re.DOTALL)


def _object(value: object, fields: Sequence[pa.Field], bad: list[str]) -> dict[str, object]:
    """Return an object's fields; fields that do not fit are null, and in `bad`. Raises ValueError for other JSON."""
    if not isinstance(value, _Pairs):
        raise ValueError("it is not an object")
    kinds = {field.name: field.type for field in fields}
    fields_read = dict[str, object]()
    for name, item in value:
        if name in kinds:
            before = len(bad)
            converted = _converted(item, kinds[name], bad, name)
            if converted is not None or len(bad) == before:
                fields_read[name] = converted
    return fields_read


def _converted(value: Any, kind: pa.DataType, bad: list[str], name: str) -> Any:
    """Return a JSON value as a type's, None if it is null or does not fit."""
    if value is None:
        return None
    try:
        if pa.types.is_struct(kind):
            return _object(value, list(kind), bad)
        if pa.types.is_list(kind):
            if not isinstance(value, list) or isinstance(value, _Pairs):
                raise ValueError("it is not an array")
            values = list[object]()
            for item in value:
                before = len(bad)
                values.append(_converted(item, kind.value_type, bad, name))
                if len(bad) > before and values[-1] is None:
                    return None
            return values
        converted = next(convert for is_kind, convert in _SCALARS if is_kind(kind))(value, kind)
        pa.scalar(converted, kind)
    except (TypeError, ValueError, OverflowError, InvalidOperation, pa.ArrowInvalid) as error:
        bad.append(f"field {name!r}: {_written(value)[:50]} is no {kind} ({error})")
        return None
    return converted


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _written(value: object) -> str:
    """Return a value as JSON, as Jackson writes it."""
    if isinstance(value, _Pairs):
        # No generators and no map: Python 3.12 bounds how deep calls from C may nest, whatever its limit is.
        return f"{{{','.join([f'{_written(name)}:{_written(item)}' for name, item in value])}}}"
    if isinstance(value, list):
        return f"[{','.join([_written(item) for item in value])}]"
    if isinstance(value, float):
        return _as_java(value)
    return _ESCAPED.sub(_capitals, json.dumps(value, ensure_ascii=False))


def _capitals(escaped: re.Match[str]) -> str:
    text = escaped[0]
    if text[0] == "\\":
        return text[:2] + text[2:].upper()
    return "".join(f"\\u{unit:04X}" for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"))


def _as_java(value: float) -> str:
    """Return a number as Java's `Double.toString`, in quotes if JSON has none like it."""
    text: str = number_texts(pa.scalar(float(value)), is_shortest=True).as_py()
    return text if math.isfinite(value) else f'"{text}"'


def _text(value: object, _: pa.DataType) -> str:
    return (value if isinstance(value, str) else _written(value)).encode(errors="replace").decode()


def _boolean(value: object, _: pa.DataType) -> bool:
    return value if isinstance(value, bool) else _refuse()


def _integer(value: object, kind: pa.DataType) -> int:
    number = value if _is_number(value) and isinstance(value, int) else _refuse()
    return number - 256 if pa.types.is_int8(kind) and 127 < number < 256 else number  # as Jackson reads a byte


def _float(value: Any, kind: pa.DataType) -> float:
    text = _NOT_FINITE.get(value) or _refuse() if isinstance(value, str) else getattr(value, "digits", str(value))
    number: float = pa.scalar(text).cast(kind).as_py()
    return number


def _decimal(value: Any, kind: pa.DataType) -> Decimal:
    text = value.replace(",", "") if isinstance(value, str) else getattr(value, "digits", value)
    if isinstance(text, str) and _DECIMAL.fullmatch(text) is None:
        _refuse()
    with localcontext() as context:
        context.prec = 76
        number = Decimal(text if isinstance(text, str) or _is_number(text) else _refuse())
        return number.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP)


def _date(value: object, _: pa.DataType) -> int:
    return days_of(value if isinstance(value, str) else _refuse())


def _moment(value: Any, kind: pa.DataType) -> int:
    if _is_number(value) and isinstance(value, int) and kind.tz is not None:
        seconds = value if -_TOO_LARGE <= value < _TOO_LARGE else _refuse()
        return (seconds * 1_000_000 + _TOO_LARGE) % (2 * _TOO_LARGE) - _TOO_LARGE  # it overflows, as in Spark
    return micros_of(value if isinstance(value, str) else _refuse(), in_utc=kind.tz is not None)


def _refuse() -> Any:
    raise ValueError("another type")


_SCALARS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], object]]] = (
    (pa.types.is_string, _text),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _moment),
)
