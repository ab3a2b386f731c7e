"""Records of a topic in a table: how soon they are there, and how many files they leave.

    python -m benchmarks tables
    python -m benchmarks.tables [--broker roster|apache|HOST:PORT] [--rate 200] [--seconds 40] [--warm 10]
                                [--case delta ...]

Cases: `delta`, `iceberg`, `parquet`, and `spark`, which is Structured Streaming's file sink into Parquet. Each runs in
an application of its own, with `local[2]` and `trigger_interval_ms=0`. One producer sends each record at its time, into
4 partitions; the Iceberg table keeps snapshots for two seconds. A record is there when the commit with it has returned
(Structured Streaming: when the entry of its log is written). At the end the table is read: each record must be there
once. CPU is that of the application's whole process tree, as a part of one core; files are those of the newest version,
those on disk and those of logs are behind them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.applications import Application, say
from benchmarks.latency import DIGITS, PARTITIONS, TimedStream
from benchmarks.peers import MissingError
from benchmarks.pipeline import broker
from roster.client import Admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from roster.spark import Batch
    from roster.spark.sinks.batch_sink import BatchSink

CASES = ("delta", "iceberg", "parquet", "spark")
_START_SECONDS = 300.0
Times = list[tuple[int, dict[int, tuple[int, int]]]]
"""When each batch was there, in nanoseconds since the epoch, with its range of each partition."""


def measure(bootstrap: str, case: str, given: argparse.Namespace) -> str:
    """Run one application; return its line of the table."""
    topic = f"tables-{uuid.uuid4().hex[:8]}"
    with contextlib.closing(Admin(bootstrap)) as admin:
        admin.create_topic(topic, PARTITIONS)
    application = Application(bootstrap, topic, topic, module="benchmarks.tables", case=case, warm=str(given.warm))
    with application, TimedStream(bootstrap, topic, given.rate, linger_ms=0):
        began = time.monotonic()
        while not any("begun" in said for said in application.said):
            if time.monotonic() - began > _START_SECONDS or application.process.poll() is not None:
                raise RuntimeError("no results")
            time.sleep(0.1)
        time.sleep(given.warm)
        before = application.cpu()
        time.sleep(given.seconds)
        share = (application.cpu() - before) / given.seconds
        application.leave()
        application.process.wait(60)
    found = application.said[-1]
    line = f"{case:<12}{found['p50']:>8.1f}{found['p99']:>8.1f}{100 * share:>8.1f}{found['commits']:>9}"
    return f"{line}{found['live']:>8}{found['files']:>8}{found['others']:>8}   {found['rows']} rows"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="roster", help="roster, apache or an address")
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--warm", type=float, default=10.0)
    parser.add_argument("--case", action="append", choices=CASES)
    given = parser.parse_args(words)
    with TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        address, _ = stack.enter_context(broker(given.broker, Path(folder)))
        names = ("p50", "p99", "% core", "commits", "files", "on disk", "logs")
        head = "".join(f"{name:>9}" if name == "commits" else f"{name:>8}" for name in names)
        print(f"{'ms':<12}{head}", flush=True)
        for case in given.case or CASES:
            try:
                print(measure(address, case, given), flush=True)
            except MissingError as missing:
                print(f"*** MISSING: {missing}; {case} is left out", flush=True)


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


def load(folder: str) -> Any:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    return load_catalog("default", **catalog(folder)).load_table("bench.records")


def table_of(case: str, folder: str) -> tuple[pa.Table, int]:
    """The columns partition, offset and value, and the number of files that have them."""
    columns = ["partition", "offset", "value"]
    if case == "delta":
        from deltalake import DeltaTable  # noqa: PLC0415

        table = DeltaTable(f"{folder}/table")
        return table.to_pyarrow_table(columns=columns), len(table.file_uris())
    if case == "iceberg":
        found = load(folder)
        return found.scan(selected_fields=tuple(columns)).to_arrow(), len(found.inspect.files())
    import pyarrow.dataset as ds  # noqa: PLC0415

    files = ds.dataset(f"{folder}/table", format="parquet")
    return files.to_table(columns=columns), len(files.files)


def streamed(spark: SparkSession, bootstrap: str, topic: str, folder: str) -> None:
    """Run a query until the process is told to end."""
    import signal  # noqa: PLC0415

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
    query.stop()


def spark_times(folder: str) -> Times:
    """When the entries of the file sink's log were written, with what their files have."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    times: Times = []
    for entry in Path(f"{folder}/table/_spark_metadata").glob("[0-9]*"):
        ranges: dict[int, tuple[int, int]] = {}
        for line in entry.read_text().splitlines()[1:]:
            path = Path(json.loads(line)["path"].removeprefix("file://"))
            rows = pq.read_table(path, columns=["partition", "offset"])
            for number, offset in zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True):
                start, end = ranges.get(number, (offset, offset))
                ranges[number] = min(start, offset), max(end, offset + 1)
        if not entry.name.endswith(".compact"):
            times.append((entry.stat().st_mtime_ns, ranges))
    return times


def told(times: Times, case: str, folder: str, warm: float) -> dict[str, Any]:
    """The latencies in ms of the records sent after the warm-up, and the number of files."""
    rows, live = table_of(case, folder)
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
    paths = [path for path in Path(folder, "table").rglob("*") if path.is_file()]
    files = sum(path.suffix == ".parquet" and not path.name.startswith(".") for path in paths)
    return {
        "p50": float(np.percentile(latency, 50)),
        "p99": float(np.percentile(latency, 99)),
        "commits": len(times),
        "live": live,
        "files": files,
        "others": len(paths) - files,
        "rows": len(rows),
    }


def application(words: Sequence[str]) -> None:
    """One application; prints a JSON object a line, the last with what it found at its end."""
    from roster.spark import Pipeline, session  # noqa: PLC0415 - the benchmark itself needs no Spark

    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "group", "topic", "--case", "--warm"):
        parser.add_argument(name)
    given = parser.parse_args(words)
    extra: dict[str, str] = {}
    if given.case == "spark":
        from benchmarks.connector import jars  # noqa: PLC0415

        extra["spark_jars"] = ",".join(map(str, jars()[1]))
    spark = session("tables", "local[2]", spark_driver_memory="1g", **extra)
    spark.sparkContext.setLogLevel("ERROR")
    times: Times = []
    with TemporaryDirectory() as folder:
        if given.case == "spark":
            streamed(spark, given.bootstrap, given.topic, folder)
            times = spark_times(folder)
        else:
            sink = sink_of(given.case, folder)
            commit = sink.commit

            def timed(written: Any, batch: Batch) -> None:
                commit(written, batch)
                if given.case == "iceberg" and not times:
                    with load(folder).transaction() as transaction:
                        transaction.set_properties({"history.expire.max-snapshot-age-ms": "2000"})
                times.append((time.time_ns(), {p.partition: tuple(span) for p, span in batch.ranges.items()}))
                if len(times) == 1:
                    say(begun=True)

            sink.commit = timed  # type: ignore[method-assign]
            pipeline = Pipeline(spark, given.bootstrap, given.group, given.topic, trigger_interval_ms=0, log="warning")
            pipeline.write(sink).run()
        say(**told(times, given.case, folder, float(given.warm)))
    spark.stop()


def run(*, quick: bool) -> None:
    """With the default sizes, or for a few seconds."""
    main(["--seconds", "10", "--warm", "5"] if quick else [])


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        application(sys.argv[1:])
    else:
        main()
