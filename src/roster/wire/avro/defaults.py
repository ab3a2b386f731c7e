"""Default values of a schema, JSON in the schema, as Avro bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from roster.wire.avro.schema import SchemaError, Type


def encoded(value: Any, kind: Type) -> bytes:
    """Return a default as a value of its type. Raises SchemaError if it is none."""
    try:
        return _encoded(value, kind)
    except (TypeError, ValueError, OverflowError, KeyError, struct.error) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"the default {value!r} is no {kind}") from None


def _encoded(value: Any, kind: Type) -> bytes:
    if kind.kind == "union":
        for number, branch in enumerate(kind.branches):
            try:
                return varint(number) + encoded(value, branch)
            except SchemaError:
                continue
        raise ValueError(value)
    if kind.kind == "record":
        fields = ((value[f.name] if f.name in value or not f.has_default else f.default, f.type) for f in kind.fields)
        return b"".join(encoded(each, type_) for each, type_ in fields)
    if kind.kind in ("array", "map"):
        return _items(value, kind)
    if kind.kind == "enum":
        return varint(kind.symbols.index(value))
    return _SIMPLE[kind.kind](value, kind)


def _items(value: Any, kind: Type) -> bytes:
    assert kind.items is not None  # noqa: S101 - arrays and maps have them
    if not isinstance(value, list if kind.kind == "array" else dict):
        raise TypeError(value)
    if isinstance(value, list):
        parts = [encoded(each, kind.items) for each in value]
    else:
        parts = [_text(key, kind) + encoded(each, kind.items) for key, each in value.items()]
    return (varint(len(parts)) if parts else b"") + b"".join(parts) + b"\0"


def varint(value: int) -> bytes:
    """Return a number in zig-zag form."""
    rest, out = (value << 1) ^ (value >> 63), bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


def _number(bits: int) -> Callable[[Any, Type], bytes]:
    def encode(value: Any, _: Type) -> bytes:
        if isinstance(value, bool) or value != int(value) or not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ValueError(value)
        return varint(int(value))

    return encode


def _float(code: str) -> Callable[[Any, Type], bytes]:
    def encode(value: Any, _: Type) -> bytes:
        if isinstance(value, bool):
            raise TypeError(value)
        return struct.pack(code, float(value))

    return encode


def _text(value: Any, _: Type) -> bytes:
    data: bytes = value.encode()
    return varint(len(data)) + data


def _bytes(value: Any, kind: Type) -> bytes:
    """Each character of the text is a byte, as the specification says."""
    data: bytes = value.encode("latin-1")
    if kind.kind == "fixed":
        if len(data) != kind.size:
            raise ValueError(value)
        return data
    return varint(len(data)) + data


def _null(value: Any, _: Type) -> bytes:
    if value is not None:
        raise ValueError(value)
    return b""


def _boolean(value: Any, _: Type) -> bytes:
    if not isinstance(value, bool):
        raise TypeError(value)
    return bytes([value])


_SIMPLE: dict[str, Callable[[Any, Type], bytes]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _number(32),
    "long": _number(64),
    "float": _float("<f"),
    "double": _float("<d"),
    "bytes": _bytes,
    "fixed": _bytes,
    "string": _text,
}
