"""Avro schemas, parsed into a tree of types.

Source: Apache Avro 1.12, Specification.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from roster._errors import RosterError
from roster._json import JsonObject

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAMED = ("record", "error", "enum", "fixed")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_DEEPEST = 64
_MOST = 5_000
"""The most types that a schema may have, each counted as often as it is used."""
_LOGICAL = {
    "date": ("int",),
    "time-millis": ("int",),
    **dict.fromkeys(("timestamp-millis", "timestamp-micros", "timestamp-nanos", "time-micros"), ("long",)),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"), ("long",)),
    "uuid": ("string", "fixed"),
    "decimal": ("bytes", "fixed"),
    "duration": ("fixed",),
}
"""Logical types, and the types that they annotate; anything else is ignored, as the specification says."""


class SchemaError(RosterError, ValueError):
    """A schema cannot be read, is not supported, or does not fit another; the text says where."""


@dataclass(frozen=True, eq=False)
class Field:
    """A field of a record; `default` is JSON as in the schema."""

    name: str
    type: "Type"
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: object = None


@dataclass(frozen=True, eq=False)
class Type:
    """A type: `kind` is that of the specification, and which other fields have a meaning depends on it.

    is_loose: made of a column's type, so it has no name, and accepts all Avro types with the same values.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    items: "Type | None" = None
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    size: int = 0
    branches: "tuple[Type, ...]" = ()
    logical: str = ""
    precision: int = 0
    scale: int = 0
    is_loose: bool = False

    def __str__(self) -> str:
        """Return what an error calls it."""
        if self.kind == "union":
            return f"[{', '.join(map(str, self.branches))}]"
        if self.logical == "decimal":
            return f"decimal({self.precision}, {self.scale})"
        return f"{self.kind} {self.name}".rstrip() + (f" ({self.logical})" if self.logical else "")


NULL = Type("null")


def parse(text: str, references: Iterable[str] = ()) -> Type:
    """Parse a schema; its named types may be defined in `references`, given in the order of their use.

    Raises SchemaError for text that is not a schema, for types that contain themselves, and for more than 5,000 types.
    """
    parser = _Parser()
    for reference in references:
        parser.parsed(loaded(reference))
    return parser.parsed(loaded(text))


