"""Fingerprints of schemas, by which a single object names its own.

Source: Apache Avro 1.12, Specification, "Schema Fingerprints".
"""

from __future__ import annotations

import json
from typing import Any

from roster.wire.avro.schema import Type, parse

_EMPTY = 0xC15D213AA4D7A795


def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [(each >> 1) ^ (_EMPTY if each & 1 else 0) for each in table]
    return table


_TABLE = _table()


def fingerprint(text: str) -> int:
    """Return the CRC-64-AVRO of a schema's canonical form, signed. Raises SchemaError for text that is no schema."""
    value = _EMPTY
    for byte in canonical(text).encode():
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 255]
    return value - (value >> 63 << 64)


def canonical(text: str) -> str:
    """Return the canonical form of a schema. Raises SchemaError."""
    return json.dumps(_form(parse(text), set()), separators=(",", ":"), ensure_ascii=False)


def _form(kind: Type, seen: set[str]) -> Any:
    """Return a type as JSON, by its name if it was seen."""
    if kind.kind == "union":
        return [_form(each, seen) for each in kind.branches]
    if kind.items is not None:
        return {"type": kind.kind, "items" if kind.kind == "array" else "values": _form(kind.items, seen)}
    if not kind.name or kind.name in seen:
        return kind.name or kind.kind
    seen.add(kind.name)
    made: dict[str, Any] = {"name": kind.name, "type": kind.kind}
    if kind.kind == "record":
        return {**made, "fields": [{"name": each.name, "type": _form(each.type, seen)} for each in kind.fields]}
    return {**made, "symbols": kind.symbols} if kind.kind == "enum" else {**made, "size": kind.size}
