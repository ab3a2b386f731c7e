"""What is warned of in a transform, by its plan; the frames come from where a pipeline's come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from roster.spark.jobs.streaming_only import notes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


def records(spark: SparkSession) -> DataFrame:
    source: Any = spark.range(0, 1, 1, 1).mapInArrow(lambda rows: rows, "id long")
    return source.selectExpr("id", "timestamp_seconds(id) AS at", "'k' AS key")


@pytest.mark.parametrize(
    ("transform", "noted"),
    [
        (lambda df: df.dropDuplicates(["key"]), ["dropDuplicates"]),
        (lambda df: df.select("key").distinct().where("key > ''"), ["dropDuplicates"]),
        (lambda df: df.groupBy(F.window("at", "1 minute")).count().groupBy().count(), ["groupBy"]),
        (lambda df: df.orderBy("id").limit(1), []),
        (lambda df: df.withWatermark("at", "1 minute").where("id > 0"), []),
        (lambda df: df.withWatermark("at", "1 minute").dropDuplicates(["key"]), ["dropDuplicates"]),
    ],
)
def test_results_of_one_batch_only_are_noted(
    spark: SparkSession, transform: Callable[[DataFrame], DataFrame], noted: list[str]
) -> None:
    found = notes(transform(records(spark)))
    assert found == [f"{method} takes the rows of one batch only" for method in noted]


def test_what_is_done_to_another_table_is_not_noted(spark: SparkSession) -> None:
    others = spark.range(3).dropDuplicates().groupBy("id").agg(F.avg("id").alias("mean"))
    assert notes(records(spark).join(others, "id")) == []
