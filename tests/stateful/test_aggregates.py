"""Aggregates written as PySpark's columns: read from their trees, and of the same results as Spark's."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from roster.pipeline.spark_schemas import as_struct
from roster.spark import Pipeline, PipelineError
from roster.spark.aggregate_columns import aggregates_over, named_aggregates
from roster.state import Position
from roster.state.aggregate import Aggregation
from roster.state.aggregate_functions import Aggregate, Kind
from roster.state.lmdb_store import LmdbStore
from roster.state.store import NoState, StateError
from tests.examples_tried import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, SparkSession

ROWS = [("a", 1, 0.5), ("b", -(2**31), None), ("a", None, 3.25), ("c", None, None), (None, 7, -1.0), ("b", 5, 1e300)]
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int32()), ("x", pa.float64())])

AS_SPARK = {
    "rows": lambda: F.count("*"),
    "also rows": lambda: F.count(F.lit(1)),
    "known": lambda: F.count("n"),
    "total": lambda: F.sum("n"),
    "least": lambda: F.min(F.col("n")).alias("other"),
    "most": lambda: F.max("x"),
    "mean": lambda: F.avg("n"),
    "mean of x": lambda: F.mean("x").alias("a").alias("b"),
    "text": lambda: F.expr("avg(`n`)"),
    "product": lambda: F.sum(F.col("n") * F.col("x")),
    "as long": lambda: F.sum(F.col("n").cast("long") * 3 - 1),
    "some": lambda: F.expr("sum(n) filter (where n > 1)"),
    "some rows": lambda: F.expr("count(*) filter (where x is null or n = 1)"),
    "positive": lambda: F.count_if(F.col("n") > 0),
    "all positive": lambda: F.bool_and(F.col("n") > 0),
    "or zero": lambda: F.sum(F.when(F.col("n") > 1, F.col("x")).otherwise(0)),
    "spread": lambda: F.stddev_pop("n"),
    "sample": lambda: F.stddev("n"),
    "variance": lambda: F.variance("n"),
    "pop": lambda: F.var_pop(F.col("n") / 2),
    "longest": lambda: F.max(F.length(F.upper("k"))),
    "first": lambda: F.first("n"),
    "last": lambda: F.last("x"),
    "first known": lambda: F.first("n", ignorenulls=True),
    "last known": lambda: F.expr("last(x) ignore nulls"),
    "different": lambda: F.count_distinct("n"),
    "different parts": lambda: F.expr("count(distinct n % 3) filter (where n > 1)"),
    "at most": lambda: F.max_by("x", "n"),
    "at least": lambda: F.min_by("n", F.coalesce("x", F.lit(0.0))),
    "list": lambda: F.collect_list("n"),
    "list of some": lambda: F.expr("collect_list(x) filter (where n > 1)"),
    "set": lambda: F.collect_set(F.col("n") % 3),
    "about": lambda: F.approx_count_distinct("n"),
    "about parts": lambda: F.approx_count_distinct(F.col("n") % 3, 0.01),
    "middle": lambda: F.percentile_approx("n", 0.5),
    "quarters": lambda: F.percentile_approx(F.col("x"), [0.25, 0.5, 0.75], 100),
    "middle of some": lambda: F.expr("approx_percentile(n, 0.5) filter (where n > 1)"),
    "different pairs": lambda: F.count_distinct("n", "x"),
    "of different": lambda: F.sum_distinct("n"),
    "discounted": lambda: F.expr("sum(n * 0.9)"),
    "price": lambda: F.avg(F.expr("try_cast(x as decimal(10, 2))")),
    "of different x": lambda: F.expr("sum(distinct x) filter (where x < 100)"),
}
"""Aggregates whose results are Spark's."""


def test_columns_of_pyspark_have_sparks_results(spark: SparkSession) -> None:
    wanted = {name: column() for name, column in AS_SPARK.items()}
    table = pa.Table.from_pylist([dict(zip(COLUMNS.names, row, strict=True)) for row in ROWS], COLUMNS)
    found = aggregation(wanted, table)(table, NoState()).results.to_pylist()
    # One partition keeps the order of rows, on which first and last depend.
    frame = spark.createDataFrame(ROWS, "k string, n int, x double").coalesce(1).groupBy("k")
    expected = [row.asDict() for row in frame.agg(*(column.alias(name) for name, column in wanted.items())).collect()]
    assert sorted(map(rounded, found), key=str) == sorted(map(rounded, expected), key=str)


