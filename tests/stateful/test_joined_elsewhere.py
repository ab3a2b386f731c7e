"""Rows that go to tasks by another key to be joined with tables there, where nothing has state."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from roster.cli.root import run as roster
from roster.model import TopicPartition
from roster.pipeline.errors import SinkFencedError
from roster.pipeline.options import Tuning
from roster.spark import KafkaSink, ParquetSink, Pipeline, PipelineError, Progress, State, Window
from roster.state.cleaning import stores_below
from roster.stateful.tasks.host_stores import stores_found
from tests.librdkafka import idempotent_producer
from tests.sinks.test_stateful_tables import KINDS, Stopped, fails
from tests.spark.apps.late import Results
from tests.spark.spark_topics import committed_records
from tests.state.test_cleaning import make
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from roster.pipeline.batch_sink import BatchSink
    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ORDERS = "id long, user string, item string"
ITEMS = 7
QUICK: dict[str, Any] = {"consumer": {"heartbeat.interval.ms": 200}, "max_offsets_per_batch": 100}


class Orders:
    """Orders keyed by user, and tables of items: prices of all but the first, names of all but the last."""

    def __init__(self, topics: Topics) -> None:
        self._topics, self.topic = topics, topics.create(2)
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        self.prices, self.names = topics.create(3), topics.create(3)
        self._chance = random.Random(5)
        self.sent: list[dict[str, Any]] = []
        producer = idempotent_producer(topics.bootstrap, {"partitioner": "murmur2_random"})
        for number in range(1, ITEMS):
            producer.produce(self.prices, json.dumps({"price": 10 * number}), f"i{number}")
            producer.produce(self.names, json.dumps({"name": f"item {number - 1}"}), f"i{number - 1}")
        assert producer.flush(60) == 0

    def send(self, count: int) -> None:
        producer = idempotent_producer(self._topics.bootstrap)
        for _ in range(count):
            number = len(self.sent)
            order = {"id": number, "user": f"u{number % 5}", "item": f"i{self._chance.randrange(ITEMS)}"}
            producer.produce(self.topic, json.dumps(order), order["user"])
            self.sent.append(order)
        assert producer.flush(60) == 0

    def send_again(self, count: int) -> None:
        """Send some of the orders a second time."""
        producer = idempotent_producer(self._topics.bootstrap)
        for order in self._chance.sample(self.sent, count):
            producer.produce(self.topic, json.dumps(order), order["user"])
        assert producer.flush(60) == 0

    def joined(self) -> list[dict[str, Any]]:
        """What a plain computation makes of them."""
        return [
            {**order, "price": 10 * number, "name": f"item {number}" if number < ITEMS - 1 else None}
            for order, number in ((order, int(order["item"][1:])) for order in self.sent)
            if number > 1 and order["id"] != 3
        ]

    def pipeline(self, spark: SparkSession, sink: BatchSink, state_dir: Path) -> Pipeline:
        made = Pipeline(spark, self._topics.bootstrap, self.group, self.topic, state=State(dir=str(state_dir)), **QUICK)
        made.json_columns(ORDERS).repartition("item", partitions=3)
        made.join_table(self.prices, "item", "price long").filter(pc.field("price") > 10)
        made.join_table(self.names, "item", "name string", how="left").filter(pc.field("id") != 3)
        return made.write(sink)


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def test_two_applications_send_each_row_once_with_what_tables_of_another_key_say(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    orders, out = Orders(topics), topics.create(2)

    def found() -> list[tuple[bytes | None, dict[str, Any]]]:
        return [(key, json.loads(value or b"")) for _, key, value in committed_records(topics, out)]

    def application(name: str) -> Pipeline:
        return orders.pipeline(spark, KafkaSink(topics.bootstrap, out), tmp_path / name)

    orders.send(300)
    application("one").run(available_now=True)
    assert by_id([row for _, row in found()]) == orders.joined()
    one, two = application("one").start(), application("two").start()
    try:
        until(lambda: len(topics.admin.describe_group(orders.group).members) == 2, 180, "two members")
        orders.send(300)
        until(lambda: len(found()) >= len(orders.joined()), 180, "the results of both")
        one.stop(now=True)
        one.wait(120)
        orders.send(200)
        until(lambda: len(found()) >= len(orders.joined()), 180, "the results of the one that goes on")
    finally:
        for each in (one, two):
            each.stop(now=True)
            each.wait(120)
    assert by_id([row for _, row in found()]) == orders.joined()
    assert all(key == row["item"].encode() for key, row in found()), "records are keyed by that of the repartition"
    counts = topics.admin.list_topics(internal=True)
    assert [name for name in counts if name.startswith(orders.group)] == [f"{orders.group}-by-item-repartition"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.gate
def test_rows_are_in_the_table_once_though_the_offsets_are_behind(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    orders, results = Orders(topics), Results(kind, tmp_path / "out")

    def run(directory: str) -> None:
        orders.pipeline(spark, results.sink(), tmp_path / directory).run(available_now=True)

    for at in (2, 3, 5):
        orders.send(250)
        with monkeypatch.context() as patch:
            fails(patch, at, Stopped())
            with pytest.raises(Stopped):
                run("one")
    with monkeypatch.context() as patch:
        fails(patch, 2, SinkFencedError("lost"))
        run("two")
    assert by_id(results.rows(spark)) == orders.joined()


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.gate
def test_a_table_is_not_gone_on_with_once_the_topic_before_it_is_another_one(
    spark: SparkSession, topics: Topics, tmp_path: Path, *, has_state: bool
) -> None:
    orders = Orders(topics)

    def run(output: str) -> None:
        made = Pipeline(
            spark, topics.bootstrap, orders.group, orders.topic, state=State(dir=str(tmp_path / "state")), **QUICK
        )
        made.json_columns(ORDERS).repartition("item", partitions=3)
        if has_state:
            made.aggregate("item", {"orders": "count(*)"})
        else:
            made.join_table(orders.prices, "item", "price long")
        made.write(ParquetSink(str(tmp_path / output))).run(available_now=True)

    orders.send(200)
    run("first")
    reset = ["state", "reset", orders.group, "--execute", "--state-dir", str(tmp_path / "state")]
    assert roster([*reset, "--bootstrap", topics.bootstrap]) == 0
    with pytest.raises(
        PipelineError, match=r"write: the results of .*-by-item-repartition-\d end at \d+, and the group"
    ):
        run("first")
    run("second")
    found = [row.asDict() for row in spark.read.parquet(str(tmp_path / "second")).collect()]
    if has_state:
        assert max(row["orders"] for row in found) == max(Counter(order["item"] for order in orders.sent).values())
    else:
        assert len(found) == sum(order["item"] != "i0" for order in orders.sent)


@pytest.mark.gate
def test_results_of_an_operator_are_joined_with_a_table_of_another_key(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    orders, out = Orders(topics), topics.create(1)
    for _ in range(2):
        orders.send(150)
        orders.send_again(50)
        made = Pipeline(spark, topics.bootstrap, orders.group, orders.topic, state=State(dir=str(tmp_path)), **QUICK)
        made.json_columns(ORDERS, keep=["timestamp"]).deduplicate("id", within=timedelta(days=1))
        made.repartition("item", partitions=3).join_table(orders.prices, "item", "price long")
        made.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)
    found = [json.loads(value or b"") for _, _, value in committed_records(topics, out)]
    prices = {f"i{number}": 10 * number for number in range(1, ITEMS)}
    assert Counter((row["id"], row["price"]) for row in found) == Counter(
        (order["id"], prices[order["item"]]) for order in orders.sent if order["item"] in prices
    )


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.gate
def test_tables_that_no_application_has_a_task_for_are_removed(
    spark: SparkSession, topics: Topics, tmp_path: Path, *, elsewhere: bool
) -> None:
    orders, tables = Orders(topics), topics.create(2)
    options = {"state": State(dir=str(tmp_path), cleanup_delay_ms=1_000), "starting_offsets": "earliest"}
    made = Pipeline(spark, topics.bootstrap, orders.group, orders.topic, **options, **QUICK).json_columns(ORDERS)
    if elsewhere:
        made.repartition("item", partitions=3).join_table(orders.prices, "item", "price long")
    else:
        made.join_table(tables, "user", "city string", how="left")
    own = {f"1_{number}" for number in range(3)} if elsewhere else {"0_0", "0_1"}

    def found() -> set[str]:
        return {path.name for path in stores_below(tmp_path)}

    orders.send(100)
    running = made.write(ParquetSink(str(tmp_path / "out"))).start()
    try:
        until(lambda: found() and found() <= own and running.last_progress, 120, "tables of own tasks")
        (place,) = {path.parent for path in stores_below(tmp_path)}
        mine = found()
        make(place, "0_7", "1_8")
        until(lambda: found() <= own, 60, "those of others are removed")
        assert mine <= found()
    finally:
        running.stop(now=True)
        running.wait(120)


def as_json(rows: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch({"value": [json.dumps(row) for row in rows.to_pylist()]})


class Near(Pipeline):
    _tuning = Tuning(acceptable_lag=20)


@pytest.mark.gate
def test_a_table_is_a_store_where_nothing_else_has_state(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """Its tasks are the group's: a second application has copies that catch up, and takes tasks over with them."""
    orders, cities, out = Orders(topics), topics.create(2), topics.create(2)
    producer = idempotent_producer(topics.bootstrap)
    for number in range(1000):
        producer.produce(cities, json.dumps({"city": f"c{number // 5}"}), f"u{number % 5}")
    assert producer.flush(60) == 0
    entries = topics.admin.end_offsets([TopicPartition(cities, number) for number in (0, 1)])

    def application(name: str, **options: Any) -> Pipeline:
        state = State(dir=str(tmp_path / name), standbys=1)
        made = Near(spark, topics.bootstrap, orders.group, orders.topic, state=state, **QUICK, **options)
        made.json_columns(ORDERS).join_table(cities, "user", "city string").map_arrow(as_json, "value string")
        return made.write(KafkaSink(topics.bootstrap, out))

    def copies(name: str) -> dict[TopicPartition, int]:
        roots = {path.parent for path in stores_below(tmp_path / name)}
        places: Any = [SimpleNamespace(root=root, is_ordered=False) for root in roots]
        found = {task.partition: at for place in places for task, at in stores_found(place).items()}
        return {TopicPartition(cities, number): at for number, at in found.items()}

    def rows() -> list[dict[str, Any]]:
        return [json.loads(value or b"") for _, _, value in committed_records(topics, out)]

    orders.send(100)
    with pytest.raises(PipelineError, match=r"assignors: a pipeline with state or tables .*State\(standbys"):
        application("one", assignors=["range"]).run(available_now=True)
    seen: list[Progress] = []
    one, two = application("one").start(), application("two", on_progress=seen.append)
    try:
        until(lambda: len(rows()) == 100, 180, "the results of one")
        assert copies("one") == entries
        two.start()
        until(lambda: copies("two") == entries, 180, "copies of both tasks")
        one.stop(now=True)
        one.wait(120)
        orders.send(100)
        until(lambda: len(rows()) >= 200, 180, "the results of two")
        assert sum(progress.standby_records for progress in seen) > 0
    finally:
        for each in (one, two):
            each.stop(now=True)
            each.wait(120)
    last = {f"u{number}": "c199" for number in range(5)}
    assert by_id(rows()) == [{**order, "city": last[order["user"]]} for order in orders.sent]


