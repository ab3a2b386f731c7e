"""Two drivers of one identity: one is frozen at work, another takes its place, and the first goes on.

    python -m benchmarks fence
    python -m benchmarks.fence [--broker roster|apache|HOST:PORT] [--engine roster|spark|delta|... ...] [--rounds 5]
        [--seed 1]

Each driver counts orders by shop from one topic into another. `roster` is the program of deploy/kubernetes, each driver
with the same `group.instance.id` and a disk of its own; `spark` is the same query in Structured Streaming, each driver
with the same checkpoint. `parquet`, `delta`, `iceberg` and `postgres` are pipelines of Roster that append
each order to such a table. In a round orders come while the first driver stands still, from a moment in its batches on
(SIGSTOP to Python, JVM and workers), and the second starts. The first goes on when the second has no more to do.

Results are read at `read_committed`, of a table in its newest snapshot. `again`: results whose count of orders a result
of that shop had before; in a table, rows of an order that has one. `older`: results with fewer orders than one before.
`wrong`: shops whose last result is not the plain count at the end of a round, added up. `ended`: exit codes of the
frozen drivers; `-` lives on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer, TopicPartition
from pyiceberg.catalog import load_catalog
from typing_extensions import override

from benchmarks.applications import Beside, kill_tree, tree
from benchmarks.peers import MissingError
from benchmarks.pipeline import broker
from roster.client import Admin
from tests.librdkafka import idempotent_producer
from tests.real.realparts.apache import free_ports
from tests.real.realparts.databases import Postgres, asking

PROGRAM = Path(__file__).resolve().parents[1] / "deploy" / "kubernetes" / "program" / "totals.py"
ORDERS, RESULTS, PARTITIONS, SHOPS = "orders", "totals-by-shop", 4, 200
TABLES = ("parquet", "delta", "iceberg", "postgres")
SERVERS = {"postgres": Postgres}
PATIENCE = 400.0


class Orders(Beside):
    """Sends orders of random shops, with a number each, until it is left; `sent` is the plain count."""

    numbers = itertools.count()

    def __init__(self, bootstrap: str, chance: random.Random, sent: Counter[str]) -> None:
        super().__init__()
        self._producer, self._chance, self._sent = idempotent_producer(bootstrap, {"linger.ms": 5}), chance, sent

    @override
    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        assert self._producer.flush(60) == 0

    @override
    def _run(self) -> None:
        while not self._ended.wait(0.02):
            for _ in range(20):
                shop = f"shop {self._chance.randrange(SHOPS)}"
                self._producer.produce(
                    ORDERS, json.dumps({"shop": shop, "price": 2.5, "number": next(self.numbers)}), shop
                )
                self._sent[shop] += 1
            self._producer.poll(0)


class Results:
    """What the topic of results says, as far as it has been read."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(RESULTS, number, 0) for number in range(PARTITIONS)])
        self._most: Counter[str] = Counter()
        self.last: Counter[str] = Counter()
        self.again = self.older = 0

    def read(self, seconds: float) -> None:
        """Read until there has been nothing for so long."""
        while messages := self._consumer.consume(500, seconds):
            for message in messages:
                assert message.error() is None, message.error()
                result = json.loads(message.value() or b"")
                shop, count = result["shop"], result["orders"]
                self.again += count == self._most[shop]
                self.older += count < self._most[shop]
                self.last[shop], self._most[shop] = count, max(count, self._most[shop])

    def reach(self, sent: Counter[str], driver: Driver) -> None:
        """Read until the last results are the plain count."""
        deadline = time.monotonic() + PATIENCE
        while self.last != sent:
            self.read(0.2)
            if time.monotonic() > deadline or driver.process.poll() is not None:
                raise RuntimeError(f"no results: {driver.last_line()}")

    def close(self) -> None:
        self._consumer.close()


