"""Records of a topic in a table: how soon they are there, and how many files they leave.

    python -m benchmarks tables
    python -m benchmarks.tables [--broker roster|apache|HOST:PORT] [--rate 200] [--seconds 20] [--warm 8]
                                [--case delta ...]
    python -m benchmarks.tables --hour [--every 0.1] [--minutes 60] [--case delta ...]

Cases: `delta`, `iceberg`, `parquet`, and `spark`, which is Structured Streaming's file sink into Parquet. Each runs in
an application of its own, with `local[2]` and `trigger_interval_ms=0`. One producer sends each record at its time, into
4 partitions. A record is there when the commit with it has returned (Structured Streaming: when the entry of its log
is written). At the end the table is read: each record must be there once. CPU is that of the application's whole
process tree, as a part of one core; files are those of the newest version, those on disk and those of logs are behind
them.

`--hour` needs neither broker nor Spark: the sinks commit small batches one after another, and each is so many seconds
of their clocks behind the last one. It prints every five minutes what is there by now, and the ms of CPU of a commit
with its file: in the pipeline's thread, and with what the sink does in the background.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.applications import Application, say
from benchmarks.latency import DIGITS, PADDING, PARTITIONS, TimedStream
from benchmarks.peers import MissingError
from benchmarks.pipeline import broker
from roster.client import Admin
from roster.model import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from roster.pipeline.batch_sink import BatchSink
    from roster.spark import Batch

CASES = ("delta", "iceberg", "parquet", "spark")
_START_SECONDS, _END_SECONDS = 120.0, 120.0
_TOLD_SECONDS = 10.0
_PERIOD = 300.0
SETTINGS = {
    "spark.sql.parquet.compression.codec": "snappy",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.files.maxRecordsPerFile": "0",
}
"""What a session says, where there is none."""
Times = list[tuple[int, dict[int, tuple[int, int]]]]
"""When each batch was there, in nanoseconds since the epoch, with its range of each partition."""


def measure(bootstrap: str, case: str, given: argparse.Namespace, folder: Path) -> str:
    """Run one application; return its line of the table."""
    topic = f"tables-{uuid.uuid4().hex[:8]}"
    with contextlib.closing(Admin(bootstrap)) as admin:
        admin.create_topic(topic, PARTITIONS)
    options = {"case": case, "warm": str(given.warm), "folder": str(folder)}
    application = Application(bootstrap, topic, topic, module="benchmarks.tables", **options)
    began = told = time.monotonic()

    def wait(seconds: float, what: str) -> bool:
        """Wait, and say what is there from time to time; return False if the application ends meanwhile."""
        nonlocal told
        end = time.monotonic() + seconds
        while application.process.poll() is None and (now := time.monotonic()) < end:
            if now - told > _TOLD_SECONDS:
                told = now
                print(f"  {case}, {now - began:.0f} s: {what}, {len(data_files(folder))} files on disk", flush=True)
            if what == "starts" and any("begun" in said for said in application.said):
                return True
            time.sleep(0.1)
        return application.process.poll() is None

    with application, TimedStream(bootstrap, topic, given.rate, linger_ms=0):
        if not wait(_START_SECONDS, "starts") or not any("begun" in said for said in application.said):
            raise RuntimeError("no results")
        is_up = wait(given.warm, "warms up")
        before = application.cpu()
        if not is_up or not wait(given.seconds, "is measured"):
            raise RuntimeError("the application has ended")
        share = (application.cpu() - before) / given.seconds
        application.leave()
        if wait(_END_SECONDS, "ends"):
            raise RuntimeError(f"it has not ended {_END_SECONDS:.0f} s after SIGTERM")
    application.join()
    found = application.said[-1]
    line = f"{case:<12}{found['p50']:>8.1f}{found['p99']:>8.1f}{100 * share:>8.1f}{found['commits']:>9}"
    return f"{line}{found['live']:>8}{found['files']:>8}{found['others']:>8}   {found['rows']} rows"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="roster", help="roster, apache or an address")
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm", type=float, default=8.0)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--hour", action="store_true")
    parser.add_argument("--every", type=float, default=0.1, help="seconds between two commits of --hour")
    parser.add_argument("--minutes", type=float, default=60.0, help="of --hour")
    given = parser.parse_args(words)
    if given.hour:
        for case in given.case or CASES[:3]:
            with TemporaryDirectory() as folder:
                hour(case, folder, given.every, given.minutes)
        return
    with TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        address, _ = stack.enter_context(broker(given.broker, Path(folder)))
        names = ("p50", "p99", "% core", "commits", "files", "on disk", "logs")
        head = f"{'ms':<12}" + "".join(f"{name:>9}" if name == "commits" else f"{name:>8}" for name in names)
        lines = [head]
        for case in given.case or CASES:
            try:
                with TemporaryDirectory() as place:
                    lines.append(measure(address, case, given, Path(place)))
            except MissingError as missing:
                lines.append(f"*** MISSING: {missing}; {case} is left out")
            except Exception as error:  # one case's trouble is no reason to lose the others
                traceback.print_exc()
                lines.append(f"*** FAILED: {case}: {error}")
            print(head, lines[-1], sep="\n", flush=True)
        print("", *lines, sep="\n", flush=True)
    if failed := sum(line.startswith("*** FAILED") for line in lines):
        raise RuntimeError(f"{failed} cases failed")


# -- an hour -----------------------------------------------------------------------------------------------------------


class Clock:
    """The process's clocks, moved by hand."""

    def __init__(self) -> None:
        self._wall, self._monotonic, self.seconds = time.time_ns(), time.monotonic(), 0.0

    def __enter__(self) -> Clock:
        self._real = time.time, time.time_ns, time.monotonic
        time.time_ns = lambda: self._wall + int(self.seconds * 1e9)
        time.time = lambda: time.time_ns() / 1e9
        time.monotonic = lambda: self._monotonic + self.seconds
        return self

    def __exit__(self, *_: object) -> None:
        time.time, time.time_ns, time.monotonic = self._real


