"""Avro in Confluent's frames and bare: many writers in one batch, bad records, what tasks are told."""

from __future__ import annotations

import io
import json
import pickle
import warnings
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from roster.pipeline.errors import FunctionError, MissingSchemasError, PipelineError
from roster.pipeline.registry_schemas import Source, fetch_missing
from roster.pipeline.tasks import avro_values
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.avro_values import BARE, CONFLUENT, ONLY, AvroColumns, AvroError, Key, Known, Writer
from roster.pipeline.tasks.value_columns import rows_at_fault
from roster.records.native import AVRO, compiled
from roster.schemas import Registry
from roster.spark.steps import AvroParsed
from roster.testing import SchemaRegistry
from roster.wire.avro.columns import layout, of_arrow
from roster.wire.avro.schema import parse
from tests.clocks import patch_time

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own dependencies warn of theirs
    from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

FIELDS = pa.schema([("shop", pa.string()), ("price", pa.float64())])
COLUMNS = of_arrow(pa.struct(list(FIELDS)), "columns")


def order(**fields: Any) -> str:
    made = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Order", "fields": made})


def body(schema: str, **value: Any) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(json.loads(schema)), value)
    return data.getvalue()


def frame(key: int, value: bytes) -> bytes:
    return b"\0" + key.to_bytes(4) + value


def columns(known: Known, mode: str = "PERMISSIVE", keep: tuple[str, ...] = ()) -> AvroColumns:
    return AvroColumns(COLUMNS, FIELDS, known, compiled(AVRO), "value", mode, keep)


def known(framing: str, writers: dict[Key, str | None], name: str = "") -> Known:
    made = Known(
        name, framing, "value", {key: Writer("AVRO", text) for key, text in writers.items() if text is not None}
    )
    made.note_absent([key for key, text in writers.items() if text is None])
    return made


def values(*each: bytes | None, **more: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(each, pa.binary()), **more})


ONE = order(shop="string", price="int")
TWO = order(note=["null", "string"], price="double", shop=["string", "null"])
OTHER = order(price="string", shop="string")


def test_each_value_is_read_by_the_schema_of_its_writer_in_the_order_of_records() -> None:
    read = columns(known(CONFLUENT, {1: ONE, 2: TWO, 3: None, 4: OTHER}), keep=("n",))
    batch = values(
        frame(2, body(TWO, note="x", price=1.5, shop="a")),
        frame(1, body(ONE, shop="b", price=2)),
        None,
        frame(2, body(TWO, note=None, price=2.5, shop=None)),
        b"",
        frame(1, body(ONE, shop="c", price=3)),
        b"\0\0\0",
        frame(3, b"x"),
        b'{"shop": "d"}',
        frame(4, body(OTHER, shop="e", price="1")),
        frame(1, b"\x02"),
        n=range(11),
    )
    rows = pickle.loads(pickle.dumps(read))(batch)
    assert [row["n"] for row in rows.to_pylist()] == list(range(11))
    assert [(row["shop"], row["price"]) for row in rows.to_pylist()] == [
        ("a", 1.5), ("b", 2.0), (None, None), (None, 2.5), (None, None), ("c", 3.0), *[(None, None)] * 5,
    ]  # fmt: skip
    # A slice of a batch, and none of its rows.
    assert read(batch.slice(5, 1)).to_pylist() == [{"shop": "c", "price": 3.0, "n": 5}]
    assert read(batch.slice(11)).num_rows == 0
    assert read(values(None, n=[1])).to_pylist() == [{"shop": None, "price": None, "n": 1}]


def test_bad_values_are_named_row_by_row() -> None:
    read = columns(known(CONFLUENT, {1: ONE, 3: None, 4: OTHER}), "FAILFAST")
    batch = values(
        frame(1, body(ONE, shop="b", price=2)),
        b"{}",
        frame(3, b"x"),
        frame(4, body(OTHER, shop="e", price="1")),
        frame(1, b"\x02"),
        frame(1, body(ONE, shop="b", price=2) + b"\0"),
        frame(9, b"x"),
        None,
    )
    with pytest.raises(AvroError) as caught:
        read(batch)
    assert {row: str(error) for row, error in rows_at_fault(caught.value, batch).items()} == {
        1: "the value does not begin with a frame (confluent)",
        2: "schema 3 does not fit: the registry does not have it",
        3: "schema 4 does not fit: field price: the writer's string cannot be read as double",
        4: "the value is not Avro of schema 1: a length is negative or larger than what is left",
        5: "the value is not Avro of schema 1: there is something behind its end",
        6: "schema 9 is not known",
    }


def test_values_without_a_frame_are_read_by_the_one_schema() -> None:
    bare = columns(known(BARE, {ONLY: ONE}))
    one = body(ONE, shop="b", price=2)
    assert bare(values(one, None, b"")).column("price").to_pylist() == [2.0, None, None]
    with pytest.raises(AvroError, match="the value is not Avro of the schema"):
        columns(known(BARE, {ONLY: ONE}), mode="FAILFAST")(values(one, b"\2"))


