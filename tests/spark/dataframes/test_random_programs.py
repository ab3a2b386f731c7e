"""Random programs with state: what Spark and Roster's operators make of them together, beside Spark's batch answer."""

from __future__ import annotations

import functools
import json
import os
import re
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import Phase, assume, given, reject, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.tasks.writer import conformed
from roster.spark import PipelineError, read_stream
from roster.spark.dataframes.plan import Plan
from roster.spark.dataframes.program import Program, program_of
from roster.spark.steps import chained
from roster.state import Position, StateError
from roster.state.lmdb_store import LmdbStore
from tests.examples_tried import examples
from tests.spark.dataframes.test_stateful_queries import last_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

BEGIN = datetime(2026, 3, 28, 20, tzinfo=UTC)
"""Shortly before Europe's clocks go forward."""
END = ("end", 0, 1.0, None, False, BEGIN + timedelta(days=30))
"""Closes the windows of the rows before; most steps let it pass."""
ROW = st.tuples(
    st.none() | st.sampled_from(["a", "b", "B ", "", "ä"]),
    st.none() | st.integers(-3, 3) | st.sampled_from([2**31 - 1, -(2**31)]),
    st.none() | st.sampled_from([0.0, -0.0, 1.5, -2.25, float("nan"), 1e300]),
    st.none() | st.sampled_from([Decimal("0.10"), Decimal("-7.25"), Decimal("123456.78")]),
    st.none() | st.booleans(),
    st.none() | st.integers(0, 900).map(lambda minutes: BEGIN + timedelta(minutes=minutes)),
)
ROWS = st.lists(ROW, max_size=25) | st.lists(ROW, min_size=12, max_size=25)
"""Often enough of them that some come behind their time."""
SCHEMA = "r int, k string, n int, d double, m decimal(12,2), b boolean, t timestamp"
ZONES = st.sampled_from(["UTC", "UTC", "UTC", "America/New_York", "Asia/Kolkata", "Europe/Berlin"])
FEW_STEPS = [
    ("where", "n is null or n > -2"),
    ("where", "k <> 'b' and not b"),
    ("where", "d > 0 or isnan(d)"),
    ("k", "upper(trim(k))"),
    ("k", "coalesce(k, 'none') || '!'"),
    ("n", "case when b then n else length(k) end"),
    ("t", "coalesce(t, timestamp'2026-03-29 01:30:00')"),
    ("n", "n % 3"),
    ("d", "d * 2 + n"),
    ("m", "cast(m * 3 as decimal(12,2))"),
    ("k", "date_format(t, 'yyyy-MM-dd HH')"),
    ("t", "to_timestamp(date_format(t, 'yyyy-MM-dd HH:mm'))"),
    ("k", "explode(array(k, 'x'))"),
    ("k", "nullif(concat_ws('-', k, b), '')"),
    ("join", "left"),
    ("join", "inner"),
]
STEPS = st.lists(st.sampled_from(FEW_STEPS), max_size=3, unique=True)
FEW_KEYS = ["k", "n", "d", "m", "b", "to_date(t)", "hour(t)", "lower(k)", "n % 2", "t", "trunc(t, 'month')"]
KEYS = st.lists(st.sampled_from(FEW_KEYS), max_size=2, unique=True)
WINDOWS = st.sampled_from([None, None, ("1 hour",), ("90 minutes", "30 minutes"), ("1 day", "6 hours"), ("7 minutes",)])
FEW_AGGREGATES = [
    *("count(*)", "count(n)", "count(n, d)", "count(*) filter (where b)", "count_if(n > 0)"),
    *("sum(n)", "sum(m)", "sum(d)", "avg(n)", "avg(m)", "sum(case when b then n else 0 end)"),
    *(
        "min(k)",
        "max(k)",
        "min(n)",
        "max(d)",
        "min(d)",
        "max(m)",
        "min(t)",
        "max(t)",
        "max(b)",
        "min(to_date(t))",
    ),
    *("sort_array(collect_set(k))", "sort_array(collect_list(n))", "size(collect_set(n))"),
    *("max(struct(n, k)).n", "sum(n) / count(n)", "round(avg(d), 1)", "coalesce(sum(n), 0) + count(*)"),
    *("stddev(n)", "var_pop(n)", "sum(m) filter (where n > 0)", "every(b)", "some(n > 0) filter (where b)"),
]
AGGREGATES = st.lists(st.sampled_from(FEW_AGGREGATES), min_size=1, max_size=4, unique=True)
ORDERED = [
    *("first(k)", "last(k)", "first(n, true)", "last(m, true)", "any_value(b)", "first(t)", "last(d)"),
    *("first_value(k, true) filter (where b)", "collect_list(k)", "collect_list(n)", "collect_list(b)"),
    *("collect_list(t)", "collect_list(struct(n, k))", "first(struct(m, k))", "last(array(n, r))", "array_agg(d)"),
]
"""Those that the order of rows decides."""
CHOOSING = [
    *("min_by(k, struct(n, r))", "max_by(k, struct(t, r))", "max_by(struct(k, m), struct(d, r))", "max_by(n, r)"),
    *("min_by(m, struct(b, r))", "max_by(r, struct(k, r)) filter (where n > 0)", "max(struct(d, m, k))"),
    *(
        "min(struct(b, d, r))",
        "max(struct(m, struct(t, k)))",
        "min(struct(k, d))",
        "max(named_struct('x', n, 'y', k)).y",
    ),
]
MANY = [
    *("sort_array(collect_set(d))", "sort_array(collect_set(t))", "sort_array(collect_set(b))"),
    *("percentile_approx(n, 0.5)", "percentile_approx(d, array(0.25, 0.75))", "percentile_approx(t, 0.5)"),
    *("var_samp(n)", "stddev_pop(m)", "std(d)", "avg(d)", "sum(n) + max(n)", "max(n) - min(n)", "count(k) > 1"),
    *("coalesce(max(k), 'none')", "if(count(*) > 2, max(n), min(n))", "sum(m) / count(m)", "cast(avg(n) as int)"),
    *(
        "max(coalesce(n, 0)) filter (where k is not null)",
        "any(b)",
        "max(m) * 2",
        "sum(if(b, m, null))",
        "nullif(sum(n), 0)",
    ),
]
TRIED: Counter[str] = Counter()
"""Programs, and what ran where."""
BEHIND = st.sampled_from(["true", "a0 is not null", "true"])
HAVING = st.sampled_from(["true", "a0 is not null", "a0 is null", "length(cast(a0 as string)) > 1", "hash(a0) % 2 = 0"])
PROGRAMS = st.fixed_dictionaries(
    {
        "steps": STEPS,
        "others": st.none() | STEPS,
        "keys": KEYS,
        "window": WINDOWS,
        "earlier": st.booleans(),
        "aggregates": AGGREGATES | st.sampled_from([["distinct"], ["within"]]),
        "behind": BEHIND,
    }
)
"""Programs without a watermark, or one of which no row is late."""
FINAL = st.fixed_dictionaries(
    {
        "steps": STEPS,
        "keys": KEYS,
        "window": WINDOWS.filter(bool),
        "aggregates": AGGREGATES,
        "behind": HAVING,
        "delay": st.sampled_from(["0 seconds", "1 hour", "5 hours"]),
    }
)
"""Programs of windows with one result each, some of whose rows are late."""
SESSIONS = st.fixed_dictionaries(
    {
        "steps": STEPS,
        "keys": KEYS,
        "window": st.sampled_from(["5 minutes", "45 minutes"]).map(lambda gap: ("session", gap)),
        "aggregates": AGGREGATES,
        "behind": HAVING,
        "delay": st.just("20 hours"),
    }
)
"""Programs of sessions, none of whose rows is late."""

