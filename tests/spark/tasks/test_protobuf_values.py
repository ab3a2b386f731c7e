"""Protobuf values: held against Google's own parser; frames of Confluent's serializer, bad records, hostile bytes."""

from __future__ import annotations

import pickle
import random
import warnings
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructField, StructType

from roster.schemas import Registry
from roster.spark.errors import PipelineError
from roster.spark.tasks.protobuf_values import Message, ProtobufColumns, ProtobufError, as_spark
from roster.spark.tasks.schema_frames import BARE, CONFLUENT
from roster.spark.tasks.schema_steps import ProtobufParsed
from roster.spark.tasks.value_columns import rows_at_fault
from roster.testing import SchemaRegistry
from tests.examples_tried import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own dependencies warn of theirs
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

GIVEN = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
F = descriptor_pb2.FieldDescriptorProto


def field(message: Any, name: str, number: int, kind: int, type_name: str | None = None, **more: Any) -> None:
    label = F.LABEL_REPEATED if more.pop("repeated", False) else F.LABEL_OPTIONAL
    message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name, **more)


def shop_file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    field(order, "id", 1, F.TYPE_INT64)
    field(order, "shop", 2, F.TYPE_STRING)
    field(order, "price", 3, F.TYPE_DOUBLE)
    field(order, "tags", 4, F.TYPE_STRING, repeated=True)
    field(order, "at", 5, F.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    field(order, "kind", 6, F.TYPE_ENUM, ".shop.Kind")
    field(order, "u32", 7, F.TYPE_UINT32)
    field(order, "u64", 8, F.TYPE_UINT64)
    item = order.nested_type.add(name="Item")
    field(item, "sku", 1, F.TYPE_STRING)
    field(item, "n", 2, F.TYPE_SINT32)
    field(order, "items", 9, F.TYPE_MESSAGE, ".shop.Order.Item", repeated=True)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="A", number=0)
    kind.value.add(name="B", number=1)
    node = file.message_type.add(name="Node")
    field(node, "next", 1, F.TYPE_MESSAGE, ".shop.Node")
    return file


FILE = shop_file()
POOL = descriptor_pool.DescriptorPool()
POOL.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
POOL.AddSerializedFile(FILE.SerializeToString())
Order = message_factory.GetMessageClass(POOL.FindMessageTypeByName("shop.Order"))
ORDERS = Message([FILE.SerializeToString()], "shop.Order")
FIELDS = pa.schema(
    [
        each.with_type(as_spark(each.type))
        for each in ORDERS.handler().array_to_record_batch(pa.array([], pa.binary())).schema
    ]
)


def columns(framing: str = BARE, mode: str = "FAILFAST") -> ProtobufColumns:
    return ProtobufColumns(ORDERS, FIELDS, framing, "value", mode)


def batch(*values: bytes | None) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def order(**given: Any) -> Any:
    made = Order(**{key: value for key, value in given.items() if key not in ("millis", "items")})
    if "millis" in given:
        made.at.FromMilliseconds(given["millis"])
    for sku, n in given.get("items", ()):
        made.items.add(sku=sku, n=n)
    return made


def as_row(parsed: Any) -> dict[str, Any]:
    return {
        "id": parsed.id,
        "shop": parsed.shop,
        "price": parsed.price,
        "tags": list(parsed.tags),
        "at": parsed.at.ToMilliseconds() if parsed.HasField("at") else None,
        "kind": "AB"[parsed.kind],
        "u32": parsed.u32,
        "u64": parsed.u64,
        "items": [{"sku": each.sku, "n": each.n} for each in parsed.items],
    }


def as_read(row: dict[str, Any]) -> dict[str, Any]:
    at = row["at"] and round(row["at"].timestamp() * 1000)
    return {**row, "at": at, "u64": int(row["u64"])}


ORDER = st.builds(
    order,
    id=st.integers(-(2**63), 2**63 - 1),
    shop=st.text(max_size=8),
    price=st.floats(allow_nan=False),
    tags=st.lists(st.text(max_size=3), max_size=3),
    millis=st.integers(-(10**12), 10**13),
    kind=st.integers(0, 1),
    u32=st.integers(0, 2**32 - 1),
    u64=st.integers(0, 2**64 - 1),
    items=st.lists(st.tuples(st.text(max_size=3), st.integers(-(2**31), 2**31 - 1)), max_size=3),
)


@given(st.lists(ORDER | st.just(Order()), max_size=6))
def test_rows_are_what_googles_parser_reads(orders: list[Any]) -> None:
    values = [each.SerializeToString() for each in orders]
    rows = pickle.loads(pickle.dumps(columns()))(batch(*values)).to_pylist()
    assert list(map(as_read, rows)) == [as_row(Order.FromString(value)) for value in values]


