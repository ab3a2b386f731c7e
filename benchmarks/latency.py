"""From `produce` to a reader of committed records: Roster beside Structured Streaming, as fast as each goes.

    python -m benchmarks latency
    python -m benchmarks.latency [--broker roster|apache|HOST:PORT ...] [--rate 200 --rate 2000] [--seconds 20]
                                [--warm 15] [--case copy ...] [--engine roster|default|spark|librdkafka ...]
                                [--master local[2]]

Cases: `copy` of records to another topic; `function`, the same through a `map_arrow` function; `totals`, count and
maximum by key, with state; `processor`, the same by a StatefulProcessor in rows (Structured Streaming:
`transformWithStateInPandas`); `windows`, only if it is named, the totals of windows behind a `repartition`. Each runs
in an application of its own, with `local[2]`, `trigger_interval_ms=0` (not with the engine `default`, which is Roster
too) and default settings otherwise. One producer sends each record at its time, of 10,000 keys in 4 partitions; a
result's latency is that of its newest record. CPU is that of the application's whole process tree, as a part of one
core; behind it is the mean ms of each phase of a batch. Structured Streaming writes at least once, without
transactions. `librdkafka`, for the first two cases, is the least that exactly once takes: a loop of its C client that
reads what is there, writes it and commits, a transaction each time. `realtime`, for `copy` and `totals`, is Structured
Streaming in its real-time mode, which has no Python functions: SQL, with as many slots as it has tasks, and batches of
Spark's own default, so that none ends amid the measured time.

A line takes a minute, and there is one for each broker, rate, case and engine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, Producer

from benchmarks.applications import Application, Stream, say
from benchmarks.peers import MissingError
from benchmarks.pipeline import broker
from roster.client import Admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from roster.spark import Pipeline, Progress

CASES = ("copy", "function", "totals", "processor")
WINDOWS = "windows"
REAL_TIME = "realtime"
ENGINES = ("roster", "default", "spark", "librdkafka", REAL_TIME)
WITHOUT = {
    "spark": {WINDOWS},
    "librdkafka": {"totals", "processor", WINDOWS},
    REAL_TIME: {"function", "processor", WINDOWS},
}
"""Cases that an engine does not have."""
KEYS, PARTITIONS = 10_000, 4
DIGITS = 19  # of nanoseconds since the epoch
PADDING = b"x" * 80
_TICK = 0.001
PATIENCE = 300.0


class TimedStream(Stream):
    """Sends records to a topic, each at its time, until it is closed; a value begins with that time."""

    def _run(self) -> None:
        begin, sent = time.monotonic(), 0
        while not self._ended.is_set():
            for number in range(sent, int((time.monotonic() - begin) * self._rate)):
                value = b"%019d" % time.time_ns() + PADDING
                key = b"key %05d" % (number * 7919 % KEYS)
                self._producer.produce(self._topic, value, key=key, partition=number % PARTITIONS)
                sent = number + 1
            self._producer.poll(0)
            time.sleep(max(_TICK, begin + (sent + 1) / self._rate - time.monotonic()))


def sent_at(value: bytes) -> int:
    """When the newest record of a result was sent, in nanoseconds."""
    return int(json.loads(value)["sent"]) if value.startswith(b"{") else int(value[:DIGITS])


def latencies(
    bootstrap: str, topic: str, stop: threading.Event, application: Application
) -> Iterator[tuple[float, float]]:
    """When each result was read, and its latency in ms; until `stop` is set.

    Raises RuntimeError if the application has ended, or there is no result for long.
    """
    settings = {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    last = time.monotonic()
    with contextlib.closing(consumer):
        while not stop.is_set():
            if application.process.poll() is not None:
                raise RuntimeError("the application has ended")
            if time.monotonic() - last > PATIENCE:
                raise RuntimeError("no results")
            for record in consumer.consume(500, 0.002):
                if record.error() is None:
                    last, now = time.monotonic(), time.time_ns()
                    yield now / 1e9, (now - sent_at(record.value())) / 1e6


def measure(bootstrap: str, engine: str, case: str, given: argparse.Namespace, rate: int) -> str:
    """Run one application; return its line of the table."""
    topic = f"latency-{uuid.uuid4().hex[:8]}"
    with contextlib.closing(Admin(bootstrap)) as admin:
        for name in (topic, f"{topic}-out"):
            admin.create_topic(name, PARTITIONS)
    options = {"engine": engine, "case": case, "master": "local[12]" if engine == REAL_TIME else given.master}
    application = Application(bootstrap, topic, topic, module="benchmarks.latency", **options)
    stop, found, begin, spent = threading.Event(), list[float](), float("inf"), 0.0
    with application, TimedStream(bootstrap, topic, rate, linger_ms=0):
        for at, latency in latencies(bootstrap, f"{topic}-out", stop, application):
            if begin == float("inf"):
                begin = at + given.warm
                threading.Timer(given.warm + given.seconds, stop.set).start()
            elif at > begin:
                spent = spent or application.cpu()
                found.append(latency)
        share = (application.cpu() - spent) / given.seconds
        application.leave()
        with contextlib.suppress(Exception):
            application.process.wait(20)
        parts = application.said[-1] if application.said and "phases" in application.said[-1] else {}
    found.sort()
    half, most = found[len(found) // 2], found[len(found) * 99 // 100]
    line = f"{f'{engine}, {case}, {rate} records/s':<40}{half:>8.1f}{most:>8.1f}"
    told = ", ".join(f"{name} {value:g}" for name, value in parts.get("phases", {}).items())
    return f"{line}{100 * share:>8.1f}{len(found):>9}   {told}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--broker", action="append", help="roster, apache or an address; several; default: the first two"
    )
    parser.add_argument("--rate", action="append", type=int)
    parser.add_argument("--case", action="append", choices=[*CASES, WINDOWS])
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--master", default="local[2]", help="of a cluster with this Python; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm", type=float, default=15.0)
    given = parser.parse_args(words)
    for name in given.broker or ("roster", "apache"):
        with TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            try:
                address, _ = stack.enter_context(broker(name, Path(folder)))
            except MissingError as missing:
                print(f"*** MISSING: {missing}; {name} is left out", flush=True)
                continue
            print(f"{f'ms on {name}':<40}{'p50':>8}{'p99':>8}{'% core':>8}{'results':>9}", flush=True)
            for case in given.case or CASES:
                for rate in given.rate or (200, 2000):
                    for engine in given.engine or ENGINES:
                        if case in WITHOUT.get(engine, ()):
                            continue
                        print(measure(address, engine, case, given, rate), flush=True)


# -- the applications --------------------------------------------------------------------------------------------------


def passed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A function of the user."""
    return pa.RecordBatch.from_arrays(
        [rows["key"], pc.binary_join_element_wise(rows["value"], b"!", b"")], ["key", "value"]
    )