def test_values_of_confluents_serializer_are_read_with_ids_in_values_and_in_headers() -> None:
    with SchemaRegistry() as registry:
        client = SchemaRegistryClient({"url": registry.url})
        framed: list[bytes] = []
        headers: list[list[dict[str, Any]] | None] = []
        for text, value in ((ONE, {"shop": "a", "price": 1}), (TWO, {"note": None, "price": 2.5, "shop": "b"})):
            for conf in ({}, {"schema.id.serializer": header_schema_id_serializer}):
                registry_conf = {"auto.register.schemas": True, **conf}
                client.set_compatibility(level="NONE")
                given: list[tuple[str, bytes]] = []
                context = SerializationContext("orders", MessageField.VALUE, given)
                made = AvroSerializer(client, text, conf=registry_conf)(value, context)
                assert made is not None
                framed.append(made)
                headers.append(
                    [{"key": "x", "value": None}, *({"key": k, "value": v} for k, v in given)] if given else None
                )
        source = Source(Registry(registry.url), "value")
        read = columns(source.known, "FAILFAST")
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        batch = values(*framed, headers=pa.array(headers, kind))
        told = ArrowFunction(read, FIELDS)
        with pytest.raises(MissingSchemasError) as caught:
            list(told(batch))
        missing = FunctionError.of(str(caught.value))
        assert isinstance(missing, MissingSchemasError)
        fetch_missing(missing)
        assert [row["shop"] for rows in told(batch) for row in rows.to_pylist()] == ["a", "a", "b", "b"]
        assert sorted(map(str, source.known.writers))[:2] == ["1", "2"]
        assert len(source.known.writers) == 4, "two ids and two GUIDs"


def test_an_id_that_the_registry_does_not_have_makes_bad_records_and_one_that_refuses_ends_the_run() -> None:
    with SchemaRegistry() as registry:
        source = Source(Registry(registry.url), "value")
        fetch_missing(MissingSchemasError(source.known.name, [7]))
        assert (source.known.writers, list(source.known.absent)) == ({}, [7])
        registry.fail(1, 422)
        fetch_missing(MissingSchemasError(source.known.name, [-1]))
        assert list(source.known.absent) == [7, -1], "what it refuses is a bad record, too"
        registry.fail(1, 401)
        with pytest.raises(PipelineError, match=r"registry: .*401 told to fail.* Check its URL"):
            fetch_missing(MissingSchemasError(source.known.name, [8]))
    with pytest.raises(PipelineError, match="no registry is configured for schema ids"):
        fetch_missing(MissingSchemasError("gone", [8]))


def test_random_ids_are_asked_for_up_to_a_bound_and_told_in_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SchemaRegistry() as registry:
        one = registry.register("orders-value", ONE)
        source = Source(Registry(registry.url), "value")
        read = columns(source.known, "PERMISSIVE")
        good = frame(one, body(ONE, shop="a", price=1))
        batch = values(*(b"\0" + n.to_bytes(4) + b"x" for n in range(2**32 - 1_300, 2**32)), good)
        rounds, rows = 0, None
        while rows is None:
            try:
                rows = pickle.loads(pickle.dumps(read))(batch)
            except MissingSchemasError as error:
                fetch_missing(error)
                rounds += 1
        assert rows.column("shop").to_pylist() == [*[None] * 1_300, "a"], (
            "of equally frequent ids the smallest is asked for first"
        )
        assert len(source.known.absent) == 1_000
        assert rounds == len(caplog.records) == 11
        assert "does not have 99 schemas (" in caplog.text
        assert len(registry.requests) == 1_001
        patch_time(monkeypatch, avro_values, monotonic=lambda: 1e9)
        assert not pickle.loads(pickle.dumps(source.known)).absent, "it may be asked for them again later"


def named(registry: Registry, ddl_columns: pa.Schema) -> tuple[AvroParsed, Any]:
    """The step of `avro_columns` for these columns, which keeps its source, and what it reads by."""
    step = AvroParsed(registry, from_arrow_schema(ddl_columns), None, "orders-value", "value", "FAILFAST", ())
    return step, step.resolved(StructType([StructField("value", BinaryType())]))[0]


TOWN = {"name": "town", "type": "string", "aliases": ["city"]}
RENAMED = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "store", "type": "string", "aliases": ["shop"]},
            {
                "name": "place",
                "aliases": ["at"],
                "type": ["null", {"type": "record", "name": "Place", "fields": [TOWN]}],
            },
        ],
    }
)
BEFORE = (
    RENAMED.replace('"store"', '"shop"')
    .replace('"place"', '"at"')
    .replace('"town"', '"city"')
    .replace('"aliases"', '"was"')
)