def aggregation(given: Any, table: pa.Table) -> Aggregation:
    """The operator for rows of a table."""
    return Aggregation(("k",), aggregates(given, table.schema))


def aggregates(given: Any, columns: pa.Schema) -> dict[str, Aggregate]:
    """The aggregates over rows with these columns."""
    return aggregates_over(named_aggregates(given), from_arrow_schema(columns))


def values(texts: list[str], table: pa.Table) -> list[pa.Array]:
    """The value of each row for each expression."""
    named = aggregates({str(at): f"first({text})" for at, text in enumerate(texts)}, table.schema)
    return [aggregate.column_of(table).combine_chunks() for aggregate in named.values()]


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """A row to compare: the order of a set is that of its values."""
    found = {name: float(f"{value:.12g}") if isinstance(value, float) else value for name, value in row.items()}
    return found | {"set": sorted(row["set"])}


def test_columns_with_aliases_are_results_by_these_names(spark: SparkSession) -> None:
    several = Pipeline(spark, "h:1", "g", "t").aggregate("k", F.count("*").alias("n"), F.sum("x").alias("s"))
    alone = Pipeline(spark, "h:1", "g", "t").aggregate("k", F.count("*").alias("n"))
    made = [each._declared.operators[0].stateful.operator for each in (several, alone)]
    assert [list(each.aggregates) for each in made] == [["n", "s"], ["n"]]  # type: ignore[attr-defined]
    found = aggregates([F.count("*").alias("orders"), F.sum(F.col("n") * F.col("x")).alias("revenue")], COLUMNS)
    assert {name: each.text for name, each in found.items()} == {"orders": "*", "revenue": "(CAST(n AS DOUBLE) * x)"}
    assert aggregates({"revenue": "sum(n * x)"}, COLUMNS)["revenue"] == found["revenue"]
    ends = aggregates({"most": "approx_percentile(x, 1)", "both": F.percentile_approx("x", [0, 1], 50)}, COLUMNS)
    assert [each.text for each in ends.values()] == ["x, 1.0, 10000", "x, [0.0, 1.0], 50"], "1 and 1.0 are one state"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (lambda: [F.sum("n")], "'sum(n)' has no alias"),
        (lambda: [F.sum("n").alias("a"), F.max("n").alias("a")], "'max(n) AS a' has the alias of another one, 'a'"),
        (list, "[] is not a dict of results"),
    ],
)
def test_columns_without_a_name_of_their_own_are_quoted(spark: SparkSession, given: Any, problem: str) -> None:
    with pytest.raises(PipelineError) as error:
        named_aggregates(given())
    assert error.value.problem == problem


COUNT = {"n": "count(*)"}


class Expressions:
    """Random expressions of each type, as SQL text, with Spark's `try_` functions for what may fail."""

    NUMBERS = ("a", "b", "c", "d", "3", "-2", "0", "2.5D")
    TEXTS = ("s", "t", "'ab'", "''", "'7'")

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def number(self, depth: int) -> str:
        if depth == 0 or self.random.random() < 0.2:
            return self.random.choice(self.NUMBERS)
        one, other = (self.number(depth - 1) for _ in range(2))
        choices = [
            *(f"try_{name}({one}, {other})" for name in ("add", "subtract", "multiply", "divide", "mod")),
            f"coalesce({one}, {other})",
            f"nullif({one}, {other})",
            f"case when {self.condition(depth - 1)} then {one} else {other} end",
            f"if({self.condition(depth - 1)}, {one}, {other})",
            f"abs(cast({one} as double))",
            f"ceil(try_cast({one} as smallint) / 4)",
            f"floor(try_cast({one} as smallint) / 4)",
            f"try_cast({self.text(depth - 1)} as int)",
            f"try_cast({self.text(depth - 1)} as double)",
            f"try_cast({one} as smallint)",
            f"length({self.text(depth - 1)})",
        ]
        return self.random.choice(choices)

    def text(self, depth: int) -> str:
        if depth == 0 or self.random.random() < 0.3:
            return self.random.choice(self.TEXTS)
        one, other = (self.text(depth - 1) for _ in range(2))
        choices = [
            f"upper({one})",
            f"lower({one})",
            f"trim({one})",
            f"concat({one}, {other})",
            f"coalesce({one}, {other})",
        ]
        return self.random.choice(
            [*choices, f"case when {self.condition(depth - 1)} then {one} end", "cast(a as string)"]
        )

    def condition(self, depth: int) -> str:
        if depth == 0:
            return self.random.choice(["a > 0", "s is null", "f", "c <= d", "s = t"])
        compare = self.random.choice(["=", "<", "<=", ">", ">=", "<>", "<=>"])
        one = self.random.choice([self.number, self.text])
        choices = [
            f"({one(depth - 1)} {compare} {one(depth - 1)})",
            f"({self.condition(depth - 1)} and {self.condition(depth - 1)})",
            f"({self.condition(depth - 1)} or {self.condition(depth - 1)})",
            f"(not {self.condition(depth - 1)})",
            f"({self.number(depth - 1)} is not null)",
            f"({self.number(depth - 1)} in (1, {self.number(depth - 1)}))",
            f"({self.number(depth - 1)} between -1 and 2)",
            f"({self.text(depth - 1)} like '%b%')",
            f"startswith({self.text(depth - 1)}, 'a')",
        ]
        return self.random.choice(choices)


