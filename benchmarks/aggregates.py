"""Totals by key, from topic to topic: Roster, Spark and Kafka Streams side by side.

    python -m benchmarks aggregates
    python -m benchmarks.aggregates [--records 2000000] [--keys 10000] [--zipf 0] [--rounds 3] [--cores 2]
                                    [--only roster|frame|spark|stage|streams|repartitioned ...]

Each counts the records of a key and adds up their values, a decimal text of 6 bytes, from one topic of four partitions
of an Apache Kafka to another topic, exactly once as far as it can: Roster's columnar aggregate; Spark's `groupBy().agg`
with its RocksDB store (its Kafka sink writes at least once); Kafka Streams with RocksDB, exactly_once_v2 and as many
threads as cores.

`frame` is Spark's program in a consumer group, by `read_stream` and `write_stream`: Roster computes all of it. Of
`stage`, only if it is named, Spark does what stands in front of the state, because of a function that only Spark has.
Both also say how long `start()` took.

`repartitioned`, only if it is named, is Roster with windows of an hour behind a `repartition`; it also says how many
records and bytes are in the repartition topic.

With `--zipf S` the key of rank n comes as often as n to the power of -S; without it all keys come equally often.

A figure is records a second, the median of the rounds, in turn. Roster and Spark work in batches of a twentieth of the
records, of which the first two do not count, nor do Roster's smaller ones while its workers start; of the others
the first fifth of the records that the group has committed does not. All of them, and the broker in a process of its
own, share the machine's processors.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assigned
from pyspark.sql import functions as sf

from benchmarks.connector import jars
from benchmarks.peers import MissingError, java
from benchmarks.pipeline import broker
from roster.client import Admin
from roster.model import TopicPartition, parse_addresses
from roster.records.produce import KafkaWriter
from roster.spark import KafkaSink, Pipeline, Progress, State, Window, read_stream, session, write_stream
from roster.stateful.repartition import Purge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
BATCHES, WARM, FEWEST = 20, 2, 5
WRITTEN = 50_000
LIMIT_S = 600.0
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def priced(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Columns of a record batch of the source."""
    price = rows["value"].cast(pa.string()).cast(pa.float64())
    return pa.RecordBatch.from_arrays([rows["key"].cast(pa.string()), price], ["key", "price"])


def timed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same with the record's time, and another name for the key."""
    return pa.RecordBatch.from_arrays([*priced(rows).columns, rows["timestamp"]], ["name", "price", "at"])


PRICED = ("CAST(key AS string) AS key", "CAST(CAST(value AS string) AS double) AS value")
RESULT = ("to_json(struct(n, total)) AS value",)
"""Columns of the rows, and beside the key of the results."""


def keyed_totals(rows: DataFrame) -> DataFrame:
    """The totals of each key."""
    return rows.groupBy("key").agg(sf.count("*").alias("n"), sf.sum("value").alias("total"))


