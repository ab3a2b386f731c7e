"""The columns of a JSON Schema: objects, arrays, numbers, text, dates and times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from roster.wire.avro.schema import SchemaError

_SIMPLE = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_FORMATS = {"date": pa.date32(), "date-time": pa.timestamp("us", "UTC")}
_OF_PYTHON = {str: "string", bool: "boolean", int: "integer", float: "number"}


def json_schema(text: str, references: Mapping[str, str]) -> pa.Schema:
    """Return the columns of a schema's objects; `references` are schemas by the names that it refers to.

    Raises SchemaError, which names the field, for text that is no schema and for what has no one type.
    """
    documents = {"": _loaded(text), **{name: _loaded(each) for name, each in references.items()}}
    kind = _Types(documents).of(documents[""], ("", ()), ())
    if not pa.types.is_struct(kind):
        raise SchemaError("its values are no objects")
    return pa.schema(list(kind))


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is no JSON: {error}") from None


class _Types:
    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents

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
            return pa.list_(pa.field("element", self.of(raw["items"], at, (*path, "[]"))))
        if kind not in _SIMPLE:
            raise _problem(path, f"an {kind} of unnamed parts has no column")
        return _FORMATS.get(raw.get("format", ""), pa.string()) if kind == "string" else _SIMPLE[kind]

    def _found(self, name: str, pointer: str, path: tuple[str, ...]) -> Any:
        found = self._documents.get(name)
        for part in filter(None, pointer.split("/")):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if found is None:
            raise _problem(path, f"there is no schema {name}#{pointer}")
        return found

    def _of_several(self, schemas: Any, at: tuple[str, tuple[str, ...]], path: tuple[str, ...]) -> Any:
        """Return the one type that all alternatives but null have."""
        kinds = {self.of(each, at, path) for each in schemas if each != {"type": "null"}}
        return _the_one(kinds, {pa.int64(), pa.float64()}, pa.float64(), path)

    def _object(self, raw: Any, at: tuple[str, tuple[str, ...]], path: tuple[str, ...]) -> Any:
        fields = [pa.field(name, self.of(each, at, (*path, name))) for name, each in raw["properties"].items()]
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


def _problem(path: tuple[str, ...], problem: str) -> SchemaError:
    return SchemaError(f"field {'.'.join(path)!r}: {problem}" if path else problem)
