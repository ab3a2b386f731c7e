"""Two drivers of one identity: one is frozen at work, another takes its place, and the first goes on.

    python -m benchmarks fence
    python -m benchmarks.fence [--broker roster|apache|HOST:PORT] [--engine kafka|delta|...|spark ...] [--rounds N]
        [--step 1] [--seed 1]

Each driver reads orders of one topic. `kafka` is the program of deploy/kubernetes, which counts them by shop into
another topic, each driver with the same `group.instance.id` and a disk of its own; `spark` is the same query in
Structured Streaming, each driver with the same checkpoint. `parquet`, `delta`, `iceberg` and `postgres` are pipelines
of Roster that append each order to such a table; `delta-totals` appends each new count of a shop.

In a round a driver stands still (SIGSTOP to Python, JVM and workers) at a step of a batch's commit, the next step each
round, from the number `--step` on (`tests/deploy/frozen_driver.py` lists them); `spark` at some moment. Orders come
meanwhile, and a second driver takes its place. The first goes on while the second is at work, in every other round when
it has no more to do; the next seed has these turns the other way round. By default there is a round for each step, and
five of `spark`.

Results are read at `read_committed`, of a table in its newest snapshot. `again`: results whose count of orders a result
of that shop had before; in a table, rows of an order that has one. `older`: results with fewer orders than one before.
`wrong`: shops whose last result is not the plain count at the end of a round, added up. `ended`: exit codes of the
frozen drivers with how many ended so; `-` lives on. `said`: how many said as their last line that they were replaced.
"""

from __future__ import annotations

import argparse
import contextlib
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

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyiceberg.catalog import load_catalog
from typing_extensions import override

from benchmarks.applications import Beside, kill_tree, tree
from benchmarks.peers import MissingError
from benchmarks.pipeline import broker
from roster.client import Admin
from tests.deploy import frozen_driver
from tests.deploy.frozen_driver import STEPS
from tests.librdkafka import idempotent_producer
from tests.real.realparts.apache import free_ports
from tests.real.realparts.databases import Postgres, asking

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "deploy" / "kubernetes" / "program" / "totals.py"
ORDERS, RESULTS, PARTITIONS, SHOPS = "orders", "totals-by-shop", 4, 200
TABLES = tuple(engine for engine in STEPS if engine != "kafka")
TOTALS = "delta-totals"
SERVERS = {"postgres": Postgres}
PATIENCE = 1200.0
NONE = pa.schema({"number": pa.int64(), "shop": pa.string()}).empty_table()


class Orders(Beside):
    """Sends 400 orders a second of random shops, with a number each, until it is left; `sent` is the plain count."""

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
        while not self._ended.wait(0.05):
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

    def reach(self, driver: Driver, sent: Counter[str] | None = None) -> None:
        """Read until the last results are the plain count; without one, until there are others than now."""
        deadline, before = time.monotonic() + PATIENCE, self.last.copy()
        while self.last == before if sent is None else self.last != sent:
            self.read(0.3)
            if time.monotonic() > deadline or driver.process.poll() is not None:
                raise RuntimeError(f"no results: {driver.said()}")

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
        asked = [("number", "count"), ("number", "count_distinct"), ("number", "max")]
        found = self._rows().group_by("shop").aggregate(asked)
        last = found["number_max" if self._kind == TOTALS else "number_count_distinct"]
        self.last = Counter(dict(zip(found["shop"].to_pylist(), last.to_pylist(), strict=True)))
        self.again = sum(found["number_count"].to_pylist()) - sum(found["number_count_distinct"].to_pylist())

    def _rows(self) -> pa.Table:
        """Number, of an order or of orders so far, and shop of each row; none before there is a table."""
        import pyarrow.dataset  # noqa: PLC0415
        import sqlalchemy  # noqa: PLC0415
        from deltalake import DeltaTable  # noqa: PLC0415

        if self._kind in SERVERS:
            engine = asking(self._place)
            if sqlalchemy.inspect(engine).has_table("orders_in"):
                with engine.connect() as connection:
                    rows = connection.exec_driver_sql("select number, shop from orders_in").all()
                return pa.table({"number": [row[0] for row in rows], "shop": [row[1] for row in rows]}, NONE.schema)
        elif self._kind == "parquet":
            if files := [str(path) for path in Path(self._place).glob("*.parquet")]:
                return pyarrow.dataset.dataset(files).to_table(["number", "shop"])
        elif self._kind in {"delta", TOTALS}:
            if DeltaTable.is_deltatable(self._place):
                return DeltaTable(self._place).to_pyarrow_table(columns=["number", "shop"])
        else:
            found = load_catalog("default", **catalog(self._place))
            if found.table_exists("fence.orders_in"):
                return found.load_table("fence.orders_in").scan().to_arrow()
        return NONE

    @override
    def close(self) -> None:
        pass


