"""An Avro schema for columns, for topics whose subject has none yet."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from roster.wire.avro.schema import SchemaError

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SIMPLE: dict[Any, Any] = {
    pa.bool_(): "boolean",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32()), "int"),
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.null(): "null",
    pa.date32(): {"type": "int", "logicalType": "date"},
}


def schema_of(kind: pa.DataType, name: str, path: str = "") -> Any:
    """Return the schema of a column's values, as JSON; a struct is a record `name`, those in it are named after it.

    Raises SchemaError, with the column's path, for a type or a name that Avro does not have.
    """
    if pa.types.is_struct(kind):
        fields = [field_of(field, name, f"{path}.{field.name}".lstrip(".")) for field in kind]
        namespace, _, last = name.rpartition(".")
        return {"type": "record", "name": last, **({"namespace": namespace} if namespace else {}), "fields": fields}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _optional(kind.value_field, name, path)}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": _optional(kind.item_field, name, path)}
    if pa.types.is_decimal128(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if kind not in _SIMPLE:
        raise SchemaError(f"column {path!r}: Avro has no values of {kind}")
    return _SIMPLE[kind]


def field_of(field: pa.Field, record: str, path: str) -> dict[str, Any]:
    """Return the field of a record for a column; one that may be null has null as its default."""
    if not _NAME.fullmatch(field.name):
        raise SchemaError(f"column {path!r}: names of Avro have letters, digits and _ only")
    made = {"name": field.name, "type": _optional(field, f"{record}.{field.name}", path)}
    return made | {"default": None} if field.nullable else made


def _optional(field: pa.Field, name: str, path: str) -> Any:
    kind = schema_of(field.type, name, path)
    return ["null", kind] if field.nullable and kind != "null" else kind