def loaded(text: str) -> Any:
    """Return a schema's JSON. Raises SchemaError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if _NAME.fullmatch(text):  # a primitive type without quotes, as some registries keep it
            return text
        raise SchemaError(f"the schema is not JSON: {error}") from None


@dataclass
class _Parser:
    named: dict[str, Type] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def parsed(self, raw: object) -> Type:
        self.count = 0
        return self._type(raw, "", 0)

    def _type(self, raw: object, space: str, depth: int) -> Type:
        self._counted(1)
        if depth > _DEEPEST:
            raise SchemaError(f"types are nested deeper than {_DEEPEST} levels")
        if isinstance(raw, str):
            raw = {"type": raw}
        if isinstance(raw, list):
            return self._union(raw, space, depth)
        if not isinstance(raw, dict) or "type" not in raw:
            raise SchemaError(f"{_short(raw)} is not a type")
        kind = raw["type"]
        if not isinstance(kind, str):  # {"type": {"type": …}}
            return self._type(kind, space, depth + 1)
        if kind in _NAMED:
            return self._named(kind, raw, space, depth)
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            if inner not in raw:
                raise SchemaError(f"{_short(raw)} has no {inner!r}")
            return Type(kind, items=self._type(raw[inner], space, depth + 1))
        if kind not in PRIMITIVES:
            return self._reference(kind, space)
        return Type(kind, **_logical(kind, raw, 0))

    def _counted(self, types: int) -> None:
        self.count += types
        if self.count > _MOST:
            raise SchemaError(f"the schema has more than {_MOST} types")

    def _reference(self, name: str, space: str) -> Type:
        for full in (_full(name, space), name):
            if full in self.open:
                raise SchemaError(f"{full} contains itself, and columns cannot")
            if full in self.named:
                self._counted(self.sizes[full])
                return self.named[full]
        raise SchemaError(f"there is no type {name!r}")

    def _union(self, raw: list[object], space: str, depth: int) -> Type:
        branches = tuple(self._type(branch, space, depth + 1) for branch in raw)
        if any(branch.kind == "union" for branch in branches):
            raise SchemaError("a union contains a union")
        keys = [branch.name or branch.kind for branch in branches]
        if not keys or len(set(keys)) < len(keys):
            raise SchemaError(f"the union {_short(raw)} is empty or has a type twice")
        return Type("union", branches=branches)

    def _named(self, kind: str, raw: JsonObject, space: str, depth: int) -> Type:
        name = _full(_name(raw), raw.get("namespace", space))
        inside = name.rpartition(".")[0]
        if name in self.named or name in self.open or name in PRIMITIVES:
            raise SchemaError(f"the name {name} is taken")
        before = self.count
        aliases = tuple(_full(alias, inside) for alias in _texts(raw, "aliases"))
        common: JsonObject = {"name": name, "aliases": aliases}
        if kind == "enum":
            type_ = Type("enum", symbols=_symbols(raw, name), default_symbol=raw.get("default"), **common)
            if type_.default_symbol is not None and type_.default_symbol not in type_.symbols:
                raise SchemaError(f"the default of {name} is not one of its symbols")
        elif kind == "fixed":
            size = raw.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
                raise SchemaError(f"the size of {name} is not a size")
            type_ = Type("fixed", size=size, **common, **_logical("fixed", raw, size))
        else:
            self.open.append(name)
            type_ = Type("record", fields=self._fields(raw, name, inside, depth), **common)
            self.open.pop()
        self.named[name], self.sizes[name] = type_, self.count - before
        return type_

    def _fields(self, raw: JsonObject, name: str, space: str, depth: int) -> tuple[Field, ...]:
        entries = raw.get("fields")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise SchemaError(f"{name} has no list of fields")
        fields = []
        for entry in entries:
            if "type" not in entry:
                raise SchemaError(f"field {_name(entry)} of {name} has no type")
            kind = self._type(entry["type"], space, depth + 1)
            fields.append(Field(_name(entry), kind, _texts(entry, "aliases"), "default" in entry, entry.get("default")))
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise SchemaError(f"{name} has two fields of one name")
        return tuple(fields)


def _logical(kind: str, raw: JsonObject, size: int) -> JsonObject:
    """Return the fields of a logical type; none for one that the specification has ignored."""
    logical = raw.get("logicalType")
    if not isinstance(logical, str) or kind not in _LOGICAL.get(logical, ()):
        return {}
    if logical != "decimal":
        needed = {"duration": 12, "uuid": 16}.get(logical, size)
        return {"logical": logical} if kind != "fixed" or size == needed else {}
    precision, scale = raw.get("precision"), raw.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or precision < 1:
        return {}
    if precision > 38:
        raise SchemaError(f"decimal({precision}, {scale}) has more than the 38 digits of Spark's decimals")
    return {"logical": logical, "precision": precision, "scale": scale}


def _symbols(raw: JsonObject, name: str) -> tuple[str, ...]:
    symbols = _texts(raw, "symbols")
    if not symbols or len(set(symbols)) < len(symbols):
        raise SchemaError(f"{name} has no symbols, or one of them twice")
    return symbols


def _name(raw: JsonObject) -> str:
    name = raw.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SchemaError(f"{_short(name)} is not a name")
    return name


def _full(name: str, space: object) -> str:
    return f"{space}.{name}" if isinstance(space, str) and space and "." not in name else name


def _texts(raw: JsonObject, key: str) -> tuple[str, ...]:
    texts = raw.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise SchemaError(f"{key} of {_short(raw.get('name'))} is not a list of names")
    return tuple(texts)


def _short(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 80 else f"{text[:77]}..."
