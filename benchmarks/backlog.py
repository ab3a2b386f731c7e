"""Final windows of a backlog by another column than the key: how many are right in Roster, Spark and Kafka Streams.

    python -m benchmarks backlog
    python -m benchmarks.backlog [--broker apache|roster|HOST:PORT] [--only roster|spark|streams ...]
                                 [--program NAME ...]

Rows of a day are in order in each partition, and wait; windows of half an hour, by region, have a grace of 5 minutes.
Once a side has read all of them, later rows come that close all windows, and what it has written is compared with a
plain computation. Batches are those of each side's defaults, or have at most 700 offsets; Kafka Streams has none.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from benchmarks.aggregates import ROCKSDB
from benchmarks.connector import jars
from benchmarks.peers import MissingError, java
from benchmarks.pipeline import broker
from roster.model import TopicPartition
from roster.spark import KafkaSink, Pipeline, State, Window, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

CORES, LIMIT_S, QUIET_S = 2, 300.0, 3.0
Drain = Callable[[], None]
"""Reads what is in the topic."""


def roster(spark: SparkSession, topics: Topics, topic: str, out: str, folder: str, most: int | None) -> Iterator[Drain]:
    """A pipeline behind `repartition`."""
    options: dict[str, Any] = {} if most is None else {"max_offsets_per_batch": most}
    group = f"backlog-{uuid.uuid4().hex[:8]}"

    def drain() -> None:
        made = Pipeline(spark, topics.bootstrap, group, [topic], state=State(dir=folder), log=False, **options)
        made.json_columns("region string, at timestamp").repartition("region")
        window = Window("at", "30 minutes", grace="5 minutes")
        made.aggregate("region", {"n": "count(*)"}, window=window, results="final")
        made.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)

    yield drain


def structured(
    spark: SparkSession, topics: Topics, topic: str, out: str, folder: str, most: int | None
) -> Iterator[Drain]:
    """A query with a watermark, in append mode."""

    def drain() -> None:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", topics.bootstrap)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        if most is not None:
            reader = reader.option("maxOffsetsPerTrigger", most)
        value = sf.from_json(sf.col("value").cast("string"), "region string, at timestamp")
        rows = reader.load().select(value.alias("row")).select("row.*").withWatermark("at", "5 minutes")
        counts = rows.groupBy(sf.window("at", "30 minutes"), "region").count()
        start = sf.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'")
        result = sf.to_json(sf.struct("region", start.alias("window_start"), sf.col("count").alias("n")))
        writer = counts.select(result.alias("value")).writeStream.format("kafka").outputMode("append")
        writer = writer.option("kafka.bootstrap.servers", topics.bootstrap).option("topic", out)
        writer.option("checkpointLocation", folder).trigger(availableNow=True).start().awaitTermination()

    yield drain


def streams(_: object, topics: Topics, topic: str, out: str, folder: str, __: int | None) -> Iterator[Drain]:
    """Kafka Streams, which has no batches."""
    group = f"backlog-{uuid.uuid4().hex[:8]}"
    command = [*java("WindowsPeer"), topics.bootstrap, group, topic, out, folder, str(CORES)]
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def drain() -> None:
        deadline, quiet = time.monotonic() + LIMIT_S, 0.0
        while quiet < QUIET_S:
            if program.poll() is not None or time.monotonic() > deadline:
                raise MissingError("it did not end")
            time.sleep(0.2)
            quiet = quiet + 0.2 if has_read(topics, group, topic) else 0.0

    try:
        yield drain
    finally:
        program.kill()
        program.wait()


def has_read(topics: Topics, group: str, topic: str) -> bool:
    """Whether a group has read a topic with records, and all repartition topics of its own."""
    counts = topics.admin.list_topics(internal=True)
    own = [name for name in counts if name == topic or (name.startswith(group) and name.endswith("-repartition"))]
    ends = topics.admin.end_offsets([TopicPartition(name, at) for name in own for at in range(counts[name])])
    done = topics.admin.group_offsets(group)
    # Behind the last record of a transaction is its marker.
    return len(own) > 1 and all(at in done and done[at].offset >= end - 1 for at, end in ends.items() if end)


SIDES = {"roster": ("Roster", roster), "spark": ("Spark", structured), "streams": ("Kafka Streams", streams)}


def main(words: Sequence[str] | None = None) -> None:
    """Start everything, and print the table."""
    from tests.spark.backlog_rows import END, counted, found, hours_ahead, send, whole_day  # noqa: PLC0415
    from tests.spark.spark_topics import Topics  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="apache")
    parser.add_argument("--only", action="append", choices=SIDES, help="a side; several; default: all")
    programs = {
        "whole day": (whole_day, None),
        "batches of 700 offsets": (whole_day, 700),
        "one partition six hours ahead": (hours_ahead, None),
        "the same in batches of 700": (hours_ahead, 700),
    }
    parser.add_argument("--program", action="append", choices=programs, help="several; default: all")
    given = parser.parse_args(words)
    with contextlib.ExitStack() as stack:
        version, connector = jars()
        print(f"peers: Spark's Kafka connector {version}")
        spark = session("backlog", f"local[{CORES}]", spark_jars=",".join(map(str, connector)))
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("OFF")
        for name, value in {
            "spark.sql.shuffle.partitions": str(CORES),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        }.items():
            spark.conf.set(name, value)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address, _ = stack.enter_context(broker(given.broker, folder))
        topics = stack.enter_context(Topics(address))
        print(f"{'':32}{'':16}{'windows right':>16}{'of':>6}{'rows missing':>16}{'of':>8}")
        for program in given.program or programs:
            made, most = programs[program]
            for name in given.only or SIDES:
                if name == "streams" and program == "the same in batches of 700":
                    continue
                partitions = made(random.Random(5))
                topic, out = topics.create(len(partitions), name="day"), topics.create(1, name="out")
                send(topics, topic, partitions)
                title, run = SIDES[name]
                try:
                    place = str(folder / uuid.uuid4().hex)
                    with contextlib.contextmanager(run)(spark, topics, topic, out, place, most) as drain:
                        drain()
                        send(topics, topic, [END] * len(partitions))
                        drain()
                except MissingError as missing:
                    print(f"*** MISSING: {title}: {missing}")
                    continue
                wanted, results = counted(partitions), found(topics, out)
                right = sum(wanted[of] == n for of, n in results)
                rows = wanted.total() - sum(n for _, n in results)
                figures = f"{right:16,}{len(wanted):6,}{rows:16,}{wanted.total():8,}"
                print(f"{program:32}{title:16}{figures}", flush=True)


def run(*, quick: bool) -> None:
    """Each program with each side; quick is the same."""
    del quick
    main([])


if __name__ == "__main__":
    main()
