"""Many records of five schemas each, nested and evolving: equal to fastavro's rows and bytes, and to Google's parser.

ROSTER_SCHEMA_RECORDS is the number of records of each schema.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory

from roster.pipeline.tasks.avro_values import AvroColumns
from roster.pipeline.tasks.protobuf_values import Message, ProtobufColumns, as_spark
from roster.pipeline.tasks.schema_frames import BARE, CONFLUENT, Known, Writer
from roster.records import native
from roster.sinks.tasks.encoded_values import AvroValues, ProtobufValues
from roster.wire.avro.columns import layout
from roster.wire.avro.schema import parse
from tests.examples_tried import examples
from tests.pipeline.tasks.test_protobuf_values import F, field
from tests.wire import avro_cases

RECORDS = examples(4_000, "ROSTER_SCHEMA_RECORDS", quick=400)
pytestmark = [pytest.mark.gate, pytest.mark.timeout(max(300, RECORDS // 1_000))]
CHUNK = 20_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields.items()]}


def later(schema: dict[str, Any], *gone: str, **added: Any) -> dict[str, Any]:
    """A version with fields added in front, and without others."""
    new = [{"name": name, "type": kind, "default": default} for name, (kind, default) in added.items()]
    return {**schema, "fields": [*new, *(each for each in schema["fields"] if each["name"] not in gone)]}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


SHOP = record("Shop", name="string", zip=["null", "int"])
FLAT = record("Flat", id="long", shop="string", price="float", n="int", paid="boolean", note=["null", "string"])
ORDER = record("Order", id="int", shop=SHOP, items=array(record("Item", sku="string", n="int")))
EVENT = record(
    "Event",
    at=logical("long", "timestamp-millis"),
    day=["null", logical("int", "date")],
    price=logical("bytes", "decimal", precision=20, scale=4),
    kind={"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]},
    data="bytes",
    hash={"type": "fixed", "name": "Hash", "size": 4},
)
TAGGED = record("Tagged", tags={"type": "map", "values": ["null", "double"]}, lists=array(array("long")))
INNER = record("D", e="string", f=array(["null", SHOP]))
DEEP = record("Deep", a=["null", record("B", c=["null", INNER])], g=["long", "string"])
TOTAL, MORE, TAGS = ("double", 1.5), (["null", "string"], None), (array("string"), ["x"])
AVRO = {
    "flat": (FLAT, later(FLAT, "note", extra=("int", 3)), later(FLAT, "n", "note", extra=("long", 5), more=MORE)),
    "order": (ORDER, later(ORDER, total=TOTAL), later(ORDER, "id", total=TOTAL, tags=TAGS)),
    "event": (EVENT, later(EVENT, "day"), later(EVENT, "day", "hash", zone=("string", "é"))),
    "tagged": (TAGGED, later(TAGGED, n=("int", 1)), later(TAGGED, n=("double", 2.0))),
    "deep": (DEEP, later(DEEP, h=({"type": "map", "values": "int"}, {"k": 1})), later(DEEP, more=MORE)),
}
"""By name: the schemas of two writers, and the reader's."""


def value_of(schema: Any, by: random.Random) -> Any:  # noqa: PLR0912 - a branch for each kind of type
    if isinstance(schema, list):
        return value_of(by.choice(schema), by)
    if isinstance(schema, dict):
        match schema.get("logicalType"):
            case "timestamp-millis":
                return EPOCH + timedelta(milliseconds=by.randrange(-(10**12), 3 * 10**12))
            case "date":
                return date(1970, 1, 1) + timedelta(by.randrange(-40_000, 40_000))
            case "decimal":
                return Decimal(by.randrange(-(10**20) + 1, 10**20)).scaleb(-4)
    match schema if isinstance(schema, str) else schema["type"]:
        case "record":
            return {each["name"]: value_of(each["type"], by) for each in schema["fields"]}
        case "array":
            return [value_of(schema["items"], by) for _ in range(by.randrange(4))]
        case "map":
            return {f"k{n}": value_of(schema["values"], by) for n in range(by.randrange(3))}
        case "enum":
            return by.choice(schema["symbols"])
        case "int":
            return by.randrange(-(1 << 31), 1 << 31) >> by.randrange(31)
        case "long":
            return by.randrange(-(1 << 63), 1 << 63) >> by.randrange(63)
        case "float":
            return float(np.float32(by.uniform(-1e6, 1e6)))
        case "double":
            return by.uniform(-1e9, 1e9)
        case "boolean":
            return by.random() < 0.5
        case "null":
            return None
        case "string":
            return "äb→c"[: by.randrange(5)] * by.randrange(6)
    return by.randbytes(schema.get("size", 4) if isinstance(schema, dict) else by.randrange(12))


