"""Expressions that Roster computes in its own tasks, beside Spark on the same records, types included."""

from __future__ import annotations

import contextlib
import json
import os
import random
import string
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException

from roster.pipeline.spark_schemas import arrow_schema, as_struct
from roster.pipeline.tasks.writer import conformed
from roster.spark import read_stream
from roster.spark.arrow_expressions import LeftToSparkError
from roster.spark.column_expressions import members
from roster.spark.dataframes.arrow_path import Computes, named, rows_of
from roster.spark.dataframes.plan import Plan, analyzed, frame_of, projected
from roster.spark.dataframes.program import program_of
from tests.examples_tried import examples
from tests.pipeline.tasks.json_texts import Texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
    "w": "decimal(38,10)",
    "v": "decimal(6,6)",
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
    *(
        "struct(1, 'x')",
        "to_json(struct(2 as a, 'b' as b))",
        "startswith(s, null)",
        "contains(s, cast(null as string))",
    ),
    *("length(cast(value as string))", "trim(cast(value as string))", "try_multiply(w, m)", "v * v", "w - v"),
    *("try_divide(w, v)", "try_mod(m, v)", "w / 3", "w = m", "v < m"),
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
        most = {"decimal(10,2)": 1e6, "decimal(38,10)": chance.choice([1.0, 1e9, 1e27]), "decimal(6,6)": 1.0}[kind]
        return f"{chance.uniform(-most, most):.{chance.choice([2, 6, 12])}f}"
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
    return parsed(unread(spark))


