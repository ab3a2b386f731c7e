"""Rows in the driver become the frame that `createDataFrame` makes of them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.pipeline.spark_schemas import arrow_schema, as_struct
from roster.spark.jobs.driver_rows import DriverRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

COLUMNS = (
    "number int not null, long bigint, flag boolean, ratio double, price decimal(10, 2), text string, bytes binary, "
    "day date, at timestamp, local timestamp_ntz, "
    "many array<struct<at: timestamp, text: string>>, named map<string, timestamp>"
)
AT = datetime(2024, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {
        "number": 1,
        "long": 2**40,
        "flag": True,
        "ratio": 0.5,
        "price": Decimal("1.25"),
        "text": "ä",
        "bytes": b"\x00\xff",
        "day": date(2024, 2, 29),
        "at": AT,
        "local": AT.replace(tzinfo=None),
        "many": [{"at": AT, "text": None}, None],
        "named": [("a", AT), ("b", None)],
    },
    {"number": 2},
]
LARGE = "spark.sql.execution.arrow.useLargeVarTypes"


@pytest.fixture
def table(spark: SparkSession) -> pa.Table:
    """Rows of every type, in two pieces."""
    schema = arrow_schema(COLUMNS)
    rows = [{name: row.get(name) for name in schema.names} for row in ROWS]
    pieces = [pa.RecordBatch.from_pylist(each, schema) for each in (rows, rows[1:])]
    return pa.Table.from_batches(pieces, schema)


@pytest.fixture
def large(spark: SparkSession) -> Iterator[None]:
    """The session wants text with offsets of 64 bits."""
    spark.conf.set(LARGE, "true")
    yield
    spark.conf.unset(LARGE)


def same(spark: SparkSession, made: DriverRows, table: pa.Table) -> bool:
    expected, frame = spark.createDataFrame(table, as_struct(COLUMNS)), made.frame(table)
    assert frame.schema == expected.schema
    assert frame.collect() == expected.collect()
    assert frame.rdd.getNumPartitions() == 1
    return True


def test_rows_of_every_type_are_those_of_create_data_frame(
    spark: SparkSession, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = DriverRows(spark, as_struct(COLUMNS))
    assert same(spark, made, table)
    assert made.frame(table.schema.empty_table()).collect() == []
    monkeypatch.setattr(type(spark), "createDataFrame", None)
    context: Any = spark.sparkContext
    folder = Path(context._temp_dir)
    before = {*folder.iterdir()}
    assert made.frame(table).count() == 3
    assert {*folder.iterdir()} == before, "what was written for the JVM stays"


@pytest.mark.usefixtures("large")
def test_a_session_that_wants_large_types_gets_them(spark: SparkSession, table: pa.Table) -> None:
    assert same(spark, DriverRows(spark, as_struct(COLUMNS)), table)


def test_a_pyspark_of_other_steps_makes_the_frames_itself(spark: SparkSession, table: pa.Table) -> None:
    made: Any = DriverRows(spark, as_struct(COLUMNS))
    read, make = made._calls
    made._calls = make, read
    assert same(spark, made, table)
    assert made._calls is None
