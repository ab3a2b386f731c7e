"""The columns of a schema: what each type becomes in Arrow, as Spark's `from_avro` types it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from roster.wire.avro.schema import NULL, Field, SchemaError, Type

Json: TypeAlias = "str | int | Sequence[Json] | Mapping[str, Json] | None"

_TIME = pa.timestamp("us", tz="UTC")
_LOCAL = pa.timestamp("us")
TIMES = {
    "timestamp-millis": (_TIME, 1000),
    "timestamp-micros": (_TIME, 1),
    "local-timestamp-millis": (_LOCAL, 1000),
    "local-timestamp-micros": (_LOCAL, 1),
}
"""{logical type: its Arrow type, microseconds of its unit}."""
_SIMPLE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_NEVER_READ: dict[pa.DataType, str] = {pa.int8(): "int", pa.int16(): "int", pa.null(): "null"}
"""Other types that are written."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_LOGICAL = {"date": pa.date32(), **{logical: arrow for logical, (arrow, _) in TIMES.items()}}
_WIDTHS = {"null": -1, "record": -1, "union": -1, "boolean": 1, "int": 4, "enum": 4, "float": 4, "long": 8, "double": 8}


@dataclass(eq=False)
class Column:
    """The column that holds the values of a type.

    dim: counts its values: 0 for one in each row, else the number of the list that holds it. extra: the most bytes or
    items that a default adds to one value. least: the least bytes of an item that it is read from.
    """

    type: Type
    dim: int
    is_nullable: bool
    number: int
    children: "list[Column]" = field(default_factory=list)
    child_dim: int = 0
    extra: int = 0
    least: int = 1 << 20

    @property
    def width(self) -> int:
        """Bytes of a value; 0 for offsets, -1 for a struct, which has none."""
        return 16 if self.type.logical == "decimal" else _WIDTHS.get(self.type.kind, 0)

    @property
    def is_struct(self) -> bool:
        """True for a record, and for a union, whose branches are the children."""
        return self.type.kind in ("record", "union")

    @property
    def is_list(self) -> bool:
        """True for an array or map."""
        return self.type.kind in ("array", "map")

    def walk(self) -> "Iterator[Column]":
        """Yield the column and those in it, each before its children."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def arrow(self) -> pa.DataType:
        """The type in Arrow."""
        kind = self.type.kind
        if self.type.logical == "decimal":
            return pa.decimal128(self.type.precision, self.type.scale)
        if kind == "array":
            return pa.list_(pa.field("element", self.children[0].arrow, self.children[0].is_nullable))
        if kind == "map":
            item = self.children[1]
            return pa.map_(pa.string(), pa.field("value", item.arrow, item.is_nullable))
        return self.schema if self.is_struct else _LOGICAL.get(self.type.logical, _SIMPLE[kind])

    @property
    def schema(self) -> pa.StructType:
        """The struct of a record or union."""
        names = [field.name for field in self.type.fields] or [f"member{n}" for n in range(len(self.children))]
        if len({name.lower() for name in names}) < len(names):
            raise SchemaError(f"fields of {self.type} differ by case only, which Spark's columns do not")
        fields = (
            pa.field(name, child.arrow, child.is_nullable) for name, child in zip(names, self.children, strict=True)
        )
        return pa.struct(list(fields))


def without_null(kind: Type) -> tuple[list[Type], bool]:
    """Return the types of a value other than null, and whether it may be null."""
    if kind.kind != "union":
        return ([] if kind.kind == "null" else [kind]), kind.kind == "null"
    branches = [branch for branch in kind.branches if branch.kind != "null"]
    return branches, len(branches) < len(kind.branches)


def merged(branches: list[Type]) -> Type | None:
    """Return the one type that Spark has for several, None if it has a struct of them."""
    if len(branches) == 1:
        return branches[0]
    kinds = {branch.kind for branch in branches}
    wide = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}.get(frozenset(kinds))
    return None if wide is None else Type(wide)


def layout(schema: Type) -> Column:
    """Return the columns of a schema's values; a value other than a record becomes one column `value`.

    Raises SchemaError for arrays whose items have no bytes.
    """
    record = schema if schema.kind == "record" else Type("record", fields=(Field("value", schema),))
    numbers, dims = iter(range(1 << 30)), iter(range(1, 1 << 30))

    def column_of(kind: Type, dim: int, *, is_nullable: bool = False) -> Column:
        branches, has_null = without_null(kind)
        is_nullable = is_nullable or has_null
        one = merged(branches) if branches else NULL
        if one is None:
            column = Column(Type("union", branches=tuple(branches)), dim, is_nullable, next(numbers))
            column.children = [column_of(branch, dim, is_nullable=True) for branch in branches]
            return column
        column = Column(one, dim, is_nullable, next(numbers))
        if one.kind == "record":
            column.children = [column_of(field.type, dim) for field in one.fields]
        elif column.is_list:
            column.child_dim = next(dims)
            if one.kind == "map":
                column.children = [column_of(Type("string"), column.child_dim)]
            column.children.append(column_of(_items(one), column.child_dim))
        return column

    return column_of(record, 0)


def _items(kind: Type) -> Type:
    assert kind.items is not None  # arrays and maps have them
    if kind.kind == "array" and least_size(kind.items) == 0:
        raise SchemaError(f"items of an array of {kind.items} have no bytes")
    return kind.items


def least_size(kind: Type) -> int:
    """Return the least number of bytes of a value."""
    if kind.kind == "record":
        return sum(least_size(field.type) for field in kind.fields)
    return {"null": 0, "float": 4, "double": 8, "fixed": kind.size}.get(kind.kind, 1)


def of_arrow(kind: pa.DataType, name: str) -> Type:
    """Return the type of a column's values; fields may be null, and are if they are missing.

    Raises SchemaError, with `name`, for a type that Avro's values are never read as.
    """
    if pa.types.is_struct(kind):
        fields = (kind.field(n) for n in range(kind.num_fields))
        return Type("record", is_loose=True, fields=tuple(_optional(field.type, field.name) for field in fields))
    if pa.types.is_list(kind):
        return Type("array", items=_optional(kind.value_type, name).type)
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return Type("map", items=_optional(kind.item_type, name).type)
    if pa.types.is_decimal128(kind):
        return Type("bytes", logical="decimal", precision=kind.precision, scale=kind.scale, is_loose=True)
    if pa.types.is_timestamp(kind):
        return Type("long", logical="local-timestamp-micros" if kind.tz is None else "timestamp-micros", is_loose=True)
    if pa.types.is_date32(kind):
        return Type("int", logical="date", is_loose=True)
    for avro, arrow in _SIMPLE.items():
        if arrow.equals(kind) and avro not in ("null", "fixed", "enum"):
            return Type(avro, is_loose=True)
    raise SchemaError(f"column {name!r}: Avro has no values of {kind}")


def _optional(kind: pa.DataType, name: str) -> Field:
    return Field(name, Type("union", branches=(NULL, of_arrow(kind, name))), has_default=True)


def schema_of(kind: pa.DataType, name: str, path: str = "") -> Json:
    """Return the schema of a column's values, as JSON; a struct is a record `name`, those in it are named after it.

    Raises SchemaError, with the column's path, for a type or a name that Avro does not have.
    """
    if pa.types.is_struct(kind):
        fields = [_field(field, name, f"{path}.{field.name}".lstrip(".")) for field in kind]
        namespace, _, last = name.rpartition(".")
        return {"type": "record", "name": last, **({"namespace": namespace} if namespace else {}), "fields": fields}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, name, path)}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": _nullable(kind.item_field, name, path)}
    if kind in _NEVER_READ:
        return _NEVER_READ[kind]
    type_ = of_arrow(kind, path)
    digits = {"precision": type_.precision, "scale": type_.scale} if type_.precision else {}
    return {"type": type_.kind, "logicalType": type_.logical, **digits} if type_.logical else type_.kind


def _field(field: pa.Field, record: str, path: str) -> dict[str, Json]:
    """Return the field of a record for a column; one that may be null has null as its default."""
    if not _NAME.fullmatch(field.name):
        raise SchemaError(f"column {path!r}: names of Avro have letters, digits and _ only")
    entry = {"name": field.name, "type": _nullable(field, f"{record}.{field.name}", path)}
    return entry | {"default": None} if field.nullable else entry


def _nullable(field: pa.Field, name: str, path: str) -> Json:
    kind = schema_of(field.type, name, path)
    return ["null", kind] if field.nullable and kind != "null" else kind
