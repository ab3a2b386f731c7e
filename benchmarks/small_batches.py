"""Small batches as DataFrames: read by the staying worker or by Spark's, in turns in one Spark application.

    python -m benchmarks small_batches
    python -m benchmarks.small_batches [--records 200] [--batches 20] [--rounds 3] [--warm 200]

`noop` writes all rows to Spark's noop sink, `sql` counts them by partition. A figure is the median of the rounds: CPU
of driver, JVM and Python workers for one batch, from planned ranges to the end of the sink's write, and its time.
Neither a group nor commits are in it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from benchmarks.applications import PARTITIONS, VALUE
from benchmarks.pipeline import CpuTime
from roster.client import Admin
from roster.model import TopicPartition, parse_addresses
from roster.records.native import compiled
from roster.records.produce import KafkaWriter
from roster.spark import session
from roster.spark.batch import Batch, Owner, Range
from roster.spark.driver.offset_ranges import tasks
from roster.spark.jobs.runner import ReadBatches, SparkRunner
from roster.spark.jobs.spark_jobs import SparkJobs
from roster.spark.sinks.foreach import ForeachBatch
from roster.spark.tasks.arrow_function import as_struct
from roster.spark.tasks.reader import ReaderConfig
from roster.testing.broker import BrokerProcess

SINKS = {
    "noop": ForeachBatch(lambda df, _: df.write.format("noop").mode("overwrite").save()),
    "sql": ForeachBatch(lambda df, _: df.groupBy("partition").count().collect()),
}
TOPIC = "small"
READERS = {"staying worker": 10_000, "Spark's": 0}
"""The most offsets of a batch that is no Spark job, by who is to read."""


def fill(bootstrap: str, records: int) -> None:
    with contextlib.closing(Admin(bootstrap)) as admin:
        admin.create_topic(TOPIC, PARTITIONS)
    output = KafkaWriter(tuple(parse_addresses(bootstrap)), TOPIC).open()
    partitions = pa.array([number % PARTITIONS for number in range(records)], pa.int32())
    output.write(pa.RecordBatch.from_pydict({"value": pa.repeat(pa.scalar(VALUE), records), "partition": partitions}))
    assert output.close() == records


def measured(batch: Callable[[], None], count: int, used: CpuTime) -> tuple[float, float]:
    """Milliseconds of CPU and of time, for each of `count` batches."""
    cpu, began = used.seconds(), time.perf_counter()
    for _ in range(count):
        batch()
    seconds = time.perf_counter() - began
    return 1000 * (used.seconds() - cpu) / count, 1000 * seconds / count


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("records", 200), ("batches", 20), ("rounds", 3), ("warm", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args(words)
    size = max(arguments.records // PARTITIONS, 1)
    with TemporaryDirectory() as folder, BrokerProcess(Path(folder) / "data", "--log-level", "error") as broker:
        fill(broker.bootstrap, size * PARTITIONS)
        spark = session("bench", "local[1]", spark_sql_shuffle_partitions=1, spark_driver_memory="512m")
        spark.sparkContext.setLogLevel("OFF")
        config = ReaderConfig(bootstrap=broker.bootstrap, group="bench", compiled=compiled())
        jobs = SparkJobs(spark, config.group)
        runners = {
            name: SparkRunner(jobs, ReadBatches(jobs, config, None), as_struct(config.schema), small=most)
            for name, most in READERS.items()
        }
        planned = Batch(
            0, Owner("bench", 1, "m"), {TopicPartition(TOPIC, p): Range(0, size) for p in range(PARTITIONS)}
        )

        def one(reader: str, sink: str) -> None:
            outcome = runners[reader].run(planned, tasks(planned.ranges, 1), SINKS[sink])
            assert outcome.rows == size * PARTITIONS

        used = CpuTime(os.getpid(), without=broker.pid)
        cases = [(reader, sink) for sink in SINKS for reader in READERS]
        for number in range(arguments.warm):
            one(*cases[number % len(cases)])
        found: dict[tuple[str, str], list[tuple[float, float]]] = {case: [] for case in cases}
        for _ in range(arguments.rounds):
            for case in cases:
                found[case].append(measured(lambda case=case: one(*case), arguments.batches, used))
        print(f"{'ms of a batch of ' + str(size * PARTITIONS):<28}{'CPU':>8}{'all rounds':>20}{'time':>8}")
        for (reader, sink), figures in found.items():
            cpu, seconds = (statistics.median(column) for column in zip(*figures, strict=True))
            rounds = " ".join(f"{each:.0f}" for each, _ in figures)
            print(f"{f'{sink}, read by {reader}':<28}{cpu:>8.0f}{rounds:>20}{seconds:>8.0f}", flush=True)
        for runner in runners.values():
            runner.close()
        spark.stop()


def run(*, quick: bool) -> None:
    """With the default sizes, or fewer batches."""
    main(["--batches", "10", "--warm", "80"] if quick else [])


if __name__ == "__main__":
    main()
