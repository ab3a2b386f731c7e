"""Which types and fields of a writer's schema may be read as those of a reader's.

Source: Apache Avro 1.12, Specification, "Schema Resolution".
"""

from __future__ import annotations

from roster.wire.avro.columns import TIMES
from roster.wire.avro.schema import Type

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def paired(writer: Type, reader: Type) -> list[int | None]:
    """Return for each field of the reader the number of the writer's that it is read from, None without one."""
    names = {each.name: number for number, each in enumerate(writer.fields)}
    found: list[int | None] = []
    for field in reader.fields:
        numbers = (names.get(name) for name in (field.name, *field.aliases))
        found.append(next((number for number in numbers if number is not None and number not in found), None))
    return found


def misfit(writer: Type, reader: Type) -> str | None:
    """Return why no value of the writer's type is one of the reader's, None if some may be; neither is a union."""
    told = f"the writer's {writer} is no {reader}"
    one, other = writer.kind, reader.kind
    if reader.is_loose and other != "record":
        return None if _is_loosely(writer, reader) else told
    if reader.logical == writer.logical == "decimal" and not _same_decimal(writer, reader):
        return told
    if other in _PROMOTED.get(one, ()):
        return None
    if one != other:
        return told
    if one in ("record", "enum", "fixed") and not reader.is_loose and not _same_name(writer, reader):
        return told
    return told if one == "fixed" and writer.size != reader.size else None


def _same_name(writer: Type, reader: Type) -> bool:
    """Return whether the unqualified names are equal, or the reader has the writer's as an alias."""
    last = writer.name.rpartition(".")[2]
    return last == reader.name.rpartition(".")[2] or writer.name in reader.aliases or last in reader.aliases


def _same_decimal(writer: Type, reader: Type) -> bool:
    is_one = writer.logical == reader.logical and writer.scale == reader.scale
    return is_one and writer.precision <= reader.precision and (writer.kind == reader.kind or reader.is_loose)


def _is_loosely(writer: Type, reader: Type) -> bool:
    """Return whether a column of Spark may have the writer's values."""
    kind = writer.kind
    if "decimal" in (writer.logical, reader.logical):
        return _same_decimal(writer, reader)
    if reader.logical == "date":
        return kind == "int" and writer.logical == "date"
    if reader.logical in TIMES:
        return writer.logical in TIMES and TIMES[writer.logical][0] == TIMES[reader.logical][0]
    if kind == "enum":
        return reader.kind == "string"
    if kind == "fixed":
        return reader.kind == "bytes"
    return kind == reader.kind or (reader.kind in _PROMOTED.get(kind, ()) and kind not in ("string", "bytes"))