def hour(case: str, folder: str, every: float, minutes: float) -> None:
    """Have a sink commit for some minutes of its clock; print what is there and what a commit costs."""
    from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType  # noqa: PLC0415

    from roster.spark import Batch, Owner, Range  # noqa: PLC0415

    names = ("minutes", "commits", "files", "on disk", "logs", "ms", "all ms")
    print(f"{f'{case}, every {every:g} s':<22}" + "".join(f"{name:>9}" for name in names), flush=True)
    kinds: dict[str, Any] = {"partition": IntegerType(), "offset": LongType(), "value": BinaryType()}
    schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
    keys, owner = [TopicPartition("t", number) for number in range(PARTITIONS)], Owner("g", 1, "m")
    size, sink = max(round(200 * every / PARTITIONS), 1), sink_of(case, folder)
    numbers = pa.array(np.repeat(np.arange(PARTITIONS, dtype=np.int32), size))
    spark: Any = SimpleNamespace(conf=SETTINGS, version="4.0.0")
    sink.open(spark, "g")
    sink.claim(keys, owner, {})
    each, done = round(_PERIOD / every), 0
    with Clock() as clock:
        while done < round(minutes * 60 / every):
            thread, whole = time.thread_time(), time.process_time()
            for start in range(done * size, (done + each) * size, size):
                batch = Batch(start // size, owner, {key: Range(start, start + size) for key in keys})
                writer: Any = sink.task_writer(batch, schema)
                output = writer.open()
                offsets = [*range(start, start + size)] * PARTITIONS
                values = pa.array([b"%019d" % offset + PADDING for offset in offsets])
                output.write(pa.RecordBatch.from_arrays([numbers, pa.array(offsets), values], [*kinds]))
                sink.commit(sink.collect(writer, [output.close()], batch), batch)
                clock.seconds += every
            done += each
            spent = time.thread_time() - thread, time.process_time() - whole
            per_commit = [f"{1000 * seconds / each:.1f}" for seconds in spent]
            found = done, live_files(case, folder), *on_disk(folder), *per_commit
            print(f"{done * every / 60:>31.0f}" + "".join(f"{value:>9}" for value in found), flush=True)
        sink.close()
    if len(rows := table_of(case, folder)) != done * size * PARTITIONS:
        raise RuntimeError(f"{len(rows)} rows instead of {done * size * PARTITIONS}")


# -- the applications --------------------------------------------------------------------------------------------------


def sink_of(case: str, folder: str) -> BatchSink:
    """The sink of a case."""
    from roster.spark import DeltaSink, IcebergSink, ParquetSink  # noqa: PLC0415 - the benchmark itself needs no Spark

    if case == "delta":
        return DeltaSink(f"{folder}/table")
    if case == "iceberg":
        Path(f"{folder}/table").mkdir()
        return IcebergSink("bench.records", catalog(folder))
    return ParquetSink(f"{folder}/table")


def catalog(folder: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/table"}


def opened(case: str, folder: str) -> Any:
    """The table of a case, by the library that reads it."""
    if case == "delta":
        from deltalake import DeltaTable  # noqa: PLC0415

        return DeltaTable(f"{folder}/table")
    if case == "iceberg":
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415

        return load_catalog("default", **catalog(folder)).load_table("bench.records")
    import pyarrow.dataset as ds  # noqa: PLC0415

    return ds.dataset(f"{folder}/table", format="parquet")


def table_of(case: str, folder: str) -> pa.Table:
    """The columns partition, offset and value."""
    table, columns = opened(case, folder), ["partition", "offset", "value"]
    if case == "iceberg":
        return table.scan(selected_fields=tuple(columns)).to_arrow()
    return table.to_pyarrow_table(columns=columns) if case == "delta" else table.to_table(columns=columns)


def live_files(case: str, folder: str) -> int:
    """The number of files of the newest version."""
    table = opened(case, folder)
    if case == "iceberg":
        return len([*table.scan().plan_files()])
    return len(table.file_uris() if case == "delta" else table.files)


def data_files(folder: str | Path) -> list[Path]:
    """The data files on disk, those included that no version has any more."""
    paths = Path(folder, "table").rglob("*.parquet")
    return [path for path in paths if not {path.name[0], path.parent.name[0]} & {*"._"}]


def on_disk(folder: str) -> tuple[int, int]:
    """The number of data files, and of all others."""
    files = len(data_files(folder))
    return files, sum(path.is_file() for path in Path(folder, "table").rglob("*")) - files


def streamed(spark: SparkSession, bootstrap: str, topic: str, folder: str) -> None:
    """Run a query until the process is told to end."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    source = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    writer = source.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.start(f"{folder}/table")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    while not Path(f"{folder}/table/_spark_metadata/0").exists() and not ended.wait(0.1):
        pass
    say(begun=True)
    ended.wait()
    spark.sparkContext.setLogLevel("FATAL")  # of the tasks that are cut off
    query.stop()


def spark_times(folder: str) -> Times:
    """When the entries of the file sink's log were written, with what their files have."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    times: Times = []
    known: set[Path] = set()
    entries = Path(f"{folder}/table/_spark_metadata").glob("[0-9]*")
    for entry in sorted(entries, key=lambda path: int(path.stem)):
        ranges: dict[int, tuple[int, int]] = {}
        paths = {Path(json.loads(line)["path"].removeprefix("file://")) for line in entry.read_text().splitlines()[1:]}
        for path in paths - known:  # a `.compact` entry repeats all earlier ones
            rows = pq.ParquetFile(path).read(["partition", "offset"])
            for number, offset in zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True):
                start, end = ranges.get(number, (offset, offset))
                ranges[number] = min(start, offset), max(end, offset + 1)
        known |= paths
        times.append((entry.stat().st_mtime_ns, ranges))
    return times


def told(times: Times, case: str, folder: str, warm: float) -> dict[str, Any]:
    """The latencies in ms of the records sent after the warm-up, and the number of files."""
    rows = table_of(case, folder)
    offsets = {number: np.sort(rows.filter(rows["partition"].to_numpy() == number)["offset"]) for number in range(4)}
    for number, each in offsets.items():
        if not (each == np.arange(len(each))).all():
            raise RuntimeError(f"partition {number} is not there once")
    there = {number: np.zeros(len(each), np.int64) for number, each in offsets.items()}
    for at, ranges in times:
        for number, (start, end) in ranges.items():
            there[number][start:end] = at
    sent = np.array([int(value[:DIGITS]) for value in rows["value"].to_pylist()], np.int64)
    numbers, at_offset = rows["partition"].to_numpy(), rows["offset"].to_numpy()
    seen = np.array([there[number][offset] for number, offset in zip(numbers, at_offset, strict=True)], np.int64)
    is_late = (sent > min(at for at, _ in times) + warm * 1e9) & (seen > 0)
    latency = (seen - sent)[is_late] / 1e6
    files, others = on_disk(folder)
    return {
        "p50": float(np.percentile(latency, 50)),
        "p99": float(np.percentile(latency, 99)),
        "commits": len(times),
        "live": live_files(case, folder),
        "files": files,
        "others": others,
        "rows": len(rows),
    }


def application(words: Sequence[str]) -> None:
    """One application; prints a JSON object a line, the last with what it found at its end."""
    from roster.spark import Pipeline, session  # noqa: PLC0415 - the benchmark itself needs no Spark

    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "group", "topic", "--case", "--warm", "--folder"):
        parser.add_argument(name)
    given = parser.parse_args(words)
    extra: dict[str, str] = {}
    if given.case == "spark":
        from benchmarks.connector import jars  # noqa: PLC0415

        extra["spark_jars"] = ",".join(map(str, jars()[1]))
    spark = session("tables", "local[2]", spark_driver_memory="1g", **extra)
    spark.sparkContext.setLogLevel("ERROR")
    times: Times = []
    if given.case == "spark":
        streamed(spark, given.bootstrap, given.topic, given.folder)
        times = spark_times(given.folder)
    else:
        sink = sink_of(given.case, given.folder)
        commit = sink.commit

        def timed(written: Any, batch: Batch) -> None:
            commit(written, batch)
            times.append((time.time_ns(), {p.partition: (span.start, span.end) for p, span in batch.ranges.items()}))
            if len(times) == 1:
                say(begun=True)

        sink.commit = timed  # type: ignore[method-assign]
        pipeline = Pipeline(spark, given.bootstrap, given.group, given.topic, trigger_interval_ms=0, log="warning")
        pipeline.write(sink).run()
    say(**told(times, given.case, given.folder, float(given.warm)))
    spark.stop()


def run(*, quick: bool) -> None:
    """With the default sizes, or for a few seconds."""
    main(["--seconds", "10", "--warm", "5"] if quick else [])


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        application(sys.argv[1:])
    else:
        main()
