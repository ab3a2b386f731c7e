"""The columns of a JSON Schema and a schema of columns: objects, arrays, numbers, text, dates and times."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from roster._json import JsonObject
from roster.wire.avro.schema import SchemaError

T = TypeVar("T")

_SIMPLE = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_FORMATS = {"date": pa.date32(), "date-time": pa.timestamp("us", "UTC")}
_OF_PYTHON = {str: "string", bool: "boolean", int: "integer", float: "number"}
_NAMED: dict[pa.DataType, dict[str, str]] = {
    **{kind: {"type": name} for name, kind in _SIMPLE.items()},
    **{kind: {"type": "string", "format": name} for name, kind in _FORMATS.items()},
}
_WRITTEN: dict[pa.DataType, tuple[Callable[[pa.DataType], bool], ...]] = {
    pa.bool_(): (pa.types.is_boolean,),
    pa.int64(): (pa.types.is_integer,),
    pa.float64(): (pa.types.is_floating, pa.types.is_integer),
    pa.date32(): (pa.types.is_date,),
    pa.timestamp("us", "UTC"): (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,),
    pa.string(): (pa.types.is_string, pa.types.is_decimal, pa.types.is_timestamp, pa.types.is_date),
}
"""Which columns are written as each simple type; a schema has the first one for a column."""
_NULL, _REFUSED, _LEFT_OUT = b"null", b"refused", b"left out"
"""Metadata of a field for null: refused or left out; without it, null is written."""


def json_schema(text: str, references: Mapping[str, str]) -> pa.Schema:
    """Return the columns of a schema's objects; `references` are schemas by the names that it refers to.

    Raises SchemaError, which names the field, for text that is not a schema and for values without one type.
    """
    kind = json_type(text, references, is_written=False)
    if not pa.types.is_struct(kind):
        raise SchemaError("its values are not objects")
    return pa.schema(list(kind))


def json_type(text: str, references: Mapping[str, str], *, is_written: bool = True) -> pa.DataType:
    """Return the type of a schema's values; is_written: with what becomes of null. Raises as `json_schema` does."""
    documents = {"": _loaded(text), **{name: _loaded(document) for name, document in references.items()}}
    types = _Types(documents, is_written=is_written)
    try:
        return types.type_of(documents[""], ("", ()), ())
    except SchemaError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise _problem(types.path, f"its schema is malformed: {error}") from None


def check_written(kind: pa.DataType, schema_type: pa.DataType, path: str) -> None:
    """Raise SchemaError, with the column's path, if its values are not written as a schema's type."""
    if pa.types.is_struct(schema_type) and pa.types.is_struct(kind):
        inside = f"{path}." if path else ""
        for name in kind.names:
            if name not in schema_type.names:
                raise SchemaError(f"column {inside + name!r}: the schema has no such field")
        for field in schema_type:
            if field.name not in kind.names and (field.metadata or {}).get(_NULL) != _LEFT_OUT:
                raise SchemaError(f"column {inside + field.name!r}: there is none, and the schema requires it")
        return
    fits = any(is_kind(kind) for is_kind in _WRITTEN.get(schema_type, (pa.types.is_list,))) and not pa.types.is_struct(
        schema_type
    )
    if not fits and not pa.types.is_null(kind):
        named = _NAMED.get(schema_type) or {"type": "object" if pa.types.is_struct(schema_type) else "array"}
        raise SchemaError(
            f"column {path!r}: {kind} is not written as the schema's {named.get('format', named['type'])}"
        )


def leaves_null_out(field: pa.Field, texts: pa.Array, path: str) -> bool:
    """Return whether null is left out of objects. Raises SchemaError if it is refused and among these JSON texts."""
    of_null = (field.metadata or {}).get(_NULL)
    if of_null == _REFUSED and pc.any(pc.equal(texts, "null")).as_py():
        raise SchemaError(f"column {path!r}: a value is null, which the schema does not allow")
    return bool(of_null == _LEFT_OUT)


def json_schema_of(kind: pa.DataType, name: str) -> Mapping[str, object]:
    """Return a schema of a column's values, with `name` as its title. Columns that may be null need not be there.

    Raises SchemaError, with the column's path, for a type that has no schema.
    """
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": name, **_schema_of(kind, "")}


def _schema_of(kind: pa.DataType, path: str) -> Mapping[str, object]:
    if pa.types.is_struct(kind):
        fields = {field.name: _schema_of(field.type, f"{path}.{field.name}".lstrip(".")) for field in kind}
        required = [field.name for field in kind if not field.nullable]
        schema = {"type": "object", "properties": fields, "additionalProperties": False}
        return {**schema, "required": required} if required else schema
    if pa.types.is_list(kind):
        return {"type": "array", "items": _schema_of(kind.value_type, f"{path}[]")}
    for simple, tests in _WRITTEN.items():
        if any(is_kind(kind) for is_kind in tests):
            return _NAMED[simple]
    raise SchemaError(f"column {path or 'key'!r}: no schema is made of {kind}")


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is not JSON: {error}") from None


