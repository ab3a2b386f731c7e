"""Spark reading a topic: Roster, Spark's Kafka connector and Structured Streaming side by side.

    python -m benchmarks pipeline
    python -m benchmarks.pipeline [--records 2000000] [--cores 2] [--rounds 3] [--broker roster|apache|HOST:PORT ...]
                                  [--only noop|sql|arrow|parquet|small ...]

All three run in one Spark application on one topic, in turn. `noop` writes every row, all columns, to Spark's noop
sink; `sql` groups by partition; `arrow` gives the rows to a Python function on Arrow record batches (`map_arrow` of
Roster, `mapInArrow` of the others); `parquet` writes them, exactly once with Roster and Structured Streaming. A figure
is a median: wall-clock seconds of one batch of the whole topic (Roster: from planning to the commit in the group; the
connector: from `load()` to the end of the action; Structured Streaming: the batch's `triggerExecution`), and CPU
seconds of driver, JVM and Python workers over the whole run, with joining a group or starting a query in it. `small`
are batches of 1000 records: milliseconds of one; Structured Streaming does the same in `foreachBatch`, or writes to its
noop sink.

Without options: 2,000,000 records, three rounds, on both brokers; `--rounds 2` takes two thirds of it, `--only` a part.
The brokers are Roster's and Apache Kafka, each in a process of its own on this machine, so they compete with Spark for
the processors; `broker` is their CPU seconds. Where others use the machine, CPU seconds say more than seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql import functions as sf

from benchmarks.connector import jars
from benchmarks.peers import SERVER_JVM, MissingError
from roster.client import Admin
from roster.model import parse_addresses
from roster.records.produce import KafkaWriter
from roster.spark import ParquetSink, Pipeline, Progress, session
from roster.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
VALUE = b"x" * 100
SMALL = 1_000
WRITTEN = 50_000
WARM = 10
"""Small batches at the start that do not count."""
TICKS = os.sysconf("SC_CLK_TCK")


def fill(bootstrap: str, records: int) -> str:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    with contextlib.closing(Admin(bootstrap)) as admin:
        admin.create_topic(topic, PARTITIONS)
    output = KafkaWriter(tuple(parse_addresses(bootstrap)), topic).open()
    for start in range(0, records, WRITTEN):
        numbers = range(start, min(start + WRITTEN, records))
        columns = {
            "key": pa.array([b"%010d" % number for number in numbers]),
            "value": pa.repeat(pa.scalar(VALUE), len(numbers)),
            "partition": pa.array([number % PARTITIONS for number in numbers], pa.int32()),
        }
        output.write(pa.RecordBatch.from_pydict(columns))
    assert output.close() == records
    return topic


class Ran(NamedTuple):
    """One batch: wall-clock seconds of it, CPU seconds of the application and of the broker meanwhile."""

    seconds: float
    cpu: float
    broker_cpu: float


@dataclass
class Bench:
    """One Spark application on one broker."""

    spark: SparkSession
    bootstrap: str
    broker: int | None
    """Process id of the broker, where it is ours."""
    folder: Path
    has_connector: bool
    made: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cpu = CpuTime(os.getpid(), without=self.broker)
        self._broker_cpu = None if self.broker is None else CpuTime(self.broker)

    def timed(self, batch: Callable[[], float]) -> Ran:
        """Run `batch`, which returns its seconds."""
        ours, theirs = self._cpu.seconds(), self.broker_cpu()
        seconds = batch()
        ran = Ran(seconds, self._cpu.seconds() - ours, self.broker_cpu() - theirs)
        for path in self.made:
            shutil.rmtree(path, ignore_errors=True)
        self.made.clear()
        return ran

    def broker_cpu(self) -> float:
        """CPU seconds of the broker so far."""
        return 0.0 if self._broker_cpu is None else self._broker_cpu.seconds()

    def place(self) -> str:
        """A directory for one run."""
        self.made.append(self.folder / uuid.uuid4().hex)
        return str(self.made[-1])

    def roster(self, topic: str, build: Callable[[Pipeline], Pipeline], most: int) -> list[Progress]:
        """Run a pipeline over the topic, `most` offsets a batch."""
        reports: list[Progress] = []
        group = f"bench-{uuid.uuid4().hex[:8]}"
        pipeline = Pipeline(
            self.spark, self.bootstrap, group, topic, max_offsets_per_batch=most, on_progress=reports.append, log=False
        )
        build(pipeline).run(available_now=True)
        return reports

    def connector(self, topic: str, action: Callable[[DataFrame], object]) -> float:
        """Seconds of an action on the whole topic."""
        began = time.perf_counter()
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        action(reader.option("subscribe", topic).option("endingOffsets", "latest").load())
        return time.perf_counter() - began

    def streaming(self, topic: str, action: Callable[[DataFrame], object] | None, most: int) -> list[float]:
        """Seconds of each batch; without an action the query writes to the noop sink itself."""
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        frame = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        writer = frame.option("maxOffsetsPerTrigger", most).load().writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", self.place())
        writer = writer.format("noop") if action is None else writer.foreachBatch(lambda df, _: action(df) and None)
        query = writer.start()
        query.awaitTermination()
        return [p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress if p["numInputRows"] > 0]


@dataclass(frozen=True)
class Shape:
    """A workload, as an action on a DataFrame and as a pipeline."""

    name: str
    action: Callable[[Bench, DataFrame], object]
    build: Callable[[Bench, Pipeline], Pipeline] | None = None

    def built(self, bench: Bench, pipeline: Pipeline) -> Pipeline:
        """Finish a pipeline."""
        if self.build is not None:
            return self.build(bench, pipeline)
        return pipeline.foreach_batch(lambda df, batch: self.action(bench, df))


def to_nowhere(bench: Bench, df: DataFrame) -> object:
    return df.write.format("noop").mode("overwrite").save()


def aggregate(bench: Bench, df: DataFrame) -> object:
    totals = df.groupBy("partition").agg(sf.count("*"), sf.max("offset"), sf.sum(sf.length("value")))
    assert len(totals.collect()) == PARTITIONS
    return None


def sizes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The Arrow function: rows and their bytes."""
    size = pc.sum(pc.binary_length(rows.column("value"))).as_py()
    return pa.RecordBatch.from_pydict({"rows": [rows.num_rows], "bytes": pa.array([size], pa.int64())})