@pytest.mark.parametrize(
    ("shop", "at", "city"), [("shop", "at", "city"), ("store", "place", "town"), ("store", "at", "city")]
)
def test_named_columns_are_found_under_the_names_of_before_and_after(
    shop: str, at: str, city: str, caplog: pytest.LogCaptureFixture
) -> None:
    fields = pa.schema([(shop, pa.string()), (at, pa.struct([(city, pa.string())])), ("gone", pa.int32())])
    with SchemaRegistry() as registry:
        registry._levels[""] = "NONE"
        one, two = (registry.register("orders-value", text) for text in (BEFORE, RENAMED))
        _step, reader = named(Registry(registry.url), fields)
        given = values(
            frame(one, body(BEFORE, shop="a", at={"city": "x"})),
            frame(two, body(RENAMED, store="b", place={"town": "y"})),
        )
        with pytest.raises(MissingSchemasError) as caught:
            reader(given)
        fetch_missing(caught.value)
        rows = reader(given).to_pylist()
    assert rows == [{shop: each, at: {city: town}, "gone": None} for each, town in (("a", "x"), ("b", "y"))]
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"schema {n} has no field 'gone': these columns are null in its records" for n in (two, one)]


def test_a_schema_that_comes_later_may_rename_a_named_column_or_lack_it(caplog: pytest.LogCaptureFixture) -> None:
    with SchemaRegistry() as registry:
        registry._levels[""] = "NONE"
        one = registry.register("orders-value", BEFORE)
        _step, reader = named(Registry(registry.url), pa.schema([("shop", pa.string())]))
        two = registry.register("orders-value", RENAMED)
        three = registry.register("orders-value", order(n="int"))
        given = values(
            frame(one, body(BEFORE, shop="a", at=None)),
            frame(two, body(RENAMED, store="b", place=None)),
            frame(three, body(order(n="int"), n=1)),
        )
        with pytest.raises(MissingSchemasError) as caught:
            reader(given)
        fetch_missing(caught.value)
        assert reader(given).column("shop").to_pylist() == ["a", "b", None]
    (text,) = (record.getMessage() for record in caplog.records)
    assert text == f"schema {three} has no field 'shop': these columns are null in its records"


def test_columns_have_the_types_of_sparks_from_avro() -> None:
    schema = order(
        d={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        day={"type": "int", "logicalType": "date"},
        ms={"type": "int", "logicalType": "time-millis"},
        us={"type": "long", "logicalType": "time-micros"},
        at={"type": "long", "logicalType": "timestamp-millis"},
        local={"type": "long", "logicalType": "local-timestamp-micros"},
        ns={"type": "long", "logicalType": "timestamp-nanos"},
        id={"type": "string", "logicalType": "uuid"},
        f={"type": "fixed", "name": "F", "size": 3},
        e={"type": "enum", "name": "E", "symbols": ["A"]},
        u=["int", "null", "string"],
        wide=["int", "long"],
        l={"type": "array", "items": ["null", "int"]},
        m={"type": "map", "values": "boolean"},
    )
    utc, item = pa.timestamp("us", tz="UTC"), pa.field("element", pa.int32(), True)
    assert list(layout(parse(schema)).schema) == [
        pa.field("d", pa.decimal128(9, 2), False),
        pa.field("day", pa.date32(), False),
        pa.field("ms", pa.int32(), False),
        pa.field("us", pa.int64(), False),
        pa.field("at", utc, False),
        pa.field("local", pa.timestamp("us"), False),
        pa.field("ns", pa.int64(), False),
        pa.field("id", pa.string(), False),
        pa.field("f", pa.binary(), False),
        pa.field("e", pa.string(), False),
        pa.field("u", pa.struct([("member0", pa.int32()), ("member1", pa.string())]), True),
        pa.field("wide", pa.int64(), False),
        pa.field("l", pa.list_(item), False),
        pa.field("m", pa.map_(pa.string(), pa.field("value", pa.bool_(), False)), False),
    ]


def test_columns_given_for_spark_take_all_avro_types_of_the_same_values() -> None:
    schema = order(
        e={"type": "enum", "name": "E", "symbols": ["A", "LONGER"]},
        f={"type": "fixed", "name": "F", "size": 2},
        d={"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 5, "scale": 2},
        at={"type": "long", "logicalType": "timestamp-millis"},
        n="int",
        s={"type": "record", "name": "S", "fields": [{"name": "x", "type": "float"}]},
    )
    fields = pa.schema(
        [
            ("missing", pa.int32()),
            ("s", pa.struct([("x", pa.float64()), ("y", pa.string())])),
            ("e", pa.string()),
            ("f", pa.binary()),
            ("d", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us", tz="UTC")),
            ("n", pa.int64()),
        ]
    )
    read = AvroColumns(
        of_arrow(pa.struct(list(fields)), "c"), fields, known(BARE, {ONLY: schema}), compiled(AVRO), "value", "FAILFAST"
    )
    value = b"\x02" + b"ab" + b"\0\0\0\x7b" + b"\xd0\x0f" + b"\x0a" + b"\0\0\xc0\x3f"
    (row,) = read(values(value)).to_pylist()
    assert (row["missing"], row["s"], row["e"], row["f"], str(row["d"]), row["at"].timestamp(), row["n"]) == (
        None, {"x": 1.5, "y": None}, "LONGER", b"ab", "1.23", 1.0, 5,
    )  # fmt: skip


def test_without_a_registry_and_a_schema_nobody_knows_what_was_written() -> None:
    with pytest.raises(PipelineError, match=r"the writers' schemas are not known\. Name registry="):
        AvroParsed(None, None, None, "orders-value", "value", "PERMISSIVE", ())