@given(st.integers(0, 2**32))
@example(69)
@settings(max_examples=examples(3, quick=1), phases=[Phase.explicit, Phase.generate])
def test_random_expressions_have_sparks_types_and_values(spark: SparkSession, seed: int) -> None:
    nan = float("nan")
    rows = [
        (1, 2, 1.5, -0.25, "ab", "b", True),
        (None, 3, None, 2.0, None, " 7 ", None),
        (2**31 - 1, -(2**63), 1e300, nan, "12", "-3.5", False),
        (-(2**31), 2**63 - 1, float("inf"), 0.0, "", None, True),
        (0, 0, -7.0, 1e18, "Ab ", "x", None),
    ]
    kinds = [pa.int32(), pa.int64(), pa.float64(), pa.float64(), pa.string(), pa.string(), pa.bool_()]
    table = pa.table(
        [pa.array(of, kind) for of, kind in zip(zip(*rows, strict=True), kinds, strict=True)], list("abcdstf")
    )
    made = Expressions(seed)
    texts = [of(3) for _ in range(40) for of in (made.number, made.text, made.condition)]
    frame = spark.createDataFrame(rows, "a int, b bigint, c double, d double, s string, t string, f boolean")
    # this rule takes 0.0 and -0.0 for the same, and so one branch for both
    spark.conf.set("spark.sql.optimizer.excludedRules", "org.apache.spark.sql.catalyst.optimizer.SimplifyConditionals")
    expected = frame.coalesce(1).select(*(F.expr(text).alias(str(at)) for at, text in enumerate(texts))).toArrow()
    spark.conf.unset("spark.sql.optimizer.excludedRules")
    assert differences(texts, table, expected) == []


def differences(texts: list[str], table: pa.Table, expected: pa.Table) -> list[tuple[Any, ...]]:
    """The expressions whose types or values are others than Spark's, with both."""
    other = []
    for at, (text, found) in enumerate(zip(texts, values(texts, table), strict=True)):
        theirs = expected.column(at)
        if found.type != theirs.type or str(found.to_pylist()) != str(theirs.to_pylist()):
            other.append((text, found.type, found.to_pylist(), theirs.type, theirs.to_pylist()))
    return other


class DecimalExpressions(Expressions):
    """Random expressions over decimals, integers and doubles, as SQL text."""

    NUMBERS = ("a", "b", "c", "m", "w", "z", "3", "-200", "1.5", "0.001", "2.5D", "7BD")

    def number(self, depth: int) -> str:
        if depth == 0 or self.random.random() < 0.1:
            return self.random.choice(self.NUMBERS)
        one, other = (self.number(depth - 1) for _ in range(2))
        to = self.random.choice(["decimal(10,2)", "decimal(38,18)", "decimal(5,4)", "int", "bigint", "double"])
        choices = [
            *(f"try_{name}({one}, {other})" for name in ("add", "subtract", "multiply", "divide", "mod")),
            f"coalesce({one}, {other})",
            f"if({self.condition(depth - 1)}, {one}, {other})",
            f"nullif({one}, {other})",
            f"try_cast({one} as {to})",
        ]
        return self.random.choice(choices)

    def condition(self, depth: int) -> str:
        compare = self.random.choice(["=", "<", "<=", ">", ">=", "<>", "<=>"])
        one, other = (self.number(depth) for _ in range(2))
        choices = [f"({one} {compare} {other})", f"({one} between {other} and 2)", f"({one} in (1, 0.07, m))"]
        return self.random.choice(choices)