MORE_FIELDS = (
    "l bigint, f float, w decimal(38,10), s string, a date, z timestamp_ntz, y binary, x array<int>, "
    "p map<string,int>, o struct<c:int,e:string>"
)
TEXTS = [
    "",
    "a",
    "\U0001f600",
    "a\U0001f600b",
    "\u00df",
    "\u0130",
    "1,2",
    "7",
    " 12 ",
    '{"q": [1, "\u00e9"]}',
    "2026-03-29",
    "A\u0301",
]
FLAT_FIELDS = "l bigint, f float, w decimal(38,10), s string, a date, z timestamp_ntz, h smallint, i tinyint"
FLAT = (
    st.none() | st.integers(-2, 2) | st.sampled_from([2**31, 2**63 - 1, -(2**63)]),
    st.none() | st.sampled_from([0.1, -0.0, 3.5, 3.4e38, float("nan")]),
    st.none() | st.sampled_from(["0.0000000001", "-7.25", "1234567890123456789012345678.0123456789"]),
    st.none() | st.sampled_from(TEXTS),
    st.none() | st.sampled_from(["1969-12-31", "2026-03-29", "2024-02-29", "0001-01-01"]),
    st.none() | st.sampled_from(["2026-03-29T02:30:00", "2026-10-25T02:30:00.123456", "1969-12-31T23:59:59.999"]),
)
FLAT_ROW = st.tuples(*FLAT, st.none() | st.integers(-2, 300), st.none() | st.sampled_from([0, 1, -128, 127, 200]))
MORE_ROW = st.tuples(
    *FLAT,
    st.none() | st.sampled_from(["", "AAH/", "YQ=="]),
    st.none() | st.lists(st.none() | st.integers(-1, 2), max_size=2),
    st.none() | st.dictionaries(st.sampled_from(["a", "", "\U0001f600"]), st.none() | st.integers(0, 2), max_size=2),
    st.none() | st.fixed_dictionaries({"c": st.none() | st.integers(0, 2), "e": st.none() | st.sampled_from(TEXTS)}),
)
MORE_STEPS = [
    *(("s", text) for text in ("regexp_replace(s, '[a-b]+', '<$0>')", "regexp_extract(s, '(.)(.)', 2)", "reverse(s)")),
    *(("s", text) for text in ("substring(s, 2, 3)", "lpad(s, 5, '\U0001f600')", "translate(s, 'a\U0001f600', 'b')")),
    *(("s", text) for text in ("upper(s)", "lower(s)", "initcap(s)", "trim(s)", "split(s, ',')[0]", "concat(s, k)")),
    *(("s", text) for text in ("get_json_object(s, '$.q[1]')", "cast(d as string)", "cast(w as string)", "md5(s)")),
    *(("s", text) for text in ("to_json(struct(n, t, a, w, f))", "cast(t as string)", "cast(z as string)", "hex(y)")),
    *(("s", text) for text in ("date_format(t, 'EEE, d MMM yyyy HH:mm XXX')", "format_string('%s|%05d', s, n)")),
    *(("n", text) for text in ("length(s)", "octet_length(s)", "size(x)", "try_element_at(x, 1)", "p['a']", "o.c")),
    *(
        ("n", text)
        for text in ("cast(l as int)", "try_cast(l as int)", "cast(s as int)", "try_cast(s as int)", "n * n")
    ),
    *(("n", text) for text in ("n + 1", "-n", "abs(n)", "n / 0", "cast(d as int)", "cast(b as int)", "instr(s, 'b')")),
    *(("n", text) for text in ("datediff(t, a)", "year(t)", "dayofweek(a)", "hour(z)", "cast(m as tinyint)", "n & 1")),
    *(
        ("l", text)
        for text in ("l + 1", "try_add(l, 1)", "cast(t as bigint)", "unix_millis(t)", "l % 3", "cast(w as bigint)")
    ),
    *(
        ("k", text)
        for text in ("o.e", "explode(split(s, ''))", "coalesce(k, s, 'none')", "nullif(s, k)", "if(b, k, s)")
    ),
    *(("k", "case when l > 0 then k when b then s end"), ("k", "explode(map_keys(p))"), ("k", "cast(n as string)")),
    *(
        ("t", text)
        for text in ("date_trunc('hour', t)", "date_trunc('day', t)", "cast(a as timestamp)", "t + interval 1 day")
    ),
    *(("t", text) for text in ("cast(z as timestamp)", "try_cast(s as timestamp)", "timestamp_seconds(n * 3600)")),
    ("t", "to_timestamp(date_format(t, 'dd/MM/yyyy HH:mm'), 'dd/MM/yyyy HH:mm')"),
    ("t", "from_utc_timestamp(t, 'Europe/Berlin')"),
    *(("a", text) for text in ("cast(t as date)", "date_add(a, 1)", "last_day(t)", "to_date(s)", "trunc(a, 'year')")),
    *(("z", text) for text in ("cast(t as timestamp_ntz)", "date_trunc('month', z)", "z + interval 90 minutes")),
    *(
        ("m", text)
        for text in ("cast(w as decimal(12,2))", "try_cast(w as decimal(12,2))", "m / 3", "m % 3", "round(m)")
    ),
    *(
        ("w", text)
        for text in ("w * 2", "w + m", "w / m", "cast(s as decimal(38,10))", "try_cast(d as decimal(38,10))")
    ),
    *(
        ("d", text)
        for text in ("cast(w as double)", "try_divide(d, n)", "d / n", "sqrt(d)", "round(d, 1)", "f", "f + d")
    ),
    *(("where", text) for text in ("s like 'a%'", "s rlike '^.b?$'", "a < date'2026-01-01' or a is null", "z > t")),
    *(("where", text) for text in ("l in (0, 1, 9223372036854775807)", "f <> 0.1", "w > 0", "exists(x, v -> v > 0)")),
]
MORE_KEYS = [
    *(
        "s",
        "l",
        "f",
        "w",
        "a",
        "z",
        "y",
        "o.e",
        "try_element_at(x, 1)",
        "date_trunc('day', t)",
        "year(t)",
        "cast(n as string)",
    ),
]
MORE_AGGREGATES = [
    *(
        "sum(l)",
        "avg(l)",
        "max(l)",
        "sum(f)",
        "min(f)",
        "sum(w)",
        "avg(w)",
        "max(w)",
        "min(a)",
        "max(a)",
        "min(z)",
        "max(z)",
    ),
    *(
        "min(s)",
        "max(s)",
        "max(y)",
        "count(x)",
        "count(o)",
    ),
    *(
        "min(o)",
        "max(struct(t, s)).s",
        "sort_array(collect_set(a))",
        "sort_array(collect_set(s))",
        "sum(cast(b as int))",
    ),
    *(
        "max(length(s))",
        "stddev_samp(m)",
        "sum(n * 2)",
        "sum(m * n)",
        "avg(m / 3)",
        "max(date_trunc('hour', t))",
        "max(t - z)",
    ),
    *("sum(l) filter (where n > 0)", "sum(n) / count(*)", "max(coalesce(s, k))", "min(case when b then w end)"),
]


