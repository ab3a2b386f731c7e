"""JSON Schema with a registry: types of columns, what is refused, and values of Confluent's serializer."""

from __future__ import annotations

import datetime
import json
import pickle
import random
import resource
import warnings
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructField, StructType

from roster.pipeline.errors import MissingSchemasError, PipelineError
from roster.pipeline.registry_schemas import fetch_missing
from roster.pipeline.tasks.json_values import JsonError
from roster.pipeline.tasks.value_columns import rows_at_fault
from roster.schemas import Registry
from roster.schemas.json_schema import json_schema, json_type
from roster.spark.schema_steps import FramedJsonParsed
from roster.testing import SchemaRegistry
from roster.wire.avro.schema import SchemaError
from tests.examples_tried import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own dependencies warn of theirs
    from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

FRAMES = examples(2000, "ROSTER_AVRO_FRAMES", quick=200)
GIVEN = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
ONE = {
    "title": "Order",
    "type": "object",
    "required": ["id", "at", "note", "shop"],
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": ["string", "null"], "format": "date"},
        "price": {"oneOf": [{"type": "null"}, {"type": "number"}, {"type": "integer"}]},
        "note": {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null"}]},
        "paid": {"type": "boolean"},
        "kind": {"enum": ["A", "B", None]},
        "shop": {"$ref": "#/$defs/shop"},
        "items": {"type": "array", "items": {"allOf": [{"$ref": "#/$defs/shop"}]}},
    },
    "$defs": {
        "text": {"type": "string"},
        "shop": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "zip": {"type": "integer"}},
        },
    },
}
SHOP = pa.struct([("name", pa.string()), ("zip", pa.int64())])