@given(st.integers(0, 2**32))
@settings(max_examples=examples(3, quick=1), phases=[Phase.generate])
@pytest.mark.gate
def test_random_expressions_of_decimals_have_sparks_types_and_values(spark: SparkSession, seed: int) -> None:
    most = Decimal("9" * 20 + "." + "9" * 18)
    rows = [
        (3, 2**40, 0.5, Decimal("0.07"), Decimal("1.234567890123456789"), Decimal("-0.5")),
        (-(2**31), -1, -1e300, Decimal("-99999999.99"), most, Decimal("99999.9999999999")),
        (0, 2**62, float("nan"), Decimal("1.10"), most.copy_negate(), Decimal(0)),
        (None, 0, 3.0, Decimal(0), Decimal("0.000000000000000001"), None),
        (7, None, None, None, None, Decimal("12.3456789012")),
    ]
    kinds = [pa.int32(), pa.int64(), pa.float64(), *(pa.decimal128(*of) for of in ((10, 2), (38, 18), (15, 10)))]
    table = pa.table([pa.array(of, kind) for of, kind in zip(zip(*rows, strict=True), kinds, strict=True)], [*"abcmwz"])
    made = DecimalExpressions(seed)
    texts = [of(2) for _ in range(60) for of in (made.number, made.condition)]
    ddl = "a int, b bigint, c double, m decimal(10, 2), w decimal(38, 18), z decimal(15, 10)"
    frame = spark.createDataFrame(rows, ddl).coalesce(1)
    expected = frame.select(*(F.expr(text).alias(str(at)) for at, text in enumerate(texts))).toArrow()
    assert differences(texts, table, expected) == []


def test_decimals_are_cast_to_doubles_as_in_spark(spark: SparkSession) -> None:
    amounts = [Decimal("0.07"), Decimal("-12345678.91"), None, Decimal("1.10"), Decimal("99999999.99"), Decimal(0)]
    table = pa.table({"k": pa.array([1] * 6), "m": pa.array(amounts, pa.decimal128(10, 2))})
    frame = spark.createDataFrame([(each,) for each in amounts], "m decimal(10, 2)").coalesce(1)
    texts = ["cast(m as double)", "cast(m as float)", "cast(m as double) * 3"]
    expected = frame.select(*(F.expr(text).alias(str(at)) for at, text in enumerate(texts))).toArrow()
    assert differences(texts, table, expected) == []
    for text in ("collect_list(m)", "sum(distinct m)", "percentile_approx(m, 0.5)"):
        with pytest.raises(StateError, match=r"decimal128\(10, 2\).*; cast it to double"):
            aggregation({"n": text}, table)(table, NoState())


BESIDE_DECIMALS = [
    *("m * 100", "m * n", "l + m", "m - 0.5", "-m", "abs(m)", "coalesce(m, 0)", "case when m > 0 then m end"),
    *(f"try_cast({text})" for text in ("m as decimal(3,1)", "m as decimal(2,1)", "x as decimal(5,2)")),
    *("try_cast(s as decimal(5,2))", "cast(n as decimal(5,2))", "cast(m as int)", "try_cast(m * n as tinyint)"),
    *("try_cast(-200 as decimal(5,4))", "try_cast(3 as decimal(5,4))", "try_cast(-200 as decimal(3,0))"),
    *("try_cast(m * -100 as tinyint)", "m * x", "m < x", "sqrt(abs(m))", "m between -1 and x", "nullif(m, 0.07)"),
]