def more(programs: Any, *parts: dict[str, list[Any]]) -> Any:
    """Programs of more columns, types and functions; of each of the parts as many are drawn."""

    def drawn_of(name: str) -> Any:
        return st.one_of(*(st.sampled_from(part[name]) for part in parts))

    steps, keys = st.lists(drawn_of("steps"), max_size=4), st.lists(drawn_of("keys"), max_size=2, unique=True)
    aggregates = st.lists(drawn_of("aggregates"), min_size=1, max_size=4, unique=True)
    drawn = st.fixed_dictionaries({"steps": steps, "keys": keys, "aggregates": aggregates, "ansi": st.booleans()})
    return st.tuples(programs, drawn).map(lambda parts: parts[0] | parts[1])


def stepped(rows: DataFrame, steps: Any) -> DataFrame:
    for column, text in steps:
        if column == "join":
            table = rows.sparkSession.range(3).selectExpr("array('a', 'b', 'ä')[cast(id as int)] tk", "int(id) tn")
            rows = rows.join(table, F.col("k") == F.col("tk"), text).withColumn("n", F.expr("coalesce(tn, n)"))
            rows = rows.drop("tk", "tn")
        else:
            rows = rows.where(text) if column == "where" else rows.withColumn(column, F.expr(text))
    return rows


