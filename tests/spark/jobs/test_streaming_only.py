"""What is warned of in a transform, by its plan; the frames come from where a pipeline's come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from roster.pipeline.spark_schemas import arrow_schema
from roster.spark.jobs.driver_rows import DriverRows, notes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


SCHEMA = "id long, at timestamp, key string"


@pytest.fixture(params=["tasks", "driver"])
def records(spark: SparkSession, request: pytest.FixtureRequest) -> DataFrame:
    """Records of a batch that Spark's tasks read, or that a worker sent to the driver."""
    if request.param == "tasks":
        return spark.range(0, 1, 1, 1).mapInArrow(lambda rows: rows, SCHEMA)
    columns = StructType.fromDDL(SCHEMA)
    return DriverRows(spark, columns).frame(arrow_schema(columns).empty_table())


@pytest.mark.parametrize(
    ("transform", "noted"),
    [
        (lambda df: df.dropDuplicates(["key"]), ["dropDuplicates"]),
        (lambda df: df.select("key").distinct().where("key > ''"), ["dropDuplicates"]),
        (lambda df: df.groupBy(F.window("at", "1 minute")).count().groupBy().count(), ["groupBy"]),
        (lambda df: df.join(df.groupBy("key").count(), "key"), ["groupBy"]),
        (lambda df: df.orderBy("id").limit(1), []),
        (lambda df: df.withWatermark("at", "1 minute").where("id > 0"), []),
        (lambda df: df.withWatermark("at", "1 minute").dropDuplicates(["key"]), ["dropDuplicates"]),
    ],
)
def test_results_of_one_batch_only_are_noted(
    records: DataFrame, transform: Callable[[DataFrame], DataFrame], noted: list[str]
) -> None:
    found = notes(transform(records), records)
    assert found == [f"{method} takes the rows of one batch only" for method in noted]


def test_what_is_done_to_another_table_is_not_noted(spark: SparkSession, records: DataFrame) -> None:
    others = spark.range(3).dropDuplicates().groupBy("id").agg(F.avg("id").alias("mean"))
    assert notes(records.join(others, "id"), records) == []
