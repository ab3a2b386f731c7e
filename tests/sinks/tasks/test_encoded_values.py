"""Rows as Avro and JSON: read by Confluent's deserializers; what the driver registers and what it refuses."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from roster.pipeline.tasks.avro_values import AvroColumns
from roster.pipeline.tasks.result_records import json_column
from roster.pipeline.tasks.schema_frames import CONFLUENT, Known, Writer
from roster.records.native import AVRO, compiled
from roster.records.produce import WriteError
from roster.schemas import Registry
from roster.spark import Avro, JsonSchema, KafkaSink, PipelineError
from roster.testing import SchemaRegistry
from roster.wire.avro.columns import layout
from roster.wire.avro.schema import parse

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own dependencies warn of theirs
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

TOTALS = pa.schema(
    [("shop", pa.string()), ("orders", pa.int64()), ("more", pa.struct([("tags", pa.list_(pa.string()))]))]
)
ROW = {"shop": "a", "orders": 2, "more": {"tags": ["x", None]}}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
VALUE, KEY = (SerializationContext("totals", field) for field in (MessageField.VALUE, MessageField.KEY))


def written(sink: KafkaSink, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The records of rows, as a task makes them."""
    encoding = sink.task_writer(None, from_arrow_schema(rows.schema)).encoding
    assert encoding is not None
    return pickle.loads(pickle.dumps(encoding))(rows)


def schema(**fields: Any) -> str:
    made = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Total", "fields": made})


def test_a_schema_is_made_of_the_columns_registered_once_and_read_by_confluents_deserializer() -> None:
    with SchemaRegistry() as registry:
        sink = KafkaSink("localhost:1", "totals", value=Avro(Registry(registry.url)), key=Avro(Registry(registry.url)))
        rows = pa.RecordBatch.from_pylist(
            [{**ROW, "key": 7}, {"key": None}], TOTALS.append(pa.field("key", pa.int32()))
        )
        records = written(sink, rows)
        again = written(sink, rows)
        assert again.equals(records)
        assert registry.requests.count("POST /subjects/totals-value/versions") == 1
        read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
        assert [read(each, VALUE) for each in records["value"].to_pylist()] == [
            ROW, {"shop": None, "orders": None, "more": None},
        ]  # fmt: skip
        assert read(records["key"][0].as_py(), KEY) == 7
        assert records["key"][1].as_py() is None
        latest = Registry(registry.url).latest("totals-value")
        struct = pa.schema(list(layout(parse(latest.text)).schema))
        known = Known("", CONFLUENT, "value", {latest.id: Writer("AVRO", latest.text)})
        own = AvroColumns(parse(latest.text), struct, known, compiled(AVRO), "value", "FAILFAST")
        assert own(records).to_pylist() == [ROW, {"shop": None, "orders": None, "more": None}]


def test_keys_of_bytes_are_behind_the_frame_as_they_are_for_confluents_clients() -> None:
    keys = [b"a", b"abc", None]
    rows = pa.RecordBatch.from_pydict({"key": pa.array(keys), "n": [1, 2, 3]})
    with SchemaRegistry() as registry:
        asked = Registry(registry.url)
        made = written(KafkaSink("localhost:1", "totals", value=Avro(asked), key=Avro(asked)), rows)["key"].to_pylist()
        read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
        assert [each and read(each, KEY) for each in made] == keys
    bare = KafkaSink("localhost:1", "totals", value=Avro(schema=schema(n="long")), key=Avro(schema='"bytes"'))
    assert written(bare, rows)["key"].to_pylist() == [b"\2a", b"\6abc", None]


