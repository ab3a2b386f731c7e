"""Protobuf values: held against Google's own parser; frames of Confluent's serializer, bad records, hostile bytes."""

from __future__ import annotations

import base64
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructField, StructType

from roster.pipeline.errors import MissingSchemasError, PipelineError
from roster.pipeline.registry_schemas import fetch_missing
from roster.pipeline.tasks.protobuf_values import Message, ProtobufColumns, ProtobufError, as_spark
from roster.pipeline.tasks.schema_frames import BARE, CONFLUENT, framed
from roster.pipeline.tasks.value_columns import rows_at_fault
from roster.schemas import Registry
from roster.spark.schema_steps import ProtobufParsed
from roster.testing import SchemaRegistry
from roster.wire.avro.schema import SchemaError
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
        3: "the value does not begin with a frame (confluent with any id)",
        4: "the value has no frame of shop.Order",
        6: "the value is no shop.Order",
    }
    rows = columns(CONFLUENT, "PERMISSIVE")(given).column("id").to_pylist()
    assert rows == [1, None, None, None, None, 1, None]


@pytest.mark.parametrize(
    ("name", "index"),
    [("shop.Order", "02 02"), ("shop.Order", "82 00 02"), ("shop.Other", "00"), ("shop.Other", "02 00"),
     ("shop.Other", "80 00"), ("shop.Other", "02 80 00"), ("shop.Order.Item", "04 02 00"),
     ("shop.Order.Item", "04 82 00 00")],
)  # fmt: skip
def test_a_frame_names_its_message_in_any_form_of_its_index(name: str, index: str) -> None:
    wrong = ("02 01", "01", "03 02 02", "ff" * 11, "04 02 02", "fe ff ff ff ff ff ff ff ff 01", "06 02 00 00", "80")
    message = Message([FILE.SerializeToString()], name)
    fields = pa.schema([each.with_type(as_spark(each.type)) for each in message.handler().schema()])
    read = ProtobufColumns(message, fields, CONFLUENT, "value", "PERMISSIVE")
    framed = [b"\0\0\0\0\7" + bytes.fromhex(each) for each in (index, *wrong)]
    made = read._read(batch(*framed), pa.array(framed, pa.binary()))
    assert list(made.bad) == list(range(1, 1 + len(wrong))), "each is another message, or none"


def wire_file(syntax: str) -> Any:
    """A message with what other writers may write otherwise."""
    file = descriptor_pb2.FileDescriptorProto(name="wire.proto", package="wire", syntax=syntax)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="A", number=0)
    kind.value.add(name="B", number=1)
    inner = file.message_type.add(name="Inner")
    inner.oneof_decl.add(name="either")
    field(inner, "n", 1, F.TYPE_INT32)
    field(inner, "x", 2, F.TYPE_INT32, oneof_index=0)
    field(inner, "y", 3, F.TYPE_STRING, oneof_index=0)
    field(inner, "kind", 4, F.TYPE_ENUM, ".wire.Kind")
    wire = file.message_type.add(name="Wire")
    wire.oneof_decl.add(name="one")
    field(wire, "a", 1, F.TYPE_INT32, oneof_index=0)
    field(wire, "b", 2, F.TYPE_STRING, oneof_index=0)
    field(wire, "c", 3, F.TYPE_MESSAGE, ".wire.Inner", oneof_index=0)
    for number, (name, key, value, of) in enumerate(
        [
            ("texts", F.TYPE_STRING, F.TYPE_MESSAGE, ".wire.Inner"),
            ("ints", F.TYPE_INT32, F.TYPE_INT32, None),
            ("kinds", F.TYPE_BOOL, F.TYPE_ENUM, ".wire.Kind"),
        ],
        4,
    ):
        entry = wire.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        field(entry, "key", 1, key)
        field(entry, "value", 2, value, of)
        field(wire, name, number, F.TYPE_MESSAGE, f".wire.Wire.{entry.name}", repeated=True)
    field(wire, "inners", 7, F.TYPE_MESSAGE, ".wire.Inner", repeated=True)
    field(wire, "kind", 8, F.TYPE_ENUM, ".wire.Kind")
    return file


def by_google(message: Any) -> dict[str, Any]:
    """The columns of a message of Google's."""
    made: dict[str, Any] = {}
    for each in message.DESCRIPTOR.fields:
        value = getattr(message, each.name)
        if each.message_type is not None and each.message_type.GetOptions().map_entry:
            of = each.message_type.fields_by_name["value"]
            made[each.name] = {key: one_by_google(of, value[key]) for key in value} or []
        elif each.is_repeated:
            made[each.name] = [one_by_google(each, item) for item in value]
        else:
            is_given = message.HasField(each.name) if each.has_presence else True
            made[each.name] = one_by_google(each, value) if is_given else None
    return made


def one_by_google(each: Any, value: Any) -> Any:
    if each.message_type is not None:
        return by_google(value)
    if each.enum_type is None:
        return value
    known = each.enum_type.values_by_number.get(value)
    return str(value) if known is None else known.name