def timed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Columns of a record batch of the source."""
    text = rows["value"].cast(pa.string())
    sent = pc.utf8_slice_codeunits(text, 0, DIGITS).cast(pa.int64())
    return pa.RecordBatch.from_arrays([rows["key"].cast(pa.string()), sent], ["key", "sent"])


def with_time(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same with the record's time, and another name for the key."""
    return pa.RecordBatch.from_arrays([*timed(rows).columns, rows["timestamp"]], ["name", "sent", "at"])


def newest() -> Any:
    """The processor class, which needs Spark."""
    import pandas as pd  # noqa: PLC0415
    from pyspark.sql import Row  # noqa: PLC0415
    from pyspark.sql.streaming import StatefulProcessor  # noqa: PLC0415

    class Newest(StatefulProcessor):
        in_pandas = False

        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("state", "n long, sent long")

        def handleInputRows(self, key: Any, rows: Any, timer_values: Any) -> Iterator[Any]:  # noqa: N802 - Spark's
            n, sent = self.state.get() or (0, 0)
            for each in rows:
                n, sent = (
                    (n + len(each), max(sent, int(each["sent"].max())))
                    if self.in_pandas
                    else (n + 1, max(sent, each["sent"]))
                )
            self.state.update((n, sent))
            yield (
                pd.DataFrame({"key": [key[0]], "n": [n], "sent": [sent]})
                if self.in_pandas
                else Row(key=key[0], n=n, sent=sent)
            )

        def close(self) -> None:
            pass

    return Newest


RESULT = "key string, n long, sent long"


def piped(pipeline: Pipeline, case: str) -> Pipeline:
    """The pipeline of a case."""
    if case == "function":
        return pipeline.map_arrow(passed, "key binary, value binary")
    if case == "totals":
        return pipeline.map_arrow(timed, "key string, sent long").aggregate(
            "key", {"n": "count(*)", "sent": "max(sent)"}, store="totals"
        )
    if case == WINDOWS:
        from roster.spark import Window  # noqa: PLC0415 - the benchmark itself needs no Spark

        pipeline.map_arrow(with_time, "name string, sent long, at timestamp").repartition("name", partitions=PARTITIONS)
        results = {"n": "count(*)", "sent": "max(sent)"}
        return pipeline.aggregate("name", results, window=Window("at", "1 minute"), store="totals")
    if case == "processor":
        return pipeline.map_arrow(timed, "key string, sent long").transform_with_state(
            newest()(), "key", RESULT, store="newest"
        )
    return pipeline


