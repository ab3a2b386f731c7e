"""A row of a schema as bytes: fixed-width fields first, then the contents of the others.

    bit for each field that is null | fixed-width fields, and lengths of the others | contents of the others

An array is its length and, for each element, a row of one field; a map has rows of two fields. Times are microseconds
since the epoch, dates days since the epoch, decimals their unscaled value.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from struct import Struct, error
from typing import Any, TypeAlias

import pyarrow as pa

from roster.state.store import StateError

MakeStruct: TypeAlias = Callable[[Sequence[str], Sequence[object]], Any]
"""Makes the Python value of a nested struct from its fields' names and values."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - for times without a zone
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_COUNT = Struct("<I")
_WIDEST = Context(prec=76)
_UNFIT = (error, TypeError, ValueError, AttributeError, OverflowError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Encoding of a type: `code` of the fixed-width field; `pack` and `unpack` encode and decode its content.

    With `is_content` the field is a length, and `pack` and `unpack` work with bytes.
    """

    code: str
    pack: Callable[[Any], Any] | None = None
    unpack: Callable[[Any], Any] | None = None
    is_content: bool = False


class RowCodec:
    """Encodes and decodes rows of a schema. Raises StateError for an unsupported type."""

    def __init__(self, schema: pa.Schema | Iterable[pa.Field], make_struct: MakeStruct | None = None) -> None:
        fields = list(schema)
        self.names = [field.name for field in fields]
        self._types = [field.type for field in fields]
        struct = make_struct or (lambda _, values: tuple(values))
        self._kinds = [_kind(field.name, field.type, struct) for field in fields]
        self._nulls = (len(fields) + 7) // 8
        self._fixed = Struct(f"<{self._nulls}s" + "".join(kind.code for kind in self._kinds))
        self._plain = bytes(self._nulls)

    def encode(self, values: Sequence[object]) -> bytes:
        """Return the bytes of a row, given by position. Raises StateError that names the field that does not fit.

        As in PySpark a row may be anything that gives as many values, even text.
        """
        if not isinstance(values, (tuple, list, bytes, Mapping, Set)) and isinstance(values, Iterable):
            values = tuple(values)
        if not isinstance(values, (tuple, list)) or len(values) != len(self._kinds):
            raise StateError(f"{values!r} is not a row of ({', '.join(self.names)}): give a tuple of their values")
        try:
            return self._encode(values)
        except (*_UNFIT, StateError) as unfit:
            raise self._unfit(values, unfit) from None

    def _encode(self, values: Sequence[Any]) -> bytes:
        nulls, numbers, contents = 0, [], []
        for place, (value, kind) in enumerate(zip(values, self._kinds, strict=True)):
            if value is None:
                nulls |= 1 << place
                numbers.append(0)
            elif kind.is_content and kind.pack is not None:
                content = kind.pack(value)
                numbers.append(len(content))
                contents.append(content)
            else:
                numbers.append(value if kind.pack is None else kind.pack(value))
        bits = nulls.to_bytes(self._nulls, "little") if nulls else self._plain
        return self._fixed.pack(bits, *numbers) + b"".join(contents)

    def _unfit(self, values: Sequence[Any], unfit: Exception) -> StateError:
        for name, kind, value, expected in zip(self.names, self._kinds, values, self._types, strict=True):
            try:
                if value is not None:
                    packed = value if kind.pack is None else kind.pack(value)
                    Struct(f"<{kind.code}").pack(len(packed) if kind.is_content else packed)
            except _UNFIT:
                return StateError(f"field {name!r}: {value!r} is no {expected}")
            except StateError as inner:
                return StateError(f"field {name!r}: {inner}")
        return StateError(f"{values!r} is not a row of ({', '.join(self.names)}): {unfit}")

    def decode(self, data: bytes, start: int = 0) -> tuple[object, ...]:
        """Return the row that begins there."""
        return self.decode_next(data, start)[0]

    def decode_next(self, data: bytes, start: int) -> tuple[tuple[object, ...], int]:
        """Return the row that begins there, and where it ends."""
        bits, *values = self._fixed.unpack_from(data, start)
        nulls = int.from_bytes(bits, "little")
        start += self._fixed.size
        for place, kind in enumerate(self._kinds):
            if nulls and nulls >> place & 1:
                values[place] = None
            elif kind.is_content and kind.unpack is not None:
                end = start + values[place]
                values[place] = kind.unpack(data[start:end])
                start = end
            elif kind.unpack is not None:
                values[place] = kind.unpack(values[place])
        return tuple(values), start


def _kind(name: str, type_: pa.DataType, struct: MakeStruct) -> _Kind:
    for is_kind, kind in _SIMPLE:
        if is_kind(type_):
            return kind
    if pa.types.is_timestamp(type_):
        return _Kind("q", _from_moment, _to_moment) if type_.tz else _Kind("q", _from_naive, _to_naive)
    if pa.types.is_decimal(type_):
        return _decimal(type_)
    if pa.types.is_struct(type_) and not any((field.metadata or {}).get(b"variant") for field in type_):
        return _nested(type_, struct)
    if pa.types.is_map(type_):
        pair = RowCodec([pa.field("key", type_.key_type), pa.field("value", type_.item_type)], struct)
        return _Kind(
            "I",
            lambda value: _pack_rows(pair, list(value.items())),
            lambda data: dict(_rows(pair, data)),
            is_content=True,
        )
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        element = RowCodec([pa.field("element", type_.value_type)], struct)
        return _Kind(
            "I",
            lambda value: _pack_rows(element, [(item,) for item in _elements(value)]),
            lambda data: [row[0] for row in _rows(element, data)],
            is_content=True,
        )
    raise StateError(f"field {name!r}: a state variable cannot have the type {type_}")


def _nested(type_: pa.DataType, make_struct: MakeStruct) -> _Kind:
    fields = list(type_)
    names = [field.name for field in fields]
    codec = RowCodec(fields, make_struct)

    def pack(value: Any) -> bytes:
        if isinstance(value, Mapping):
            return codec.encode([value.get(name) for name in names])
        return codec.encode(value if isinstance(value, (tuple, list)) else [vars(value).get(name) for name in names])

    return _Kind("I", pack, lambda data: make_struct(names, codec.decode(data)), is_content=True)


def _decimal(type_: pa.DataType) -> _Kind:
    scale, most = Decimal(1).scaleb(-type_.scale), 10**type_.precision

    def pack(value: Any) -> bytes:
        unscaled = int(Decimal(value).quantize(scale, ROUND_HALF_UP, _WIDEST).scaleb(type_.scale, _WIDEST))
        if abs(unscaled) >= most:
            raise ValueError("beyond its precision")
        return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)

    def unpack(data: bytes) -> Decimal:
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-type_.scale, _WIDEST)

    return _Kind("I", pack, unpack, is_content=True)


def _elements(value: Iterable[Any]) -> Iterable[Any]:
    if isinstance(value, (str, bytes, Mapping)):
        raise TypeError
    return value


def _pack_rows(codec: RowCodec, rows: Sequence[Sequence[object]]) -> bytes:
    return _COUNT.pack(len(rows)) + b"".join(map(codec.encode, rows))


def _rows(codec: RowCodec, data: bytes) -> list[tuple[Any, ...]]:
    (count,), position = _COUNT.unpack_from(data), _COUNT.size
    rows = []
    for _ in range(count):
        row, position = codec.decode_next(data, position)
        rows.append(row)
    return rows


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
        raise TypeError
    return bool(value)


def _content(value: Any) -> bytes:
    if isinstance(value, (str, int)):
        raise TypeError
    return bytes(value)


def _text(value: str) -> bytes:
    return value.encode()


def _from_moment(value: datetime) -> int:
    # As PySpark's TimestampType: a time without a zone is in the process's zone.
    seconds = calendar.timegm(value.utctimetuple()) if value.tzinfo else int(time.mktime(value.timetuple()))
    return seconds * 1_000_000 + value.microsecond


def _to_moment(value: int) -> datetime:
    seconds, microseconds = divmod(value, 1_000_000)
    return datetime.fromtimestamp(seconds).replace(microsecond=microseconds)  # noqa: DTZ006 - as PySpark


def _from_naive(value: datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND


def _to_naive(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)


def _from_date(value: date) -> int:
    return value.toordinal() - _EPOCH_DAY


def _to_date(value: int) -> date:
    return date.fromordinal(value + _EPOCH_DAY)


_SIMPLE: tuple[tuple[Callable[[pa.DataType], bool], _Kind], ...] = (
    (pa.types.is_boolean, _Kind("?", _boolean)),
    (pa.types.is_int8, _Kind("b")),
    (pa.types.is_int16, _Kind("h")),
    (pa.types.is_int32, _Kind("i")),
    (pa.types.is_int64, _Kind("q")),
    (pa.types.is_float32, _Kind("f")),
    (pa.types.is_float64, _Kind("d")),
    (pa.types.is_string, _Kind("I", _text, bytes.decode, is_content=True)),
    (pa.types.is_large_string, _Kind("I", _text, bytes.decode, is_content=True)),
    (pa.types.is_binary, _Kind("I", _content, bytes, is_content=True)),
    (pa.types.is_large_binary, _Kind("I", _content, bytes, is_content=True)),
    (pa.types.is_date32, _Kind("i", _from_date, _to_date)),
    (
        pa.types.is_duration,
        _Kind("q", lambda value: value // _MICROSECOND, lambda value: timedelta(microseconds=value)),
    ),
)