def test_decimals_beside_other_types_have_sparks_types_and_values(spark: SparkSession) -> None:
    cents = [Decimal("0.07"), Decimal("-12.50"), None]
    nan = float("nan")
    columns = [cents, [2, 3, 4], [1, 2, 3], [0.125, nan, 1e300], [" 1.005", "1e2\n", "1,5"]]
    kinds = [pa.decimal128(10, 2), pa.int32(), pa.int64(), pa.float64(), pa.string()]
    table = pa.table([pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], [*"mnlxs"])
    rows = list(zip(*columns, strict=True))
    frame = spark.createDataFrame(rows, "m decimal(10, 2), n int, l bigint, x double, s string").coalesce(1)
    expected = frame.select(*(F.expr(text).alias(str(at)) for at, text in enumerate(BESIDE_DECIMALS))).toArrow()
    assert differences(BESIDE_DECIMALS, table, expected) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sum(ceil(m))", r"'n': CEIL\(m\) is not among what its tasks compute.*map_arrow.*read_stream"),
        ("sum(expm1(n))", r"'n': EXPM1\(CAST\(n AS DOUBLE\)\) is not among"),
        ("sum(rand())", r"'n': .*NONDETERMINISTIC"),
        ("sum(n + nothing)", r"'n': .*UNRESOLVED_COLUMN.*nothing"),
        ("my_udf(n)", r"'n': .*UNRESOLVED_ROUTINE.*my_udf"),
        ("max(sum(n))", r"'n': .*NESTED_AGGREGATE"),
        ("max(explode(array(n)))", r"'n': .*generator"),
        ("max(n + at)", r"'n': .*DATATYPE_MISMATCH"),
        ("max(cast(at as string))", r"'n': CAST\(at AS STRING\) is not among"),
    ],
)
def test_expressions_that_tasks_do_not_compute_are_named_with_a_way_out(
    spark: SparkSession, text: str, problem: str
) -> None:
    columns = "k string, m decimal(10,2), n int, s string, at timestamp"
    with pytest.raises(PipelineError, match=problem) as error:
        aggregates_over(named_aggregates({"fine": "sum(n * 2)", "n": text}), as_struct(columns))
    assert error.value.field == "aggregates"


def test_columns_are_found_as_spark_finds_them(spark: SparkSession) -> None:
    table = pa.table({"a.b": pa.array([1000], pa.int32()), "n": pa.array([100], pa.int32()), "x`y": [1]})
    named = aggregates({"n": "sum(`a.b` + N + `x``y`)", "most": "max(N)"}, table.schema)
    assert named["n"].column_of(table).to_pylist() == [1101]
    assert named["n"].expression is not None
    assert named["n"].expression.columns == ("a.b", "n", "x`y")
    assert named["most"] == Aggregate(Kind.MAX, "n"), "the column's own name, however it is written"


@pytest.mark.parametrize(
    ("declare", "problem"),
    [
        (lambda p: p.aggregate(F.col("shop"), COUNT), "keys: Column<'shop'> is not the name of a column. Use names"),
        (
            lambda p: p.aggregate(["shop", F.col("at")], COUNT),
            "keys: Column<'at'> is not the name of a column. Use names",
        ),
        (
            lambda p: p.deduplicate(F.col("shop"), within="1 hour"),
            "keys: Column<'shop'> is not the name of a column. Use",
        ),
        (lambda p: p.repartition(F.col("shop")), "repartition: Column<'shop'> is not the name of a column. Use names"),
        (
            lambda p: p.json_columns("n int", keep=[F.col("key")]),
            "keep: Column<'key'> is not the name of a column. Use names",
        ),
        (lambda p: p.aggregate("shop", COUNT, window="1 hour"), "window: '1 hour' is none. For example Window("),
    ],
)
def test_keys_and_windows_that_are_none_are_quoted(spark: SparkSession, declare: Any, problem: str) -> None:
    with pytest.raises(PipelineError) as error:
        declare(Pipeline(spark, "localhost:9092", "g", "t").json_columns("shop string, at timestamp"))
    assert str(error.value).startswith(problem)


NUMBERS_AS_TEXT = [
    *("NaN", "nan", "inf", "-Inf", "+infinity", "infd", "1d", "1.F", "1e5D", "1e", ".", "+.5", "1e400", "-1e-400"),
    *("9223372036854775807", "-9223372036854775808", "9223372036854775808", f"-{0:030}12", "+0012", "128", "2.0", ""),
    *("\t7\n", "\x007", "7\x7f", "\u00a07", "7\u3000", "1 2", "--1", "0x10"),
]


@pytest.mark.parametrize("kind", ["tinyint", "int", "bigint", "float", "double"])
def test_texts_are_the_numbers_that_spark_reads_in_them(spark: SparkSession, kind: str) -> None:
    table = pa.table({"s": [*NUMBERS_AS_TEXT, None]})
    frame = spark.createDataFrame([(each,) for each in table["s"].to_pylist()], "s string").coalesce(1)
    text = f"try_cast(s as {kind})"
    expected = frame.select(F.expr(text).alias("n")).toArrow()["n"].to_pylist()
    assert list(map(repr, values([text], table)[0].to_pylist())) == list(map(repr, expected))