def test_the_latest_schema_of_the_subject_is_used_and_a_given_one_registered() -> None:
    with SchemaRegistry() as registry:
        first = registry.register("s", schema(orders="double", shop=["null", "string"]))
        plain = pa.RecordBatch.from_pylist(
            [{"shop": "a", "orders": 1}], pa.schema([("shop", pa.string()), ("orders", pa.int32())])
        )
        (value,) = written(KafkaSink("localhost:1", "t", value=Avro(Registry(registry.url), subject="s")), plain)[
            "value"
        ]
        assert value.as_py()[:5] == b"\0" + first.to_bytes(4)
        read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
        assert read(value.as_py(), VALUE) == {"orders": 1.0, "shop": "a"}
        second = json.loads(schema(orders="double", shop=["null", "string"]))
        second["fields"].append({"name": "n", "type": "int", "default": 3})
        given = Avro(Registry(registry.url), json.dumps(second), "s")
        (value,) = written(KafkaSink("localhost:1", "t", value=given), plain)["value"]
        assert read(value.as_py(), VALUE) == {"orders": 1.0, "shop": "a", "n": 3}
        bare = KafkaSink("localhost:1", "t", value=Avro(schema=schema(orders="int", shop="string")))
        assert written(bare, plain)["value"].to_pylist() == [b"\2\2a"]


def refused(sink: KafkaSink, fields: pa.Schema, problem: str) -> None:
    with pytest.raises(PipelineError, match=problem) as caught:
        sink.check(from_arrow_schema(fields))
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_is_one_line_that_names_column_or_subject_and_the_fix() -> None:
    fields = pa.schema([("shop", pa.string()), ("orders", pa.int64())])
    with SchemaRegistry() as registry:
        registry.register("totals-value", schema(shop="string", orders="int"))
        ask = Registry(registry.url)

        def sink(value: Any = None, key: Any = None, topic: str | None = "totals") -> KafkaSink:
            return KafkaSink("localhost:1", topic, value=value, key=key)

        refused(
            sink(Avro(ask)),
            fields,
            "value of KafkaSink: column 'orders': int64 is not written as the schema's int. Cast",
        )
        refused(sink(Avro(ask)), pa.schema([("shop", pa.string())]), "column 'orders': there is none")
        refused(sink(Avro(ask)), fields.append(pa.field("z", pa.bool_())), "column 'z': record Total has no such field")
        refused(
            sink(Avro(ask, schema(shop="string", orders="long", more="int"))),
            fields.append(pa.field("more", pa.int32())),
            r"not compatible with those of subject 'totals-value': POST .* 409 .*Give new fields defaults",
        )
        refused(sink(Avro(ask, "{")), fields, "the schema is not JSON")
        refused(sink(Avro(schema="{")), fields, "the schema is not JSON")
        refused(
            sink(Avro(ask), topic=None),
            fields.append(pa.field("topic", pa.string())),
            "no one topic to name the subject",
        )
        refused(
            sink(Avro(ask, subject="new")), pa.schema([("a", pa.duration("us"))]), "column 'a': Avro has no values of"
        )
        refused(sink(JsonSchema(ask)), fields, "totals-value is of type AVRO, not JSON")
        refused(sink(key=Avro(ask)), pa.schema([("value", pa.string())]), "key: the rows have no column `key`")
        refused(sink(Avro(ask, schema(a="int"), "never")), fields, "column 'shop': record Total has no such field")
        assert not ask.has("never"), "what does not fit is not registered"
        registry.auth = ("somebody", "else")
        refused(
            sink(Avro(ask, schema(shop="string", orders="long"), "x")),
            fields,
            "401 .*Register the schema as subject 'x' beforehand",
        )
        registry.auth = None
        rows = pa.RecordBatch.from_pylist(
            [{"shop": "a", "orders": 1}, {"shop": None, "orders": 2}],
            pa.schema([("shop", pa.string()), ("orders", pa.int32())]),
        )
        with pytest.raises(
            WriteError, match=r"column 'shop': a value is null, which the schema does not allow"
        ) as caught:
            written(sink(Avro(ask)), rows)
        assert caught.value.is_final
        for form in ("avro", Avro, ask):
            with pytest.raises(PipelineError, match=r"value of KafkaSink: .* is not a format\. Use Avro\(registry\)"):
                sink(form)
        with pytest.raises(PipelineError, match=r"key of KafkaSink: 'avro' is not a format"):
            sink(key="avro")
        for make in (Avro, JsonSchema):
            with pytest.raises(PipelineError, match=r"registry: 'http:.*' is none\. Use Registry\(url\)"):
                make(registry.url)  # type: ignore[operator]
        for make in (Avro, JsonSchema):
            with pytest.raises(PipelineError, match=r"schema: {'type': 'int'} is not a text\. Use json\.dumps"):
                make(ask, {"type": "int"})  # type: ignore[operator]
    with pytest.raises(PipelineError, match=r"Avro: there is no schema\. Name registry="):
        Avro()


