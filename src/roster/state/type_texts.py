"""Arrow's types as text, for definitions and fingerprints: the same in all releases of Arrow."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

_TIMESTAMP = re.compile(r"timestamp\[(\w+), tz=(.+)\]")
_LIST = re.compile(r"list<\w+: (.+)>")
_DECIMAL = re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)")


def text_of(kind: pa.DataType) -> str:
    """Return a type as text: Arrow's, of a list, map or struct JSON without the names of elements."""
    return json.dumps(_document(kind)) if pa.types.is_nested(kind) else str(kind)


def _document(kind: pa.DataType) -> Any:
    if pa.types.is_map(kind):
        return {"map": [_document(kind.key_type), _document(kind.item_type)]}
    if pa.types.is_struct(kind):
        return {"struct": [[field.name, _document(field.type)] for field in kind]}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"list" if pa.types.is_list(kind) else "large_list": _document(kind.value_type)}
    return str(kind)


def type_of(text: str) -> pa.DataType:
    """Return the type of a text, `text_of`'s or Arrow's own. Raises ValueError for another one."""
    if text.startswith("{"):
        return _type(json.loads(text))
    if match := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    if match := _LIST.fullmatch(text):
        return pa.list_(type_of(match[1]))
    if match := _DECIMAL.fullmatch(text):
        return getattr(pa, f"decimal{match[1]}")(int(match[2]), int(match[3]))
    return pa.type_for_alias(text)


def _type(document: Any) -> pa.DataType:
    if isinstance(document, str):
        return type_of(document)
    ((name, parts),) = document.items()
    if name == "struct":
        return pa.struct([(field, _type(part)) for field, part in parts])
    if name == "map":
        return pa.map_(*map(_type, parts))
    return {"list": pa.list_, "large_list": pa.large_list}[name](_type(parts))
