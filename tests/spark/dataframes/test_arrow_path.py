"""Expressions that Roster computes in its own tasks, beside Spark on the same records, types included."""

from __future__ import annotations

import contextlib
import json
import random
import string
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from roster.pipeline.spark_schemas import arrow_schema, as_struct
from roster.pipeline.tasks.writer import conformed
from roster.spark import read_stream
from roster.spark.dataframes.plan import Plan
from roster.spark.dataframes.program import program_of
from tests.examples_tried import examples
from tests.pipeline.tasks.json_texts import Texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

RECORD = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
FIELDS = {
    "y": "tinyint",
    "h": "smallint",
    "i": "int",
    "l": "bigint",
    "f": "float",
    "d": "double",
    "m": "decimal(10,2)",
    "s": "string",
    "b": "boolean",
    "a": "date",
    "t": "timestamp",
    "u": "string",
    "z": "timestamp_ntz",
}
SAFE = [
    *FIELDS,
    *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
    *("cast(key as string)", "cast(value as string)", "cast(s as binary)"),
    *("d * 2", "d + f", "d - i", "d * l", "-d", "abs(d)", "d / 4", "f * f", "f - d", "-f", "d % 3", "i % 7", "l % -3"),
    *("i / 8", "y / 2", "d * cast(i as double)", "cast(d as float)", "cast(l as float)", "cast(l as double)", "y % 5"),
    *("i = y", "d > f", "d = d", "d <=> d", "s < u", "s <=> u", "b = true", "a >= date'2020-01-01'", "m > 3", "m <= d"),
    *("t > timestamp'2020-01-01 10:00:00'", "i in (1, 2, -7, 0)", "s in ('5', 'a')", "d in (0.1, 1.255, 0)", "not b"),
    *("b and i > 0", "b or d > 1", "i is null", "s is not null", "isnan(d)", "i > 0 and d < 5 and b", "i <> l"),
    *("case when i > 0 then d when b then 1.5d end", "if(b, s, u)", "coalesce(i, h, y, 3)", "coalesce(s, u, 'none')"),
    *("nvl(d, 0d)", "case when b then 'yes' else s end", "coalesce(t, timestamp)", "length(s)", "s like 'a'"),
    *("concat(s, '-', u)", "s || 'x'", "startswith(s, '5')", "endswith(s, '5')", "contains(u, 'a')"),
    *("cast(i as string)", "cast(b as string)", "cast(l as decimal(20,0))", "cast(h as double)", "cast(y as bigint)"),
    *("cast(d as string)", "cast(f as string)", "cast(t as date)", "cast(a as timestamp)", "cast(t as bigint)"),
    *("to_json(struct(y, i, l, s, b, a))", "to_json(struct(m, t, d, f))", "to_json(struct(struct(s, t) as w, u))"),
    *("struct(i, s)", "named_struct('x', d, 'y', struct(t)).y", "1", "'text'", "1.5d", "cast(null as int)", "2.50"),
    *("m * 2", "m * m", "m + i", "m - 0.5", "m % 3.5", "m / 8", "-m", "abs(m)", "try_subtract(m, 1)", "m * d"),
    *("try_add(i, i)", "try_multiply(l, l)", "try_divide(d, d)", "try_mod(l, i)", "try_divide(m, m)", "try_add(y, y)"),
    *("try_cast(s as int)", "try_cast(u as double)", "try_cast(d as int)", "try_cast(l as tinyint)", "trim(s)"),
    *("try_cast(m as smallint)", "try_cast(m as decimal(5,1))", "try_cast(i as decimal(4,2))", "try_cast(s as float)"),
    *("try_cast(f as bigint)", "cast(m as double)", "cast(m as float)", "cast(b as double)", "cast(b as tinyint)"),
    *("cast(i as boolean)", "cast(d as boolean)", "nullif(i, 1)", "nullif(s, u)", "i between -5 and 5"),
    *("m between d and 10", "try_cast(cast(value as string) as int)", "try_cast(s as smallint)", "m = i"),
    *(
        "key < value",
        "coalesce(key, value)",
        "key <=> value",
        "z",
        "z > timestamp_ntz'2020-01-01 10:00:00'",
        "if(b, z, null)",
    ),
    *("date'2020-02-29'", "timestamp'1969-12-31 23:59:59.999'", "coalesce(m, 1.00)", "case when m > 1 then m end"),
]
"""Expressions that no row makes fail; those that are left to Spark are told apart below."""
BY_SPARK = {"s like 'a'"}
FAILING = ["i + 1", "i * i", "l - 1", "-i", "abs(l)", "y + y", "i / (i - i)", "d / d", "l % i", "d % d", "h * h"]
FAILING += ["cast(s as int)", "cast(s as double)", "cast(s as bigint)", "cast(u as timestamp)", "to_timestamp(u)"]
FAILING += [
    "m / m",
    "m % (m - m)",
    "cast(d as int)",
    "cast(l as smallint)",
    "cast(m as decimal(4,1))",
    "cast(f as bigint)",
]
FAILING += ["cast(s as float)", "cast(s as tinyint)", "cast(i as decimal(4,2))"]
FAILING += ["m * cast(l as decimal(20,0)) * m * m"]
CONDITIONS = ["i > 0", "s is not null", "b", "d > 0 and i < 100", "t is not null or b", "i <> 0", "length(u) > 3"]


