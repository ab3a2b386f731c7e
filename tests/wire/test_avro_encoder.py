"""Columns as Avro values: held against fastavro over random schemas, and read back."""

from __future__ import annotations

import io
import json
import random
import resource
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.records import native
from roster.wire.avro.columns import schema_of
from roster.wire.avro.encoder import AvroEncoder
from roster.wire.avro.schema import SchemaError, parse
from roster.wire.columns import avro_encode_kernel
from tests.examples_tried import examples
from tests.wire.avro_cases import cases, encoded, read_by_fastavro
from tests.wire.plain_kernel import PlainKernel
from tests.wire.test_avro import FRAMES, decoded

NATIVE = native.kernel(None, native.AVRO_ENCODE)
PLAIN = PlainKernel(avro_encode_kernel)


def written(schema: Any, values: pa.Array, kernel: Any = NATIVE, prefix: bytes = b"") -> list[bytes]:
    found = AvroEncoder(kernel, parse(json.dumps(schema)), prefix).encode(values)
    found.validate(full=True)
    return list(found.to_pylist())


def record(name: str = "R", **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields.items()]}


@given(cases())
def test_columns_become_values_that_fastavro_reads_as_what_they_were(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    data = encoded(schema, values)
    rows, _ = decoded(schema, schema, data)
    again = written(schema, rows.to_struct_array())
    assert [read_by_fastavro(each, schema, schema) for each in again] == [
        read_by_fastavro(each, schema, schema) for each in data
    ]
    sliced = rows.slice(1).to_struct_array()
    assert written(schema, sliced) == again[1:]


@settings(max_examples=examples(25))
@given(cases(depth=2))
def test_the_loop_is_the_same_as_plain_python_with_every_index_checked(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    rows, _ = decoded(schema, schema, encoded(schema, values))
    array = rows.to_struct_array()
    assert written(schema, array, PLAIN, b"prefix") == written(schema, array, prefix=b"prefix")


def test_values_are_framed_null_stays_null_and_a_value_need_not_be_a_record() -> None:
    assert written("string", pa.array(["a", None, "bc"]), prefix=b"\0\0\0\0\7") == [
        b"\0\0\0\0\7\2a", None, b"\0\0\0\0\7\4bc",
    ]  # fmt: skip
    assert written("long", pa.array([], pa.int64())) == []
    assert written(record(), pa.array([{}, {}], pa.struct([])), prefix=b"p") == [b"p", b"p"]


def test_narrow_columns_are_written_as_wider_types_and_missing_ones_as_their_defaults() -> None:
    schema = record(
        n="long", d="double", at={"type": "long", "logicalType": "timestamp-millis"}, kind=["string", "long"]
    )
    schema["fields"] += [
        {"name": "added", "type": {"type": "array", "items": "int"}, "default": [1, 2]},
        {"name": "note", "type": ["long", "null"]},
    ]
    rows = pa.table(
        {
            "d": pa.array([3, -4], pa.int8()),
            "kind": pa.array(["a", "b"]).dictionary_encode(),
            "n": pa.array([1, 2], pa.int16()),
            "at": pa.array([1_500, -1], pa.timestamp("us", "UTC")),
        }
    )
    (batch,) = rows.to_batches()
    plain = json.loads(json.dumps(schema))
    plain["fields"][2]["type"] = "long"
    found = [
        fastavro.schemaless_reader(io.BytesIO(each), fastavro.parse_schema(plain), None)
        for each in written(schema, batch.to_struct_array())
    ]
    assert found == [
        {"n": 1, "d": 3.0, "at": 1, "kind": "a", "added": [1, 2], "note": None},
        {"n": 2, "d": -4.0, "at": -1, "kind": "b", "added": [1, 2], "note": None},
    ]


INNER = pa.array([{"price": 1.0}, None, {"price": None}], pa.struct([("price", pa.float64())]))


@pytest.mark.parametrize(
    ("schema", "column", "problem"),
    [
        ("long", pa.array(["a"]), "column 'c': string is not written as the schema's long"),
        ("int", pa.array([1], pa.int64()), "column 'c': int64 is not written as the schema's int"),
        ("float", pa.array([1.0]), "column 'c': double is not written as the schema's float"),
        ("string", pa.array(["a", None]), "column 'c': a value is null, which the schema does not allow"),
        ("string", pa.nulls(1), "column 'c': null is not written as the schema's string"),
        (
            {"type": "array", "items": "int"},
            pa.array([[1], [2, None]], pa.list_(pa.int32())),
            "column 'c': a value is null",
        ),
        (["null", record("I", price="double")], INNER, "column 'c.price': a value is null"),
        (
            ["null", record("I", price="double")],
            pa.array([{"price": 1.0, "z": 1}]),
            "column 'c.z': record I has no such field",
        ),
        (
            record("I", a="int", b="int"),
            pa.array([{"a": 1}], pa.struct([("a", pa.int32())])),
            "column 'c.b': there is none, and",
        ),
        ({"type": "fixed", "name": "F", "size": 2}, pa.array([b"ab", b"abc"]), "column 'c': a value has another size"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.array(["A", "X"]), "column 'c': enum E has no symbol 'X'"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
            pa.array([Decimal("1.25")]),
            r"column 'c': decimal128\(3, 2\) is not written as the schema's decimal\(4, 1\)",
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            pa.array([1], pa.timestamp("us")),
            "column 'c': timestamp",
        ),
        (["int", "string"], pa.array([1.5]), "column 'c': double is not written as the schema's string"),
        (
            ["int", record("I", a="int")],
            pa.array([{"a": "x"}]),
            "column 'c.a': string is not written as the schema's int",
        ),
        (["int", "string"], pa.array([{"member0": 1}]), "column 'c': struct.* is not written as the schema's string"),
        (
            ["int", "string"],
            pa.array([{"member0": 1, "member1": None}, {"member0": 1, "member1": "a"}]),
            "column 'c': two members of a union have a value",
        ),
        (
            ["int", "string"],
            pa.array([None], pa.struct([("member0", pa.int32()), ("member1", pa.string())])),
            "column 'c': a value is null",
        ),
        (
            ["int", "string"],
            pa.array([], pa.struct([("member0", pa.int64()), ("member1", pa.string())])),
            "column 'c.member0': int64 is not written as the schema's int",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_column(schema: Any, column: pa.Array, problem: str) -> None:
    rows = pa.record_batch({"c": column})
    with pytest.raises(SchemaError, match=problem):
        written(record(c=schema), rows.to_struct_array())


STRUCT = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("small", pa.int8()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("price", pa.decimal128(20, 4)),
        pa.field("data", pa.binary()),
        pa.field("flag", pa.bool_()),
        pa.field("rate", pa.float32()),
        pa.field("items", pa.list_(pa.struct([("sku", pa.string()), ("more", pa.struct([("n", pa.int32())]))]))),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("nothing", pa.null()),
    ]
)


def test_a_schema_is_made_of_columns_and_reads_what_it_has_written() -> None:
    schema = schema_of(STRUCT, "orders")
    fastavro.parse_schema(json.loads(json.dumps(schema)))
    row = {
        "id": 1,
        "small": -3,
        "price": Decimal("12.3456"),
        "data": b"x",
        "flag": True,
        "rate": 0.5,
        "items": [{"sku": "a", "more": {"n": 1}}, {"sku": None, "more": None}, None],
        "counts": [("a", 1), ("b", None)],
    }
    rows = pa.RecordBatch.from_struct_array(pa.array([row, {"id": 2}], STRUCT))
    found, problems = decoded(schema, schema, written(schema, rows.to_struct_array()))
    assert problems == [0, 0]
    assert found.to_pylist() == rows.to_pylist()


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (pa.struct([("a", pa.struct([("b-c", pa.int32())]))]), "column 'a.b-c': names of Avro have letters"),
        (pa.struct([("a", pa.list_(pa.duration("us")))]), "column 'a': Avro has no values of duration"),
    ],
)
def test_columns_without_a_schema_are_refused_by_name(kind: pa.DataType, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        schema_of(kind, "orders")


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(1, 18))
def test_decimals_of_any_size_are_those_of_fastavro(numbers: list[int], size: int) -> None:
    precision = min(38, int((8 * size - 1) * 0.30103)) or 1
    numbers = [n for n in numbers if abs(n) < 10**precision]
    column = pa.array([Decimal(n) for n in numbers], pa.decimal128(precision, 0))
    for kind in ({"type": "bytes"}, {"type": "fixed", "name": "F", "size": size}):
        schema = record(c={**kind, "logicalType": "decimal", "precision": precision, "scale": 0})
        found = written(schema, pa.record_batch({"c": column}).to_struct_array())
        assert [read_by_fastavro(each, schema, schema)["c"] for each in found] == numbers
        sizes = [len(each) - ("size" not in kind) for each in found]
        assert sizes == [size if "size" in kind else (n if n >= 0 else ~n).bit_length() // 8 + 1 for n in numbers]


def test_what_was_read_of_mutated_values_is_written_and_read_again() -> None:
    chance = random.Random(11)
    items = {"type": "array", "items": record("Item", sku="string", tags={"type": "map", "values": ["null", "bytes"]})}
    schema = record(id="long", shop=["null", "string"], items=items, at=["null", "double"], d=["null", DECIMAL])
    value = {"id": 7, "shop": "é", "items": [{"sku": "s", "tags": {"a": b"x", "b": None}}], "at": 1.5, "d": Decimal(12)}
    (data,) = encoded(schema, [value])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(FRAMES // 100):
        mutated = [bytearray(data) for _ in range(100)]
        for each in mutated:
            for _ in range(chance.randint(1, 3)):
                each[chance.randrange(len(each))] = chance.choice([0, 1, 2, 127, 128, 255, chance.randrange(256)])
        rows, _ = decoded(schema, schema, list(map(bytes, mutated)))
        again, problems = decoded(schema, schema, written(schema, rows.to_struct_array()))
        assert not any(problems)
        assert str(again.to_pylist()) == str(rows.to_pylist())  # as text: NaN
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 0}
