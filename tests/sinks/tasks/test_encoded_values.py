"""Rows as Avro: read by Confluent's deserializers; what the driver registers and what it refuses."""

from __future__ import annotations

import json
import pickle
import warnings
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from roster.pipeline.tasks.avro_values import CONFLUENT, AvroColumns, Known, Writer
from roster.pipeline.tasks.result_records import json_column
from roster.records.native import AVRO, compiled
from roster.records.produce import WriteError
from roster.schemas import Registry
from roster.spark import Avro, KafkaSink, PipelineError
from roster.testing import SchemaRegistry
from roster.wire.avro.columns import layout
from roster.wire.avro.schema import parse

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own dependencies warn of theirs
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
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
        registry.register("document-value", "{}", "JSON")
        refused(sink(Avro(ask, subject="document-value")), fields, "document-value is of type JSON, not AVRO")
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
        with pytest.raises(PipelineError, match=r"registry: 'http:.*' is none\. Use Registry\(url\)"):
            Avro(registry.url)  # type: ignore[arg-type]
        with pytest.raises(PipelineError, match=r"schema: {'type': 'int'} is not a text\. Use json\.dumps"):
            Avro(ask, {"type": "int"})  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"Avro: there is no schema\. Name registry="):
        Avro()


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