def texts(seed: str, count: int) -> list[bytes | None]:
    """Values of records: objects with fields that mostly have their type, broken ones, and none."""
    made, chance = Texts(seed), random.Random(seed)
    values: list[bytes | None] = []
    for _ in range(count):
        if chance.random() < 0.05:
            values.append(
                chance.choice([None, b"", b"null", b"[]", b"{", b"\xff{", b'{"i":1', b'{"i":1}{"i":2}', b"{}}"])
            )
            continue
        fields = [name for name in FIELDS if chance.random() < 0.8]
        values.append(("{" + ",".join(f'"{name}":{_value(name, made, chance)}' for name in fields) + "}").encode())
    return values


def _value(name: str, made: Texts, chance: random.Random) -> str:
    if chance.random() < 0.08:
        return chance.choice(
            ["null", '"x"', "[1]", "{}", "true", "1.5", "-0", "-0.0", "1e400", "300", '"NaN"', "12345678901234567890"]
        )
    kind = FIELDS[name]
    if kind in ("tinyint", "smallint", "int", "bigint"):
        bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}[kind]
        return str(
            chance.choice([0, 1, -1, 5, chance.randint(-9, 9), chance.getrandbits(bits - 1), -(1 << (bits - 1))])
        )
    if kind in ("float", "double"):
        return repr(
            chance.choice(
                [0.0, 1.0, chance.uniform(-10, 10), round(chance.uniform(0, 1e9), 2), 10 ** chance.uniform(-20, 20)]
            )
        )
    if kind.startswith("decimal"):
        return f"{chance.uniform(-1e6, 1e6):.2f}"
    if kind == "boolean":
        return chance.choice(["true", "false"])
    if kind in ("date", "timestamp", "timestamp_ntz") or (name == "u" and chance.random() < 0.5):
        moment = datetime.fromtimestamp(chance.randint(-(10**10), 2 * 10**10), UTC).replace(
            microsecond=chance.choice([0, 5000, 123456]), tzinfo=None if kind == "timestamp_ntz" else UTC
        )
        return json.dumps(moment.date().isoformat() if kind == "date" else moment.isoformat(chance.choice("T ")))
    text = "".join(chance.choice(string.printable + "é😀") for _ in range(chance.randint(0, 6)))
    return json.dumps(chance.choice([text, "5", "-7", "1.25", "a", "", " 3 ", "1e3"]), ensure_ascii=False)


def records(values: list[bytes | None]) -> pa.Table:
    rows = [
        (
            None if number % 9 == 0 else f"k{number % 5}".encode(),
            value,
            "t",
            0,
            number,
            datetime(2026, 3, 1, tzinfo=UTC),
            0,
        )
        for number, value in enumerate(values)
    ]
    schema = arrow_schema(RECORD)
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def parsed(df: DataFrame) -> DataFrame:
    fields = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())
    return df.selectExpr("*", f"from_json(cast(value as string), '{fields}') as o").selectExpr("*", "o.*")


def by_roster(stream: DataFrame, rows: pa.Table) -> pa.Table | str:
    """What Roster computes of records by the frame of a stream, or why it leaves that to Spark."""
    made = program_of(Plan.of(stream), "append", headers=False)
    if made.declared.transform is not None:
        return made.steps[0]
    (step,) = made.declared.first.before
    function, columns = step.resolved(as_struct(RECORD))
    assert function is not None
    assert columns.simpleString() == stream.schema.simpleString()
    wanted = arrow_schema(columns)
    return pa.Table.from_batches([conformed(function(each), wanted) for each in rows.to_batches()], wanted)  # type: ignore[arg-type]


def cells(table: pa.Table) -> list[str]:
    """The columns as text, which tells apart -0.0 and 0.0."""
    return [repr(values(column)) for column in table.columns]


def values(column: Any) -> list[Any]:
    """Values as Python's, texts as bytes: they may be no UTF-8."""
    return list((column.cast(pa.binary()) if pa.types.is_string(column.type) else column).to_pylist())


@contextlib.contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session in the block."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


