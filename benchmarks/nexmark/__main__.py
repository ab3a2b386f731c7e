"""Nexmark's queries as pipelines beside Structured Streaming's: records a second, and a second of CPU.

    python -m benchmarks nexmark
    python -m benchmarks.nexmark [--records 300000] [--cores 2] [--only q0 ...]

One generator's events, of all kinds together, are in three topics of four partitions of `roster broker`. Each query
reads them in ten batches and writes to a topic; Roster's is exactly once, Spark's Kafka sink at least once, with its
RocksDB store. A record is one that the query reads. CPU is that of the driver, the JVM and the Python workers, without
the broker; where the machine is busy, it is the figure that counts. Each runs twice; the second run counts.
`tests/spark/test_nexmark.py` holds the pipelines' results to those of Spark's SQL.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name

from benchmarks.applications import cpu_of, tree
from benchmarks.connector import jars
from benchmarks.nexmark.events import COLUMNS, KEYS, Events, events
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.structured import STREAMING, UPDATING
from benchmarks.peers import MissingError
from benchmarks.pipeline import broker
from benchmarks.processors import ROCKSDB
from roster.client import Admin
from roster.model import parse_addresses
from roster.records.produce import KafkaWriter
from roster.spark import KafkaSink, Pipeline, State, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
BATCHES = 10
READS = {"q3": ("auctions",), "q4": ("bids", "auctions"), "q6": ("bids", "auctions"), "q8": ("auctions", "persons")}
"""Topics that a query reads, if not `bids`."""


@dataclass
class Bench:
    """One broker with the events, and one Spark application."""

    spark: SparkSession
    admin: Admin
    bootstrap: str
    folder: Path
    broker_pid: int | None
    seen: dict[int, float] = field(default_factory=dict)
    """Seconds of CPU of each process but the broker."""

    def fill(self, made: Events) -> None:
        """Make the topics of these events."""
        for topic in KEYS:
            self.admin.create_topic(
                topic, PARTITIONS, configs={"cleanup.policy": "compact"} if topic == "persons" else {}
            )
            output = KafkaWriter(tuple(parse_addresses(self.bootstrap)), topic).open()
            for batch in made.records(topic).combine_chunks().to_batches(max_chunksize=50_000):
                output.write(batch)
            output.close()

    def target(self) -> str:
        """A new topic."""
        name = f"results-{uuid.uuid4().hex[:8]}"
        self.admin.create_topic(name, PARTITIONS)
        return name

    def cpu(self) -> float:
        """Seconds of CPU of this process and what it has started, those included that have ended since a look."""
        for pid in tree(os.getpid()):
            if pid != self.broker_pid:
                self.seen[pid] = max(cpu_of(pid), self.seen.get(pid, 0.0))
        return sum(self.seen.values())

    def timed(self, work: Callable[[], object]) -> tuple[float, float]:
        """Seconds by the clock and of CPU of the second of two runs."""
        work()
        begin, used = time.monotonic(), self.cpu()
        work()
        return time.monotonic() - begin, self.cpu() - used

    def roster(self, name: str, records: int) -> None:
        """A query as a pipeline."""
        group, folder = f"{name}-{uuid.uuid4().hex[:8]}", str(self.folder / "state")

        def source(topic: str) -> Pipeline:
            size = max(records // BATCHES, 1)
            options = {"state": State(dir=folder), "max_offsets_per_batch": size, "log": False}
            return Pipeline(self.spark, self.bootstrap, group, [topic], **options)

        QUERIES[name](source).write(KafkaSink(self.bootstrap, self.target())).run(available_now=True)

    def structured(self, name: str, records: int) -> None:
        """A query of Structured Streaming."""

        def stream(topic: str) -> DataFrame:
            reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
            reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
            rows = reader.option("maxOffsetsPerTrigger", max(records // BATCHES, 1)).load()
            parsed = F.from_json(F.col("value").cast("string"), COLUMNS[topic]).alias("row")
            return rows.select(parsed).select("row.*")

        rows = STREAMING[name](stream).select(F.to_json(F.struct("*")).alias("value"))
        writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        writer = writer.option("topic", self.target()).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.folder / uuid.uuid4().hex))
        writer.outputMode("update" if name in UPDATING else "append").start().awaitTermination()


def compare(bench: Bench, records: int, names: Sequence[str]) -> None:
    """Print a line for each query."""
    made = events(records)
    bench.fill(made)
    print(f"{'':6}{'records':>10}{'':4}{'Roster':^22}{'':4}{'Structured Streaming':^22}  times less CPU")
    print(f"{'':6}{'':>10}{'':4}{'a second':>11}{'a s of CPU':>11}{'':4}{'a second':>11}{'a s of CPU':>11}")
    for name in names:
        read = sum(len(getattr(made, topic)) for topic in READS.get(name, ("bids",)))
        took, used = bench.timed(lambda name=name, read=read: bench.roster(name, read))
        line = f"{name:6}{read:>10,}{'':4}{read / took:>11,.0f}{read / used:>11,.0f}{'':4}"
        if name in STREAMING:
            other, theirs = bench.timed(lambda name=name, read=read: bench.structured(name, read))
            line += f"{read / other:>11,.0f}{read / theirs:>11,.0f}{theirs / used:>16.1f}"
        else:
            line += f"{'not to be said':>22}"
        print(line, flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", action="append", choices=list(QUERIES))
    given = parser.parse_args(words)
    try:
        version, found = jars()
    except MissingError as missing:
        print(f"*** MISSING: Spark's Kafka connector: {missing}")
        return
    with tempfile.TemporaryDirectory() as directory, broker("roster", Path(directory)) as (bootstrap, pid):
        spark = session(
            "nexmark",
            f"local[{given.cores}]",
            spark_sql_shuffle_partitions=given.cores,
            spark_driver_memory="2g",
            **{"spark.jars": ",".join(map(str, found)), "spark.sql.streaming.stateStore.providerClass": ROCKSDB},
        )
        spark.sparkContext.setLogLevel("ERROR")
        print(f"{given.records:,} events; Spark's connector {version}")
        with Admin(bootstrap) as admin:
            compare(Bench(spark, admin, bootstrap, Path(directory), pid), given.records, given.only or list(QUERIES))
        spark.stop()


if __name__ == "__main__":
    main()