def test_types_are_those_of_spark() -> None:
    found = json_schema(json.dumps(ONE), {})
    assert found.equals(
        pa.schema(
            [
                ("id", pa.int64()),
                ("at", pa.timestamp("us", "UTC")),
                ("day", pa.date32()),
                ("price", pa.float64()),
                ("note", pa.string()),
                ("paid", pa.bool_()),
                ("kind", pa.string()),
                ("shop", SHOP),
                ("items", pa.list_(pa.field("element", SHOP))),
            ]
        )
    )
    other = json_schema(
        '{"properties": {"a": {"$ref": "shop.json"}}}',
        {"shop.json": json.dumps(ONE["$defs"]["shop"])},  # type: ignore[index]
    )
    assert other.field("a").type.equals(SHOP)


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ({}, "field 'a': values of no named types have no column"),
        (True, "field 'a': values of any type have no column"),
        ({"type": ["string", "integer"]}, "field 'a': values of 2 types have no column"),
        ({"oneOf": [{"type": "string"}, {"type": "boolean"}]}, "field 'a': values of 2 types"),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            "field 'a': an object of unnamed parts has no",
        ),
        ({"type": "array"}, "field 'a': an array of unnamed parts"),
        ({"type": "array", "items": {"properties": {"b": {}}}}, r"field 'a.\[\].b': values of no named types"),
        ({"$ref": "#"}, "its schema contains itself"),
        ({"$ref": "#/$defs/none"}, "field 'a': there is no schema #/\\$defs/none"),
        ({"$ref": "other.json"}, "field 'a': there is no schema other.json#"),
        ({"properties": {"b": {"type": "string"}, "B": {"type": "string"}}}, "field 'a': names differ by case only"),
    ],
)
def test_what_has_no_one_type_is_refused_by_name(field: Any, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        json_schema(json.dumps({"properties": {"a": field}}), {})


def test_text_that_is_no_schema_of_objects_is_refused() -> None:
    for text, problem in (("{", "the schema is not JSON"), ('{"type": "string"}', "its values are not objects")):
        with pytest.raises(SchemaError, match=problem):
            json_schema(text, {})


def chained(levels: int, **of: Any) -> str:
    """Each level has the parts of `of`, in which "next" is the next level."""
    made = {f"l{n}": json.loads(json.dumps(of).replace('"next"', f'{{"$ref": "#/d/l{n + 1}"}}')) for n in range(levels)}
    return json.dumps(
        {"type": "object", "properties": {"x": {"$ref": "#/d/l0"}}, "d": {**made, f"l{levels}": {"type": "string"}}}
    )


HOSTILE_SCHEMAS = [
    *(chained(30, **{several: ["next", "next"]}) for several in ("oneOf", "allOf", "anyOf")),
    *(chained(levels, type="object", properties={"l": "next", "r": "next"}) for levels in (18, 30)),
    chained(30, type="object", properties={"l": "next", "r": "next"}, required=["l", "r"]),
    *(
        json.dumps({"type": "object", "properties": {"x": raw}})
        for raw in (
            {"oneOf": 5},
            {"oneOf": {"a": 1}},
            {"oneOf": [5]},
            {"enum": 5},
            {"enum": [[1]]},
            {"type": 5},
            {"type": [5]},
            {"type": [["a"]]},
            {"type": {}},
            {"type": "string", "format": ["date"]},
            {"type": "object", "properties": []},
            {"type": "object", "properties": ["a"]},
            {"type": "object", "properties": {"a": 1}},
            {"type": "object", "properties": {"\ud800": {"type": "string"}}},
            {"type": "array", "items": 5},
            {"$ref": 5},
            {"$ref": "#/properties/x"},
            {"$ref": ["a"]},
            {"const": [1]},
            5,
            None,
            "x",
        )
    ),
    "[" * 100_000,
    '{"properties":' * 50_000,
    "5",
    "null",
]


@pytest.mark.parametrize("number", range(len(HOSTILE_SCHEMAS)))
def test_schemas_without_end_or_sense_are_refused_in_one_line(number: int) -> None:
    for is_written in (False, True):
        with pytest.raises(SchemaError) as caught:
            json_type(HOSTILE_SCHEMAS[number], {}, is_written=is_written)
        assert "\n" not in str(caught.value)


def rows_of(read: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, once the driver has fetched what a task missed."""
    try:
        return pickle.loads(pickle.dumps(read))(batch)
    except MissingSchemasError as error:
        fetch_missing(error)
        return pickle.loads(pickle.dumps(read))(batch)


def test_values_of_confluents_serializer_are_read_with_ids_in_values_and_in_headers() -> None:
    headers = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
    row = {"id": 1, "at": "2026-01-02T03:04:05Z", "note": None, "shop": {"name": "s", "zip": 2}}
    older = json.dumps(
        {"title": "O", "type": "object", "properties": {"id": {"type": "number"}, "price": {"type": "integer"}}}
    )
    with SchemaRegistry() as registry:
        client = SchemaRegistryClient({"url": registry.url})
        client.set_compatibility(level="NONE")
        made = []
        for text, value, conf in (
            (older, {"id": 3.0, "price": 4}, {}),
            (json.dumps(ONE), row, {}),
            (json.dumps(ONE), {**row, "items": [{"name": "x"}]}, {"schema.id.serializer": header_schema_id_serializer}),
        ):
            sent: list[Any] = []
            context = SerializationContext("orders", MessageField.VALUE, sent)
            made.append(
                (JSONSerializer(text, client, conf={"auto.register.schemas": True, **conf})(value, context), sent)
            )
        batch = pa.record_batch(
            {
                "value": pa.array([value for value, _ in made]),
                "headers": pa.array(
                    [[{"key": key, "value": data} for key, data in sent] for _, sent in made],
                    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                ),
            }
        )
        step = FramedJsonParsed(Registry(registry.url), None, "orders-value", "value", "PERMISSIVE", ())
        read, _ = step.resolved(GIVEN.add("headers", headers))
        moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
        nothing = dict.fromkeys(ONE["properties"])
        assert rows_of(read, batch).to_pylist() == [
            {**nothing, "price": 4.0},  # 3.0 is no integer
            {**nothing, **row, "at": moment},
            {**nothing, **row, "at": moment, "items": [{"name": "x", "zip": None}]},
        ]


def test_bad_values_are_named_row_by_row() -> None:
    with SchemaRegistry() as registry:
        one = registry.register("s", json.dumps(ONE), "JSON")
        other = registry.register("a", '"int"')
        step = FramedJsonParsed(Registry(registry.url), None, "s", "value", "FAILFAST", ())
        read, _ = step.resolved(GIVEN)
        frame = b"\0" + one.to_bytes(4)
        good = {"id": 1, "at": "2026-01-02T03:04:05Z", "shop": {"name": "s"}}
        values: list[bytes | None] = [
            frame + json.dumps(good).encode(),
            None,
            frame + b"{",
            b"{}",
            b"\0\0\0\0\x63{}",
            b"\0" + other.to_bytes(4) + b"{}",
            frame + json.dumps({**good, "id": None}).encode(),
            frame + json.dumps({**good, "shop": {"zip": 1}}).encode(),
            frame + json.dumps({**good, "shop": {"name": 5, "zip": "x"}}).encode(),
        ]
        batch = pa.record_batch({"value": pa.array(values, pa.binary())})
        with pytest.raises(MissingSchemasError) as missing:
            read(batch)
        fetch_missing(missing.value)
        with pytest.raises(JsonError) as caught:
            read(batch)
        assert {
            row: str(error).partition(", got")[0][:61] for row, error in rows_at_fault(caught.value, batch).items()
        } == {
            2: "the value is not JSON of this schema: Expecting property name",
            3: "the value does not begin with a frame (confluent)",
            4: "schema 99 does not fit: the registry does not have it",
            5: f"schema {other} does not fit: it is of type AVRO",
            8: "the value is not JSON of this schema: field 'zip': \"x\" is no ",
        }


def test_columns_may_be_given_and_a_subject_of_another_kind_is_refused() -> None:
    with SchemaRegistry() as registry:
        one = registry.register("s", json.dumps(ONE), "JSON")
        registry.register("a", '"int"')
        ask = Registry(registry.url)
        named = StructType([StructField("note", StringType())])
        step = FramedJsonParsed(ask, named, None, "value", "FAILFAST", ("key",))
        read, columns = step.resolved(GIVEN)
        assert columns.names == ["note", "key"]
        batch = pa.record_batch({"key": [b"k"], "value": [b"\0" + one.to_bytes(4) + b'{"note": "x"}']})
        assert rows_of(read, batch).to_pylist() == [{"note": "x", "key": b"k"}]
        maps = StructType([StructField("m", MapType(StringType(), StringType()))])
        for subject, given, problem in (
            ("a", None, "a is of type AVRO, not JSON"),
            ("none", None, "404 Subject 'none' not found"),
            (None, None, "no one topic to name the subject"),
            ("s", maps, "field 'm' has the type map<string,string>, which is not parsed"),
        ):
            with pytest.raises(PipelineError, match=problem):
                FramedJsonParsed(ask, given, subject, "value", "FAILFAST", ()).resolved(GIVEN)
        registry.register("any", '{"properties": {"a": {}}}', "JSON")
        with pytest.raises(PipelineError, match="json_columns: field 'a': values of no named types"):
            FramedJsonParsed(ask, None, "any", "value", "FAILFAST", ()).resolved(GIVEN)


def test_mutated_values_are_refused_or_read_with_the_rows_between_them_unharmed() -> None:
    chance = random.Random(13)
    good = {
        "id": 1,
        "at": "2026-01-02T03:04:05Z",
        "price": 1.5,
        "shop": {"name": "sé", "zip": 2},
        "items": [{"name": "x"}],
    }
    with SchemaRegistry() as registry:
        one = registry.register("s", json.dumps(ONE), "JSON")
        step = FramedJsonParsed(Registry(registry.url), None, "s", "value", "PERMISSIVE", ())
        read, _ = step.resolved(GIVEN)
        value = b"\0" + one.to_bytes(4) + json.dumps(good, ensure_ascii=False).encode()
        expected = rows_of(read, pa.record_batch({"value": [value]})).to_pylist()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # pandas and Arrow's threads are there
        for _ in range(FRAMES // 50):
            mixed = []
            for _ in range(50):
                bad = bytearray(value)
                for _ in range(chance.randint(1, 3)):
                    bad[chance.randrange(5, len(bad))] = chance.choice(
                        [*b'{}[]",:0e-\\ ', 0, 255, chance.randrange(256)]
                    )
                mixed += [value, bytes(bad[: chance.randint(0, len(bad))]) if chance.random() < 0.3 else bytes(bad)]
            rows = rows_of(read, pa.record_batch({"value": mixed}))
            rows.validate(full=True)
            assert rows.take(pa.array(range(0, 100, 2))).to_pylist() == expected * 50
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


HOSTILE = {
    "deep": b'{"items": ' + b"[" * 100_000,
    "deep objects": b'{"shop":' * 50_000,
    "digits": b'{"id": ' + b"9" * 100_000 + b"}",
    "an exponent": b'{"price": 1e999999999}',
    "no UTF-8": b'{"note": "\xff\xfe"}',
    "a surrogate": b'{"note": "\\ud800"}',
    "a null byte": b'{"note": "a\x00b"}',
    "two objects": b"{}{}",
    "an object behind a line": b'{"id": 1}\n{"id": 2}',
    "a name twice": b'{"id": 1, "id": 2}',
    "half a name": b'{"id',
    "a time that is none": b'{"at": "9999-99-99T99:99:99Z"}',
    "a year too far": b'{"at": "+294248-01-01T00:00:00Z"}',
    "a day that is none": b'{"day": "2026-02-30"}',
    "a number of another base": b'{"id": 0x10}',
    "not a number": b'{"price": NaN}',
    "an array": b"[1]",
    "text": b'"x"',
    "a comment": b'{/* */"id": 1}',
    "a byte order mark": b"\xef\xbb\xbf{}",
}


READ = ("an exponent", "no UTF-8", "a surrogate", "a name twice", "not a number")
"""Those of which Spark makes rows, too."""


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_values_are_null_or_bad_and_harm_no_other(what: str) -> None:
    with SchemaRegistry() as registry:
        one = registry.register("s", json.dumps(ONE), "JSON")
        step = FramedJsonParsed(Registry(registry.url), None, "s", "value", "FAILFAST", ())
        read, _ = step.resolved(GIVEN)
        frame = b"\0" + one.to_bytes(4)
        good = frame + b'{"id": 5, "at": "2026-01-02T03:04:05Z", "shop": {"name": "s"}}'
        batch = pa.record_batch({"value": [good, frame + HOSTILE[what], good]})
        if what in READ:
            assert read(batch).column("id").to_pylist()[::2] == [5, 5]
            return
        with pytest.raises(JsonError) as caught:
            read(batch)
        assert list(rows_at_fault(caught.value, batch)) == [1]