@pytest.fixture
def in_utc(spark: SparkSession) -> Iterator[None]:
    with settings(spark, {"spark.sql.session.timeZone": "UTC"}):
        yield


@pytest.fixture
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Spark compiles no code for a program, and computes rows after it has left out what nobody asks for."""
    wanted = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
    }
    with settings(spark, wanted):
        yield


@pytest.fixture(scope="module")
def stream(spark: SparkSession) -> DataFrame:
    """The records of a topic that is never read, with their fields."""
    return parsed(read_stream(spark).options(**{"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}).load())


@pytest.mark.usefixtures("in_utc")
def test_each_expression_has_the_value_and_the_type_that_it_has_in_spark(
    spark: SparkSession, stream: DataFrame
) -> None:
    rows = records(texts("rows", examples(2_000, quick=300)))
    told = [text for text in SAFE if text not in BY_SPARK]
    differences = []

    def program(df: DataFrame) -> DataFrame:
        return df.selectExpr(*(f"{text} as c{number}" for number, text in enumerate(told)))

    found = by_roster(program(stream), rows)
    assert isinstance(found, pa.Table), found
    wanted = program(parsed(spark.createDataFrame(rows).cache()))  # of rows in memory Spark generates code
    theirs = pa.Table.from_batches(
        [conformed(each, arrow_schema(wanted.schema)) for each in wanted.toArrow().to_batches()]
    )
    lines = rows["value"].to_pylist()
    for text, own, other in zip(told, found.columns, theirs.columns, strict=True):
        for line, one, two in zip(lines, values(own), values(other), strict=True):
            if repr(one) != repr(two):
                differences.append(f"{text}: {one!r} is {two!r} in Spark, of {line!r}")
    assert not differences, f"{len(differences)}\n" + "\n".join(differences[:60])
    for text in BY_SPARK:
        assert isinstance(by_roster(stream.selectExpr(text), rows), str)


@pytest.mark.usefixtures("in_utc", "interpreted")
def test_rows_are_left_out_and_errors_are_raised_as_in_spark(spark: SparkSession, stream: DataFrame) -> None:
    """With ANSI's arithmetic a program stops at the same rows."""
    chance = random.Random(5)
    tried = stopped = 0
    for number in range(examples(120, quick=12)):
        rows = records(texts(f"errors {number}", chance.choice([1, 3, 20])))
        columns = [*chance.sample(FAILING, 2), chance.choice(SAFE[:12])]
        conditions = chance.sample(CONDITIONS, chance.randint(0, 2))

        def program(
            df: DataFrame, columns: Any = columns, conditions: Any = conditions, number: int = number
        ) -> DataFrame:
            df = df.selectExpr("*", *(f"{text} as c{place}" for place, text in enumerate(columns)))
            df = df.where(" and ".join(f"({condition})" for condition in conditions)) if conditions else df
            return df.select("c0", "c2", "offset") if number % 2 else df.select("c0", "c1", "c2", "offset")

        wanted = program(parsed(spark.createDataFrame(rows)))
        try:
            theirs: Any = cells(wanted.toArrow())
        except PySparkException as error:
            theirs = error.getErrorClass()  # type: ignore[attr-defined]
        try:
            found = by_roster(program(stream), rows)
            assert isinstance(found, pa.Table), found
            own: Any = cells(found.cast(arrow_schema(wanted.schema)))
        except ArithmeticError:
            own = "stopped"
            stopped += 1
        assert (own == theirs) if isinstance(theirs, list) else own == "stopped", (columns, conditions, own, theirs)
        tried += 1
    assert 0 < stopped < tried


DIFFERENT = {
    b'{"i":1,"s":{"x":tru},"l":2}': ({"i": None}, {"i": 1}),
    b'{"i":1,"s":"x\t,"l":2}': ({"i": None, "l": None}, {"i": 1, "l": 2}),
    b'{"i":1,"t":"10:00"}': ({"t": None}, {}),
}
"""What Roster makes of values in its own way, and Spark, as the page says."""


@pytest.mark.usefixtures("in_utc")
def test_what_differs_is_on_the_page(spark: SparkSession, stream: DataFrame) -> None:
    rows = records(list(DIFFERENT))

    columns = ["i", "s", "l", "t", "value"]
    found = by_roster(stream.select(columns), rows)
    assert isinstance(found, pa.Table)
    in_spark = parsed(spark.createDataFrame(rows)).select(columns).toArrow()
    for own, theirs in zip(found.to_pylist(), in_spark.to_pylist(), strict=True):
        differ = {name for name in own if own[name] != theirs[name]}
        ours, of_spark = DIFFERENT[own["value"]]
        assert differ == set(ours)
        assert {name: own[name] for name in ours} == ours
        assert all(theirs[name] == value for name, value in of_spark.items())