def as_plain(value: Any) -> Any:
    """A row with maps as dicts, once it has no key twice."""
    if isinstance(value, dict):
        return {name: as_plain(each) for name, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        assert len({key for key, _ in value}) == len(value)
        return {key: as_plain(each) for key, each in value}
    return [as_plain(each) for each in value] if isinstance(value, list) else value


def _piece(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


@st.composite
def inner_pieces(draw: st.DrawFn) -> bytes:
    chosen = st.sampled_from([b"\x08\x05", b"\x10\x06", b"\x1a\x01y", b"\x20\x01", b"\x20\x09", b""])
    return b"".join(draw(st.lists(chosen, max_size=3)))


@st.composite
def wire_values(draw: st.DrawFn) -> bytes:
    """Parts in any order and number, entries with and without keys and values."""
    entry = st.lists(st.sampled_from([b"\x08\x00", b"\x08\x01", b"\x10\x01", b"\x10\x09", b"\x08\x81\x00"]), max_size=3)
    text_entry = st.lists(
        st.sampled_from([b"\x0a\x01k", b"\x0a\x00"]) | inner_pieces().map(lambda each: _piece(2, each)), max_size=3
    )
    piece = st.one_of(
        st.sampled_from([b"\x08\x05", b"\x12\x01b", b"\x40\x01", b"\x40\x09", b"\x40\x81\x00"]),
        inner_pieces().map(lambda each: _piece(3, each)),
        inner_pieces().map(lambda each: _piece(7, each)),
        text_entry.map(lambda each: _piece(4, b"".join(each))),
        entry.map(lambda each: _piece(5, b"".join(each))),
        st.sampled_from([b"", b"\x08\x01", b"\x08\x01\x10\x01", b"\x10\x09", b"\x10\x01\x08\x00"]).map(
            lambda each: _piece(6, each)
        ),
    )
    return b"".join(draw(st.lists(piece, max_size=6)))


@pytest.mark.parametrize("syntax", ["proto3", "proto2"])
def test_all_valid_encodings_are_read_as_by_googles_parser(syntax: str) -> None:
    message = Message([wire_file(syntax).SerializeToString()], "wire.Wire")
    fields = pa.schema([each.with_type(as_spark(each.type)).with_nullable(True) for each in message.handler().schema()])
    read, parser = ProtobufColumns(message, fields, BARE, "value", "FAILFAST"), message.parser()

    @given(st.lists(wire_values(), max_size=8))
    @settings(max_examples=examples(100))
    def check(values: list[bytes]) -> None:
        for value, row in zip(values, read(batch(*values)).to_pylist(), strict=True):
            expected = by_google(parser.FromString(value))
            assert as_plain(row) == expected, value

    check()


def test_a_value_that_ptars_refuses_costs_the_others_nothing() -> None:
    """ptars is asked a few times for a batch, not once a row."""
    message = Message([wire_file("proto3").SerializeToString()], "wire.Wire")
    fields = pa.schema([each.with_type(as_spark(each.type)).with_nullable(True) for each in message.handler().schema()])
    read, asked = ProtobufColumns(message, fields, BARE, "value", "PERMISSIVE"), 0
    parse = read._parsed

    def parsed(values: pa.Array) -> Any:
        nonlocal asked
        asked += 1
        return parse(values)

    read._parsed = parsed  # type: ignore[method-assign]
    values = [b"\x08\x05"] * 5_000
    values[7], values[4_000], values[4_500] = b"\x22\x03\x0a\x01k", b"\xff", b"\x08\x05\x12\x01b"
    rows = read(batch(*values)).to_pylist()
    assert [row["a"] for row in rows] == [5 if n not in (7, 4_000, 4_500) else None for n in range(5_000)]
    assert rows[7]["texts"] == [("k", {"n": 0, "x": None, "y": None, "kind": "A"})]
    assert rows[4_500]["b"] == "b"
    assert asked < 10


def test_an_id_of_a_newer_schema_is_asked_for_and_its_symbols_are_known() -> None:
    newer = shop_file()
    newer.enum_type[0].value.add(name="CHAIR", number=2)
    newer.message_type[1].field[1].name = "store"  # which stays the column `shop`
    newer.message_type.insert(0, descriptor_pb2.DescriptorProto(name="First"))
    encoded = [base64.b64encode(each.SerializeToString()).decode() for each in (FILE, newer)]
    with SchemaRegistry() as registry:
        one = registry.register("orders-value", encoded[0], "PROTOBUF")
        step = ProtobufParsed(
            Registry(registry.url), "shop.Order", None, "orders-value", "value", CONFLUENT, "FAILFAST", ()
        )
        read: Any = step.resolved(GIVEN)[0]
        two = registry.register("orders-value", encoded[1], "PROTOBUF")
        body = order(id=1, shop="a").SerializeToString() + b"\x30\x02"
        given = batch(
            framed(one) + b"\2\2" + body,
            framed(two) + b"\2\4" + body,
            framed(two) + b"\2\2" + body,
            framed(99) + b"\2\2",
        )
        with pytest.raises(MissingSchemasError) as caught:
            read(given)
        assert sorted(caught.value.keys) == [two, 99]
        fetch_missing(caught.value)
        with pytest.raises(ProtobufError) as bad:
            pickle.loads(pickle.dumps(read))(given)
        assert bad.value.rows == {
            2: "the value has no frame of shop.Order",
            3: "schema 99 does not fit: the registry does not have it",
        }
        rows = pickle.loads(pickle.dumps(read))(given.slice(0, 2)).to_pylist()
    assert [(row["shop"], row["kind"]) for row in rows] == [("a", "CHAIR")] * 2


def linked(names: int, fields: int) -> bytes:
    """Messages of which each has so many fields of the next one."""
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    for n in range(names):
        made = file.message_type.add(name=f"M{n}")
        for number in range(1, fields + 1):
            kind = (F.TYPE_MESSAGE, f".M{n + 1}") if n + 1 < names else (F.TYPE_INT32,)
            field(made, f"f{number}", number, *kind)
    return file.SerializeToString()


def nested(levels: int) -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    made = file.message_type.add(name="M")
    for _ in range(levels):
        made = made.nested_type.add(name="M")
    return file.SerializePartialToString()


@pytest.mark.parametrize(
    "data",
    [
        linked(30, 2),
        linked(14, 2),
        linked(90, 1),
        linked(3_000, 1),
        nested(3_000),
        b"junk",
        b"\xff" * 99,
        b"",
    ],
)
def test_schemas_without_end_are_refused_in_one_line(data: bytes) -> None:
    with SchemaRegistry() as registry:
        registry.register("s", base64.b64encode(data).decode(), "PROTOBUF")
        step = ProtobufParsed(Registry(registry.url), "", None, "s", "value", CONFLUENT, "FAILFAST", ())
        with pytest.raises(PipelineError, match=r"protobuf_columns: no columns of message .*Check message="):
            step.resolved(GIVEN)


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
    with pytest.raises(SchemaError, match=r"shop.Node contains itself, and columns cannot"):
        Message([FILE.SerializeToString()], "shop.Node")
    with pytest.raises(SchemaError, match=r"there is no message 'shop.None'"):
        Message([FILE.SerializeToString()], "shop.None")
    with pytest.raises(SchemaError, match=r"the file gone.proto is missing"):
        Message([descriptor_pb2.FileDescriptorProto(name="a", dependency=["gone.proto"]).SerializeToString()], "A")


def _imports(name: str) -> Callable[[Any, Any], None]:
    return lambda file, _: file.dependency.append(name)


def _has(**more: Any) -> Callable[[Any, Any], None]:
    return lambda _, message: message.field.add(**{"name": "b", "number": 2, "type": F.TYPE_INT32, "label": 1} | more)


def _reserves(_: Any, message: Any) -> None:
    message.reserved_range.add(start=1, end=5)


def _has_itself_in_a_map(_: Any, message: Any) -> None:
    entry = message.nested_type.add(name="BEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, F.TYPE_STRING)
    field(entry, "value", 2, F.TYPE_MESSAGE, ".M")
    field(message, "b", 2, F.TYPE_MESSAGE, ".M.BEntry", repeated=True)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_has(name="a"), "the file 'x.proto' does not fit the others: .*duplicate field name"),
        (_has(number=1), "the file 'x.proto' does not fit the others: .*duplicate field number"),
        (_has(name="A"), "no columns can be made of M: x.proto: camel-case name of field 'a' conflicts with field 'A'"),
        (_has(type=F.TYPE_MESSAGE, type_name=".Gone"), "the file 'x.proto' does not fit the others: .*'.Gone'"),
        (_has(type=F.TYPE_MESSAGE, type_name=".M"), "M contains itself"),
        (_has_itself_in_a_map, "M contains itself"),
        (_has(oneof_index=3), "the file 'x.proto' does not fit the others: .*oneof_index out of range"),
        (lambda file, _: setattr(file, "syntax", "editions"), "the file 'x.proto' has an edition; use syntax"),
        (_reserves, "no columns can be made of M: x.proto: field number '1' conflicts with reserved range"),
        (_imports("gone.proto"), "the file gone.proto is missing"),
        (_imports("google/protobuf/gone.proto"), "the file google/protobuf/gone.proto is missing"),
        (_imports("x.proto"), "the file 'x.proto' does not fit the others: .*"),
        (lambda file, _: file.ClearField("message_type"), "there is no message '' in its files"),
    ],
)
def test_files_that_no_columns_are_made_of_are_one_kind_of_error(
    change: Callable[[Any, Any], None], problem: str
) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    message = file.message_type.add(name="M")
    field(message, "a", 1, F.TYPE_INT32)
    change(file, message)
    with pytest.raises(SchemaError, match=f"^{problem}"):
        Message([file.SerializePartialToString()], "").handler()
    files = descriptor_pb2.FileDescriptorSet(file=[file]).SerializePartialToString()
    step = ProtobufParsed(None, "M", files, None, "value", BARE, "FAILFAST", ())
    with pytest.raises(PipelineError, match=r"protobuf_columns: no columns of message 'M': .*Check message="):
        step.resolved(GIVEN)


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
        ("shop.Order", b"\xff", "descriptors are not a FileDescriptorSet"),
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