class Rows(Results):
    """What a table has."""

    def __init__(self, kind: str, place: str) -> None:
        self._kind, self._place = kind, place
        self.last: Counter[str] = Counter()
        self.again = self.older = 0

    @override
    def read(self, seconds: float) -> None:
        time.sleep(seconds)
        rows = self._rows()
        self.last = Counter(dict(rows).values())
        self.again = len(rows) - self.last.total()

    def _rows(self) -> list[tuple[int, str]]:
        """Number and shop of each row; none before there is a table."""
        import pyarrow.dataset  # noqa: PLC0415
        import sqlalchemy  # noqa: PLC0415
        from deltalake import DeltaTable  # noqa: PLC0415

        if self._kind in SERVERS:
            engine = asking(self._place)
            if not sqlalchemy.inspect(engine).has_table("orders_in"):
                return []
            with engine.connect() as connection:
                return [(row[0], row[1]) for row in connection.exec_driver_sql("select number, shop from orders_in")]
        if self._kind == "parquet":
            if not Path(self._place).exists():
                return []
            table = pyarrow.dataset.dataset(self._place).to_table()
        elif self._kind == "delta":
            if not DeltaTable.is_deltatable(self._place):
                return []
            table = DeltaTable(self._place).to_pyarrow_table()
        else:
            found = load_catalog("default", **catalog(self._place))
            if not found.table_exists("fence.orders_in"):
                return []
            table = found.load_table("fence.orders_in").scan().to_arrow()
        return list(zip(table["number"].to_pylist(), table["shop"].to_pylist(), strict=True))

    @override
    def close(self) -> None:
        pass


