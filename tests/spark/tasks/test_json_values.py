"""JSON by Arrow against Spark's from_json, and against itself row by row."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import functions as F

from roster.spark.tasks.arrow_function import arrow_schema
from roster.spark.tasks.json_values import JsonColumns, JsonError, JsonReader
from tests.examples_tried import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = {
    "s": "string",
    "l": "long",
    "i": "tinyint",
    "d": "double",
    "b": "boolean",
    "t": "timestamp",
    "a": "date",
    "m": "decimal(10,2)",
    "x": "struct<p: long, q: string>",
    "y": "array<long>",
}
FIELDS = pa.schema(
    [
        ("s", pa.string()),
        ("l", pa.int64()),
        ("i", pa.int8()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("t", pa.timestamp("us", "UTC")),
        ("a", pa.date32()),
        ("m", pa.decimal128(10, 2)),
        ("x", pa.struct([("p", pa.int64()), ("q", pa.string())])),
        ("y", pa.list_(pa.int64())),
    ]
)
FLAT = pa.schema([field for field in FIELDS if field.name not in "mxy"])
"""Fields that the compiled loop reads; the others are skipped."""
VALUES = [
    "null",
    "true",
    "0",
    "-7",
    "300",
    "9223372036854775808",
    "1.255",
    "0.1",
    "NaN",
    '"NaN"',
    '"5"',
    '""',
    '"é\\n"',
]
VALUES += [
    '"2020-01-01T10:00:00Z"',
    '"2020-01-01 10:00:00"',
    '"2020-1-2"',
    '"2020-02-30"',
    "[]",
    "[1, null]",
    '[1, "a"]',
]
VALUES += ["{}", '{"p": 1, "q": "z"}', '{"p": "u", "q": 3}', '{"r": [{}]}', "[[1]]", '"1.25"', "-0.0", "1e3"]
OTHERS = [("s", "NaN"), ("s", "-0.0"), ("s", "1e3"), ("a", '"5"')]
"""Numbers whose text Spark writes in its own way, and days since the epoch in text, as of an early version."""
BROKEN = ["", " ", "null", "[]", "3", '"x"', "{", "}", '{"l":1', '{"l":1,}', '{"l":01}', '{"l" 1}', "{}}", '{"s":"\t"}']


def of_fields(of: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in of.items()) + "}"


OBJECT = st.dictionaries(st.sampled_from([*KINDS, "other"]), st.sampled_from(VALUES), max_size=4).map(of_fields)
PLAIN = st.builds(
    lambda n: of_fields({"s": f'"{n}"', "l": str(n), "d": f"{n}.5", "a": '"2020-01-02"'}), st.integers(0, 9)
)
LINE = st.none() | st.sampled_from([value for value in BROKEN if value not in ("}", "{}}")])


def encoded(lines: list[str | None]) -> Any:
    return pa.array([None if line is None else line.encode() for line in lines], pa.binary())


def parse_json(values: pa.Array, fields: pa.Schema) -> pa.RecordBatch:
    return JsonReader(fields).read(values)[0]


def plain(value: Any) -> Any:
    """Text of a value of Spark or Arrow, times in UTC."""
    if isinstance(value, (Row, dict)):
        return {name: plain(of) for name, of in (value.asDict() if isinstance(value, Row) else value).items()}
    if isinstance(value, list):
        return [plain(of) for of in value]
    return value.timestamp() if isinstance(value, datetime) else repr(value)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_values_are_those_of_from_json(spark: SparkSession) -> None:
    fields = [(name, value) for name in KINDS for value in VALUES if (name, value) not in OTHERS]
    lines = [of_fields({name: value}) for name, value in fields]
    lines += [of_fields({name: value, "s": '"also"'}) for name, value in fields if name != "s"]
    lines += [line for line in BROKEN if line != "{}}"]  # Spark takes what comes before the second brace
    ddl = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())
    assert arrow_schema(ddl).types == FIELDS.types
    frame = spark.createDataFrame([(line,) for line in lines], "j string")
    corrupt = {"columnNameOfCorruptRecord": "bad", "timeZone": "UTC"}
    found = frame.select(F.from_json("j", f"{ddl}, bad string", corrupt).alias("j")).collect()
    mine = parse_json(encoded(lines), FIELDS).to_pylist()
    nothing = dict.fromkeys([*KINDS, "bad"])
    differences = []
    for line, (row,), own in zip(lines, found, mine, strict=True):
        expected = dict(nothing) if row is None else row.asDict()
        bad = expected.pop("bad") is not None
        try:
            fail_fast([line])
        except JsonError:
            is_bad = True
        else:
            is_bad = False
        if plain(own) != plain(expected) or is_bad != bad:
            changed = {name: (own[name], expected[name]) for name in own if plain(own[name]) != plain(expected[name])}
            differences.append(f"{line} {changed} {is_bad=} {bad=}")
    assert not differences, "\n".join(differences)
    flat = parse_json(encoded(lines), FLAT).to_pylist()
    assert [plain(row) for row in flat] == [{name: plain(row[name]) for name in FLAT.names} for row in mine]


@given(st.lists(st.one_of(PLAIN, PLAIN, PLAIN, OBJECT, LINE), max_size=40))
@settings(max_examples=examples(100))
def test_a_value_means_the_same_alone_and_among_others(lines: list[str | None]) -> None:
    together = parse_json(encoded(lines), FIELDS)
    assert together.num_rows == len(lines)
    for number, line in enumerate(lines):
        assert together.slice(number, 1).to_pylist() == parse_json(encoded([line]), FIELDS).to_pylist() or "NaN" in str(
            line
        )


def test_values_do_not_run_into_each_other() -> None:
    lines = [
        '{"l":1',
        "}",
        '{"l":2}{"l":3}',
        '{"s":"a',
        'b"}',
        '{"l":4}',
        '{"x":{}',
        ',"l":5}',
        '{"y":[',
        '{"l":6}\n',
        "]}",
    ]
    assert parse_json(encoded(lines), FIELDS)["l"].to_pylist() == [*[None] * 5, 4, *[None] * 3, 6, None]


def test_bytes_that_are_no_text_become_replacements() -> None:
    values = pa.array([b'{"s": "a\xff"}', b'{"s": "b"}'], pa.binary())
    assert parse_json(values, FIELDS)["s"].to_pylist() == ["a\N{REPLACEMENT CHARACTER}", "b"]


def test_few_odd_values_among_many_are_found() -> None:
    lines: list[str | None] = [of_fields({"l": str(n)}) for n in range(20_000)]
    for place in range(0, 20_000, 1999):
        lines[place] = '{"l": "x"}' if place % 2 else '{"l": 1.5}'
    found = parse_json(encoded(lines), FIELDS)["l"].to_pylist()
    assert found == [None if n % 1999 == 0 else n for n in range(20_000)]


def test_columns_that_no_row_has_a_value_of_are_known() -> None:
    parse = JsonColumns(pa.schema([("l", pa.int64()), ("s", pa.string())]), "value", "PERMISSIVE", ["key"])

    def seen(lines: list[str | None], keys: list[bytes | None]) -> dict[str, bool]:
        parse(pa.RecordBatch.from_arrays([encoded(lines), pa.array(keys, pa.binary())], ["value", "key"]))
        return {sought.name: has for sought, has in parse.values_seen().items()}

    assert seen([], []) == {}, "of no rows nothing is known"
    assert seen(['{"l": 1, "S": "x"}', "{}"], [None, None]) == {"l": True, "s": False, "key": False}
    assert seen(["{}", "{}"], [None, b"k"]) == {"l": True, "s": False, "key": True}
    assert seen([], []) == {"l": True, "s": False, "key": True}


def fail_fast(lines: list[str | None]) -> pa.RecordBatch:
    return JsonColumns(FIELDS, "value", "FAILFAST")(pa.RecordBatch.from_arrays([encoded(lines)], ["value"]))


def test_fail_fast_names_the_field() -> None:
    with pytest.raises(JsonError, match=r"the value is no JSON of this schema: field 'l': \"5\" is no int64"):
        fail_fast(['{"l": 1}', '{"l": "5"}'])


@given(st.lists(st.one_of(PLAIN, PLAIN, PLAIN, OBJECT, LINE), max_size=40))
@settings(max_examples=examples(100))
def test_fail_fast_names_exactly_the_rows_that_fail_alone(lines: list[str | None]) -> None:
    def bad(some: list[str | None]) -> list[int]:
        try:
            fail_fast(some)
        except JsonError as error:
            return list(error.rows)
        return []

    assert bad(lines) == [number for number, line in enumerate(lines) if bad([line])]