_MOST = 20_000
_Place: TypeAlias = tuple[str, tuple[str, ...]]


class _Types:
    def __init__(self, documents: Mapping[str, object], *, is_written: bool) -> None:
        self._documents, self._is_written = documents, is_written
        self._count = 0
        self.path: tuple[str, ...] = ()

    def type_of(self, raw: object, place: _Place, path: tuple[str, ...]) -> pa.DataType:
        """Return the type of a schema's values. place: its document, and the references that led to it."""
        self.path = path
        schema, place = self._resolved(raw, place, path)
        for several in ("oneOf", "anyOf", "allOf"):
            if several in schema:
                return self._of_several(schema[several], place, path)
        kind = _the_one(_kinds(schema), {"integer", "number"}, "number", path)
        if kind == "object" and schema.get("properties"):
            return self._object(schema, place, path)
        if kind == "array" and "items" in schema:
            return pa.list_(self._field("element", schema["items"], place, (*path, "[]"), is_required=True))
        if kind not in _SIMPLE:
            raise _problem(path, f"an {kind} of unnamed parts has no column")
        return _FORMATS.get(schema.get("format", ""), pa.string()) if kind == "string" else _SIMPLE[kind]

    def _resolved(self, raw: object, place: _Place, path: tuple[str, ...]) -> tuple[JsonObject, _Place]:
        """Return the schema that one refers to, and where it is."""
        document, open_ = place
        self._count += 1
        if self._count > _MOST:
            raise _problem(path, f"the schema has more than {_MOST} parts, each counted as often as it is used")
        if not isinstance(raw, dict):
            raise _problem(path, "values of any type have no column")
        if len(open_) > 64:
            raise _problem(path, "its schema contains itself, or goes deeper than 64 levels")
        if "$ref" not in raw:
            return raw, (document, (*open_, ""))
        name, _, pointer = str(raw["$ref"]).partition("#")
        name = name or document
        return self._resolved(self._referred(name, pointer, path), (name, (*open_, name + pointer)), path)

    def _takes_null(self, raw: object, place: _Place, path: tuple[str, ...]) -> bool:
        schema, place = self._resolved(raw, place, path)
        for several, fits in (("oneOf", any), ("anyOf", any), ("allOf", all)):
            if several in schema:
                return fits(self._takes_null(alternative, place, path) for alternative in schema[several])
        return "null" in schema.get("type", "null") and None in schema.get("enum", [schema.get("const")])

    def _field(self, name: str, raw: object, place: _Place, path: tuple[str, ...], *, is_required: bool) -> pa.Field:
        kind = self.type_of(raw, place, path)
        if not self._is_written or (is_required and self._takes_null(raw, place, path)):
            return pa.field(name, kind)
        return pa.field(name, kind, metadata={_NULL: _REFUSED if is_required else _LEFT_OUT})

    def _referred(self, name: str, pointer: str, path: tuple[str, ...]) -> object:
        part_of_document = self._documents.get(name)
        for part in filter(None, pointer.split("/")):
            part_of_document = (
                part_of_document.get(part.replace("~1", "/").replace("~0", "~"))
                if isinstance(part_of_document, dict)
                else None
            )
        if part_of_document is None:
            raise _problem(path, f"there is no schema {name}#{pointer}")
        return part_of_document

    def _of_several(self, schemas: Sequence[object], place: _Place, path: tuple[str, ...]) -> pa.DataType:
        """Return the one type that all alternatives but null have."""
        kinds = {self.type_of(alternative, place, path) for alternative in schemas if alternative != {"type": "null"}}
        return _the_one(kinds, {pa.int64(), pa.float64()}, pa.float64(), path)

    def _object(self, raw: JsonObject, place: _Place, path: tuple[str, ...]) -> pa.StructType:
        required = raw["required"] if isinstance(raw.get("required"), list) else ()  # a boolean in old drafts
        fields = [
            self._field(name, property_, place, (*path, name), is_required=name in required)
            for name, property_ in raw["properties"].items()
        ]
        if len({field.name.lower() for field in fields}) < len(fields):
            raise _problem(path, "names differ by case only, which Spark's columns do not")
        return pa.struct(fields)


def _kinds(raw: JsonObject) -> set[str]:
    """Return the types of values other than null."""
    kinds = raw.get("type", [])
    if not kinds:
        values = raw.get("enum", [raw["const"]] if "const" in raw else [])
        kinds = [_OF_PYTHON.get(type(value), "null" if value is None else "object") for value in values]
        kinds += [kind for kind, mark in (("object", "properties"), ("array", "items")) if mark in raw]
    return ({kinds} if isinstance(kinds, str) else set(kinds)) - {"null"}


def _the_one(kinds: set[T], numbers: set[T], widest: T, path: tuple[str, ...]) -> T:
    if kinds == numbers:
        return widest
    if len(kinds) != 1:
        raise _problem(path, f"values of {len(kinds) or 'no named'} types have no column")
    return next(iter(kinds))


def _problem(path: tuple[str, ...], problem: str) -> SchemaError:
    return SchemaError(f"field {'.'.join(path)!r}: {problem}" if path else problem)