def catalog(folder: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


class Driver:
    """One driver with all that it starts, in a process group of its own."""

    def __init__(self, engine: str, bootstrap: str, folder: Path, number: int, place: str) -> None:
        self._log = folder / f"{engine}-{number}.log"
        (port,) = free_ports(1)
        command = [sys.executable, str(PROGRAM)]
        if engine != "roster":
            command = [sys.executable, "-m", "benchmarks.fence", f"--{engine}-driver", place, bootstrap]
        client = folder / "client.properties"
        client.write_text(f"bootstrap.servers={bootstrap}\n")
        given = {"KAFKA_CLIENT": str(client), "SPARK_MASTER": "local[2]", "STATE_DIR": str(folder / f"disk-{number}")}
        given |= {"HTTP": f"127.0.0.1:{port}", "POD_NAME": "totals-0"}
        with self._log.open("w") as log:
            self.process: subprocess.Popen[str] = subprocess.Popen(
                command, stderr=log, stdout=log, env=os.environ | given, start_new_session=True
            )

    def freeze(self) -> None:
        for pid in tree(self.process.pid):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in tree(self.process.pid):
            os.kill(pid, signal.SIGCONT)

    def exit_code(self, seconds: float) -> int | None:
        """None if it goes on."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def last_line(self) -> str:
        """What it said at last."""
        lines = [line.strip() for line in self._log.read_text().splitlines() if line.strip()]
        said = [line for line in lines if "Exception:" in line or "replaced" in line]
        return (said or lines or [""])[-1][:200]


def measure(engine: str, bootstrap: str, folder: Path, rounds: int, chance: random.Random) -> str:
    """Let one engine go through the rounds; return its line of the table."""
    with closing(Admin(bootstrap)) as admin:
        for topic in (ORDERS, RESULTS):
            admin.create_topic(topic, PARTITIONS)
    sent: Counter[str] = Counter()
    ended: list[str] = []
    wrong, said = 0, ""
    server = SERVERS[engine]() if engine in SERVERS else None
    place = server.create() if server else str(folder / engine)
    if engine == "iceberg":
        Path(place).mkdir()
        load_catalog("default", **catalog(place)).create_namespace("fence")
    drivers = [Driver(engine, bootstrap, folder, 0, place)]
    with closing(Rows(engine, place) if engine in TABLES else Results(bootstrap)) as results:
        try:
            with Orders(bootstrap, chance, sent):
                time.sleep(1)
            results.reach(sent, drivers[-1])
            for number in range(1, rounds + 1):
                with Orders(bootstrap, chance, sent):
                    time.sleep(2 + 2 * chance.random())  # a moment anywhere in a batch
                    frozen = drivers[-1]
                    frozen.freeze()
                    drivers.append(Driver(engine, bootstrap, folder, number, place))
                    time.sleep(10)
                results.reach(sent, drivers[-1])
                frozen.thaw()
                code = frozen.exit_code(60)
                ended.append("-" if code is None else str(code))
                said = frozen.last_line() or said
                results.read(3)
                wrong += sum(results.last[shop] != count for shop, count in sent.items())
                figures = f"again {results.again}, older {results.older}, wrong {wrong}"
                print(f"  {engine} {number}: {figures}; {said}", file=sys.stderr, flush=True)
                if code is None:
                    kill_tree(frozen.process)
        finally:
            for driver in drivers:
                kill_tree(driver.process)
            if server:
                server.stop()
    return f"{engine:8}{rounds:6}{results.again:8}{results.older:8}{wrong:8}   {' '.join(ended)}"


def structured_streaming(bootstrap: str, checkpoint: str) -> None:
    """Run the totals in Structured Streaming until it ends."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the benchmark itself needs no Spark

    from benchmarks.connector import jars  # noqa: PLC0415
    from roster.spark import session  # noqa: PLC0415

    spark = session("fence", "local[2]", spark_sql_shuffle_partitions=2, spark_jars=",".join(map(str, jars()[1])))
    kafka = {"kafka.bootstrap.servers": bootstrap}
    orders = spark.readStream.format("kafka").options(**kafka, subscribe=ORDERS, startingOffsets="earliest").load()
    order = F.from_json(F.col("value").cast("string"), "shop string, price double")
    totals = (
        orders.select(order.alias("order"))
        .groupBy("order.shop")
        .agg(F.count("*").alias("orders"), F.sum("order.price").alias("revenue"))
    )
    query = (
        totals.select(F.col("shop").alias("key"), F.to_json(F.struct("*")).alias("value"))
        .writeStream.outputMode("update")
        .format("kafka")
        .options(**kafka, topic=RESULTS, checkpointLocation=checkpoint)
        .start()
    )
    query.awaitTermination()


def append(kind: str, bootstrap: str, place: str) -> None:
    """Append each order to a table, as the program of deploy/kubernetes counts them."""
    from roster.client import FencedInstanceError  # noqa: PLC0415
    from roster.spark import (  # noqa: PLC0415
        DeltaSink,
        IcebergSink,
        ParquetSink,
        Pipeline,
        PostgresSink,
        session,
    )

    spark = session("fence", "local[2]")
    sinks = {
        "parquet": lambda: ParquetSink(place),
        "delta": lambda: DeltaSink(place),
        "iceberg": lambda: IcebergSink("fence.orders_in", catalog(place)),
        "postgres": lambda: PostgresSink(place, "orders_in"),
    }
    pipeline = Pipeline(spark, bootstrap, "rows", ORDERS, consumer={"group.instance.id": "rows-0"}, max_batch_ms=30_000)
    try:
        pipeline.json_columns("shop string, number long").write(sinks[kind]()).run()
    except FencedInstanceError as error:
        print(f"this driver has been replaced: {error}", file=sys.stderr)
        sys.exit(3)
    finally:
        spark.stop()


def main(words: Sequence[str] | None = None) -> None:
    """Run the engines that are named, one after the other, each on a broker of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="roster")
    parser.add_argument("--engine", action="append", choices=("roster", "spark", *TABLES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(words)
    print("engine  rounds   again   older   wrong   ended", flush=True)
    for engine in given.engine or ("roster", "spark"):
        try:
            with TemporaryDirectory() as folder, broker(given.broker, Path(folder)) as (bootstrap, _):
                chance = random.Random(given.seed)
                print(measure(engine, bootstrap, Path(folder), given.rounds, chance), flush=True)
        except MissingError as missing:
            print(f"*** MISSING: {missing}; {engine} is left out", flush=True)


def run(*, quick: bool) -> None:
    """Five rounds, or one."""
    main(["--rounds", "1" if quick else "5"])


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1].endswith("-driver"):
        kind = sys.argv[1].removeprefix("--").removesuffix("-driver")
        structured_streaming(sys.argv[3], sys.argv[2]) if kind == "spark" else append(kind, sys.argv[3], sys.argv[2])
    else:
        main()
