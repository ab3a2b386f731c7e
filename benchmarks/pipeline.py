"""The pipeline's speed on one machine: reading, reading and computing, writing Parquet, and the cost of a small batch.

    python -m benchmarks pipeline
    python -m benchmarks.pipeline [--records 1000000] [--bootstrap HOST:PORT]

Without an address a Roster broker is started. Ratios are against the reader alone in one process, which is as fast as
records come into Arrow here.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from confluent_kafka import Producer

from roster.client import Admin
from roster.model import TopicPartition
from roster.spark import ParquetSink, Pipeline, Progress, session
from roster.spark.batch import Split
from roster.spark.reader import ReaderConfig, read_splits
from roster.testing.broker import running_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from roster.spark import Batch

PARTITIONS = 4
VALUE = b"x" * 100


def fill(bootstrap: str, records: int) -> str:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    with contextlib.closing(Admin(bootstrap)) as admin:
        admin.create_topic(topic, PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 500_000,
        }
    )
    for number in range(records):
        while True:
            try:
                producer.produce(topic, VALUE, b"%010d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise SystemExit("the broker did not take the records")
    return topic


def reader_alone(bootstrap: str, topic: str, ends: dict[TopicPartition, int]) -> float:
    """Records per second of one process."""
    splits = [Split(topic, p.partition, 0, end) for p, end in ends.items()]
    began, rows = time.perf_counter(), 0
    for batch in read_splits(ReaderConfig(bootstrap, "bench"), splits):
        rows += batch.num_rows
    return rows / (time.perf_counter() - began)


def count_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"rows": [rows.num_rows]})


def to_nowhere(df: DataFrame, batch: Batch) -> None:
    df.write.format("noop").mode("overwrite").save()


def piped(
    spark: SparkSession, bootstrap: str, topic: str, build: Callable[[Pipeline], Pipeline], most: int
) -> list[Progress]:
    reports: list[Progress] = []
    group = f"bench-{uuid.uuid4().hex[:8]}"
    pipeline = Pipeline(spark, bootstrap, group, topic, max_offsets_per_batch=most, on_progress=reports.append)
    build(pipeline).run(available_now=True)
    return reports


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--bootstrap")
    arguments = parser.parse_args(words)
    with contextlib.ExitStack() as stack:
        bootstrap = arguments.bootstrap
        if bootstrap is None:
            bootstrap = stack.enter_context(running_broker()).bootstrap
        out = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        records = arguments.records
        topic = fill(bootstrap, records)
        with contextlib.closing(Admin(bootstrap)) as admin:
            ends = admin.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])
        alone = statistics.median(reader_alone(bootstrap, topic, ends) for _ in range(3))
        spark = session("bench", f"local[{arguments.cores}]")
        spark.sparkContext.setLogLevel("ERROR")
        stack.callback(spark.stop)
        print(
            f"{records} records of 110 bytes, {PARTITIONS} partitions, {arguments.cores} cores, one batch, median of 3"
        )
        print(f"{'what':<46}{'records/s':>12}{'ratio':>8}")
        print(f"{'reader alone, one process':<46}{alone:>12,.0f}{1:>8.2f}")
        builds: dict[str, Callable[[Pipeline], Pipeline]] = {
            "pipeline, map_arrow in the reading task": lambda p: p.map_arrow(count_rows, "rows long").foreach_batch(
                lambda df, batch: df.groupBy().sum("rows").collect()
            ),
            "pipeline, all columns to the JVM": lambda p: p.foreach_batch(to_nowhere),
            "pipeline, all columns to Parquet, exactly once": lambda p: p.write(ParquetSink(out / uuid.uuid4().hex)),
        }
        for name, build in builds.items():
            piped(spark, bootstrap, topic, build, records)
            rate = statistics.median(
                piped(spark, bootstrap, topic, build, records)[0].rows_per_second for _ in range(3)
            )
            print(f"{name:<46}{rate:>12,.0f}{rate / alone:>8.2f}", flush=True)
        small = min(records // 100, 1_000)
        print(f"\nbatches of {small} records: {'':<15}{'median ms':>12}{'p90':>8}   phases (median)")
        part = fill(bootstrap, small * 60)
        for name, build in builds.items():
            reports = piped(spark, bootstrap, part, build, small)[10:]
            times = sorted(report.duration_ms for report in reports)
            phases = {n: round(statistics.median(r.phases[n] for r in reports)) for n in reports[0].phases}
            print(f"{name:<46}{statistics.median(times):>8.0f}{times[len(times) * 9 // 10]:>8}   {phases}")


def run(*, quick: bool) -> None:
    """With the default sizes, or a tenth of them."""
    main(["--records", "100000"] if quick else [])


if __name__ == "__main__":
    main()
