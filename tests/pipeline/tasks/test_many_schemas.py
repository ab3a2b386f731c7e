"""Many records of five schemas each, nested and evolving: equal to fastavro's rows and bytes.

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

from roster.pipeline.tasks.avro_values import CONFLUENT, AvroColumns, Known, Writer
from roster.records import native
from roster.sinks.tasks.encoded_values import AvroValues
from roster.wire.avro.columns import layout
from roster.wire.avro.schema import parse
from tests.examples_tried import examples
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
