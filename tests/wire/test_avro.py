"""Avro values as columns: held against fastavro over random schemas, evolved ones and mutated bytes."""

from __future__ import annotations

import json
import random
import resource
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.records import native
from roster.wire.avro.columns import of_arrow
from roster.wire.avro.reader import AvroReader
from roster.wire.avro.schema import SchemaError, parse
from roster.wire.columns import avro_kernel
from roster.wire.columns.avro_layout import REFUSED
from tests.examples_tried import examples
from tests.wire.avro_cases import cases, encoded, evolved, read_by_fastavro, spans
from tests.wire.plain_kernel import PlainKernel

NATIVE = native.kernel(None, native.AVRO)
PLAIN = PlainKernel(avro_kernel)
FRAMES = examples(3000, "ROSTER_AVRO_FRAMES", quick=300)


def decoded(writer: Any, reader: Any, values: list[bytes], kernel: Any = NATIVE) -> tuple[pa.RecordBatch, list[int]]:
    made = AvroReader(kernel, parse(json.dumps(reader)))
    found = made.decode(np.full(len(values), made.program(parse(json.dumps(writer)))), *spans(values))
    found.rows.validate(full=True)
    assert found.rows.num_rows == len(values)
    for row in np.flatnonzero(found.problems).tolist():
        assert all(column[row].as_py() is None for column in found.rows.columns)
    return found.rows.filter(pa.array(found.problems == 0)), found.problems.tolist()


@given(cases())
def test_values_are_those_that_fastavro_reads(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    data = encoded(schema, values)
    rows, problems = decoded(schema, schema, data)
    assert not any(problems)
    assert rows.to_pylist() == [read_by_fastavro(each, schema, schema) for each in data]


@given(cases(), st.data())
def test_values_are_resolved_to_the_readers_schema_as_fastavro_does(case: tuple[Any, list[Any]], more: Any) -> None:
    writer, values = case
    reader = more.draw(evolved(writer))
    data = encoded(writer, values)
    rows, problems = decoded(writer, reader, data)
    assert not any(problems)
    assert rows.to_pylist() == [read_by_fastavro(each, writer, reader) for each in data]


@settings(max_examples=examples(25))
@given(cases(depth=1), st.data())
def test_the_loop_is_the_same_as_plain_python_with_every_index_checked(case: tuple[Any, list[Any]], more: Any) -> None:
    schema, values = case
    data = [more.draw(mutated(each)) for each in encoded(schema, values)]
    rows, problems = decoded(schema, schema, data, PLAIN)
    compiled_rows, compiled_problems = decoded(schema, schema, data)
    assert problems == compiled_problems
    texts = [[column.to_string(window=1000) for column in each.columns] for each in (rows, compiled_rows)]
    assert texts[0] == texts[1]  # as text: NaN, and times that Python has no objects for


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(made)))
        what = draw(st.sampled_from(["cut", "byte", "more", "large"]))
        if what == "cut":
            del made[place:]
        elif what == "more":
            made[place:place] = draw(st.binary(max_size=3))
        elif what == "large":
            made[place:place] = b"\xff" * draw(st.integers(1, 9)) + b"\x01"
        elif place < len(made):
            made[place] = draw(st.integers(0, 255))
    return bytes(made)