def chunks() -> Iterator[int]:
    for begin in range(0, RECORDS, CHUNK):
        yield min(CHUNK, RECORDS - begin)


@pytest.mark.parametrize("name", AVRO)
def test_avro_of_two_writers_is_read_as_by_fastavro_and_written_as_by_it(name: str) -> None:

    *writers, reader = AVRO[name]
    texts = [json.dumps(each) for each in writers]
    parsed = [fastavro.parse_schema(json.loads(text)) for text in texts]
    target = fastavro.parse_schema(json.loads(json.dumps(reader)))
    of = parse(json.dumps(reader))
    known = Known("", CONFLUENT, "value", {number: Writer("AVRO", text) for number, text in enumerate(texts)})
    loop = native.compiled(native.AVRO)
    read, *own = (
        AvroColumns(each, pa.schema(list(layout(each).schema)), known, loop, "value", "FAILFAST")
        for each in (of, *map(parse, texts))
    )
    compiled = native.compiled(native.AVRO_ENCODE)
    encode = [AvroValues(parse(text), b"\0\0\0\0%c" % number, compiled) for number, text in enumerate(texts)]
    by = random.Random(f"{name} 7")
    for count in chunks():
        values, rows = [], []
        for number in range(count):
            data = io.BytesIO()
            fastavro.schemaless_writer(data, parsed[number % 2], value_of(writers[number % 2], by))
            values.append(b"\0\0\0\0%c" % (number % 2) + data.getvalue())
            data.seek(0)
            rows.append(avro_cases.as_spark(fastavro.schemaless_reader(data, parsed[number % 2], target), reader))
        batch = pa.record_batch({"value": pa.array(values, pa.binary())})
        assert read(batch).to_pylist() == rows
        for number, (columns, made) in enumerate(zip(own, encode, strict=True)):
            if name != "deep":  # it has a union of two types, which is not written from columns
                part = batch.slice(number).take(pa.array(range(0, count - number, 2)))
                assert made.encoded(columns(part).to_struct_array()).equals(part["value"])


