"""Aggregates written as PySpark's columns: read from their trees, and of the same results as Spark's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from roster.spark import PipelineError
from roster.spark.state.aggregate_columns import parse_aggregates
from roster.state.aggregate import Aggregation
from roster.state.store import NoState

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, SparkSession

ROWS = [("a", 1, 0.5), ("b", -(2**31), None), ("a", None, 3.25), ("c", None, None), (None, 7, -1.0), ("b", 5, 1e300)]
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int32()), ("x", pa.float64())])


def test_columns_of_pyspark_have_sparks_results(spark: SparkSession) -> None:
    wanted = {
        "rows": F.count("*"),
        "also rows": F.count(F.lit(1)),
        "known": F.count("n"),
        "total": F.sum("n"),
        "least": F.min(F.col("n")).alias("other"),
        "most": F.max("x"),
        "mean": F.avg("n"),
        "mean of x": F.mean("x").alias("a").alias("b"),
        "text": F.expr("avg(`n`)"),
    }
    table = pa.Table.from_pylist([dict(zip(COLUMNS.names, row, strict=True)) for row in ROWS], COLUMNS)
    found = Aggregation(("k",), parse_aggregates(wanted))(table, NoState()).results.to_pylist()
    frame = spark.createDataFrame(ROWS, "k string, n int, x double").groupBy("k")
    expected = frame.agg(*(column.alias(name) for name, column in wanted.items())).collect()
    assert sorted(found, key=str) == sorted((row.asDict() for row in expected), key=str)


@pytest.mark.parametrize(
    ("column", "text", "way"),
    [
        (lambda: F.count_distinct("n"), "count(distinct n)", "deduplicate"),
        (lambda: F.sum_distinct("n"), "sum(distinct n)", "deduplicate"),
        (lambda: F.sum(F.col("n") * F.col("x")), "sum(*(n, x))", "map_arrow"),
        (lambda: F.sum(F.col("n").cast("long")), "sum(CAST(n AS BIGINT))", "map_arrow"),
        (lambda: F.expr("sum(n) filter (where n > 1)"), "sum(n) filter (where n > 1)", "map_arrow"),
        (lambda: F.first("n"), "first(n, false)", "transform_with_state"),
        (lambda: F.collect_list("n"), "collect_list(n)", "transform_with_state"),
        (lambda: F.sum("n") / 2, "/(sum(n), 2)", "transform_with_state"),
        (lambda: F.col("n"), "n", "transform_with_state"),
    ],
)
def test_a_column_that_is_no_aggregate_of_a_column_is_quoted_with_a_way_out(
    spark: SparkSession, column: Callable[[], Column], text: str, way: str
) -> None:
    with pytest.raises(PipelineError) as error:
        parse_aggregates({"result": column()})
    assert error.value.field == "aggregates"
    assert error.value.problem.startswith(f"'result': {text!r} is none of ")
    assert way in error.value.problem


@pytest.mark.parametrize(
    "given", [None, {}, ["count(*)"], "count(*)", {1: "count(*)"}, {"": "count(*)"}, {"n": 3}, {"n": None}]
)
def test_what_is_no_dict_of_results_is_shown_with_an_example(given: Any) -> None:
    with pytest.raises(PipelineError, match=r"aggregates: .* is no .*For example \{'orders': 'count\(\*\)'"):
        parse_aggregates(given)