def program(
    rows: DataFrame,
    steps: Any,
    keys: list[str],
    window: Any,
    aggregates: list[str],
    behind: str,
    others: Any = None,
    earlier: bool = False,
    delay: str = "",
) -> DataFrame:
    if others is not None or (window and window[0] == "session"):  # in another order than in a batch
        aggregates = [text for text in aggregates if text not in ORDERED] or ["count(*)"]
    if window and window[0] == "session":
        steps = [step for step in steps if step[0] != "t"]  # which would make some late
    rows = stepped(rows, steps) if others is None else stepped(rows, steps).unionByName(stepped(rows, others))
    if aggregates == ["within"]:
        firsts = rows.where("t is not null").withWatermark("t", "2 days")
        drop = firsts.dropDuplicatesWithinWatermark if rows.isStreaming else firsts.dropDuplicates
        return drop(["k", "n"]).select("k", "n")
    if aggregates == ["distinct"]:
        return rows.dropDuplicates(["k", "n"]).select("k", "n") if keys else rows.select("k", "d", "m").distinct()
    grouping = [F.expr(key).alias(f"key{number}") for number, key in enumerate(keys)]
    if earlier:
        rows = rows.withColumn("hours", F.window("t", "2 hours")).where("hour(hours.start) <> 1")
        grouping.append(F.col("hours").alias("key9"))
    if delay:
        rows = rows.withWatermark("t", delay)
    if window is not None and window[0] == "session":
        grouping.append(F.session_window("t", window[1]).alias("window"))
    elif window is not None:
        grouping.append(F.window("t", *window) if rows.isStreaming or not delay else F.col("window"))
        rows = (
            rows if rows.isStreaming or not delay else on_time(rows.withColumn("window", F.window("t", *window)), delay)
        )
    done = rows.groupBy(*grouping).agg(*(F.expr(each).alias(f"a{number}") for number, each in enumerate(aggregates)))
    if window is not None:
        if window[0] == "session" and not rows.isStreaming:
            done = done.where(F.col("window.end") + F.expr(f"interval {delay}") <= rows.agg(F.max("t")).collect()[0][0])
        done = done.withColumn("at", F.expr("date_format(window.end, 'HH:mm')"))
    return done.where(behind)