class Aggregates(Expressions):
    """Random aggregates over these expressions and over dates and timestamps, as SQL text."""

    def value(self) -> str:
        made = [self.number, self.text, self.condition, lambda _: "day", lambda _: "ts"]
        return self.random.choice(made)(self.random.randrange(3))

    def single(self) -> str:
        """A value of a type that lists do not take, or another one."""
        return self.random.choice(["m", "w", self.value()])

    def tame(self) -> str:
        """A number whose sums are exact in floats, too."""
        return f"try_cast({self.number(2)} as smallint)" + self.random.choice(["", " / 4"])

    def made(self) -> list[str]:
        """One aggregate of each function, some with a condition."""
        order = self.random.choice(["u", "w", "-u", "x", "cast(u as string)", "if(u > 20, u, null)"])
        share = self.random.choice(["0", "0.5", "1.0", "array(0.1, 0.5D, 0.99)"])
        number = "if(isnan(c), null, c)"  # Spark's rank of NaN depends on the order of the rows
        free = [f"{self.random.choice(['first', 'last', 'any_value', 'first_value', 'last_value'])}({self.single()})"]
        conditional = [
            f"count({self.single()})",
            f"min({self.single()})",
            f"max({self.single()})",
            *(f"{name}({self.random.choice('mw')})" for name in ("sum", "avg", "stddev", "var_pop")),
            *(f"{name}({self.tame()})" for name in ("sum", "avg", "stddev", "var_pop", "stddev_pop", "var_samp")),
            *(f"{name}({self.single()}, {order})" for name in ("min_by", "max_by")),
            f"first({self.single()}, true)",
            f"last({self.single()}, true)",
            f"collect_list({self.value()})",
            f"collect_set({self.value()})",
            f"count_if({self.condition(2)})",
            f"approx_count_distinct({self.random.choice([*'abcdstfm', 'day', 'ts'])}, 0.01)",  # few: exact in both
            f"percentile_approx({self.random.choice([self.tame(), 'day', 'ts', number, 'b'])}, {share})",
            f"count(distinct {self.single()})",
            f"count(distinct {self.single()}, {self.single()})",
            f"sum(distinct {self.tame()})",
        ]
        return [*free, *(self.some(each) for each in conditional)]

    def some(self, text: str) -> str:
        return text if self.random.random() < 0.6 else f"{text} filter (where {self.condition(1)})"

    def rows(self) -> list[tuple[Any, ...]]:
        nan, inf, day, ts = float("nan"), float("inf"), date(1969, 12, 30), datetime(2025, 3, 1, tzinfo=UTC)
        chosen = [
            [0, 1, -1, 7, 2**31 - 1, -(2**31), None],
            [0, 3, -(2**63), 2**63 - 1, None],
            [0.0, -0.0, 1.5, nan, inf, -inf, 1e300, None],
            [-0.25, 2.0, 1e18, nan, None],
            ["ab", "", "12", "Ab ", "\u00e9", None],
            ["b", " 7 ", "-3.5", None],
            [True, False, None],
            [day, day + timedelta(days=400), None],
            [ts, ts - timedelta(days=30_000, microseconds=1), None],
            [*map(Decimal, ("0.07", "-99999999.99", "1.10", "0")), None],
        ]
        count = 40
        extremes = dict(enumerate([nan, inf, -inf]))  # each number once, as of equal ones Spark takes any row
        x = [extremes.get(u, u / 4) for u in self.random.sample(range(count), count)]
        step = Decimal("1.234567890123456789")
        return [
            (self.random.choice(["k", "l", None]), *map(self.random.choice, chosen), u, x[u], (u - 20) * step)
            for u in range(count)
        ]


def widened(value: Any) -> Any:
    """A value to compare: of the decimals of a float so many as do not depend on the order of a sum."""
    if isinstance(value, list):
        return [widened(each) for each in value]
    return f"{value + 0.0:.12g}" if isinstance(value, float) else str(value)


