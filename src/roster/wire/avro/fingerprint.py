"""Fingerprints of schemas, by which a single object names its own.

Source: Apache Avro 1.12, Specification, "Schema Fingerprints".
"""

from __future__ import annotations

import json
from typing import Any

from roster.wire.avro.schema import PRIMITIVES, parse

_EMPTY = 0xC15D213AA4D7A795
_ORDER = ("name", "type", "fields", "symbols", "items", "values", "size")


def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [(each >> 1) ^ (_EMPTY if each & 1 else 0) for each in table]
    return table


_TABLE = _table()


def fingerprint(text: str) -> int:
    """Return the CRC-64-AVRO of a schema's canonical form, signed. Raises SchemaError for text that is no schema."""
    parse(text)
    value = _EMPTY
    for byte in canonical(text).encode():
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 255]
    return value - (value >> 63 << 64)


def canonical(text: str) -> str:
    """Return the canonical form of a schema that `parse` accepts."""
    return json.dumps(_form(json.loads(text), ""), separators=(",", ":"), ensure_ascii=False)


def _form(raw: Any, space: str) -> Any:
    if isinstance(raw, list):
        return [_form(each, space) for each in raw]
    if isinstance(raw, str):
        return raw if raw in PRIMITIVES or "." in raw or not space else f"{space}.{raw}"
    if not isinstance(raw["type"], str) or raw["type"] in PRIMITIVES:
        return _form(raw["type"], space)
    made = {key: raw[key] for key in _ORDER if key in raw}
    if "name" in made:
        given = raw.get("namespace", space)
        made["name"] = f"{given}.{raw['name']}" if given and "." not in raw["name"] else raw["name"]
        space = made["name"].rpartition(".")[0]
    if "fields" in made:
        made["fields"] = [{"name": each["name"], "type": _form(each["type"], space)} for each in raw["fields"]]
    for key in ("items", "values"):
        if key in made:
            made[key] = _form(raw[key], space)
    return made