def on_time(rows: DataFrame, delay: str) -> DataFrame:
    """The rows of windows that are open when they come, and closed in the end.

    Columns that the program does not use stay uncomputed, as in a stream: a cast of one may fail.
    """
    rows = rows.coalesce(1)
    ends = rows.select("t", "window.end").toArrow()
    times, ends_of = (ends[name].cast("int64").to_pylist() for name in ("t", "end"))
    grace = int(delay.split(maxsplit=1)[0]) * 3_600_000_000
    latest = list(accumulate(times, max))
    is_taken = [end + grace > now and end + grace <= latest[-1] for end, now in zip(ends_of, latest, strict=True)]
    numbers = [number for number, taken in enumerate(is_taken) if taken]
    return (
        rows.withColumn("number", F.monotonically_increasing_id()).where(F.col("number").isin(numbers)).drop("number")
    )


def run(made: Program, batches: list[DataFrame], folder: Path) -> DataFrame:
    """What the parts of a program make of batches of records, one after the other in one task."""
    frames, (declared,) = made.declared.frames, made.declared.operators
    results: list[pa.RecordBatch] = []
    operator, behind = declared.stateful.operator, None
    if frames is None or frames.last is None:
        behind, columns = chained(declared.after, StructType())
        assert behind is not None
    else:
        columns = frames.last.results
    wanted = arrow_schema(columns)
    with LmdbStore(folder) as store:
        for number, batch in enumerate(batches):
            update = operator(rows_of(made, batch), store)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
            for each in update.results.to_batches():
                results += [conformed(part, wanted) for part in ([each] if behind is None else behind(each))]
    table = pa.Table.from_batches(results, schema=wanted).combine_chunks()
    made_rows: Any = table if len(table) else []  # PySpark cannot take nested columns without rows
    frame = batches[0].sparkSession.createDataFrame(made_rows, columns)
    return frame if frames is None or frames.last is None else frames.last.make(frame)


def rows_of(made: Program, batch: DataFrame) -> pa.Table:
    """The rows of the operator, by Spark or by Roster."""
    frames = made.declared.frames
    if frames is not None and frames.before:
        of_branches = [branch.make(batch) for branch in frames.before]
        wanted = arrow_schema(of_branches[0].schema)
        parts = (part for rows in of_branches for part in rows.toArrow().to_batches())
    else:
        records = arrow_schema(batch.schema)
        function, columns = chained(made.declared.first.before, batch.schema)
        assert function is not None
        wanted = arrow_schema(columns)
        given = (conformed(each, records) for each in batch.toArrow().to_batches())
        parts = (part for each in given for part in function.results(each))
    return pa.Table.from_batches([conformed(each, wanted) for each in parts], schema=wanted)


@pytest.mark.gate
@settings(max_examples=examples(30, "ROSTER_PROGRAMS"))
@given(rows=ROWS, cut=st.integers(0, 25), zone=ZONES, parts=PROGRAMS | FINAL)
def test_a_random_program_gives_the_batch_answer(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cut: int, zone: str, parts: Any
) -> None:
    with settings_of(spark, zone, is_ansi=True):
        compare(spark, tmp_path_factory, rows, cut, parts)


