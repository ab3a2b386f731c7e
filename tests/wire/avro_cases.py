"""Random Avro schemas with values, what readers make of them by fastavro, and schemas evolved from others."""

from __future__ import annotations

import io
import json
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
from hypothesis import strategies as st

Schema = Any

PROMOTED = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"], "string": ["bytes"]}
INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
TIME = st.datetimes(datetime.fromisoformat("1901-01-01"), datetime.fromisoformat("2200-01-01"))
SINGLE = st.floats(width=32, allow_nan=False)
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": INT,
    "long": LONG,
    "float": SINGLE,
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": TEXT,
}
MILLIS = TIME.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
LOGICAL: dict[tuple[str, str], st.SearchStrategy[Any]] = {
    ("int", "date"): st.dates(),
    ("int", "time-millis"): st.times().map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
    ("long", "time-micros"): st.times(),
    ("long", "timestamp-millis"): MILLIS.map(lambda at: at.replace(tzinfo=UTC)),
    ("long", "timestamp-micros"): TIME.map(lambda at: at.replace(tzinfo=UTC)),
    ("long", "local-timestamp-millis"): MILLIS,
    ("long", "local-timestamp-micros"): TIME,
    ("string", "uuid"): st.uuids(),
}


class Made:
    """A schema, and the strategy of its values."""

    def __init__(self, schema: Schema, values: st.SearchStrategy[Any], sort: str) -> None:
        self.schema, self.values, self.sort = schema, values, sort


@st.composite
def types(draw: st.DrawFn, depth: int, names: Any) -> Made:  # noqa: PLR0912 - a branch for each kind of type
    kinds = ["primitive", "logical", "decimal", "fixed", "enum"]
    if depth:
        kinds += ["record", "array", "map", "optional", "union"]
    kind = draw(st.sampled_from(kinds))
    if kind == "primitive":
        name = draw(st.sampled_from(sorted(PRIMITIVES)))
        return Made(name, PRIMITIVES[name], {"long": "int", "float": "double"}.get(name, name))
    if kind == "logical":
        name, logical = draw(st.sampled_from(sorted(LOGICAL)))
        return Made(
            {"type": name, "logicalType": logical}, LOGICAL[name, logical], "string" if name == "string" else "int"
        )
    if kind == "decimal":
        precision = draw(st.integers(1, 38))
        scale = draw(st.integers(0, precision))
        schema = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        if draw(st.booleans()):
            schema |= {"type": "fixed", "name": next(names), "size": draw(st.integers(16, 20))}
        numbers = st.integers(1 - 10**precision, 10**precision - 1)
        return Made(schema, numbers.map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale))), "decimal")
    if kind == "fixed":
        size = draw(st.integers(0, 18))
        return Made(
            {"type": "fixed", "name": next(names), "size": size}, st.binary(min_size=size, max_size=size), "bytes"
        )
    if kind == "enum":
        symbols = draw(st.lists(st.sampled_from("ABCDEF"), min_size=1, unique=True))
        return Made({"type": "enum", "name": next(names), "symbols": symbols}, st.sampled_from(symbols), "string")
    if kind == "record":
        return draw(records(depth - 1, names))
    inner = draw(types(depth - 1, names))
    if kind == "array":
        if inner.schema == "null" or least(inner.schema) == 0:
            inner = Made("int", INT, "int")
        return Made({"type": "array", "items": inner.schema}, st.lists(inner.values, max_size=4), "list")
    if kind == "map":
        return Made({"type": "map", "values": inner.schema}, st.dictionaries(TEXT, inner.values, max_size=3), "dict")
    if isinstance(inner.schema, list):
        return inner
    if kind == "optional":
        order = draw(st.sampled_from([["null", inner.schema], [inner.schema, "null"]]))
        return Made(order, st.none() | inner.values, inner.sort)
    other = draw(types(depth - 1, names))
    # fastavro's writer takes texts for dates and other things, and so the wrong branch.
    if isinstance(other.schema, list) or other.sort == inner.sort or "logicalType" in str((inner.schema, other.schema)):
        return inner
    extra = draw(st.sampled_from([[], ["null"]]))
    values = inner.values | other.values | (st.none() if extra else st.nothing())
    return Made([*extra, inner.schema, other.schema], values, "union")


def least(schema: Schema) -> int:
    if not isinstance(schema, dict):
        return 1
    if schema["type"] == "record":
        return sum(least(each["type"]) for each in schema["fields"])
    return schema["size"] if schema["type"] == "fixed" else 1


@st.composite
def records(draw: st.DrawFn, depth: int, names: Any) -> Made:
    name = next(names)
    parts = draw(st.lists(types(depth, names), min_size=1, max_size=5))
    fields = [{"name": f"f{n}", "type": part.schema} for n, part in enumerate(parts)]
    values = st.fixed_dictionaries({f"f{n}": part.values for n, part in enumerate(parts)})
    return Made({"type": "record", "name": name, "fields": fields}, values, "dict")


@st.composite
def cases(draw: st.DrawFn, depth: int = 3) -> tuple[Schema, list[Any]]:
    """A record's schema, and values of it."""
    made = draw(records(depth, iter(f"N{n}" for n in range(10_000))))
    return made.schema, draw(st.lists(made.values, min_size=1, max_size=6))