def queried(df: DataFrame, case: str) -> DataFrame:
    """The same for Structured Streaming."""
    if case == "copy":
        return df.select("key", "value")
    if case == "function":
        return df.select("key", "value").mapInArrow(lambda rows: map(passed, rows), "key binary, value binary")
    rows = df.select("key", "value").mapInArrow(lambda rows: map(timed, rows), "key string, sent long").groupBy("key")
    if case == "totals":
        totals = rows.agg({"*": "count", "sent": "max"}).toDF("key", "n", "sent")
    else:
        kind = newest()
        kind.in_pandas = True
        totals = rows.transformWithStateInPandas(kind(), RESULT, "Update", "None")
    return totals.selectExpr("key", "to_json(struct(n, sent)) as value")


def in_sql(df: DataFrame, case: str) -> DataFrame:
    """The same without Python."""
    if case == "copy":
        return df.select("key", "value")
    rows = df.selectExpr(
        "cast(key as string) as key", f"cast(substr(cast(value as string), 1, {DIGITS}) as long) as sent"
    )
    totals = rows.groupBy("key").agg({"*": "count", "sent": "max"}).toDF("key", "n", "sent")
    return totals.selectExpr("key", "to_json(struct(n, sent)) as value")


def stream(spark: SparkSession, bootstrap: str, topic: str, case: str, *, in_real_time: bool) -> None:
    """Run a query until the process is ended."""
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    source = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    with TemporaryDirectory() as folder:
        is_appended = case in CASES[:2] and not in_real_time
        writer = (in_sql if in_real_time else queried)(source, case).writeStream.format("kafka")
        writer = writer.outputMode("append" if is_appended else "update")
        if in_real_time:
            spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
            writer = writer.trigger(realTime="5 minutes")
        writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", f"{topic}-out")
        query = writer.option("checkpointLocation", folder).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()  # before its checkpoint is removed


def passed_on(bootstrap: str, topic: str, case: str) -> None:
    """Run the loop of librdkafka until the process is ended."""
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    quick = {"linger.ms": 0, "retry.backoff.ms": 2}
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, **quick})
    producer.init_transactions()
    consumer.subscribe([topic])
    while True:
        records = [record for record in consumer.consume(500, 0.001) if record.error() is None]
        if not records:
            continue
        producer.begin_transaction()
        for record in records:
            value = record.value() or b""
            producer.produce(f"{topic}-out", value + b"!" if case == "function" else value, record.key())
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        producer.commit_transaction()


def application(words: Sequence[str]) -> None:
    """One application; prints a JSON object a line, the last with the median ms of each phase of a batch."""
    from roster.spark import KafkaSink, Pipeline, State, session  # noqa: PLC0415 - the benchmark itself needs no Spark

    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "group", "topic", "--engine", "--case", "--master", "--state"):
        parser.add_argument(name)
    parser.add_argument("--trigger", type=int, default=0)
    given = parser.parse_args(words)
    if given.engine == "librdkafka":
        say(up=True)
        passed_on(given.bootstrap, given.topic, given.case)
    extra: dict[str, str] = {}
    if given.engine in {"spark", REAL_TIME}:
        from benchmarks.connector import jars  # noqa: PLC0415

        extra["spark_jars"] = ",".join(map(str, jars()[1]))
    spark = session("latency", given.master, spark_sql_shuffle_partitions=2, spark_driver_memory="1g", **extra)
    spark.sparkContext.setLogLevel("ERROR")
    say(up=True)
    if given.engine in {"spark", REAL_TIME}:
        stream(spark, given.bootstrap, given.topic, given.case, in_real_time=given.engine == REAL_TIME)
        return
    phases: dict[str, deque[int]] = {}
    batches = 0

    def note(progress: Progress) -> None:
        nonlocal batches
        batches += 1
        for name, value in {**progress.phases, "all": progress.duration_ms}.items():
            phases.setdefault(name, deque(maxlen=500)).append(value)

    with TemporaryDirectory() as folder:
        pipeline = Pipeline(
            *(spark, given.bootstrap, given.group, given.topic),
            trigger_interval_ms=None if given.engine == "default" else given.trigger,
            state=State(dir=given.state or folder),
            on_progress=note,
            log="warning",
        )
        piped(pipeline, given.case).write(KafkaSink(given.bootstrap, f"{given.topic}-out")).run()
    say(phases={"batches": batches} | {name: statistics.mean(each) for name, each in phases.items()})
    spark.stop()


def run(*, quick: bool) -> None:
    """With the default sizes, or Roster's broker and one rate only."""
    main(["--broker", "roster", "--rate", "200", "--seconds", "10"] if quick else [])


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        application(sys.argv[1:])
    else:
        main()