def message_file() -> Any:
    """Five messages, each with a later version `…2` that has more fields."""
    file = descriptor_pb2.FileDescriptorProto(name="many.proto", package="many", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    for number, each in enumerate("ABC"):
        kind.value.add(name=each, number=number)
    inner = file.message_type.add(name="Inner")
    field(inner, "name", 1, F.TYPE_STRING)
    field(inner, "counts", 2, F.TYPE_SINT64, repeated=True)
    for version in ("", "2"):
        flat, wide, nested, lists, kinds = (
            file.message_type.add(name=name + version) for name in ("Flat", "Wide", "Nested", "Lists", "Kinds")
        )
        for number, each in enumerate((F.TYPE_INT64, F.TYPE_STRING, F.TYPE_DOUBLE, F.TYPE_BOOL, F.TYPE_BYTES), 1):
            field(flat, f"f{number}", number, each)
        for number, each in enumerate(
            (F.TYPE_UINT32, F.TYPE_UINT64, F.TYPE_SINT32, F.TYPE_FIXED32, F.TYPE_SFIXED64, F.TYPE_FLOAT), 1
        ):
            field(wide, f"f{number}", number, each)
        field(nested, "inner", 1, F.TYPE_MESSAGE, ".many.Inner")
        field(nested, "id", 3, F.TYPE_INT32)
        field(lists, "inners", 1, F.TYPE_MESSAGE, ".many.Inner", repeated=True)
        field(lists, "texts", 2, F.TYPE_STRING, repeated=True)
        field(kinds, "kind", 1, F.TYPE_ENUM, ".many.Kind")
        field(kinds, "kinds", 2, F.TYPE_ENUM, ".many.Kind", repeated=True)
        for message in (flat, wide, nested, lists, kinds) if version else ():
            field(message, "added", 15, F.TYPE_MESSAGE, ".many.Inner")
            field(message, "more", 16, F.TYPE_INT64)
    return file


def fill(message: Any, by: random.Random, depth: int = 0) -> Any:
    for each in message.DESCRIPTOR.fields:
        if by.random() < 0.2 or depth > 3:
            continue
        made = [scalar(each, by) for _ in range(by.randrange(1, 4))] if each.cpp_type != each.CPPTYPE_MESSAGE else []
        if made and each.is_repeated:
            getattr(message, each.name).extend(made)
        elif made:
            setattr(message, each.name, made[0])
        elif each.is_repeated:
            for _ in range(by.randrange(4)):
                fill(getattr(message, each.name).add(), by, depth + 1)
        else:
            fill(getattr(message, each.name), by, depth + 1).SetInParent()
    return message


def scalar(each: Any, by: random.Random) -> Any:
    bits = 64 if each.cpp_type in (each.CPPTYPE_INT64, each.CPPTYPE_UINT64) else 32
    low = 0 if each.cpp_type in (each.CPPTYPE_UINT32, each.CPPTYPE_UINT64) else -(1 << (bits - 1))
    match each.cpp_type:
        case each.CPPTYPE_STRING:
            return by.randbytes(by.randrange(9)) if each.type == each.TYPE_BYTES else "aé→"[: by.randrange(4)] * 3
        case each.CPPTYPE_BOOL:
            return by.random() < 0.5
        case each.CPPTYPE_ENUM:
            return by.randrange(3)
        case each.CPPTYPE_DOUBLE | each.CPPTYPE_FLOAT:
            return float(np.float32(by.uniform(-1e6, 1e6)))
    return by.randrange(low, low + (1 << bits)) >> by.randrange(bits)


def as_row(message: Any) -> dict[str, Any]:
    """What columns have of a message of Google's."""
    return {each.name: as_column(message, each) for each in message.DESCRIPTOR.fields}


def as_column(message: Any, each: Any) -> Any:
    value = getattr(message, each.name)
    one: Any = lambda given: given  # noqa: E731
    if each.message_type is not None:
        one = as_row
        if not each.is_repeated and not message.HasField(each.name):
            return None
    elif each.enum_type is not None:
        one = lambda given: each.enum_type.values_by_number[given].name  # noqa: E731
    return [one(item) for item in value] if each.is_repeated else one(value)


@pytest.mark.parametrize("name", ["Flat", "Wide", "Nested", "Lists", "Kinds"])
def test_messages_of_two_versions_are_read_and_written_as_by_googles_parser(name: str) -> None:
    latest = Message([message_file().SerializeToString()], f"many.{name}2")
    older = message_factory.GetMessageClass(Message([message_file().SerializeToString()], f"many.{name}").descriptor())
    newer = latest.parser()
    fields = pa.schema([each.with_type(as_spark(each.type)).with_nullable(True) for each in latest.handler().schema()])
    read, write = ProtobufColumns(latest, fields, BARE, "value", "FAILFAST"), ProtobufValues(latest, b"")
    by = random.Random(f"{name} 7")
    for count in chunks():
        values = [fill((older, newer)[n % 2](), by).SerializeToString() for n in range(count)]
        rows = read(pa.record_batch({"value": pa.array(values, pa.binary())}))
        parsed = [newer.FromString(value) for value in values]
        assert rows.to_pylist() == [as_row(each) for each in parsed]
        assert [newer.FromString(each.as_py()) for each in write.encoded(rows.to_struct_array())] == parsed
