"""Default values of a schema, JSON in the schema, as Avro bytes."""

import struct
from typing import Any

from roster.wire.avro.schema import SchemaError, Type

_PACKED = {"boolean": "<?", "float": "<f", "double": "<d"}
_MOST = {"int": (1 << 31) - 1, "long": (1 << 63) - 1}


def encoded(value: Any, kind: Type) -> bytes:
    """Return a default as a value of its type. Raises SchemaError for any other value."""
    try:
        return _encoded(value, kind)
    except SchemaError:
        raise
    except (AttributeError, TypeError, ValueError, OverflowError, KeyError, struct.error):
        raise SchemaError(f"the default {value!r} is not a value of {kind}") from None


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
        return b"".join(encoded(item, type_) for item, type_ in fields)
    if kind.items is not None:
        if kind.kind == "map":
            parts = [encoded(key, Type("string")) + encoded(item, kind.items) for key, item in value.items()]
        elif isinstance(value, list):
            parts = [encoded(item, kind.items) for item in value]
        else:
            raise TypeError(value)
        return (varint(len(parts)) if parts else b"") + b"".join(parts) + b"\0"
    if kind.kind == "enum":
        return varint(kind.symbols.index(value))
    return _simple(value, kind)


def _simple(value: Any, kind: Type) -> bytes:
    name = kind.kind
    if isinstance(value, bool) != (name == "boolean") or (value is None) != (name == "null"):
        raise TypeError(value)
    if name == "null":
        return b""
    if name in _PACKED:
        return struct.pack(_PACKED[name], float(value))
    if name in _MOST:
        if value != int(value) or not -_MOST[name] - 1 <= value <= _MOST[name]:
            raise ValueError(value)
        return varint(int(value))
    data: bytes = value.encode("latin-1" if name in ("bytes", "fixed") else "utf-8")  # a character is a byte
    if name != "fixed":
        return varint(len(data)) + data
    if len(data) != kind.size:
        raise ValueError(value)
    return data


def varint(value: int) -> bytes:
    """Return a number in zig-zag form."""
    rest, out = (value << 1) ^ (value >> 63), bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])