def unread(spark: SparkSession) -> DataFrame:
    return read_stream(spark).options(**{"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}).load()


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


OF_KIND = {
    "integer": ["y", "h", "i", "l", "partition", "offset", "1Y", "-32768S", "3", "0", "9223372036854775807L"],
    "float": ["f", "d", "0.5d", "-0.0d", "double('NaN')", "1.5f", "1e300d"],
    "decimal": ["m", "w", "v", "2.50", "0.000001", "12345678901234567890123456789.5"],
    "string": ["s", "u", "topic", "cast(value as string)", "'5'", "''", "' a'", "null"],
    "boolean": ["b", "true", "false", "cast(null as boolean)"],
    "date": ["a", "date'2020-02-29'"],
    "timestamp": ["t", "timestamp", "timestamp'1969-12-31 23:59:59.999'"],
    "local time": ["z", "timestamp_ntz'2020-01-01 10:00:00'"],
    "binary": ["key", "value"],
    "struct": [],
}
"""Columns and literals of random expressions."""
NUMBERS = ("integer", "float", "decimal")
CASTS = {
    "integer": (["tinyint", "smallint", "int", "bigint"], [*NUMBERS, "string", "boolean", "timestamp"]),
    "float": (["float", "double"], [*NUMBERS, "string", "boolean"]),
    "decimal": (["decimal(10,2)", "decimal(38,10)", "decimal(6,6)", "decimal(4,0)", "decimal(38,0)"], [*NUMBERS]),
    "string": (["string"], ["integer", "float", "boolean", "binary", "string"]),
    "boolean": (["boolean"], [*NUMBERS]),
    "date": (["date"], ["timestamp", "date"]),
    "timestamp": (["timestamp"], ["date", "string", "timestamp"]),
    "binary": (["binary"], ["string"]),
}
"""By kind the types that values are cast to, and the kinds of these values."""


class Expressions:
    """Random expressions of what the tasks compute, most of which Spark's analysis accepts."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def some(self, count: int) -> list[str]:
        """Different expressions of all kinds."""
        made = dict.fromkeys(self.of(self._chance.choice(list(OF_KIND)), 3) for _ in range(count))
        return [text for text in made if text != "null"]

    def of(self, kind: str, depth: int) -> str:
        """An expression of a kind, of at most this depth."""
        chance, leaves = self._chance, OF_KIND[kind]
        if leaves and (depth == 0 or chance.random() < 0.2):
            return chance.choice(leaves)
        below = max(depth - 1, 0)
        made: list[Callable[[str, int], str]] = [self._chosen, self._chosen]
        if kind in CASTS:
            made += [self._cast] * 2
        own = {"string": self._text, "boolean": self._condition, "struct": self._struct, "timestamp": self._time}
        own |= dict.fromkeys(NUMBERS, self._number)
        made += [own[kind]] * 4 if kind in own else []
        return (self._struct if kind == "struct" else chance.choice(made))(kind, below)

    def _chosen(self, kind: str, depth: int) -> str:
        one, other, condition = self.of(kind, depth), self.of(kind, depth), self.of("boolean", depth)
        forms = ["if({2}, {0}, {1})", "case when {2} then {0} end", "coalesce({0}, {1})", "nullif({0}, {1})"]
        forms += ["nvl({0}, {1})", "case when {2} then {0} when {0} = {1} then {0} else {1} end"]
        return self._chance.choice(forms).format(one, other, condition)

    def _cast(self, kind: str, depth: int) -> str:
        goals, kinds = CASTS[kind]
        goal, value = self._chance.choice(goals), self.of(self._chance.choice(kinds), depth)
        return f"{self._chance.choice(['cast', 'try_cast'])}({value} as {goal})"

    def _number(self, kind: str, depth: int) -> str:
        one, other = self.of(kind, depth), self.of(self._chance.choice([kind, kind, *NUMBERS]), depth)
        forms = ["({0} + {1})", "({0} - {1})", "({0} * {1})", "({0} / {1})", "({0} % {1})", "(-{0})", "abs({0})"]
        forms += [f"try_{name}({{0}}, {{1}})" for name in ("add", "subtract", "multiply", "divide", "mod")]
        if kind == "integer":
            forms += [f"length({self.of('string', depth)})"]
        return self._chance.choice(forms).format(one, other)

    def _condition(self, _: str, depth: int) -> str:
        kind = self._chance.choice([kind for kind in OF_KIND if kind != "struct"])
        near = self._chance.choice(NUMBERS) if kind in NUMBERS else kind
        one, other, third = self.of(kind, depth), self.of(near, depth), self.of(near, depth)
        forms = [f"({{0}} {sign} {{1}})" for sign in ("=", "<=>", "<", "<=", ">", ">=", "<>")]
        forms += ["({0} in ({1}, {2}))", "({0} between {1} and {2})", "({0} is null)", "({0} is not null)"]
        if kind == "float":
            forms += ["isnan({0})"]
        if kind == "boolean":
            forms = ["({0} and {1})", "({0} or {1})", "(not {0})"]
        if kind == "string":
            forms += [
                f"{name}({{0}}, '{text}')" for name in ("contains", "startswith", "endswith") for text in ("5", "")
            ]
        return self._chance.choice(forms).format(one, other, third)

    def _text(self, _: str, depth: int) -> str:
        one, other = self.of("string", depth), self.of("string", depth)
        forms = ["concat({0}, {1})", "({0} || '-' || {1})", "trim({0})", f"to_json({self._struct('', depth)})"]
        return self._chance.choice(forms).format(one, other)

    def _time(self, _: str, depth: int) -> str:
        return f"to_timestamp({self.of('string', depth)})"

    def _struct(self, _: str, depth: int) -> str:
        kinds = self._chance.choices(list(OF_KIND), k=self._chance.randint(1, 3))
        named = [f"'{name}', {self.of(kind, max(depth - 1, 0))}" for name, kind in zip("pqr", kinds, strict=False)]
        return f"named_struct({', '.join(named)})" if depth else "struct(i, s)"


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_random_expression_has_the_value_that_it_has_in_spark_or_stops_as_it_does(
    spark: SparkSession, stream: DataFrame, ansi: str
) -> None:
    seed = int(os.environ.get("ROSTER_SEED", "7"))
    chance = random.Random(f"{seed} {ansi}")
    with settings(spark, {"spark.sql.ansi.enabled": ansi, "spark.sql.subexpressionElimination.enabled": "false"}):
        of_tasks = computed(stream, Expressions(chance).some(examples(60, "ROSTER_EXPRESSIONS", quick=20)))
        rows = records(texts(f"{seed} {ansi}", 150))
        batch = parsed(spark.createDataFrame(rows).cache())
        stops = stopping(batch, list(of_tasks))
        differences = compared(rows, batch, {text: of_tasks[text] for text in stops}, stops)
    assert not differences, f"{len(differences)}\n" + "\n".join(differences[:60])


def computed(stream: DataFrame, expressions: list[str]) -> dict[str, Computes]:
    """What Roster computes in its tasks, by the text of the expression."""
    found = dict[str, Computes]()
    for text in expressions:
        with contextlib.suppress(AnalysisException, LeftToSparkError):
            root = Plan.of(stream.selectExpr(f"{text} as c")).root
            found[text] = rows_of(root, named(root), as_struct(RECORD))
    return found


def stopping(batch: DataFrame, expressions: list[str]) -> dict[str, list[int]]:
    """The offsets of the rows at which Spark stops, by expression; some of which it computes early are left out."""
    spark: Any = batch.sparkSession

    def stops(texts: list[str]) -> list[list[int]]:
        asked = batch.selectExpr(
            "offset as o", *(f"coalesce(length(cast({text} as string)), -1) as c{n}" for n, text in enumerate(texts))
        )
        plan = analyzed(asked)
        (offset, *others), (child,) = members(plan.projectList()), members(plan.children())
        tried = [spark._jvm.org.apache.spark.sql.catalyst.expressions.TryEval(other.child()) for other in others]
        columns = [(offset.child(), "o", None), *((part, f"c{n}", None) for n, part in enumerate(tried))]
        rows = frame_of(projected(columns, child, spark._jvm), spark).collect()
        return [[row.o for row in rows if row[f"c{n}"] is None] for n in range(len(texts))]

    try:
        return dict(zip(expressions, stops(expressions), strict=True))
    except PySparkException:
        half = len(expressions) // 2
        return stopping(batch, expressions[:half]) | stopping(batch, expressions[half:]) if half else {}


def compared(rows: pa.Table, batch: DataFrame, of_tasks: dict[str, Computes], stops: dict[str, list[int]]) -> list[str]:
    """What differs."""
    guarded = [
        f"case when offset in ({', '.join(map(str, stops[text]))}) then null else {text} end" if stops[text] else text
        for text in of_tasks
    ]
    wanted = batch.selectExpr(*(f"{text} as c{number}" for number, text in enumerate(guarded)))
    theirs = pa.Table.from_batches(
        [conformed(each, arrow_schema(wanted.schema)) for each in wanted.toArrow().to_batches()],
        arrow_schema(wanted.schema),
    )
    lines, differences = rows["value"].to_pylist(), list[str]()
    for (text, step), other in zip(of_tasks.items(), theirs.columns, strict=True):
        function, columns = step.resolved(as_struct(RECORD))
        schema, left_out = arrow_schema(columns), set(stops[text])
        if schema.field(0).type != other.type:
            differences.append(f"{text}: {schema.field(0).type} is {other.type} in Spark")
            continue
        for number in stops[text][:3]:
            with contextlib.suppress(ArithmeticError):
                value = function(rows.slice(number, 1).to_batches()[0])["c"][0]
                differences.append(f"{text}: {value} where Spark stops, of {lines[number]!r}")
        kept = [number for number in range(len(lines)) if number not in left_out]
        try:
            own = conformed(function(rows.take(kept).combine_chunks().to_batches()[0]), schema) if kept else None
        except Exception as error:  # whatever it is, Spark has a value
            differences.append(f"{text}: {error!r}")
            continue
        for number, one, two in zip(
            kept, values(own["c"]) if own else [], values(other.take(pa.array(kept, pa.int64()))), strict=True
        ):
            if repr(one) != repr(two):
                differences.append(f"{text}: {one!r} is {two!r} in Spark, of {lines[number]!r}")
    return differences


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("jsonGenerator.ignoreNullFields", "false", "to_json(struct(i, s))"),
        ("json.enablePartialResults", "false", "i"),
        ("json.enableExactStringParsing", "false", "s"),
        ("legacy.timeParserPolicy", "LEGACY", "t"),
        ("legacy.json.allowEmptyString.enabled", "true", "i"),
        ("columnNameOfCorruptRecord", "s", "s"),
    ],
)
def test_what_a_setting_of_the_session_changes_is_sparks(
    spark: SparkSession, setting: str, value: str, text: str
) -> None:
    rows = records([b'{"i":1}', b'{"i":"x","l":2}'])
    with settings(spark, {f"spark.sql.{setting}": value}):
        assert isinstance(by_roster(parsed(unread(spark)).selectExpr(text), rows), str)


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
