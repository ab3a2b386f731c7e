"""Random programs with state: what Spark and Roster's operators make of them together, beside Spark's batch answer."""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
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
from tests.spark.dataframes.test_stateful_queries import last_of, plain

if TYPE_CHECKING:
    from collections.abc import Iterator
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
SCHEMA = "k string, n int, d double, m decimal(12,2), b boolean, t timestamp"
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
MORE_ROW = st.tuples(
    st.none() | st.integers(-2, 2) | st.sampled_from([2**31, 2**63 - 1, -(2**63)]),
    st.none() | st.sampled_from([0.1, -0.0, 3.5, 3.4e38, float("nan")]),
    st.none() | st.sampled_from(["0.0000000001", "-7.25", "1234567890123456789012345678.0123456789"]),
    st.none() | st.sampled_from(TEXTS),
    st.none() | st.sampled_from(["1969-12-31", "2026-03-29", "2024-02-29", "0001-01-01"]),
    st.none() | st.sampled_from(["2026-03-29T02:30:00", "2026-10-25T02:30:00.123456", "1969-12-31T23:59:59.999"]),
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
        "count(distinct s, n)",
        "count(distinct w)",
        "sum(distinct n)",
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


def more(programs: Any, few: dict[str, Any]) -> Any:
    """Programs of more columns, types and functions. few: their parts of the others."""
    steps = st.lists(st.sampled_from(MORE_STEPS) | st.sampled_from(few["steps"]), max_size=4)
    keys = st.lists(st.sampled_from([*MORE_KEYS, *few["keys"]]), max_size=2, unique=True)
    aggregates = st.lists(st.sampled_from([*MORE_AGGREGATES, *few["aggregates"]]), min_size=1, max_size=4, unique=True)
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
    if window is not None:
        grouping.append(F.window("t", *window) if rows.isStreaming or not delay else F.col("window"))
        rows = (
            rows if rows.isStreaming or not delay else on_time(rows.withColumn("window", F.window("t", *window)), delay)
        )
    done = rows.groupBy(*grouping).agg(*(F.expr(each).alias(f"a{number}") for number, each in enumerate(aggregates)))
    if window is not None:
        done = done.withColumn("at", F.expr("date_format(window.end, 'HH:mm')"))
    return done.where(behind)


def on_time(rows: DataFrame, delay: str) -> DataFrame:
    """The rows of windows that are open when they come, and closed in the end."""
    table, ends = rows.toArrow(), rows.select("t", "window.end").toArrow()
    times, ends_of = (ends[name].cast("int64").to_pylist() for name in ("t", "end"))
    grace = int(delay.split(maxsplit=1)[0]) * 3_600_000_000
    latest = list(accumulate(times, max))
    taken = [end + grace > now and end + grace <= latest[-1] for end, now in zip(ends_of, latest, strict=True)]
    given: Any = table.filter(pa.array(taken, pa.bool_())) if any(taken) else []
    return rows.sparkSession.createDataFrame(given, rows.schema)


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
MORE_ZONES = ZONES | st.sampled_from(["Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu"])


@pytest.mark.gate
@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "explore", reason="`make explore` runs it")
@settings(max_examples=examples(40, "ROSTER_PROGRAMS"), phases=[Phase.generate])
@given(
    rows=st.lists(st.tuples(ROW, MORE_ROW), min_size=1, max_size=25),
    cut=st.integers(0, 25),
    zone=MORE_ZONES,
    parts=more(PROGRAMS | FINAL, FEW),
)
def test_a_random_program_of_more_types_gives_the_batch_answer_or_none_as_it_does(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cut: int, zone: str, parts: Any
) -> None:
    given = [(*few, *many) for few, many in rows]
    with settings_of(spark, zone, is_ansi=parts["ansi"]):
        compare(spark, tmp_path_factory, given, cut, {name: part for name, part in parts.items() if name != "ansi"})


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


def compare(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cut: int, parts: Any
) -> None:
    is_final = bool(parts.get("delay"))

    schema = StructType.fromDDL(f"{SCHEMA}, {MORE_FIELDS}" if rows and len(rows[0]) > len(END) else SCHEMA)

    def of_records(records: DataFrame) -> DataFrame:
        """The columns of the rows, out of the values of records."""
        return records.select(F.from_json(F.col("value").cast("string"), schema).alias("v")).select("v.*")

    values = [json.dumps(dict(zip(schema.names, map(_in_json, row), strict=False))) for row in [*rows, END]]
    kafka = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
    records = [
        spark.createDataFrame([(None, value.encode(), "t", 0, 0, BEGIN, 0) for value in some], kafka)
        for some in (values[:-1][:cut], values[:-1][cut:], *([values[-1:]] if is_final else []))
    ]
    everything = of_records(functools.reduce(DataFrame.union, records))
    options = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}
    try:
        stream = program(of_records(read_stream(spark).options(**options).load()), **parts)
    except AnalysisException:
        reject()  # of a type that another step has made
    is_of_more = len(schema) > len(END)
    mode = "append" if is_final or parts["aggregates"][0] in ("distinct", "within") else "update"
    try:
        by_spark = program_of(Plan.of(stream), mode, headers=False, by_spark=True)
    except PipelineError as error:
        if not is_of_more:
            raise
        TRIED.update(["refused", f"refused: {error}"])
        return
    made = program_of(Plan.of(stream), mode, headers=False, takes_results=True)
    batch = program(everything, **parts)
    paths = {tuple(by_spark.steps): by_spark, tuple(made.steps): made}
    front, back = (step.split(":")[0] for step in (made.steps[0], made.steps[-1]))
    TRIED.update(["programs", f"{front} in front", f"{back} behind"])
    try:
        wanted = sorted((plain(row) for row in batch.collect()), key=repr)
    except PySparkException:
        if not is_of_more:
            raise
        TRIED.update(["stopped"])
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
        told = [plain(row) for row in found.collect()]
        keys = [name for name in found.columns if name.startswith("key") or name == "window"]
        if mode == "update":
            told = last_of(told, keys)
            if (
                not told
                and not keys
                and wanted == [plain(row) for row in program(everything.limit(0), **parts).collect()]
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