@given(st.integers(0, 2**32))
@settings(max_examples=examples(2, quick=1), phases=[Phase.generate])
def test_random_aggregates_have_sparks_types_and_values(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    made = Aggregates(seed)
    rows, texts = made.rows(), made.made() + made.made()
    named = {f"r{at}": text for at, text in enumerate(texts)}
    kinds = [pa.int32(), pa.int64(), pa.float64(), pa.float64(), pa.string(), pa.string(), pa.bool_(), pa.date32()]
    kinds = [pa.string(), *kinds, pa.timestamp("us", "UTC"), pa.decimal128(10, 2), pa.int32(), pa.float64()]
    kinds.append(pa.decimal128(38, 18))
    names = ["k", *"abcdstf", "day", "ts", "m", "u", "x", "w"]
    table = pa.table([pa.array(of, kind) for of, kind in zip(zip(*rows, strict=True), kinds, strict=True)], names)
    found, ends = {}, [0, *sorted(made.random.sample(range(len(rows)), 2)), len(rows)]
    operator = aggregation(named, table)
    with LmdbStore(tmp_path_factory.mktemp("state") / "store") as store:
        for number, (begin, end) in enumerate(itertools.pairwise(ends)):
            update = operator(table.slice(begin, end - begin), store)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
            found |= {row["k"]: row for row in update.results.to_pylist()}
    ddl = "k string, a int, b bigint, c double, d double, s string, t string, f boolean, day date, ts timestamp"
    # Distinct values are groups of Spark's, which it sorts if they are more than these: then first and last are others.
    spark.conf.set("spark.sql.objectHashAggregate.sortBased.fallbackThreshold", 10_000)
    frame = (
        spark.createDataFrame(rows, f"{ddl}, m decimal(10, 2), u int, x double, w decimal(38, 18)")
        .coalesce(1)
        .groupBy("k")
    )
    expected = frame.agg(*(F.expr(text).alias(name) for name, text in named.items())).toArrow()
    for name, text in named.items():
        assert update.results.schema.field(name).type == stored(expected.schema.field(name).type), text
    other = []
    for row in expected.to_pylist():
        for name, text in named.items():
            ours, theirs = widened(found[row["k"]][name]), widened(row[name])
            if "collect_set" in text:
                ours, theirs = sorted(ours), sorted(theirs)
            other += [] if ours == theirs else [(row["k"], text, ours, theirs)]
    assert not other


def stored(kind: pa.DataType) -> pa.DataType:
    """The type of results of Spark's type: all integers are int64, and all floats float64."""
    if pa.types.is_list(kind):
        return pa.list_(stored(kind.value_type))
    return pa.int64() if pa.types.is_integer(kind) else pa.float64() if pa.types.is_floating(kind) else kind


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (lambda: F.expr("avg(distinct n)"), "avg(DISTINCT n) needs a state that Roster has not"),
        (lambda: "collect_list(n, 0)", "collect_list(n, 0) keeps no values"),
        (lambda: F.approx_count_distinct("n", 2.0), "the function `approx_count_distinct`"),
        (lambda: F.percentile_approx("n", 1.5), "between [0.0, 1.0]"),
        (lambda: F.percentile_approx("n", "x"), "'x'"),
        (lambda: F.median("n"), "Use approx_percentile(c, 0.5)"),
        (lambda: F.sum("n") / 2, "not one call of an aggregate function; compute with results in map_arrow behind it"),
        (lambda: F.col("n"), "MISSING_GROUP_BY"),
        (lambda: F.expr("sum(n) over ()"), "MISSING_GROUP_BY"),
        (lambda: "sum(*)", "WRONG_NUM_ARGS"),
        (lambda: "avg", "UNRESOLVED_COLUMN"),
        (lambda: "sum(n", "PARSE_SYNTAX_ERROR"),
    ],
)
def test_what_is_no_aggregate_is_named_with_the_reason(
    spark: SparkSession, column: Callable[[], Column | str], words: str
) -> None:
    with pytest.raises(PipelineError) as error:
        aggregates({"fine": "count(*)", "result": column()}, COLUMNS)
    assert error.value.field == "aggregates"
    assert error.value.problem.startswith("'result': ")
    assert words in str(error.value)


@pytest.mark.parametrize(
    "given", [None, {}, ["count(*)"], [1], "count(*)", {1: "count(*)"}, {"": "count(*)"}, {"n": 3}, {"n": None}]
)
def test_what_is_no_dict_of_results_is_shown_with_an_example(given: Any) -> None:
    with pytest.raises(PipelineError, match=r"aggregates: .* is not a .*For example \{'orders': 'count\(\*\)'"):
        named_aggregates(given)