def catalog(folder: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


class Driver:
    """One driver with all that it starts, in a process group of its own; it works once it has been let go."""

    def __init__(self, engine: str, bootstrap: str, folder: Path, number: int, place: str, step: int) -> None:
        self._log = folder / f"{engine}-{number}.log"
        (port,) = free_ports(1)
        program = [str(PROGRAM)] if engine == "kafka" else [__file__, "--driver", engine, place, bootstrap]
        self._freeze, self._start = folder / f"freeze-{number}", folder / f"start-{number}"
        self.step: frozen_driver.Step | None = None
        if engine != "spark":
            index = (step + number) % len(STEPS[engine])
            self.step = STEPS[engine][index]
            program = [frozen_driver.__file__, engine, str(index), str(self._freeze), str(self._start), *program]
        client = folder / "client.properties"
        client.write_text(f"bootstrap.servers={bootstrap}\n")
        given = {"KAFKA_CLIENT": str(client), "SPARK_MASTER": "local[2]", "STATE_DIR": str(folder / f"disk-{number}")}
        given |= {"HTTP": f"127.0.0.1:{port}", "POD_NAME": "totals-0"}
        given |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
        with self._log.open("w") as log:
            self.process: subprocess.Popen[str] = subprocess.Popen(
                [sys.executable, *program], stderr=log, stdout=log, env=os.environ | given, start_new_session=True
            )

    def let_go(self) -> None:
        self._start.touch()

    def stand_still(self, chance: random.Random) -> None:
        """Have it stand still at its step of the next batch, or within some seconds."""
        if self.step is None:
            time.sleep(2 + 2 * chance.random())
        else:
            self._freeze.touch()
            deadline = time.monotonic() + PATIENCE
            while not self._stands():
                time.sleep(0.02)
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise RuntimeError(f"it never came to where {self.step.told}: {self.said()}")
        self.freeze()

    def _stands(self) -> bool:
        status = Path(f"/proc/{self.process.pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0] == "T"

    def freeze(self) -> None:
        for pid in tree(self.process.pid):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in tree(self.process.pid):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGCONT)

    def exit_code(self, seconds: float) -> int | None:
        """None if it goes on."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def said(self) -> str:
        """Its exit code, if it has ended, and its log: the folder that has it goes with the benchmark."""
        return f"exit code {self.process.poll()}\n{self._log.read_text()}"

    def last_line(self) -> str:
        """What it said at last."""
        lines = [line.strip() for line in self._log.read_text().splitlines() if line.strip()]
        said = [line for line in lines if "Exception:" in line] if self.step is None else []
        return (said or lines or [""])[-1]


def measure(engine: str, bootstrap: str, folder: Path, rounds: int, seed: int, step: int) -> str:
    """Let one engine go through the rounds, from a step's index on; return its line of the table."""
    with closing(Admin(bootstrap)) as admin:
        for topic in (ORDERS, RESULTS):
            admin.create_topic(topic, PARTITIONS)
    sent, ended = Counter[str](), Counter[str]()
    wrong, said, chance = 0, 0, random.Random(seed)
    server = SERVERS[engine]() if engine in SERVERS else None
    place = server.create() if server else str(folder / engine)
    if engine == "iceberg":
        Path(place).mkdir()
        load_catalog("default", **catalog(place)).create_namespace("fence")
    drivers = [Driver(engine, bootstrap, folder, 0, place, step)]
    with closing(Rows(engine, place) if engine in TABLES else Results(bootstrap)) as results:
        try:
            drivers[0].let_go()
            with Orders(bootstrap, chance, sent):
                time.sleep(1)
            results.reach(drivers[0], sent)
            for number in range(1, rounds + 1):
                frozen, is_early = drivers[-1], (number + seed) % 2 == 0
                if engine != "spark":  # it starts meanwhile
                    drivers.append(Driver(engine, bootstrap, folder, number, place, step))
                with Orders(bootstrap, chance, sent):
                    frozen.stand_still(chance)
                    results.read(0.3)
                    if engine == "spark":
                        drivers.append(Driver(engine, bootstrap, folder, number, place, step))
                    drivers[-1].let_go()
                    results.reach(drivers[-1])
                    if is_early:
                        frozen.thaw()
                    time.sleep(1)
                results.reach(drivers[-1], sent)
                frozen.thaw()
                code = frozen.exit_code(120)
                ended["-" if code is None else str(code)] += 1
                said += "replaced: " in frozen.last_line()
                results.read(1)
                wrong += sum(results.last[shop] != count for shop, count in sent.items())
                figures = f"again {results.again}, older {results.older}, wrong {wrong}; {code}: {frozen.last_line()}"
                told = "some moment" if frozen.step is None else frozen.step.told
                print(f"  {engine} {number}, {told}: {figures[:300]}", file=sys.stderr, flush=True)
                kill_tree(frozen.process)
        finally:
            for driver in drivers:
                driver.thaw()
                kill_tree(driver.process)
            if server:
                server.stop()
    codes = ", ".join(f"{code} x {times}" for code, times in ended.items())
    return f"{engine:12}{rounds:6}{results.again:8}{results.older:8}{wrong:8}{said:8}   {codes}"


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
        State,
        session,
    )

    spark = session("fence", "local[2]")
    sinks = {
        "parquet": lambda: ParquetSink(place),
        "delta": lambda: DeltaSink(place),
        TOTALS: lambda: DeltaSink(place),
        "iceberg": lambda: IcebergSink("fence.orders_in", catalog(place)),
        "postgres": lambda: PostgresSink(place, "orders_in"),
    }
    consumer = {"group.instance.id": "rows-0"}
    pipeline = Pipeline(
        *(spark, bootstrap, "rows", ORDERS),
        consumer=consumer,
        max_batch_ms=30_000,
        trigger_interval_ms=500,
        state=State(dir=os.environ["STATE_DIR"]) if kind == TOTALS else None,
    ).json_columns("shop string, number long")
    if kind == TOTALS:
        pipeline.aggregate("shop", {"number": "count(*)"}, store="totals")
    replaced = ""
    try:
        pipeline.write(sinks[kind]()).run()
    except FencedInstanceError as error:
        replaced = f"this driver has been replaced: {error}"
        spark.sparkContext.setLogLevel("OFF")
    finally:
        spark.stop()
    if replaced:
        print(replaced, file=sys.stderr)
        sys.exit(3)


def main(words: Sequence[str] | None = None) -> None:
    """Run the engines that are named, one after the other, each on a broker of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="roster")
    parser.add_argument("--engine", action="append", choices=("spark", *STEPS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--step", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # drivers end with this program, as they do by Ctrl-C
    print("engine      rounds   again   older   wrong    said   ended", flush=True)
    for engine in given.engine or (*STEPS, "spark"):
        try:
            with TemporaryDirectory() as folder, broker(given.broker, Path(folder)) as (bootstrap, _):
                rounds = given.rounds or len(STEPS.get(engine, range(5)))
                print(measure(engine, bootstrap, Path(folder), rounds, given.seed, given.step - 1), flush=True)
        except MissingError as missing:
            print(f"*** MISSING: {missing}; {engine} is left out", flush=True)


def run(*, quick: bool) -> None:
    """A round for each step, or one round of two engines."""
    main(["--rounds", "1", "--engine", "kafka", "--engine", "spark"] if quick else [])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--driver"]:
        _, _, kind, where, brokers = sys.argv
        structured_streaming(brokers, where) if kind == "spark" else append(kind, brokers, where)
    else:
        main()