SIZES = "rows long, bytes long"


def each_sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            yield sizes(batch)


def total(df: DataFrame) -> None:
    df.groupBy().sum("rows", "bytes").collect()


def arrow(bench: Bench, df: DataFrame) -> object:
    return total(df.mapInArrow(each_sizes, SIZES))


def arrow_pipeline(bench: Bench, pipeline: Pipeline) -> Pipeline:
    return pipeline.map_arrow(sizes, SIZES).foreach_batch(lambda df, batch: total(df))


def to_parquet(bench: Bench, df: DataFrame) -> object:
    return df.write.parquet(bench.place())


def parquet_pipeline(bench: Bench, pipeline: Pipeline) -> Pipeline:
    return pipeline.write(ParquetSink(bench.place()))


SHAPES = (
    Shape("noop", to_nowhere),
    Shape("sql", aggregate),
    Shape("arrow", arrow, arrow_pipeline),
    Shape("parquet", to_parquet, parquet_pipeline),
)


class CpuTime:
    """CPU seconds of a process and its descendants.

    Those that end keep what they had when last looked at: Spark ends idle Python workers without waiting for them.
    """

    def __init__(self, root: int, without: int | None = None) -> None:
        """`without` this descendant and its own."""
        self._root, self._without = root, without
        self._ticks: dict[tuple[int, str], int] = {}

    def seconds(self) -> float:
        """Seconds so far."""
        children: dict[int, list[int]] = {}
        used: dict[int, tuple[str, int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                fields = path.read_text().rpartition(")")[2].split()
                pid = int(path.parent.name)
                children.setdefault(int(fields[1]), []).append(pid)
                used[pid] = fields[19], int(fields[11]) + int(fields[12])
        todo = [self._root]
        while todo:
            pid = todo.pop()
            if pid != self._without and pid in used:
                started, ticks = used[pid]
                self._ticks[pid, started] = ticks
                todo += children.get(pid, [])
        return sum(self._ticks.values()) / TICKS


def whole_topic(bench: Bench, topic: str, records: int, rounds: int, only: Collection[str]) -> None:
    """A batch of all records, for each shape and system in turn."""
    print(f"{'':<22}{'s':>7}{'CPU s':>8}{'broker':>8}{'M rows/s':>10}{'Roster times faster':>22}{'in CPU s':>10}")
    for shape in [shape for shape in SHAPES if shape.name in only]:
        runs = runs_of(bench, shape, topic, records)
        for run in runs.values():
            bench.timed(run)
        found: dict[str, list[Ran]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                found[name].append(bench.timed(run))
        ours = median_of(found["roster"])
        for name, ran in ((name, median_of(each)) for name, each in found.items()):
            line = f"{shape.name:<10}{name:<12}{ran.seconds:>7.2f}{ran.cpu:>8.2f}{ran.broker_cpu:>8.2f}"
            line += f"{records / ran.seconds / 1e6:>10.2f}"
            if name != "roster":
                line += f"{ran.seconds / ours.seconds:>22.2f}{ran.cpu / ours.cpu:>10.2f}"
            print(line, flush=True)


def runs_of(bench: Bench, shape: Shape, topic: str, records: int) -> dict[str, Callable[[], float]]:
    """What to time, by system."""

    def action(df: DataFrame) -> object:
        return shape.action(bench, df)

    def roster() -> float:
        return bench.roster(topic, lambda pipeline: shape.built(bench, pipeline), records)[0].duration_ms / 1000

    runs: dict[str, Callable[[], float]] = {"roster": roster}
    if bench.has_connector:
        runs["connector"] = lambda: bench.connector(topic, action)
        runs["streaming"] = lambda: bench.streaming(topic, action, records)[0]
    return runs


def median_of(found: Sequence[Ran]) -> Ran:
    return Ran(*(statistics.median(column) for column in zip(*found, strict=True)))


def small_batches(bench: Bench, records: int) -> None:
    """Batches of a thousand records: milliseconds, and Roster's as a multiple of Structured Streaming's."""
    topic = fill(bench.bootstrap, records)
    print(
        f"\n{'small: ms':<12}{'Roster':>8}{'p90':>6}{'streaming':>11}{'p90':>6}{'ratio':>7}   Roster's phases",
        flush=True,
    )
    for shape in SHAPES:
        reports = bench.roster(topic, lambda p, shape=shape: shape.built(bench, p), SMALL)[WARM:]
        theirs: list[float] = []
        if bench.has_connector:
            # A query writes to Spark's noop sink itself; what the other shapes do with a batch is theirs to say.
            action = None if shape.name == "noop" else partial(shape.action, bench)
            theirs = bench.streaming(topic, action, SMALL)[WARM:]
        print_small(shape.name, reports, sorted(seconds * 1000 for seconds in theirs))


def print_small(name: str, reports: Sequence[Progress], theirs: Sequence[float]) -> None:
    """Print a line; `theirs` are Structured Streaming's milliseconds, ascending."""
    times = sorted(report.duration_ms for report in reports)
    line = f"{name:<12}{statistics.median(times):>8.0f}{times[len(times) * 9 // 10]:>6}"
    if theirs:
        middle = statistics.median(theirs)
        line += f"{middle:>11.0f}{theirs[len(theirs) * 9 // 10]:>6.0f}{statistics.median(times) / middle:>7.2f}"
    else:
        line += f"{'':>24}"
    phases = {n: round(statistics.median(r.phases[n] for r in reports)) for n in reports[0].phases}
    print(f"{line}   {', '.join(f'{phase} {ms}' for phase, ms in phases.items())}", flush=True)


@contextlib.contextmanager
def broker(name: str, folder: Path) -> Iterator[tuple[str, int | None]]:
    """The address of a broker and, where it is ours, its process id."""
    if name == "roster":
        with BrokerProcess(folder / "data", "--log-level", "error") as process:
            yield process.bootstrap, process.pid
    elif name == "apache":
        if missing := [program for program in ("java", "javac", "mvn") if shutil.which(program) is None]:
            raise MissingError(f"{', '.join(missing)} not on the PATH")
        from tests.real.realparts.apache import ApacheKafka  # noqa: PLC0415 - brings pytest with it

        kafka = ApacheKafka(folder, options=SERVER_JVM)
        try:
            yield kafka.bootstrap, kafka.process.pid
        finally:
            kafka.stop()
    else:
        yield name, None


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--broker", action="append", help="roster, apache or an address; several; default: the first two"
    )
    parts = [*(shape.name for shape in SHAPES), "small"]
    parser.add_argument("--only", action="append", choices=parts, help="a part of it; several; default: all")
    arguments = parser.parse_args(words)
    try:
        version, connector = jars()
        print(f"peers: Spark's Kafka connector {version} in Spark {pyspark.__version__}")
    except MissingError as missing:
        connector = []
        print(f"*** MISSING: Spark's Kafka connector: {missing}")
    with contextlib.ExitStack() as stack:
        extra = {"spark.jars": ",".join(map(str, connector))} if connector else {}
        spark = session("bench", f"local[{arguments.cores}]", **extra)
        spark.sparkContext.setLogLevel("OFF")
        stack.callback(spark.stop)
        for name in arguments.broker or ("roster", "apache"):
            with contextlib.ExitStack() as inner:
                folder = Path(inner.enter_context(tempfile.TemporaryDirectory()))
                try:
                    address, pid = inner.enter_context(broker(name, folder))
                except MissingError as missing:
                    print(f"*** MISSING: {name}: {missing}")
                    continue
                bench = Bench(spark, address, pid, folder, has_connector=bool(connector))
                records = arguments.records
                print(
                    f"\non {name}: {records} records of 110 bytes, {PARTITIONS} partitions, {arguments.cores} cores, "
                    f"medians of {arguments.rounds}"
                )
                only = set(arguments.only or parts)
                if only != {"small"}:
                    whole_topic(bench, fill(address, records), records, arguments.rounds, only)
                if "small" in only:
                    small_batches(bench, 40 * SMALL)


def run(*, quick: bool) -> None:
    """With the default sizes, or a tenth of them."""
    main(["--records", "200000", "--rounds", "1"] if quick else [])


if __name__ == "__main__":
    main()