def test_what_does_not_reach_the_results_is_named(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    orders, sink = Orders(topics), KafkaSink(topics.bootstrap, topics.create(1))

    def made() -> Pipeline:
        made = Pipeline(spark, topics.bootstrap, orders.group, orders.topic, state=State(dir=str(tmp_path)))
        return made.json_columns(ORDERS, keep=["timestamp"])

    def without_item(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["id"])

    no_key = made().repartition("item", partitions=3).join_table(orders.prices, "item", "price long")
    with pytest.raises(PipelineError, match="map_arrow: the column 'item' is missing, a part of the records' key"):
        no_key.map_arrow(without_item, "id long").write(sink).run(available_now=True)
    sessions = made().aggregate("user", {"n": "count(*)"}, window=Window.session("timestamp", timedelta(seconds=1)))
    with pytest.raises(PipelineError, match="repartition: sessions take earlier results back"):
        sessions.repartition("n")
    with pytest.raises(PipelineError, match="nothing behind it has state or joins a table, so no row needs to move"):
        made().repartition("item").filter(pc.field("id") > 1).write(sink).run(available_now=True)
    fewer = made().repartition("item").join_table(orders.prices, "item", "price long").write(sink)
    with pytest.raises(PipelineError, match=r"the rows would be in 2 partitions, and .* has 3. Use repartition"):
        fewer.run(available_now=True)