FEW = {"steps": FEW_STEPS, "keys": FEW_KEYS, "aggregates": FEW_AGGREGATES}
OF_FLAT = [text for text in MORE_AGGREGATES if not {"x", "o", "y"} & set(re.split(r"\W+", text))]
MORE = {"steps": MORE_STEPS, "keys": MORE_KEYS, "aggregates": [*MORE_AGGREGATES, *ORDERED, *CHOOSING, *MANY]}
MORE_ZONES = ZONES | st.sampled_from(["Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu"])


def explored(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a property that only `make explore` runs, and the gate names."""
    test = settings(max_examples=examples(40, "ROSTER_PROGRAMS"), phases=[Phase.generate])(test)
    is_explore = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
    return pytest.mark.gate(pytest.mark.skipif(not is_explore, reason="`make explore` runs it")(test))


@explored
@given(
    rows=st.lists(st.tuples(ROW, MORE_ROW), min_size=1, max_size=25),
    cut=st.integers(0, 25),
    zone=MORE_ZONES,
    parts=more(PROGRAMS | FINAL | SESSIONS, FEW, MORE),
)
def test_a_random_program_of_more_types_gives_the_batch_answer_or_none_as_it_does(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cut: int, zone: str, parts: Any
) -> None:
    given = [(*few, *many) for few, many in rows]
    with settings_of(spark, zone, is_ansi=parts["ansi"]):
        compare(spark, tmp_path_factory, given, cut, parts, f"{SCHEMA}, {MORE_FIELDS}")


FLAT_STEPS = [
    *(
        ("where", text)
        for text in ("n is null or n > -2", "not b or d > 1", "length(s) < 3", "l in (0, 1, null)", "k <> ''")
    ),
    ("where", "t between timestamp'2026-03-28 21:00:00Z' and timestamp'2026-03-29 03:00:00Z'"),
    *(("k", text) for text in ("coalesce(k, s, 'none')", "k || '-' || s", "nullif(k, 'b')", "if(b, k, s)", "trim(k)")),
    *(
        ("k", text)
        for text in ("cast(n as string)", "to_json(struct(k, n, t))", "case when l > 0 then k when b then s end")
    ),
    *(("k", text) for text in ("cast(d as string)", "cast(f as string)", "'same'", "cast(i as string)")),
    *(
        ("n", text)
        for text in ("n + 1", "n % 3", "cast(s as int)", "try_cast(s as int)", "cast(l as int)", "-n", "abs(n)")
    ),
    *(
        ("n", text)
        for text in ("length(s)", "n * n", "try_multiply(n, n)", "cast(b as int)", "coalesce(n, h)", "h - i")
    ),
    *(
        ("l", text)
        for text in ("l + 1", "try_add(l, 1)", "cast(t as bigint)", "l % 3", "cast(w as bigint)", "n * 1L", "h")
    ),
    *(
        ("d", text)
        for text in ("d / n", "try_divide(d, n)", "f + d", "cast(w as double)", "cast(s as double)", "-d", "n / 3")
    ),
    *(
        ("m", text)
        for text in ("m * 2", "cast(m * 3 as decimal(12,2))", "m % 3", "-m", "cast(n as decimal(12,2))", "m / 7")
    ),
    *(("w", text) for text in ("w + m", "w / m", "w * 2", "m", "try_cast(w as decimal(20,1))", "w % 3")),
    *(
        ("t", text)
        for text in ("coalesce(t, timestamp'2026-03-29 01:30:00Z')", "cast(a as timestamp)", "to_timestamp(s)")
    ),
    *(("a", text) for text in ("cast(t as date)", "coalesce(a, date'2026-03-29')")),
    *(("b", text) for text in ("n > 0", "k < s", "d <=> f", "isnan(d)", "n between h and 2")),
]
"""Of what the tasks compute."""
FLAT_KEYS = [
    *(
        "k",
        "n",
        "b",
        "s",
        "l",
        "a",
        "t",
        "z",
        "h",
        "n % 2",
        "cast(t as date)",
        "coalesce(k, s)",
        "length(k)",
        "b and n > 0",
    ),
    *("cast(n as string)", "if(b, k, null)", "i"),
]
ODD = ["missing", "twice", "wrong", "more", "spaced", "none"]
WRONG = [
    "null",
    '"x"',
    "[1]",
    "{}",
    "true",
    "1.5",
    "-0",
    "1e400",
    "300",
    '""',
    '" 7 "',
    '"NaN"',
    '"2026-03-29"',
    "12345678901",
]
"""What stands in place of a value."""


@explored
@given(
    rows=st.lists(st.tuples(ROW, FLAT_ROW), min_size=1, max_size=25),
    cut=st.integers(0, 25),
    odd=st.dictionaries(
        st.integers(0, 24), st.tuples(st.sampled_from(ODD), st.integers(0, 13), st.sampled_from(WRONG)), max_size=6
    ),
    parts=more(
        PROGRAMS.map(lambda parts: parts | {"others": None, "earlier": False}) | FINAL | SESSIONS,
        {"steps": FLAT_STEPS, "keys": FLAT_KEYS, "aggregates": FEW_AGGREGATES},
        {"steps": FLAT_STEPS, "keys": FLAT_KEYS, "aggregates": [*ORDERED, *CHOOSING, *MANY, *OF_FLAT]},
    ),
)
def test_a_random_program_in_the_tasks_gives_the_batch_answer_or_stops_as_it_does(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Any],
    cut: int,
    odd: dict[int, Any],
    parts: Any,
) -> None:
    given = [(*few, *many) for few, many in rows]
    with settings_of(spark, "UTC", is_ansi=parts["ansi"]):
        compare(spark, tmp_path_factory, given, cut, parts, f"{SCHEMA}, {FLAT_FIELDS}", odd)


def with_oddity(record: dict[str, Any], odd: tuple[str, int, str] | None) -> bytes | None:
    """A record as JSON that is not quite of the schema."""
    if odd is None:
        return json.dumps(record).encode()
    kind, place, text = odd
    name = list(record)[1 + place % (len(record) - 1)]
    if kind == "missing":
        record = {name: value for name, value in record.items() if value is not None}
    whole = json.dumps(record)
    forms = {
        "missing": whole,
        "twice": f'{whole[:-1]}, "{name}": {json.dumps(record.get(name))}}}',
        "wrong": json.dumps({**record, name: 0}).replace(f'"{name}": 0', f'"{name}": {text}'),
        "more": f'{{"other": {{"{name}": [1, {{}}]}}, {whole[1:]}',
        "spaced": f" \n{whole.replace(': ', ' :  ')}\t",
    }
    return forms[kind].encode() if kind in forms else {"x": b"[1]", "{}": b""}.get(text.strip('"'))


@contextmanager
def settings_of(spark: SparkSession, zone: str, *, is_ansi: bool) -> Iterator[None]:
    names = {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": str(is_ansi).lower()}
    before = {name: str(spark.conf.get(name)) for name in names}
    try:
        for name, value in names.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def _in_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return float(value) if isinstance(value, Decimal) else value


def near(value: Any) -> Any:
    """A value whose floats do not depend on the order of a sum."""
    if isinstance(value, float):
        return float(f"{value:.11g}") + 0.0  # the first of rows passes as it is, and a batch gives 0.0 for -0.0
    if isinstance(value, Row):
        return {name: near(each) for name, each in zip(value.__fields__, value, strict=True)}
    if isinstance(value, dict):
        return {name: near(each) for name, each in value.items()}
    return [near(each) for each in value] if isinstance(value, list) else value


def compare(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Any],
    cut: int,
    parts: Any,
    fields: str = SCHEMA,
    odd: Mapping[int, Any] = MappingProxyType({}),
) -> None:
    """Compare what Roster makes of rows in batches with what Spark makes of all of them.

    cut: how many are in the first batch. odd: how the records of some differ from the schema.
    """
    parts, schema = {name: part for name, part in parts.items() if name != "ansi"}, StructType.fromDDL(fields)
    is_final = bool(parts.get("delay"))

    def of_records(records: DataFrame) -> DataFrame:
        """The columns of the rows, out of the values of records."""
        return records.select(F.from_json(F.col("value").cast("string"), schema).alias("v")).select("v.*")

    values = [
        with_oddity(
            dict(zip(schema.names, map(_in_json, (number, *row)), strict=False)),
            odd.get(number) if row != END else None,
        )
        for number, row in enumerate([*rows, END])
    ]
    kafka = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
    records = [
        spark.createDataFrame([(None, value, "t", 0, 0, BEGIN, 0) for value in some], kafka)
        for some in (values[:-1][:cut], values[:-1][cut:], *([values[-1:]] if is_final else []))
    ]
    everything = of_records(functools.reduce(DataFrame.union, records)).coalesce(1)  # in the order of records
    options = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}
    try:
        stream = program(of_records(read_stream(spark).options(**options).load()), **parts)
    except AnalysisException:
        reject()  # of a type that another step has made
    is_of_more = fields != SCHEMA
    mode = "append" if is_final or parts["aggregates"][0] in ("distinct", "within") else "update"
    try:
        by_spark = program_of(Plan.of(stream), mode, headers=False, by_spark=True)
    except PipelineError as error:
        if not is_of_more:
            raise
        TRIED.update(["refused", f"refused: {error}"])
        return
    made = program_of(Plan.of(stream), mode, headers=False, takes_results=True)
    paths = {tuple(by_spark.steps): by_spark, tuple(made.steps): made}
    front, back = (step.split(":")[0] for step in (made.steps[0], made.steps[-1]))
    TRIED.update(["programs", f"{front} in front", f"{back} behind"])
    try:
        batch = program(everything, **parts)
        wanted = sorted((near(row) for row in batch.collect()), key=repr)
    except ValueError as error:
        assume("year 0 is out of range" not in str(error))  # a window begins before Python's first moment
        raise
    except PySparkException:
        if not is_of_more:
            raise
        TRIED.update(["stopped"])
        for path in paths.values():
            with pytest.raises((PySparkException, ArithmeticError, StateError)):
                run(path, records, tmp_path_factory.mktemp("state"))
        return
    for path in paths.values():
        try:
            found = run(path, records, tmp_path_factory.mktemp("state"))
        except StateError as error:
            if not is_of_more or "a sum is beyond int64" not in str(error):
                raise
            TRIED.update(["stopped"])  # as the page says
            return
        assert found.schema.simpleString() == stream.schema.simpleString() == batch.schema.simpleString()
        told = [near(row) for row in found.collect()]
        keys = [name for name in found.columns if name.startswith("key") or name == "window"]
        if mode == "update":
            told = last_of(told, keys)
            if (
                not told
                and not keys
                and wanted == [near(row) for row in program(everything.limit(0), **parts).collect()]
            ):
                wanted = []  # of no rows Spark has a row of zeros
        assert sorted(map(repr, told)) == sorted(map(repr, wanted)), path.steps


def given_to(spark: SparkSession, tmp_path: Path, program: Any, mode: str, batches: list[list[str]]) -> list[Any]:
    """What a program makes of batches of values."""
    options = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}
    made = program_of(Plan.of(program(read_stream(spark).options(**options).load())), mode, headers=False)
    kafka = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
    records = [
        spark.createDataFrame([(None, each.encode(), "t", 0, 0, BEGIN, 0) for each in some], kafka) for some in batches
    ]
    return [row.asDict(recursive=True) for row in run(made, records, tmp_path).collect()]


def test_time_goes_on_at_once_by_the_rows_that_reach_the_window(spark: SparkSession, tmp_path: Path) -> None:
    """Which rows are late, and when a result comes, as the page says."""

    def windows(records: DataFrame) -> DataFrame:
        rows = records.select(F.to_timestamp(F.col("value").cast("string")).alias("at")).withWatermark(
            "at", "0 seconds"
        )
        return rows.where("minute(at) < 30").groupBy(F.window("at", "1 hour")).count().select("window.start", "count")

    day = "2026-03-28 "
    # Within one batch: 01:00 closes the hour before, so that 00:20 is late; 03:40 is left out, and closes nothing.
    found = given_to(spark, tmp_path, windows, "append", [[day + "00:10", day + "01:00", day + "00:20", day + "03:40"]])
    assert [row["count"] for row in found] == [1]


def test_totals_of_no_rows_are_no_row(spark: SparkSession, tmp_path: Path) -> None:
    total = lambda records: records.groupBy().count()  # noqa: E731
    assert given_to(spark, tmp_path, total, "update", [[]]) == []
    assert given_to(spark, tmp_path / "more", total, "update", [["a"], [], ["b"]])[-1] == {"count": 2}


def test_sketches_are_near(spark: SparkSession, tmp_path: Path) -> None:
    near = lambda records: records.groupBy().agg(  # noqa: E731
        F.approx_count_distinct("value").alias("values"),
        F.percentile_approx(F.length("value"), 0.5).alias("middle"),
    )
    (row,) = given_to(spark, tmp_path, near, "update", [["x" * (number % 200) for number in range(1000)]])
    assert abs(row["values"] - 200) < 20
    assert abs(row["middle"] - 99) <= 2