@st.composite
def evolved(draw: st.DrawFn, schema: Schema) -> Schema:
    """A schema that can read what another one wrote."""
    if isinstance(schema, str):
        return draw(st.sampled_from([schema, *PROMOTED.get(schema, [])]))
    if isinstance(schema, list) or "logicalType" in schema:
        return schema
    if schema["type"] == "enum":
        return {**schema, "symbols": draw(st.permutations([*schema["symbols"], "NEW"]))}
    if schema["type"] == "array":
        return {**schema, "items": draw(evolved(schema["items"]))}
    if schema["type"] == "map":
        return {**schema, "values": draw(evolved(schema["values"]))}
    if schema["type"] != "record":
        return schema
    fields = []
    for field in schema["fields"]:
        what = draw(st.sampled_from(["same", "same", "gone", "renamed", "optional"]))
        kind = draw(evolved(field["type"]))
        if what == "renamed":
            fields.append({"name": f"new_{field['name']}", "aliases": [field["name"]], "type": kind})
        elif what == "optional" and not isinstance(kind, list):
            fields.append({"name": field["name"], "type": ["null", kind]})
        elif what != "gone" or least(schema) < 2:
            fields.append({"name": field["name"], "type": kind})
    if least(schema) and not least({**schema, "fields": fields}):  # arrays of items without bytes are refused
        fields.append(next(field for field in schema["fields"] if least(field["type"])))
    added: list[tuple[Schema, Any]] = [
        ("long", 7),
        ("string", "é"),
        (["null", "double"], None),
        ({"type": "array", "items": "int"}, [1, 2]),
        ({"type": "map", "values": "string"}, {"a": "b"}),
        ("boolean", True),
        ("double", 1.5),
    ]
    for number, (kind, default) in enumerate(draw(st.lists(st.sampled_from(added), max_size=2))):
        fields.append({"name": f"added{number}", "type": kind, "default": default})
    return {**schema, "fields": draw(st.permutations(fields))}


def encoded(schema: Schema, values: list[Any]) -> list[bytes]:
    """The values' bytes, by fastavro."""
    parsed, out = fastavro.parse_schema(json.loads(json.dumps(schema))), []
    for value in values:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, parsed, value)
        out.append(data.getvalue())
    return out


def read_by_fastavro(data: bytes, writer: Schema, reader: Schema) -> Any:
    """What fastavro reads, as Spark's types have it."""
    parsed = [fastavro.parse_schema(json.loads(json.dumps(each))) for each in (writer, reader)]
    return as_spark(fastavro.schemaless_reader(io.BytesIO(data), *parsed), reader)


def as_spark(value: Any, schema: Schema) -> Any:
    """A value of fastavro's, as pyarrow gives those of Spark's types."""
    if isinstance(schema, list):
        return of_union(value, schema)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, time):
        micros = (value.hour * 3600 + value.minute * 60 + value.second) * 1_000_000 + value.microsecond
        return micros // 1000 if schema["type"] == "int" else micros
    if isinstance(schema, str):
        if schema == "bytes" and isinstance(value, str):
            return value.encode()
        return float(np.float32(value)) if schema == "float" else value
    if schema["type"] == "record":
        return {field["name"]: as_spark(value[field["name"]], field["type"]) for field in schema["fields"]}
    if schema["type"] == "array":
        return [as_spark(each, schema["items"]) for each in value]
    if schema["type"] == "map":
        return [(key, as_spark(each, schema["values"])) for key, each in value.items()]
    return value


def of_union(value: Any, schema: list[Schema]) -> Any:
    branches = [each for each in schema if each != "null"]
    if value is None:
        return None
    if len(branches) == 1:
        return as_spark(value, branches[0])
    if set(map(str, branches)) in ({"int", "long"}, {"float", "double"}):
        return value
    fitting = [number for number, each in enumerate(branches) if _is_a(value, each)]
    made: dict[str, Any] = {f"member{number}": None for number in range(len(branches))}
    made[f"member{fitting[0]}"] = as_spark(value, branches[fitting[0]])
    return made


def _is_a(value: Any, schema: Schema) -> bool:
    kind = schema if isinstance(schema, str) else schema["type"]
    logical = schema.get("logicalType", "") if isinstance(schema, dict) else ""
    classes: dict[str, Any] = {
        "date": date,
        "uuid": uuid.UUID,
        "time": time,
        "boolean": bool,
        "int": int,
        "long": int,
        "float": float,
        "double": float,
        "bytes": bytes,
        "fixed": bytes,
        "string": str,
        "enum": str,
        "array": list,
        "map": dict,
        "record": dict,
    }
    if logical.startswith(("timestamp", "local")):
        return isinstance(value, datetime) and (value.tzinfo is None) == logical.startswith("local")
    return type(value) is classes[logical.partition("-")[0] or kind]


def spans(values: list[bytes]) -> tuple[Any, Any, Any]:
    """Values one after the other, and where each begins and ends."""
    ends = np.cumsum([len(each) for each in values], dtype=np.int64)
    return np.frombuffer(b"".join(values) or b"\0", np.uint8), ends - [len(each) for each in values], ends
