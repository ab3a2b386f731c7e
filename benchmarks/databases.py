"""Rows into PostgreSQL: `PostgresSink` beside Spark's JDBC writer.

    python -m benchmarks databases
    python -m benchmarks.databases [--records 1000000] [--rounds 3] [--cores 2]

One Spark application reads a topic of a Roster broker as a member of a group, and writes rows of five columns (two
numbers, a time, 100 characters, a fraction) into a table of a PostgreSQL of its own on this machine, which waits for
the disk as it does by default. `append` and `upsert` are the sink's modes; an upsert has 100,000 keys. `jdbc` is
`df.write.jdbc` in `foreach_batch`, at least once, with the driver's rewriting of batched inserts and 10,000 rows a
statement. A figure is a median: seconds of one batch of all records, from planning to the commit in the group; CPU
seconds of broker, driver, JVM and Python workers over the whole run, and of the database. All of them compete for the
processors. Each run writes to an empty table, and the number of its rows is checked.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from benchmarks.peers import MissingError, made, tool
from benchmarks.pipeline import TICKS, CpuTime, fill
from roster.spark import Pipeline, PostgresSink, Progress, session
from roster.testing.broker import BrokerProcess
from tests.real.realparts.databases import PASSWORD, Postgres, asking

HERE = Path(__file__).resolve().parent / "jdbc"
KEYS = 100_000
COLUMNS = "id long, at timestamp, shop string, price double, part int"


class Server(Postgres):
    """A server that JDBC reaches too, with the durability that it has by default."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        super().__init__()

    @property
    def settings(self) -> dict[str, str]:
        return super().settings | {"listen_addresses": "127.0.0.1", "port": str(self.port), "fsync": "on"}

    def url(self, name: str) -> str:
        return super().url(name) + f"&port={self.port}"


class Ran(NamedTuple):
    """Seconds of the batch, and CPU seconds of the application and of the server."""

    seconds: float
    cpu: float
    server_cpu: float


def rows(records: pa.RecordBatch) -> pa.RecordBatch:
    """Five columns of the records, whose keys are numbers."""
    number = pc.cast(pc.cast(records["key"], pa.string()), pa.int64())
    columns = {
        "id": pc.subtract(number, pc.multiply(pc.divide(number, KEYS), KEYS)),
        "at": records["timestamp"],
        "shop": pc.cast(records["value"], pa.string()),
        "price": pc.divide(pc.cast(number, pa.float64()), 7.0),
        "part": records["partition"],
    }
    return pa.RecordBatch.from_pydict(columns)


def server_seconds(pid: int) -> float:
    """CPU seconds of a server and of its connections that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def driver() -> list[Path]:
    """The jar. Raises MissingError."""
    maven = tool("mvn")
    command = [maven, "--batch-mode", "--quiet", "--file", "pom.xml", "dependency:copy-dependencies"]
    directory = made("jdbc", [HERE / "pom.xml"], lambda target: [*command, f"-DoutputDirectory={target}"], HERE)
    return sorted(directory.glob("postgresql*.jar"))


def compare(
    spark: SparkSession, server: Server, bootstrap: str, topic: str, records: int, rounds: int, *, jdbc: bool
) -> None:
    url, ours = server.create(), CpuTime(os.getpid(), without=server.pid)
    engine = asking(url)
    name = engine.url.database
    address = f"jdbc:postgresql://127.0.0.1:{server.port}/{name}?reWriteBatchedInserts=true"
    properties = {"user": "roster", "password": PASSWORD, "driver": "org.postgresql.Driver", "batchsize": "10000"}

    def jdbc_writer(pipeline: Pipeline) -> Pipeline:
        return pipeline.foreach_batch(lambda df, _: df.write.jdbc(address, "results", "append", properties))

    ways: dict[str, Callable[[Pipeline], Any]] = {
        "append": lambda pipeline: pipeline.write(PostgresSink(url, "results")),
        "upsert": lambda pipeline: pipeline.write(PostgresSink(url, "results", mode="upsert", keys="id")),
    }
    if jdbc:
        ways["jdbc"] = jdbc_writer

    def once(name: str) -> Ran:
        with engine.connect() as connection:
            connection.exec_driver_sql("drop table if exists results, roster_positions")
        done: list[Progress] = []
        hour = 3_600_000
        options: dict[str, Any] = {"max_offsets_per_batch": records, "target_batch_ms": hour, "max_batch_ms": hour}
        pipeline = Pipeline(
            spark, bootstrap, f"g-{uuid.uuid4().hex[:8]}", topic, on_progress=done.append, log=False, **options
        )
        before = ours.seconds(), server_seconds(server.pid)
        ways[name](pipeline.map_arrow(rows, COLUMNS)).run(available_now=True)
        cpu, server_cpu = ours.seconds() - before[0], server_seconds(server.pid) - before[1]
        with engine.connect() as connection:
            found = connection.exec_driver_sql("select count(*) from results").scalar()
        assert found == (min(KEYS, records) if name == "upsert" else records), f"{name}: {found} rows"
        return Ran(sum(each.duration_ms for each in done) / 1000, cpu, server_cpu)

    found: dict[str, list[Ran]] = {name: [] for name in ways}
    for name in ways:
        once(name)
    for _ in range(rounds):
        for name in ways:
            found[name].append(once(name))
    print(f"{records:,} rows           s   CPU s  database  M rows/s  M rows/CPU s  times as fast as jdbc, per CPU s")
    medians = {name: Ran(*map(statistics.median, zip(*runs, strict=True))) for name, runs in found.items()}
    for name, ran in medians.items():
        total = ran.cpu + ran.server_cpu
        line = f"{name:<12}{ran.seconds:>9.2f}{ran.cpu:>8.2f}{ran.server_cpu:>10.2f}"
        line += f"{records / ran.seconds / 1e6:>10.2f}{records / total / 1e6:>14.2f}"
        if (peer := medians.get("jdbc")) is not None:
            line += f"{peer.seconds / ran.seconds:>12.1f}{(peer.cpu + peer.server_cpu) / total:>12.1f}"
        print(line, flush=True)


def measure(records: int, rounds: int, cores: int) -> None:
    jars: list[Path] = []
    try:
        jars = driver()
    except MissingError as missing:
        print(f"*** MISSING: PostgreSQL's JDBC driver: {missing}")
    with ExitStack() as stack:
        server = Server()
        stack.callback(server.stop)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(BrokerProcess(folder / "broker"))
        extra = {"spark.jars": ",".join(map(str, jars))} if jars else {}
        spark = session("bench", f"local[{cores}]", **extra)
        spark.sparkContext.setLogLevel("OFF")
        stack.callback(spark.stop)
        compare(spark, server, broker.bootstrap, fill(broker.bootstrap, records), records, rounds, jdbc=bool(jars))


def run(*, quick: bool) -> None:
    measure(200_000 if quick else 1_000_000, 1 if quick else 3, 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    measure(arguments.records, arguments.rounds, arguments.cores)