@dataclass
class Bench:
    """One broker, one Spark application, and topics on them."""

    spark: SparkSession
    admin: Admin
    bootstrap: str
    folder: Path
    cores: int
    zipf: float

    def fill(self, records: int, keys: int) -> str:
        """A topic of records, each in the partition that the hash of its key names."""
        topic = self.topic()
        chance = np.random.default_rng(1)
        shares = np.cumsum(np.arange(1, keys + 1) ** -self.zipf)
        shares /= shares[-1]
        names = pa.array([f"key {number:06}" for number in range(keys)]).cast(pa.binary())
        output = KafkaWriter(tuple(parse_addresses(self.bootstrap)), topic).open()
        for begin in range(0, records, WRITTEN):
            count = min(WRITTEN, records - begin)
            prices = pa.array(chance.integers(100_000, 1_000_000, count)).cast(pa.string())
            prices = pc.binary_join_element_wise(
                pc.utf8_slice_codeunits(prices, 0, 4), pc.utf8_slice_codeunits(prices, 4), "."
            )
            ranks = np.searchsorted(shares, chance.random(count))
            columns = {"key": names.take(pa.array(ranks)), "value": prices.cast(pa.binary())}
            output.write(pa.RecordBatch.from_pydict(columns))
        assert output.close() == records
        return topic

    def topic(self) -> str:
        """A new topic."""
        name = f"totals-{uuid.uuid4().hex[:8]}"
        self.admin.create_topic(name, PARTITIONS)
        return name

    @contextlib.contextmanager
    def directory(self) -> Iterator[Path]:
        """A directory for one run."""
        path = self.folder / uuid.uuid4().hex
        path.mkdir()
        yield path
        shutil.rmtree(path, ignore_errors=True)

    # -- what works in batches: records a second of those behind the first ------------------------------------------

    def roster(self, topic: str, records: int) -> float:
        """Roster's columnar aggregate."""
        reports: list[Progress] = []
        with self.directory() as path:
            Pipeline(
                self.spark,
                self.bootstrap,
                f"totals-{uuid.uuid4().hex[:8]}",
                [topic],
                state=State(dir=str(path)),
                max_offsets_per_batch=records // BATCHES,
                on_progress=reports.append,
                log=False,
            ).map_arrow(priced, "key string, price double").aggregate(
                "key", {"n": "count(*)", "total": "sum(price)"}, store="totals"
            ).write(KafkaSink(self.bootstrap, self.topic())).run(available_now=True)
        return rate([(report.rows, report.duration_ms) for report in reports], records)

    def repartitioned(self, topic: str, records: int) -> float:
        """Roster's windows behind a repartition topic, of which nothing is deleted meanwhile."""
        reports: list[Progress] = []
        group = f"totals-{uuid.uuid4().hex[:8]}"
        with self.directory() as path, mock.patch.object(Purge, "committed"):
            options: dict[str, Any] = {"max_offsets_per_batch": records // BATCHES, "log": False}
            made = Pipeline(
                *(self.spark, self.bootstrap, group, [topic]),
                state=State(dir=str(path)),
                on_progress=reports.append,
                **options,
            )
            made.map_arrow(timed, "name string, price double, at timestamp").repartition("name", partitions=PARTITIONS)
            results = {"n": "count(*)", "total": "sum(price)"}
            made.aggregate("name", results, window=Window("at", "1 hour"), store="totals")
            made.write(KafkaSink(self.bootstrap, self.topic())).run(available_now=True)
        between = [
            TopicPartition(name, number)
            for name, count in self.admin.list_topics(internal=True).items()
            if name.startswith(group) and name.endswith("-repartition")
            for number in range(count)
        ]
        count, size = read_all(self.bootstrap, between)
        print(f"  repartition topic: {count / records:.4f} records and {size / records:.2f} bytes for each record")
        # A batch has rows of both topics, so none is whole: what comes behind the first fifth counts.
        done, counted = 0, list[tuple[int, int]]()
        for rows, took in in_batches(reports):
            counted += [(rows, took)] if done >= records // 5 else []
            done += rows
        return 1000 * sum(rows for rows, _ in counted) / sum(took for _, took in counted)

    def framed(self, topic: str, records: int, step: str = "") -> float:
        """Spark's program in a consumer group. step: a further condition in front of the state."""
        with self.directory() as path:
            reader = read_stream(self.spark).option("kafka.bootstrap.servers", self.bootstrap)
            reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
            reader = reader.option("maxOffsetsPerTrigger", records // BATCHES).option("roster.keyed_by", "key")
            source = reader.option("roster.state.dir", str(path)).option("roster.log", "off").load()
            rows = source.selectExpr(*PRICED)
            rows = keyed_totals(rows.where(step) if step else rows).selectExpr("key", *RESULT)
            writer = write_stream(rows).queryName(f"totals-{uuid.uuid4().hex[:8]}").format("kafka")
            began = time.perf_counter()
            query = writer.option("topic", self.topic()).outputMode("update").trigger(availableNow=True).start()
            print(f"  start() took {time.perf_counter() - began:.2f} s", flush=True)
            query.awaitTermination()
            done = [(p.numInputRows, p.durationMs["triggerExecution"]) for p in query.recentProgress]
        return rate([each for each in done if each[0]], records)

    def staged(self, topic: str, records: int) -> float:
        """The same with a function that only Spark has."""
        return self.framed(topic, records, "soundex(key) <> ''")

    def streaming(self, topic: str, records: int, totals: Callable[[DataFrame], DataFrame]) -> float:
        """A query of Structured Streaming."""
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        source = reader.option("maxOffsetsPerTrigger", records // BATCHES).load()
        rows = totals(source.selectExpr(*PRICED))
        with self.directory() as path:
            writer = rows.selectExpr("key", *RESULT).writeStream.format("kafka")
            writer = writer.option("kafka.bootstrap.servers", self.bootstrap).option("topic", self.topic())
            writer = writer.outputMode("update").option("checkpointLocation", str(path)).trigger(availableNow=True)
            query = writer.start()
            query.awaitTermination()
            done = [(p["numInputRows"], p["durationMs"]["triggerExecution"]) for p in query.recentProgress]
        return rate([each for each in done if each[0]], records)

    def grouped(self, topic: str, records: int) -> float:
        """Spark's own aggregate."""
        return self.streaming(topic, records, keyed_totals)

    # -- what works record by record: records a second of those behind the first fifth -------------------------------

    def streams(self, topic: str, records: int) -> float:
        """Kafka Streams."""
        return self.process(topic, records, java("TotalsPeer"), [str(self.cores)], {})

    def process(
        self, topic: str, records: int, command: list[str], more: list[str], variables: dict[str, str]
    ) -> float:
        """Run a program until its group has committed everything."""
        group = f"totals-{uuid.uuid4().hex[:8]}"
        with self.directory() as path:
            program = subprocess.Popen(
                [*command, self.bootstrap, group, topic, self.topic(), str(path), *more],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | variables,
            )
            try:
                return self.committed_rate(program, group, topic, records)
            finally:
                program.kill()
                program.wait()

    def committed_rate(self, program: subprocess.Popen[bytes], group: str, topic: str, records: int) -> float:
        """Records a second behind the first fifth, as the group commits them."""
        ends = self.admin.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])
        begin, first, deadline = 0.0, 0, time.perf_counter() + LIMIT_S
        while True:
            now, offsets = time.perf_counter(), self.admin.group_offsets(group)
            done = sum(min(offsets[at].offset, end) for at, end in ends.items() if at in offsets)
            if begin == 0.0 and done >= records // 5:
                begin, first = now, done
            if all(at in offsets and offsets[at].offset >= end for at, end in ends.items()):
                return (records - first) / (now - begin) if now > begin else float("nan")
            if program.poll() is not None or now > deadline:
                raise MissingError(f"it did not end: {done} of {records} records")
            time.sleep(0.02)


def in_batches(reports: Sequence[Progress]) -> list[tuple[int, int]]:
    """Rows of the source and milliseconds of each batch that has some; those of the others are added to the one before.

    Each row is read twice, from the source and from the repartition topic.
    """
    found: list[tuple[int, int]] = []
    for report in reports:
        rows = sum(span.size for at, span in report.ranges.items() if not at.topic.endswith("-repartition"))
        if rows or not found:
            found.append((rows, report.duration_ms))
        else:
            found[-1] = (found[-1][0], found[-1][1] + report.duration_ms)
    return found


def read_all(bootstrap: str, partitions: Sequence[TopicPartition]) -> tuple[int, int]:
    """The number of committed records in partitions, and the bytes of their keys and values."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True}
    consumer = Consumer(settings | {"isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.assign([Assigned(at.topic, at.partition, 0) for at in partitions])
    count = size = ended = 0
    with contextlib.closing(consumer):
        while ended < len(partitions):
            for message in consumer.consume(10_000, 1.0):
                if message.error() is not None:
                    ended += 1
                else:
                    count, size = count + 1, size + len(message.key() or b"") + len(message.value() or b"")
    return count, size


def rate(batches: Sequence[tuple[int, int]], records: int) -> float:
    """Records a second of batches of so many records and milliseconds, without small ones and the first."""
    assert sum(count for count, _ in batches) == records
    counted = [each for each in batches if each[0] >= 0.9 * records // BATCHES][WARM:]
    if len(counted) < FEWEST:
        raise SystemExit(f"only {len(counted)} batches are whole: give more --records")
    return 1000 * sum(count for count, _ in counted) / sum(took for _, took in counted)


SIDES: dict[str, tuple[str, Callable[[Bench, str, int], float], int, int]] = {
    "roster": ("Roster aggregate", Bench.roster, 1, 1),
    "frame": ("Roster, Spark's program", Bench.framed, 1, 1),
    "spark": ("Spark groupBy().agg", Bench.grouped, 1, 1),
    "streams": ("Kafka Streams", Bench.streams, 1, 1),
    "stage": ("Roster, Spark in front", Bench.staged, 1, 1),
    "repartitioned": ("Roster behind repartition", Bench.repartitioned, 1, 1),
}
"""Name, run, and by how much its records and keys are fewer."""


def compare(bench: Bench, records: int, keys: int, rounds: int, only: Sequence[str]) -> None:
    """Print the table."""
    topics = {
        size: bench.fill(records // size[0], max(1, keys // size[1])) for size in {SIDES[name][2:] for name in only}
    }
    found: dict[str, list[float]] = {name: [] for name in only}
    for _ in range(rounds):
        for name in list(found):
            title, run, *size = SIDES[name]
            try:
                found[name].append(run(bench, topics[size[0], size[1]], records // size[0]))
                print(f"  {title}: {found[name][-1]:,.0f}", flush=True)
            except MissingError as missing:
                print(f"*** MISSING: {title}: {missing}")
                del found[name]
    print(f"{'records/s':24}{'median':>12}{'least':>12}{'most':>12}{'Roster over it':>17}")
    ours = statistics.median(found["roster"]) if "roster" in found else float("nan")
    for name, rates in found.items():
        middle = statistics.median(rates)
        print(f"{SIDES[name][0]:24}{middle:12,.0f}{min(rates):12,.0f}{max(rates):12,.0f}{ours / middle:17.2f}")


def main(words: Sequence[str] | None = None) -> None:
    """Start everything, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--zipf", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", action="append", choices=SIDES, help="a side; several; default: all")
    given = parser.parse_args(words)
    with contextlib.ExitStack() as stack:
        version, connector = jars()
        print(
            f"peers: Spark's Kafka connector {version}; {given.records} records, {given.keys} keys, {given.cores} cores"
        )
        spark = session("aggregates", f"local[{given.cores}]", spark_jars=",".join(map(str, connector)))
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("OFF")
        spark.conf.set("spark.sql.shuffle.partitions", str(given.cores))
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address, _ = stack.enter_context(broker("apache", folder))
        admin = stack.enter_context(Admin(address))
        bench = Bench(spark, admin, address, folder, given.cores, given.zipf)
        compare(bench, given.records, given.keys, given.rounds, given.only or list(SIDES)[:4])


def run(*, quick: bool) -> None:
    """With the default sizes, or a tenth of them."""
    main(["--records", "100000", "--keys", "1000", "--rounds", "1"] if quick else [])


if __name__ == "__main__":
    main()
