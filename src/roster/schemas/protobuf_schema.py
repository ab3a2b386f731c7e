"""A Protobuf message of columns: proto3, whose fields keep their numbers in all later versions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from roster.wire.avro.schema import SchemaError

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_KINDS: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "BOOL"),
    (lambda kind: kind in (pa.int8(), pa.int16(), pa.int32()), "INT32"),
    (pa.types.is_int64, "INT64"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_decimal(kind), "STRING"),
    (pa.types.is_float32, "FLOAT"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_binary, "BYTES"),
    (pa.types.is_date32, "google.type.Date"),
    (pa.types.is_duration, "google.protobuf.Duration"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, "google.protobuf.Timestamp"),
)
"""Which columns are fields of each type; the first four may be keys of maps."""


def grown(data: bytes, name: str, columns: pa.StructType) -> bytes | None:
    """Return the file of a message that has a field for each column of a struct, None if it needs no change.

    data: the file as it is, which stays if its message has another name; b"": there is none. New fields get new
    numbers, those without a column stay. Raises SchemaError, with the column's path, for a type without a field.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - an extra

    if not pa.types.is_struct(columns):
        raise SchemaError(f"column 'key': {columns} is not a message")
    file = FileDescriptorProto.FromString(data)
    if not data:
        file.name, file.syntax = f"{name}.proto", "proto3"
        file.message_type.add(name=name)
    if file.package or [message.name for message in file.message_type] != [name]:
        return None
    before = file.SerializeToString()
    _grow(file, file.message_type[0], f".{name}", columns, "")
    encoded: bytes = file.SerializeToString()
    return encoded if not data or encoded != before else None


def make_optional(message: DescriptorProto, field: FieldDescriptorProto) -> None:
    """Make a field of a proto3 message `optional`: it is in a oneof of its own."""
    field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
    message.oneof_decl.add(name=f"_{field.name}")


def _grow(file: FileDescriptorProto, message: DescriptorProto, full: str, columns: pa.StructType, path: str) -> None:
    """Add what a message lacks. full: its name with those that it is in; path: of its column, with a dot."""
    known, nested = (
        {nested_type.name for nested_type in message.field},
        {nested_type.name: nested_type for nested_type in message.nested_type},
    )
    for column in columns:
        here, inner, kind = path + column.name, f"{_camel(column.name)}Message", column.type
        if not _NAME.fullmatch(column.name):
            raise SchemaError(f"column {here!r}: names of Protobuf have letters, digits and _ only")
        item = kind.item_type if pa.types.is_map(kind) else kind.value_type if pa.types.is_list(kind) else kind
        if pa.types.is_struct(item):
            if column.name not in known:
                nested[inner] = message.nested_type.add(name=inner)
            if inner in nested:
                _grow(file, nested[inner], f"{full}.{inner}", item, f"{here}.")
        if column.name not in known:
            type_name = f"{full}.{inner}" if pa.types.is_struct(item) else _kind(file, item, here)
            _add(message, full, column, type_name, here)
    names = [part.name for several in (message.field, message.nested_type, message.oneof_decl) for part in several]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SchemaError(f"column {path + twice[0]!r}: the message {full[1:]} needs this name for another part")


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _add(message: DescriptorProto, full: str, column: pa.Field, type_name: str, path: str) -> None:
    """Add a field for a column, whose values, or those in its lists or maps, are of the type `made`."""
    number = 1 + max((field.number for field in message.field), default=0)
    field = message.field.add(name=column.name, number=number)
    if pa.types.is_map(column.type):
        key = next((name for fits, name in _KINDS[:4] if fits(column.type.key_type)), None)
        if key is None:
            raise SchemaError(f"column {path!r}: Protobuf has no maps with keys of {column.type.key_type}")
        entry = message.nested_type.add(name=f"{_camel(column.name)}Entry")
        entry.options.map_entry = True
        _be(entry.field.add(name="key", number=1), key)
        _be(entry.field.add(name="value", number=2), type_name)
        type_name = f"{full}.{entry.name}"
    _be(field, type_name)
    if pa.types.is_map(column.type) or pa.types.is_list(column.type):
        field.label = field.LABEL_REPEATED
    elif column.nullable and "." not in type_name:
        make_optional(message, field)


def _kind(file: FileDescriptorProto, kind: pa.DataType, path: str) -> str:
    """Return the simple type, or the message of Google's, which the file then imports."""
    type_name = next((name for fits, name in _KINDS if fits(kind)), None)
    if type_name is None:
        raise SchemaError(f"column {path!r}: no Protobuf field is made of {kind}")
    imported = f"{type_name.replace('.', '/').lower()}.proto"
    if "." not in type_name:
        return type_name
    if imported not in file.dependency:
        file.dependency.append(imported)
    return f".{type_name}"


def _be(field: FieldDescriptorProto, type_name: str) -> None:
    """Give a field a simple type or a message."""
    field.label = field.LABEL_OPTIONAL
    if "." in type_name:
        field.type, field.type_name = field.TYPE_MESSAGE, type_name
    else:
        field.type = getattr(field, f"TYPE_{type_name}")