def test_mutated_values_are_refused_or_read_with_the_rows_between_them_unharmed() -> None:
    """Every second value is good: what a bad one left behind must not be seen. Memory stays within a bound."""
    chance = random.Random(7)
    items = {"type": "array", "items": record("Item", sku="string", tags={"type": "map", "values": ["null", "bytes"]})}
    schema = record("Order", id="long", shop=["null", "string"], items=items, at=["null", "double", "boolean"])
    good = [
        {
            "id": number,
            "shop": None if number % 3 else f"shop é {number}",
            "items": [{"sku": "s" * n, "tags": {"a": b"x", "b": None}} for n in range(number % 4)],
            "at": [None, 1.5, True][number % 3],
        }
        for number in range(50)
    ]
    data = encoded(schema, good)
    expected = [read_by_fastavro(each, schema, schema) for each in data]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(FRAMES // 50):
        mixed = []
        for each in data:
            bad = bytearray(each)
            for _ in range(chance.randint(1, 3)):
                bad[chance.randrange(len(bad))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
            mixed += [each, bytes(bad[: chance.randint(0, len(bad))]) if chance.random() < 0.3 else bytes(bad)]
        rows, problems = decoded(schema, schema, mixed)
        assert not any(problems[::2])
        numbers = np.cumsum(np.array(problems) == 0) - 1
        read = rows.to_pylist()
        assert [read[number] for number in numbers[::2]] == expected
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def record(name: str, /, **fields: Any) -> Any:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


HOSTILE: dict[str, tuple[Any, bytes]] = {
    "nothing": ("long", b""),
    "a varint that does not end": ("long", b"\xff" * 9),
    "a varint of eleven bytes": ("long", b"\xff" * 10 + b"\x01"),
    "an int beyond 32 bits": ("int", b"\xff\xff\xff\xff\x7f"),
    "a text longer than the value": ("string", b"\x08abc"),
    "a text of 2^62 bytes": ("string", b"\xfe" + b"\xff" * 8 + b"\x00abc"),
    "a negative length": ("bytes", b"\x03abc"),
    "text that is not UTF-8": ("string", b"\x04\xc3\x28"),
    "a surrogate": ("string", b"\x06\xed\xa0\x80"),
    "an array of 2^62 items": ({"type": "array", "items": "int"}, b"\xfe" + b"\xff" * 8 + b"\x00"),
    "an array of -2^63 items": ({"type": "array", "items": "int"}, b"\xff" * 9 + b"\x01\x00"),
    "a block with a negative size": ({"type": "array", "items": "int"}, b"\x01\x01\x02\x00"),
    "an array without an end": ({"type": "array", "items": "int"}, b"\x02\x02"),
    "a map whose key is too long": ({"type": "map", "values": "int"}, b"\x02\x7e"),
    "a branch that is not there": (["null", "int", "string"], b"\x08"),
    "a negative branch": (["null", "int"], b"\x01\x02"),
    "a symbol that is not there": ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
    "a fixed that is cut": ({"type": "fixed", "name": "F", "size": 4}, b"abc"),
    "a decimal of too many digits": (
        {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 0},
        b"\x04\x03\xe8",
    ),
    "a decimal of 40 bytes": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
        b"\x50" + b"\x01" * 40,
    ),
    "a time that has too many microseconds": (
        {"type": "long", "logicalType": "timestamp-millis"},
        b"\xfe" + b"\xff" * 8 + b"\x01",
    ),
    "a boolean of 2": ("boolean", b"\x02"),
    "more than the value": ("int", b"\x02\x02"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_values_are_refused(what: str) -> None:
    kind, value = HOSTILE[what]
    schema = record("R", before="int", v=kind)
    for kernel in (NATIVE, PLAIN):
        assert decoded(schema, schema, [b"\x02" + value], kernel)[0].num_rows == 0
        # The same bytes in a field that is not read.
        if not any(
            word in what for word in ("UTF-8", "surrogate", "symbol", "decimal", "microseconds", "boolean", "int b")
        ):
            assert decoded(schema, record("R", before="int"), [b"\x02" + value], kernel)[0].num_rows == 0


BOMB = '{"type": "record", "name": "B%d", "fields": [{"name": "a", "type": %s}, {"name": "b", "type": "B%d"}]}'


def bomb(levels: int) -> str:
    text = '{"type": "record", "name": "B0", "fields": [{"name": "a", "type": "int"}]}'
    for level in range(1, levels):
        text = BOMB % (level, text, level - 1)
    return text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"type": "array", "items": ' * 80 + '"int"' + "}" * 80, "deeper than 64 levels"),
        (bomb(30), "more than 5000 types"),
        ('{"type": "record", "name": "a.N", "fields": [{"name": "n", "type": ["null", "N"]}]}', "a.N contains itself"),
        ('{"type": "record", "name": "N"}', "N has no list of fields"),
        ('{"type": "fixed", "name": "F", "size": -1}', "the size of F is not a size"),
        ('{"type": "enum", "name": "E", "symbols": []}', "E has no symbols"),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}', "more than the 38 digits"),
        ('["int", "int"]', "has a type twice"),
        ('["int", ["null"]]', "a union contains a union"),
        ('"Missing"', "there is no type 'Missing'"),
        ("7", "7 is not a type"),
        ('{"type": "array", "items": "null"}', "items of an array of null have no bytes"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]}',
            "case only",
        ),
    ],
)
def test_schemas_that_are_none_and_those_without_columns_are_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        AvroReader(NATIVE, parse(text))


def test_an_array_of_nothing_that_is_not_read_costs_nothing() -> None:
    writer = record("R", nothing={"type": "array", "items": "null"}, n="int")
    rows, _ = decoded(writer, record("R", n="int"), [b"\xfe" + b"\xff" * 8 + b"\x00\x00\x0a"])
    assert rows.to_pylist() == [{"n": 5}]


