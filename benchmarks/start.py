"""How long an application takes to start: its imports, Spark's session, the first committed result, a second pipeline.

    python -m benchmarks start
    python -m benchmarks.start [--rounds 5] [--broker roster|apache] [--delay-ms 0 3000]

Each round is a new process with two stateful pipelines, one after the other in the same session: totals of 400 records
on four partitions, written to another topic; and one with two queries that are the same as DataFrame code. "Spark
alone" is a process with PySpark's own session and nothing of Roster. Seconds on the clock and of CPU of the process,
its JVM and its Python workers, since the line before; medians of the rounds, which take turns. A broker lets the first
member of a group wait for others, `group.initial.rebalance.delay.ms`: the figures are for none, and for the usual three
seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

BEGAN = time.monotonic()
PARTITIONS, RECORDS = 4, 400
FIRST_RESULT_S = 60
SESSION = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "8"}


class Marks:
    """Prints how long it is since the last mark, on the clock and in CPU."""

    def __init__(self) -> None:
        self._at, self._cpu = BEGAN, 0.0

    def say(self, what: str) -> None:
        """Say what has come."""
        from benchmarks.applications import cpu_of, tree  # noqa: PLC0415 - not before what is timed

        at, cpu = time.monotonic(), sum(map(cpu_of, tree(os.getpid())))
        print(json.dumps([what, at - self._at, cpu - self._cpu]), flush=True)
        self._at, self._cpu = at, cpu


def alone() -> None:
    """Start Spark as PySpark does."""
    marks = Marks()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the import is what is timed

    marks.say("Spark alone: imports")
    builder = SparkSession.builder.master("local[2]").appName("start")
    for name, value in SESSION.items():
        builder = builder.config(name, value)
    builder.getOrCreate()
    marks.say("Spark alone: session")


def application(bootstrap: str, topic: str, state: str) -> None:
    """Start two pipelines."""
    marks = Marks()
    from roster.spark import KafkaSink, Pipeline, Progress, State, session  # noqa: PLC0415 - the import is what is timed

    marks.say("imports")
    spark = session("start", "local[2]")
    marks.say("session")
    for name in ("first", "second"):

        def committed(_: Progress, name: str = name) -> None:
            marks.say(f"{name} pipeline's first result")
            pipeline.stop()  # noqa: B023 - called before the next one is made

        pipeline = Pipeline(
            spark,
            bootstrap,
            f"{topic}-{name}",
            topic,
            log="warning",
            on_progress=committed,
            state=State(dir=f"{state}/{name}"),
            starting_offsets="earliest",
        )
        totals = pipeline.json_columns("k STRING, v LONG").aggregate("k", {"total": "sum(v)"})
        totals.write(KafkaSink(bootstrap, f"{topic}-totals")).run()
        marks.say(f"{name} pipeline's end")


def queries(bootstrap: str, topic: str, state: str) -> None:
    """Start two queries of DataFrame code."""
    marks = Marks()
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - PySpark's convention; timed

    from roster.spark import read_stream, session, write_stream  # noqa: PLC0415 - the import is what is timed

    marks.say("queries: imports")
    spark = session("start", "local[2]")
    marks.say("queries: session")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    for name in ("first", "second"):
        own = {"roster.state.dir": f"{state}/{name}", "roster.keyed_by": "k", "roster.log": "warning"}
        records = read_stream(spark).options(**options, **own).load()
        parsed = F.from_json(F.col("value").cast("string"), "k STRING, v LONG")
        totals = records.select(parsed.alias("row")).select("row.*").groupBy("k").agg(F.sum("v").alias("total"))
        values = totals.select(F.col("k").alias("key"), F.to_json(F.struct("*")).alias("value"))
        marks.say(f"{name} query's frame")
        # The pipelines have read these records in groups of their own.
        writer = write_stream(values).queryName(f"{topic}-{name}-query").outputMode("update")
        query = writer.format("kafka").option("topic", f"{topic}-totals").start()
        marks.say(f"{name} query's start()")
        deadline = time.monotonic() + FIRST_RESULT_S
        while not query.recentProgress:
            if time.monotonic() > deadline or not query.isActive:
                raise RuntimeError(f"no result of the {name} query: {query.exception()}")
            time.sleep(0.002)
        marks.say(f"{name} query's first result")
        query.stop()
        marks.say(f"{name} query's end")


def main(argv: Sequence[str] | None = None) -> None:
    """Run rounds and print their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--broker", choices=("roster", "apache"), default="roster")
    parser.add_argument("--delay-ms", nargs="+", type=int, default=[0, 3_000])
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        {"pipelines": application, "queries": queries}[args.child[0]](*args.child[1:])
        return
    if args.child is not None:
        alone()
        return
    run(args.rounds, args.broker, args.delay_ms)


def run(rounds: int = 5, name: str = "roster", delays: Sequence[int] = (0, 3_000), *, quick: bool = False) -> None:
    """Measure with each delay of the first rebalance."""
    for delay in delays[:1] if quick else delays:
        measure(1 if quick else rounds, name, delay)


def measure(rounds: int, name: str, delay: int) -> None:
    """Take turns, print medians."""
    seen = defaultdict[str, list[tuple[float, float]]](list)
    with tempfile.TemporaryDirectory() as directory, broker(name, Path(directory), delay) as bootstrap:
        for number in range(rounds):
            topic = prepare(bootstrap)
            children = ([kind, bootstrap, topic, f"{directory}/{number}-{kind}"] for kind in ("pipelines", "queries"))
            for child in ([], *children):
                words = [sys.executable, "-m", "benchmarks.start", "--child", *child]
                ended = subprocess.run(words, capture_output=True, text=True, check=False)
                if ended.returncode:
                    raise RuntimeError(ended.stderr)
                for line in ended.stdout.splitlines():
                    what, seconds, cpu = json.loads(line)
                    seen[what].append((seconds, cpu))
    print(f"first rebalance after {delay} ms, load {os.getloadavg()[0]:.1f}\n{'s':>36} {'CPU s':>8}")
    for what, figures in seen.items():
        seconds, cpu = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"{what:30} {seconds:5.2f} {cpu:8.2f}")


@contextlib.contextmanager
def broker(name: str, folder: Path, delay: int) -> Iterator[str]:
    """Start a broker; yield its address."""
    if name == "apache":
        from tests.real.realparts.apache import ApacheKafka  # noqa: PLC0415 - not in the processes that are timed

        kafka = ApacheKafka(folder, delay)
        try:
            yield kafka.bootstrap
        finally:
            kafka.stop()
    else:
        from roster.testing.broker import BrokerProcess  # noqa: PLC0415 - likewise

        with BrokerProcess(folder / "data", "--initial-rebalance-delay-ms", str(delay)) as process:
            yield process.bootstrap


def prepare(bootstrap: str) -> str:
    """Make the topics of one round, with records; return the name of the first."""
    from confluent_kafka import Producer  # noqa: PLC0415

    from roster.client import Admin  # noqa: PLC0415

    topic = f"start-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS)
        admin.create_topic(f"{topic}-totals", PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, json.dumps({"k": f"k{number % 50}", "v": number}), f"{number % 50}")
    producer.flush()
    return topic


if __name__ == "__main__":
    main()
