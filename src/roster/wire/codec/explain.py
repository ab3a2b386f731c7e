"""Diagnosis of a failed encoding: finds the field that the compiled writer could not write."""

from __future__ import annotations

import struct
from typing import Any

from roster.wire.codec.fields import FIXED, MAX_STRING_BYTES, Field
from roster.wire.codec.table import Message, Struct, Table


def explain(message: Message | Struct, version: int, error: Exception) -> str:
    """Name the first field whose value this version cannot encode."""
    table = message.__table__
    problem = _structure(table, message, version, "")
    return f"{table.name} v{version}: {problem or f'cannot be written ({error})'}"


def _structure(table: Table, value: object, version: int, path: str) -> str | None:
    for name, field in table.fields:
        if version in field.versions:
            problem = _value(field, getattr(value, name, None), version, path + name)
            if problem:
                return problem
    return None


def _value(field: Field, value: object, version: int, path: str) -> str | None:
    if value is None:
        return None if version in field.nullable else f"{path}: None in a field that cannot be null"
    if field.kind in FIXED:
        return _fixed(field.kind, value, path)
    if field.kind == "string":
        return _text(value, path)
    if field.kind in ("bytes", "records"):
        if not isinstance(value, bytes | bytearray | memoryview):
            return f"{path}: {type(value).__name__} instead of bytes"
    elif field.kind == "struct":
        table: Table | None = getattr(value, "__table__", None)
        if table is None or not isinstance(value, field.struct or object):
            return f"{path}: {value!r} is no {field.kind}"
        return _structure(table, value, version, path + ".")
    elif field.element is not None:
        return _items(field.element, value, version, path)
    return None


def _fixed(kind: str, value: Any, path: str) -> str | None:
    try:
        struct.pack(">" + FIXED[kind][0], value)
    except struct.error as error:
        return f"{path}: {value!r} is no {kind} ({error})"
    if kind == "uuid" and len(value) != 16:
        return f"{path}: {value!r} is not 16 bytes"
    return None


def _items(element: Field, value: object, version: int, path: str) -> str | None:
    if not isinstance(value, list | tuple):
        return f"{path}: {type(value).__name__} instead of a list"
    for index, item in enumerate(value):
        problem = _value(element, item, version, f"{path}[{index}]")
        if problem:
            return problem
    return None


def _text(value: object, path: str) -> str | None:
    if not isinstance(value, str):
        return f"{path}: {type(value).__name__} instead of text"
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        return f"{path}: {value!r} has no UTF-8 form ({error.reason})"
    return f"{path}: {size} bytes of text, at most {MAX_STRING_BYTES} fit" if size > MAX_STRING_BYTES else None