def test_defaults_of_every_type_are_filled_in_also_within_lists() -> None:
    inner = {
        "type": "record",
        "name": "I",
        "fields": [
            {"name": "n", "type": "int"},
            {"name": "a", "type": {"type": "array", "items": "string"}, "default": ["x", "yy"]},
            {"name": "m", "type": {"type": "map", "values": "long"}, "default": {"k": 3}},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "default": "B"},
            {"name": "b", "type": "bytes", "default": "\u00ff"},
            {"name": "d", "type": ["null", "double"], "default": None},
            {"name": "u", "type": ["string", "int", "null"], "default": "first"},
            {"name": "r", "type": record("X", z="float", t="boolean"), "default": {"z": 0.5, "t": True}},
        ],
    }
    writer = record("R", l={"type": "array", "items": record("I", n="int")})
    reader = record("R", l={"type": "array", "items": inner})
    rows, problems = decoded(writer, reader, [b"\x04\x02\x04\x00", b"\x00", b"\x02\x06\x00"])
    assert problems == [0, 0, 0]
    filled = {
        "a": ["x", "yy"],
        "m": [("k", 3)],
        "e": "B",
        "b": b"\xff",
        "d": None,
        "u": {"member0": "first", "member1": None},
        "r": {"z": 0.5, "t": True},
    }
    assert rows.to_pylist() == [{"l": [{"n": 1, **filled}, {"n": 2, **filled}]}, {"l": []}, {"l": [{"n": 3, **filled}]}]


@pytest.mark.parametrize(
    ("writer", "reader", "data", "value"),
    [
        ("int", ["null", "string", "long"], b"\x06", {"member0": None, "member1": 3}),
        ("null", ["null", "string"], b"", None),
        (["int", "string"], "string", b"\x02\x02a", "a"),
        (["null", "int"], "int", b"\x02\x04", 2),
        (["null", "int"], ["string", "null", "double"], b"\x02\x04", {"member0": None, "member1": 2.0}),
        ("float", ["null", "double"], b"\x00\x00\xc0\x3f", 1.5),
        ("string", "bytes", b"\x02a", b"a"),
        ("bytes", "string", b"\x02a", "a"),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "NEW"]},
            {"type": "enum", "name": "E", "symbols": ["B", "A"], "default": "B"},
            b"\x02",
            "B",
        ),
        ({"type": "fixed", "name": "x.F", "size": 2}, {"type": "fixed", "name": "y.F", "size": 2}, b"ab", b"ab"),
        ({"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},) * 2 + (bytes(12), bytes(12)),
    ],
)
def test_unions_promotions_and_defaults_follow_the_rules_of_resolution(
    writer: Any, reader: Any, data: bytes, value: Any
) -> None:
    rows, problems = decoded(record("R", v=writer), record("R", v=reader), [data])
    assert (rows.to_pylist(), problems) == ([{"v": value}], [0])


@pytest.mark.parametrize(
    ("writer", "reader", "problem"),
    [
        (record("R", v="string"), record("R", v="int"), "field v: the writer's string cannot be read as int"),
        (record("R", v="long"), record("R", v="int"), "field v: the writer's long cannot be read as int"),
        (record("R"), record("R", v="int"), "field v: the writer has none, and it has no default"),
        (record("Q", v="int"), record("R", v="int"), "the writer's record Q cannot be read as record R"),
        (
            record("R", v={"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}),
            record("R", v={"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1}),
            r"field v: the writer's decimal\(5, 2\) cannot be read as decimal\(5, 1\)",
        ),
    ],
)
def test_writers_that_the_reader_cannot_read_are_refused_by_name(writer: Any, reader: Any, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        decoded(writer, reader, [])


@pytest.mark.parametrize(
    "kind", ["string", "bytes", {"type": "map", "values": "int"}, {"type": "array", "items": "int"}]
)
def test_a_default_of_another_type_is_refused_by_name(kind: Any) -> None:
    reader = {"type": "record", "name": "R", "fields": [{"name": "v", "type": kind, "default": 7}]}
    with pytest.raises(SchemaError, match="the default 7 is not a value of "):
        decoded(record("R"), reader, [])


def test_a_symbol_that_is_too_long_is_refused_and_null_beside_it_is_read() -> None:
    writer = ["null", {"type": "enum", "name": "E", "symbols": ["A", "B" * 5000]}]
    reader = AvroReader(NATIVE, of_arrow(pa.struct([("v", pa.string())]), "columns"))
    program = reader.program(parse(json.dumps(record("R", v=writer))))
    found = reader.decode(np.full(2, program), *spans([b"\x00", b"\x02\x00"]))
    assert (found.rows.to_pylist(), found.problems.tolist()) == ([{"v": None}, {"v": None}], [0, REFUSED])
