"""The columns of a JSON Schema: objects, arrays, numbers, text, dates and times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from roster.wire.avro.schema import SchemaError

_SIMPLE = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_FORMATS = {"date": pa.date32(), "date-time": pa.timestamp("us", "UTC")}
_ITEM = "[]"
"""In a path: an item of an array."""
_OF_PYTHON = {str: "string", bool: "boolean", int: "integer", float: "number"}


class JsonSchema(NamedTuple):
    """The columns of a schema's objects, and the paths of the fields that must have a value, outside of arrays."""

    columns: pa.Schema
    required: tuple[tuple[str, ...], ...]


def json_schema(text: str, references: Mapping[str, str]) -> JsonSchema:
    """Return what a schema says; `references` are schemas by the names that it refers to.

    Raises SchemaError, which names the field, for text that is no schema and for what has no one type.
    """
    made = _Types({"": _loaded(text), **{name: _loaded(each) for name, each in references.items()}})
    kind = made.of(made.documents[""], ("", ()), ())
    if not pa.types.is_struct(kind):
        raise SchemaError("its values are no objects")
    return JsonSchema(pa.schema(list(kind)), tuple(made.required))


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is no JSON: {error}") from None


class _Types:
    def __init__(self, documents: Mapping[str, Any]) -> None:
        self.documents = documents
        self.required: list[tuple[str, ...]] = []

    def of(self, raw: Any, at: tuple[str, tuple[str, ...]], path: tuple[str, ...]) -> Any:
        """Return the type of a schema's values. at: its document, and the references that led to it."""
        document, open_ = at
        if not isinstance(raw, dict):
            raise _problem(path, "values of any type have no column")
        if len(open_) > 64:
            raise _problem(path, "its schema contains itself, or goes deeper than 64 levels")
        if "$ref" in raw:
            name, _, pointer = str(raw["$ref"]).partition("#")
            name = name or document
            return self.of(self._found(name, pointer, path), (name, (*open_, name + pointer)), path)
        at = document, (*open_, "")
        for several in ("oneOf", "anyOf", "allOf"):
            if several in raw:
                return self._of_several(raw[several], at, path)
        kind = _the_one(_kinds(raw), {"integer", "number"}, "number", path)
        if kind == "object" and raw.get("properties"):
            return self._object(raw, at, path)
        if kind == "array" and "items" in raw:
            return pa.list_(pa.field("element", self.of(raw["items"], at, (*path, _ITEM))))
        if kind not in _SIMPLE:
            raise _problem(path, f"an {kind} of unnamed parts has no column")
        return _FORMATS.get(raw.get("format", ""), pa.string()) if kind == "string" else _SIMPLE[kind]

    def _found(self, name: str, pointer: str, path: tuple[str, ...]) -> Any:
        found = self.documents.get(name)
        for part in filter(None, pointer.split("/")):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if found is None:
            raise _problem(path, f"there is no schema {name}#{pointer}")
        return found

    def _of_several(self, schemas: Any, at: tuple[str, tuple[str, ...]], path: tuple[str, ...]) -> Any:
        """Return the one type that all alternatives but null have."""
        count = len(self.required)
        kinds = {self.of(each, at, path) for each in schemas if each != {"type": "null"}}
        if len(schemas) > 1:
            del self.required[count:]
        return _the_one(kinds, {pa.int64(), pa.float64()}, pa.float64(), path)

    def _object(self, raw: Any, at: tuple[str, tuple[str, ...]], path: tuple[str, ...]) -> Any:
        fields = []
        for name, each in raw["properties"].items():
            if name in raw.get("required", ()) and _ITEM not in path and not _may_be_null(each):
                self.required.append((*path, name))
            fields.append(pa.field(name, self.of(each, at, (*path, name))))
        if len({field.name.lower() for field in fields}) < len(fields):
            raise _problem(path, "names differ by case only, which Spark's columns do not")
        return pa.struct(fields)


def _kinds(raw: Mapping[str, Any]) -> set[str]:
    """Return the types of values other than null."""
    kinds = raw.get("type", [])
    if not kinds:
        values = raw.get("enum", [raw["const"]] if "const" in raw else [])
        kinds = [_OF_PYTHON.get(type(value), "null" if value is None else "object") for value in values]
        kinds += [kind for kind, mark in (("object", "properties"), ("array", "items")) if mark in raw]
    return ({kinds} if isinstance(kinds, str) else set(kinds)) - {"null"}


def _the_one(kinds: set[Any], numbers: set[Any], widest: Any, path: tuple[str, ...]) -> Any:
    if kinds == numbers:
        return widest
    if len(kinds) != 1:
        raise _problem(path, f"values of {len(kinds) or 'no named'} types have no column")
    return next(iter(kinds))


def _may_be_null(raw: Any) -> bool:
    if not isinstance(raw, dict):
        return False
    alternatives = [*raw.get("oneOf", ()), *raw.get("anyOf", ())]
    return "null" in raw.get("type", ()) or None in raw.get("enum", ()) or any(map(_may_be_null, alternatives))


def _problem(path: tuple[str, ...], problem: str) -> SchemaError:
    return SchemaError(f"field {'.'.join(path)!r}: {problem}" if path else problem)
