"""JSON by Arrow against Spark's from_json, and against itself row by row."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import functions as F

from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.tasks.json_values import JsonColumns, JsonError, JsonReader
from tests.examples_tried import examples
from tests.pipeline.tasks.json_texts import Texts

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
    lines += [line for line in BROKEN if line != "{}}"]  # text behind the object has a test of its own
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


def _cell(row: Any, kind: pa.DataType) -> str:
    """Text of a value that both have: numbers by value, times as their number."""
    if isinstance(row, dict):
        return str({name: _cell(value, kind) for name, value in row.items() if value is not None})
    if isinstance(row, list):
        return str([_cell(value, kind) for value in row])
    if row is not None and pa.types.is_floating(kind):
        return str(np.array(row).astype(kind.to_pandas_dtype()))
    return str(row)


def _is_different_on_purpose(own: Any, theirs: Any, bad: str, kind: str) -> bool:
    """What the page on columns tells of."""
    if "timestamp" in kind and "is no timestamp" in bad:
        return re.search(r"field 'v': (\"(\\[tn]|\\u00..|[ \x7f])*T?\d\d?:\d)", bad) is not None
    if "string" not in kind or own is None or theirs is None:
        return False
    shortest = [re.sub(r"\d+\.\d+E-?\d+", lambda number: repr(float(number[0])), str(each)) for each in (own, theirs)]
    return shortest[0] == shortest[1]


@pytest.mark.gate
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_random_texts_of_each_type_are_read_as_by_from_json(spark: SparkSession) -> None:
    kinds = {name: f"{kind}" for name, kind in KINDS.items() if name not in "xy"}
    kinds |= {"w": "timestamp_ntz", "f": "float"}
    kinds |= {"x": "struct<p: bigint, q: string>", "y": "array<bigint>", "z": "array<struct<p: bigint>>"}
    shown = {
        "timestamp": "unix_micros(j.v)",
        "date": "unix_date(j.v)",
        "timestamp_ntz": "unix_micros(cast(j.v as timestamp))",
    }
    options = {"columnNameOfCorruptRecord": "bad", "timeZone": "UTC"}
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    differences, read = [], 0
    for kind in kinds.values():
        texts = Texts(f"{kind} 7")
        lines = [texts.of(kind) for _ in range(examples(3_000, quick=300))]
        rows = spark.createDataFrame([(line,) for line in lines], "j string")
        parsed = rows.select(F.from_json("j", f"v {kind}, bad string", options).alias("j"))
        theirs = parsed.select(F.expr(shown.get(kind, "j.v")), F.expr("j.bad is not null")).collect()
        of = arrow_schema(f"v {kind}")
        own, bad = JsonReader(of).read(encoded([line.encode(errors="replace").decode() for line in lines]))
        values = own["v"].cast({64: pa.int64(), 32: pa.int32()}[of[0].type.bit_width]) if kind in shown else own["v"]
        for number, (line, value, (expected, is_bad)) in enumerate(zip(lines, values.to_pylist(), theirs, strict=True)):
            plainly = _plainly(expected)
            said = bad.get(number, "")
            is_malformed = bool(said) and is_bad and value is None and "field" not in said
            same = _cell(value, of[0].type) == _cell(plainly, of[0].type) and (
                bool(said) == is_bad or "text follows" in said
            )
            read += value is not None
            if not same and not is_malformed and not _is_different_on_purpose(value, plainly, said, kind):
                differences.append(f"{kind} {line!a} {value!a} {plainly!a} {said!a} {is_bad}")
    assert not differences, "\n".join(differences[:40])
    assert read > len(kinds) * examples(3_000, quick=300) / 5


def _plainly(value: Any) -> Any:
    """A value of Spark with dicts in place of rows."""
    if isinstance(value, list):
        return [_plainly(each) for each in value]
    return value.asDict() if isinstance(value, Row) else value


TEXTS = {
    "{'a':1,'s':'x'}": (1, "x"),
    '{"a":3}{"a":4}': (3, None),
    '{"a":5}\n{"a":6}': (5, None),
    '{"a":6}]': (6, None),
    '{"a":9,"s":"it\\\'s"}': (9, "it's"),
    """{'s':'"'}""": (None, '"'),
    '{"a":1,"a":"x"}': (1, None),
    '{"s":{"b":1e-5,"b":[-INF,1e7]}}': (None, '{"b":1.0E-5,"b":["-Infinity",1.0E7]}'),
    '{"s":["\\u001f\\ud800😀"]}': (None, '["\\u001F\\uD800\\uD83D\\uDE00"]'),
    '{"x":' + "[" * 999 + "]" * 999 + ',"a":1}': (1, None),
    '{"x":' + "[" * 1000 + "]" * 1000 + ',"a":1}': (None, None),
    '{"x":[' + "[]," * 2000 + '[]],"a":1}': (1, None),
    '{"x":' + "9" * 1000 + ',"a":1}': (1, None),
    '{"x":' + "9" * 1001 + ',"a":1}': (None, None),
    '{"s":' + "[" * 999 + "]" * 999 + "}": (None, "[" * 999 + "]" * 999),
    '{"s":' + '{"b":' * 999 + "1" + "}" * 1000: (None, '{"b":' * 999 + "1" + "}" * 999),
}


@pytest.mark.parametrize("line", TEXTS)
def test_texts_that_other_readers_refuse_are_read_as_spark_does(line: str) -> None:
    fields = pa.schema([("a", pa.int64()), ("s", pa.string())])
    wide = pa.schema([*fields, ("m", pa.decimal128(9, 2))])
    for schema in (fields, wide):
        for values in ([line], ['{"a":2}'] * 30 + [line]):
            row = JsonReader(schema).read(encoded(list(values)))[0].to_pylist()[-1]
            assert (row["a"], row["s"]) == TEXTS[line]


def test_text_behind_an_object_is_told_as_what_it_hides_is_lost() -> None:
    with pytest.raises(JsonError, match=r"text follows its object: '\{\"l\":2\}'"):
        fail_fast(['{"l":1}', '{"l":1} {"l":2}'])


def test_a_negative_zero_has_a_sign_unless_it_is_a_whole_number_as_in_spark() -> None:
    texts = ["-0", "-0.0", "-0e0", "0", "-0", "1"] * 9
    for fields in (pa.schema([("d", pa.float64())]), pa.schema([("d", pa.float32()), ("m", pa.decimal128(5, 2))])):
        found = parse_json(encoded([of_fields({"d": text}) for text in texts]), fields)["d"].to_pylist()
        assert [str(number) for number in found] == ["0.0", "-0.0", "-0.0", "0.0", "0.0", "1.0"] * 9


TIMES = {
    "2020-01-01T10:00:00Z": 1577872800,
    "2020-01-01 10:00:00 Europe/Paris": 1577869200,
    "2020-01-01T10:00:00+5:30": 1577853000,
    "2020-1-1 10:0:0": 1577872800,
    "2020-02-30T10:00:00Z": None,
    "2020-01-01T10:00:00-19:00": None,
    "20200101": None,
    "10:00": None,
}


def test_times_are_read_by_columns_wherever_they_are() -> None:
    """A bad one costs no row beside it."""
    at, day = pa.timestamp("us", "UTC"), pa.date32()
    fields = pa.schema([("t", at), ("x", pa.struct([("t", at), ("d", day)])), ("y", pa.list_(at))])
    texts = list(TIMES) * 40
    lines: list[str | None] = [
        json.dumps({"t": text, "x": {"t": text, "d": "2020-1-2"}, "y": [None, text]} if n % 3 else {"x": None, "y": []})
        for n, text in enumerate(texts)
    ]
    rows = parse_json(encoded(lines), fields)
    for n, (text, row) in enumerate(zip(texts, rows.to_pylist(), strict=True)):
        moment = None if TIMES[text] is None else datetime.fromtimestamp(TIMES[text], UTC)
        if n % 3:
            assert row["x"]["d"] == date(2020, 1, 2)
            assert (row["t"], row["x"]["t"], row["y"]) == (moment, moment, None if moment is None else [None, moment])
        else:
            assert (row["t"], row["x"], row["y"]) == (None, None, [])


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
    assert parse_json(encoded(lines), FIELDS)["l"].to_pylist() == [None, None, 2, None, None, 4, *[None] * 3, 6, None]


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
    with pytest.raises(JsonError, match=r"the value is not JSON of this schema: field 'l': \"5\" is no int64"):
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