MORE = pa.struct([pa.field("a", pa.int16()), pa.field("b", pa.list_(pa.struct([pa.field('c "d', pa.string())])))])
KINDS = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("price", pa.float64()),
        pa.field("paid", pa.bool_()),
        pa.field("shop", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("amount", pa.decimal128(9, 2)),
        pa.field("more", MORE),
    ]
)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001 - one without a zone
INNER = st.fixed_dictionaries({'c "d': st.none() | st.text(max_size=5)})
KIND = st.fixed_dictionaries(
    {
        "n": st.integers(-(2**63), 2**63 - 1),
        "price": st.none() | st.floats(),
        "paid": st.none() | st.booleans(),
        "shop": st.none() | st.text(max_size=5),
        "day": st.none() | st.dates(date(1, 1, 1)),
        "at": st.none() | MOMENTS.map(lambda at: at.replace(tzinfo=UTC)),
        "local": st.none() | MOMENTS,
        "amount": st.none() | st.decimals(-9999, 9999, places=2),
        "more": st.none()
        | st.fixed_dictionaries(
            {"a": st.none() | st.integers(-9, 9), "b": st.none() | st.lists(st.none() | INNER, max_size=2)}
        ),
    }
)


def as_json(value: Any) -> Any:
    """What a reader finds of a value: fields of null are missing, numbers that JSON has not are null."""
    if isinstance(value, dict):
        made = {name: as_json(each) for name, each in value.items()}
        return {name: each for name, each in made.items() if each is not None}
    if isinstance(value, list):
        return [as_json(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Decimal) else value


@given(st.lists(KIND, min_size=1, max_size=4))
def test_json_of_the_columns_is_valid_by_the_schema_that_is_made_of_them(rows: list[dict[str, Any]]) -> None:
    items = [each["more"]["b"] or [] for each in rows if each["more"]]
    given = pa.RecordBatch.from_pylist(rows, KINDS)
    with SchemaRegistry() as registry:
        sink = KafkaSink("localhost:1", "totals", value=JsonSchema(Registry(registry.url)))
        if any(None in each for each in items):
            with pytest.raises(
                WriteError, match=r"column 'more.b\[\]': a value is null, which the schema does not allow"
            ):
                written(sink, given)
            return
        read = JSONDeserializer(None, schema_registry_client=SchemaRegistryClient({"url": registry.url}))
        assert [read(each, VALUE) for each in written(sink, given)["value"].to_pylist()] == list(map(as_json, rows))


DOCUMENT = {
    "type": "object",
    "required": ["id", "note"],
    "properties": {
        "id": {"type": "integer"},
        "note": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/text"}]},
        "price": {"type": ["number", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "shop": {"type": "object", "required": ["name"], "properties": {"name": {"$ref": "#/$defs/text"}}},
        "tags": {"type": "array", "items": {"type": ["string", "null"]}},
    },
    "$defs": {"text": {"type": "string"}},
}
SHOP = pa.struct([("name", pa.string())])
DOCUMENTS = pa.schema(
    [("id", pa.int32()), ("note", pa.string()), ("price", pa.int64()), ("shop", SHOP), ("tags", pa.list_(pa.string()))]
)


def test_json_is_written_by_the_latest_schema_and_a_null_only_where_it_is_allowed() -> None:
    with SchemaRegistry() as registry:
        registry.register("totals-value", json.dumps(DOCUMENT), "JSON")
        ask = Registry(registry.url)

        def sink(**more: Any) -> KafkaSink:
            return KafkaSink("localhost:1", "totals", value=JsonSchema(ask, **more))

        read = JSONDeserializer(None, schema_registry_client=SchemaRegistryClient({"url": registry.url}))
        rows = [
            {"id": 1, "note": None, "price": None, "shop": None, "tags": ["x", None]},
            {"id": 2, "note": "n", "price": 3, "shop": {"name": "s"}, "tags": []},
        ]
        found = written(sink(), pa.RecordBatch.from_pylist(rows, DOCUMENTS))["value"].to_pylist()
        assert [read(each, VALUE) for each in found] == [
            {"id": 1, "note": None, "tags": ["x", None]},
            rows[1],
        ]
        both = KafkaSink("localhost:1", "t", value=JsonSchema(ask), key=JsonSchema(ask))
        keys = pa.RecordBatch.from_pylist([{"key": "k", "n": 1}, {"key": None, "n": 2}])
        records = written(both, keys)
        assert [each and read(each, KEY) for each in records["key"].to_pylist()] == ["k", None]
        assert [read(each, VALUE) for each in records["value"].to_pylist()] == [{"n": 1}, {"n": 2}]
        for row, problem in (
            ({"id": None, "note": "a"}, "column 'id': a value is null, which the schema does not allow"),
            ({"id": 1, "shop": {"name": None}}, "column 'shop.name': a value is null"),
        ):
            with pytest.raises(WriteError, match=problem) as caught:
                written(sink(), pa.RecordBatch.from_pylist([row], DOCUMENTS))
            assert caught.value.is_final
        for name, kind, problem in (
            ("id", pa.float64(), "column 'id': double is not written as the schema's integer. Cast"),
            ("note", pa.binary(), "column 'note': binary is not written as the schema's string"),
            ("price", pa.decimal128(9, 2), r"column 'price': decimal128\(9, 2\) is not written as the schema's number"),
            ("at", pa.timestamp("us"), r"column 'at': timestamp\[us\] is not written as the schema's date-time"),
            ("shop", pa.string(), "column 'shop': string is not written as the schema's object"),
            ("tags", pa.list_(pa.int64()), r"column 'tags\[\]': int64 is not written as the schema's string"),
            ("shop", pa.struct([("nam", pa.string())]), "column 'shop.nam': the schema has no such field"),
            ("z", pa.bool_(), "column 'z': the schema has no such field"),
        ):
            at = DOCUMENTS.get_field_index(name)
            field = pa.field(name, kind)
            refused(sink(), DOCUMENTS.append(field) if at < 0 else DOCUMENTS.set(at, field), problem)
        refused(sink(), DOCUMENTS.remove(1), "column 'note': there is none, and the schema requires it")
        maps = pa.schema([("m", pa.map_(pa.string(), pa.int32()))])
        refused(sink(subject="new"), maps, "column 'm': no schema is made of map<string, int32")
        refused(sink(schema="{"), DOCUMENTS, "the schema is not JSON")


NESTED = pa.struct(
    [("m", pa.map_(pa.string(), pa.list_(pa.int32()))), ("l", pa.large_list(pa.float64())), ("b", pa.binary())]
)
MAP = st.lists(st.tuples(st.text(max_size=2), st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=2)))


@given(
    st.lists(
        st.none()
        | st.fixed_dictionaries(
            {
                "m": st.none() | MAP,
                "l": st.none() | st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=2),
                "b": st.sampled_from([None, b"a", b"\xff"]),
            }
        )
    ),
    st.integers(0, 3),
)
def test_nested_values_of_any_slice_are_json(rows: list[Any], begin: int) -> None:
    texts = {None: None, b"a": "a", b"\xff": "/w=="}
    expected = [
        row and {**row, "m": None if row["m"] is None else dict(row["m"]), "b": texts[row["b"]]} for row in rows[begin:]
    ]
    given_ = pa.array(rows, NESTED)[begin:]
    assert [json.loads(text) for text in json_column(given_).to_pylist()] == expected
    assert [json.loads(text) for text in json_column(pa.chunked_array([given_, given_])).to_pylist()] == 2 * expected


def test_keys_of_a_map_that_are_no_text_are_their_json() -> None:
    key = pa.struct([("a", pa.int32())])
    assert json_column(pa.array([[({"a": 1}, 2)], []], pa.map_(key, pa.int32()))).to_pylist() == [
        '{"{\\"a\\":1}":2}',
        "{}",
    ]