def test_bad_records_are_named_and_the_others_are_read() -> None:
    good = order(id=1, shop="a", tags=["x"]).SerializeToString()
    framed = [b"\0\0\0\0\7\2\2" + each for each in (good, b"\xff", good, b"\x12\x7f")]
    given = batch(framed[0], None, framed[1], b"", b"\0\0\0\0\7\0" + good, framed[2], framed[3])
    with pytest.raises(ProtobufError) as caught:
        columns(CONFLUENT)(given)
    assert {row: str(error) for row, error in rows_at_fault(caught.value, given).items()} == {
        2: "the value is no shop.Order",
        3: "the value has no frame of shop.Order",
        4: "the value has no frame of shop.Order",
        6: "the value is no shop.Order",
    }
    rows = columns(CONFLUENT, "PERMISSIVE")(given).column("id").to_pylist()
    assert rows == [1, None, None, None, None, 1, None]


def test_mutated_values_are_refused_or_read_with_the_rows_between_them_unharmed() -> None:
    chance = random.Random(7)
    good = [
        order(id=n, shop="s" * n, tags=["t"] * (n % 3), millis=n, items=[("a", n)]).SerializeToString()
        for n in range(20)
    ]
    expected = [as_row(Order.FromString(value)) for value in good]
    read = columns(BARE, "PERMISSIVE")
    for _ in range(examples(600, "ROSTER_PROTOBUF_FRAMES") // 20):
        mixed = []
        for each in good:
            bad = bytearray(each)
            for _ in range(chance.randint(1, 3)):
                bad[chance.randrange(len(bad))] = chance.randrange(256)
            mixed += [each, bytes(bad[: chance.randint(0, len(bad))])]
        assert list(map(as_read, read(batch(*mixed)).to_pylist()[::2])) == expected


def test_a_message_that_contains_itself_or_is_missing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shop.Node contains itself, and columns cannot"):
        Message([FILE.SerializeToString()], "shop.Node")
    with pytest.raises(KeyError, match=r"shop.None"):
        Message([FILE.SerializeToString()], "shop.None")
    with pytest.raises(KeyError, match=r"the file gone.proto is missing"):
        Message([descriptor_pb2.FileDescriptorProto(name="a", dependency=["gone.proto"]).SerializeToString()], "A")


def test_groups_nested_a_million_deep_do_not_harm() -> None:
    assert columns(BARE, "PERMISSIVE")(batch(b"\x0b" * 1_000_000)).column("id").to_pylist() == [None]


def test_values_of_confluents_serializer_are_read() -> None:
    with SchemaRegistry() as registry:
        client = SchemaRegistryClient({"url": registry.url})
        context = SerializationContext("orders", MessageField.VALUE)
        serialize = ProtobufSerializer(Order, client, {"use.deprecated.format": False, "skip.known.types": True})
        value = serialize(order(id=5, shop="a"), context)
        step = ProtobufParsed(
            Registry(registry.url), "shop.Order", None, "orders-value", "value", CONFLUENT, "FAILFAST", ("key",)
        )
        read, struct = step.resolved(GIVEN)
        made: Any = read(batch(value).append_column("key", pa.array([b"k"])))
        assert (made.column("id").to_pylist(), made.column("key").to_pylist()) == ([5], [b"k"])
    assert struct.simpleString() == (
        "struct<id:bigint,shop:string,price:double,tags:array<string>,at:timestamp,kind:string,u32:bigint,"
        "u64:decimal(20,0),items:array<struct<sku:string,n:int>>,key:binary>"
    )


def test_a_set_of_descriptors_takes_the_place_of_a_registry() -> None:
    files = descriptor_pb2.FileDescriptorSet(file=[FILE]).SerializeToString()
    step = ProtobufParsed(None, "shop.Order", files, None, "value", BARE, "FAILFAST", ())
    read: Any = step.resolved(GIVEN)[0]
    assert read(batch(order(id=5).SerializeToString(), None)).column("id").to_pylist() == [5, None]


@pytest.mark.parametrize(
    ("message", "descriptors", "problem"),
    [
        ("shop.Order", None, "one source of descriptors is needed"),
        ("", b"", "message: descriptors may have many. Name one"),
        ("shop.Order", b"\xff", "descriptors are no FileDescriptorSet"),
        (
            "shop.Gone",
            descriptor_pb2.FileDescriptorSet(file=[FILE]).SerializeToString(),
            "no columns of message 'shop.Gone'",
        ),
        ("shop.Node", descriptor_pb2.FileDescriptorSet(file=[FILE]).SerializeToString(), "shop.Node contains itself"),
    ],
)
def test_what_has_no_columns_is_refused(message: str, descriptors: bytes | None, problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        ProtobufParsed(None, message, descriptors, None, "value", BARE, "FAILFAST", ()).resolved(GIVEN)
