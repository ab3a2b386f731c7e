"""A user's StatefulProcessor under Roster and under Spark: `python -m benchmarks processors`.

    python -m benchmarks.processors [--rows 100000] [--keys 1000] [--batches 3]

The same class counts and sums the rows of each key, as rows and as pandas DataFrames. Spark runs it on `local[1]` with
its RocksDB store, from Parquet files into its noop sink; its figure is the median of its batches after the first, the
whole batch, which JVM and Python worker share. Roster's is the operator and the store's commit in one process, without
Kafka on either side. With 20,000 keys Spark's side takes many minutes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from roster.spark import session
from roster.spark.state.processor import declare
from roster.state import Position
from roster.state.lmdb_store import LmdbStore

SCHEMA = "key string, value double"
OUTPUT = "key string, n long, total double"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Totals(StatefulProcessor):
    """Count and sum of each key."""

    def init(self, handle: Any) -> None:
        """Take the state."""
        self.totals = handle.getValueState("totals", "n long, total double")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 - Spark's
        """Add rows to the state."""
        n, total = self.totals.get() or (0, 0.0)
        for row in rows:
            n, total = n + 1, total + row.value
        self.totals.update((n, total))
        yield Row(key=key[0], n=n, total=total)

    def close(self) -> None:
        """Do nothing."""


class FrameTotals(Totals):
    """The same with DataFrames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's
        """Add frames to the state."""
        n, total = self.totals.get() or (0, 0.0)
        for frame in rows:
            n, total = n + len(frame), total + float(frame["value"].sum())
        self.totals.update((n, total))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})


def under_roster(spark: SparkSession, tables: list[pa.Table], *, in_pandas: bool) -> list[float]:
    """Seconds of each batch."""
    given: dict[str, Any] = {"event_time": None, "delay": timedelta(), "initial_state": None, "store": "totals"}
    processor = FrameTotals() if in_pandas else Totals()
    operator: Any = declare.processing(
        spark, processor, ("key",), OUTPUT, time_mode="None", in_pandas=in_pandas, **given
    ).operator
    took = []
    with TemporaryDirectory() as folder:
        for table in tables:
            begin = time.perf_counter()
            with LmdbStore(Path(folder) / "store") as store:
                with store.snapshot() as snapshot:
                    update = operator(table, snapshot)
                store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position())
            took.append(time.perf_counter() - begin)
    return took


def under_spark(spark: SparkSession, tables: list[pa.Table], *, in_pandas: bool) -> list[float]:
    """Seconds of each batch."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        for number, table in enumerate(tables):
            pq.write_table(table, source / f"{number}.parquet")
        groups = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source)).groupBy("key")
        if in_pandas:
            made = groups.transformWithStateInPandas(FrameTotals(), OUTPUT, "Update", "None")
        else:
            made = groups.transformWithState(Totals(), OUTPUT, "Update", "None")
        writer = made.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(Path(folder) / "checkpoint")).start()
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        assert sum(each["numInputRows"] for each in progress) == sum(table.num_rows for table in tables)
        return [each["durationMs"]["triggerExecution"] / 1000 for each in progress]


def compare(rows: int, keys: list[int], batches: int) -> None:
    """Print the table."""
    spark = session("processors", master="local[1]", spark_ui_enabled=False)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    numbers = np.random.default_rng(1)
    print(f"{'rows/s':28}{'Roster':>12}{'Spark':>12}{'ratio':>8}")
    for count in keys:
        names = np.array([f"key {number}" for number in range(count)])
        tables = [
            pa.table({"key": pa.array(names[numbers.integers(0, count, rows)]), "value": numbers.random(rows)})
            for _ in range(batches)
        ]
        for kind, in_pandas in (("rows", False), ("pandas", True)):
            here, there = (
                rows / statistics.median(side(spark, tables, in_pandas=in_pandas)[1:])
                for side in (under_roster, under_spark)
            )
            print(f"{f'{kind}, {count:,} keys':28}{here:12,.0f}{there:12,.0f}{here / there:8.1f}", flush=True)
    spark.stop()


def run(*, quick: bool) -> None:
    """Print the table for usual sizes."""
    compare(20_000 if quick else 100_000, [1_000], 3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--keys", type=lambda text: [int(each) for each in text.split(",")], default=[1_000])
    parser.add_argument("--batches", type=int, default=3)
    arguments = parser.parse_args()
    compare(arguments.rows, arguments.keys, arguments.batches)
