"""Releases that keep something else than the group's state: refused before they join, and the old one goes on."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from roster.spark import KafkaSink, Pipeline, PipelineError, Window
from roster.stateful.stores import Stores
from tests.librdkafka import idempotent_producer
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = "shop string, item string, price double, at timestamp"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
QUICK = {"consumer": {"heartbeat.interval.ms": 200}, "trigger_interval_ms": 0}


class Shops:
    """A group that keeps totals of ten shops."""

    def __init__(self, spark: SparkSession, topics: Topics) -> None:
        self.spark, self.topics, self.group = spark, topics, f"g-{uuid.uuid4().hex[:8]}"
        self.topic, self.out = topics.create(2), topics.create(1)

    def pipeline(self, columns: str = ROWS) -> Pipeline:
        made = Pipeline(self.spark, self.topics.bootstrap, self.group, [self.topic], **QUICK)
        return made.json_columns(columns)

    def send(self) -> None:
        """Send ten records of each of ten shops."""
        producer = idempotent_producer(self.topics.bootstrap)
        for number in range(100):
            shop = f"s{number % 10}"
            row = {"shop": shop, "item": "book", "price": 1.0, "at": (NOON + timedelta(minutes=number)).isoformat()}
            producer.produce(self.topic, json.dumps(row), shop, partition=number % 2)
        assert producer.flush(60) == 0

    def run(self, made: Pipeline, to: str | None = None) -> Pipeline:
        made.write(KafkaSink(self.topics.bootstrap, to or self.out)).run(available_now=True)
        return made

    def results(self) -> Counter[int]:
        """How many results have each total."""
        values = (json.loads(value or b"{}") for _, _, value in committed_records(self.topics, self.out))
        return Counter(value["n"] for value in values)

    def kept(self, store: str = "aggregates") -> list[Any]:
        return committed_records(self.topics, f"{self.group}-{store}-changelog")


def totals(made: Pipeline) -> Pipeline:
    return made.aggregate("shop", {"n": "count(*)"})


Release = tuple[Callable[[Pipeline], Pipeline], str, str]
RELEASES: dict[str, Release] = {
    "window": (
        lambda made: made.aggregate("shop", {"n": "count(*)"}, window=Window("at", HOUR)),
        ROWS,
        (
            r"store: 'aggregates' of the group 'GROUP', partition 0: its state was written with keys \(shop string\),"
            r" no window, and this pipeline has keys \(window_start timestamp\[ms, tz=UTC\], shop string\), window"
            r" \(column at, size 1:00:00, every 1:00:00\)\. Go on with .* `roster state reset GROUP`"
        ),
    ),
    "session": (
        lambda made: made.aggregate("shop", {"n": "count(*)"}, window=Window.session("at", HOUR), results="final"),
        ROWS,
        r"no session, .* session \(column at, gap 1:00:00\)",
    ),
    "key": (lambda made: made.aggregate("at", {"n": "count(*)"}), ROWS, r"\(shop string\), .* \(at timestamp"),
    "keys": (lambda made: made.aggregate(["shop", "item"], {"n": "count(*)"}), ROWS, r"\(shop string, item string\)"),
    "key type": (totals, "shop int", r"keys \(shop string\), and this pipeline has keys \(shop int32\)"),
    "another name": (
        lambda made: made.aggregate("shop", {"orders": "count(*)"}),
        ROWS,
        (
            r"written with no orders, and this pipeline has orders count\(\*\) int64\. migrate={'orders': 'n'} if it"
            r" is 'n' under another name, migrate={'orders': None} if it begins anew"
        ),
    ),
    "operator": (
        lambda made: made.deduplicate("shop", within=HOUR, column="at", store="aggregates"),
        ROWS,
        "operator aggregate, .* operator deduplicate",
    ),
    "store": (
        lambda made: made.aggregate("shop", {"n": "count(*)"}, store="renamed"),
        ROWS,
        "has offsets of .* but its changelog .*-renamed-changelog' is not there",
    ),
}


@pytest.mark.gate
def test_the_totals_go_on_after_each_release_that_was_refused(
    spark: SparkSession, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    shops = Shops(spark, topics)
    for _ in range(2):
        shops.send()
        shops.run(totals(shops.pipeline()))
    expected = Counter({10: 10, 20: 10})
    assert shops.results() == expected
    before, members = shops.kept(), 0
    member = Stores.member

    def counted(*given: Any) -> Any:
        nonlocal members
        members += 1
        return member(*given)

    monkeypatch.setattr(Stores, "member", counted)
    for number, (release, columns, message) in enumerate(RELEASES.values()):
        if number == len(RELEASES) // 2:
            shops.send()  # the first ones have no new records
        with pytest.raises(PipelineError, match=message.replace("GROUP", shops.group)):
            shops.run(release(shops.pipeline(columns)), topics.create(1))
        assert shops.kept() == before, message
    assert members == 0, "none has joined"
    shops.run(totals(shops.pipeline()))
    assert (shops.results(), members) == (expected + Counter({30: 10}), 1)


@pytest.mark.gate
def test_results_may_be_added_reordered_renamed_and_left_out_and_the_totals_go_on(
    spark: SparkSession, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    shops = Shops(spark, topics)

    def released(aggregates: dict[str, str], migrate: Any = None) -> dict[str, Any]:
        """Send ten records of each shop, run the release, and return the last results of a shop."""
        shops.send()
        shops.run(shops.pipeline().aggregate("shop", aggregates, migrate=migrate))
        found = {key: json.loads(value or b"") for _, key, value in committed_records(topics, shops.out)}
        assert len({json.dumps({**each, "shop": ""}) for each in found.values()}) == 1, "of each shop the same"
        return {name: value for name, value in found[b"s3"].items() if name != "shop"}

    assert released({"n": "count(*)", "paid": "sum(price)"}) == {"n": 10, "paid": 10.0}
    with caplog.at_level("INFO", "roster.pipeline"):
        later = {"highest": "max(price)", "paid": "sum(price)", "n": "count(*)"}
        assert released(later) == {"highest": 1.0, "paid": 20.0, "n": 20}
    said = [line for line in caplog.messages if "changes in place" in line]
    assert [line.partition("in place: ")[2].partition(":")[0] for line in said] == ["highest", "order"]
    renamed = {"orders": "count(*)", "mean": "avg(price)"}
    assert released(renamed, {"orders": "n", "mean": None}) == {"orders": 30, "mean": 1.0}
    with pytest.raises(PipelineError, match=r"a newer release has changed its state: .*Stop this release, or take"):
        released(later)
    assert released(renamed) == {"orders": 50, "mean": 1.0}, "those of the refused release, too"

    def summed(rows: Any) -> Any:
        return rows.append_column("paid", rows["sum of mean"])

    assert released({"paid": "sum(price)", "orders": "count(*)"}, summed) == {"paid": 40.0, "orders": 60}


def test_a_new_release_beside_the_old_one_is_refused_and_that_goes_on(spark: SparkSession, topics: Topics) -> None:
    shops = Shops(spark, topics)
    shops.send()
    old = totals(shops.pipeline()).write(KafkaSink(topics.bootstrap, shops.out)).start()
    try:
        until(lambda: sum(shops.results().values()) >= 10, what="the first totals")
        release, _, message = RELEASES["window"]
        with pytest.raises(PipelineError, match=message.replace("GROUP", shops.group)):
            shops.run(release(shops.pipeline()), topics.create(1))
        shops.send()
        until(lambda: shops.results()[20] == 10, what="the next totals")
    finally:
        old.stop()


@pytest.mark.gate
def test_a_release_that_changes_the_state_joins_when_the_old_one_has_left(spark: SparkSession, topics: Topics) -> None:
    shops = Shops(spark, topics)
    shops.send()
    old = totals(shops.pipeline()).write(KafkaSink(topics.bootstrap, shops.out)).start()
    new = shops.pipeline().aggregate("shop", {"n": "count(*)", "paid": "sum(price)"})
    try:
        until(lambda: shops.results()[10] == 10, what="the first totals")
        new.write(KafkaSink(topics.bootstrap, shops.out)).start()
        until(lambda: new.status == "waiting for the earlier release", what="the new release")
        shops.send()
        until(lambda: shops.results()[20] == 10, what="totals of the old release")
        assert new.status == "waiting for the earlier release"
        old.stop()
        old.wait()
        until(lambda: new.status == "running", what="the new release to join")
        shops.send()
        until(lambda: shops.results()[30] == 10, what="totals of the new release")
    finally:
        old.stop()
        new.stop()
        new.wait()
    last = json.loads(committed_records(topics, shops.out)[-1][2] or b"")
    assert (last["n"], last["paid"]) == (30, 10.0)


class Counting(StatefulProcessor):
    """Counts the rows of a key in a value of this name and schema."""

    def __init__(self, name: str = "count", schema: str = "n long", *, gives_up: str | None = None) -> None:
        self._name, self._schema, self._gives_up = name, schema, gives_up

    def init(self, handle: Any) -> None:
        if self._gives_up is not None:
            handle.deleteIfExists(self._gives_up)
        self._count = handle.getValueState(self._name, self._schema)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        found = self._count.get()
        n = (found[0] if found else 0) + len(list(rows))
        self._count.update((n, *(None for _ in self._schema.split(",")[1:])))
        yield Row(shop=key[0], n=n)

    def close(self) -> None:
        pass


@pytest.mark.gate
def test_a_processor_goes_on_with_its_own_variables_only(spark: SparkSession, topics: Topics) -> None:
    shops = Shops(spark, topics)

    def counted(processor: Counting, time_mode: str = "None", migrate: Any = None) -> Pipeline:
        return shops.pipeline().transform_with_state(
            processor, "shop", "shop string, n long", time_mode=time_mode, migrate=migrate
        )

    def narrower(rows: pa.Table) -> pa.Table:
        n = pc.struct_field(rows["value"].combine_chunks(), "n").cast(pa.int32())
        return rows.set_column(1, "value", pc.make_struct(n, field_names=["n"]))

    shops.send()
    shops.run(counted(Counting()))
    before = shops.kept("processor")
    shops.send()
    for made, message in [
        (counted(Counting("total")), r"'processor' of the group .*state variable 'count'.*deleteIfExists\('count'\)"),
        (counted(Counting(schema="n int")), r"'count': its field 'n' was written as int64 and is int32"),
        (counted(Counting(), "ProcessingTime"), r"time_mode None, and this pipeline has time_mode ProcessingTime"),
        (shops.pipeline().aggregate("shop", {"n": "count(*)"}, store="processor"), "operator transform_with_state"),
    ]:
        with pytest.raises(PipelineError, match=message):
            shops.run(made)
        assert shops.kept("processor") == before
    shops.run(counted(Counting(schema="n long, more string")))
    assert shops.results() == Counter({10: 10, 20: 10}), "a field may be added"
    shops.send()
    with pytest.raises(PipelineError, match="a newer release has added its field 'more'"):
        shops.run(counted(Counting()))
    with pytest.raises(PipelineError, match=r"migrate: 'x' is none of count\. For example {'count': function}"):
        counted(Counting(), migrate={"x": narrower})
    shops.run(counted(Counting(schema="n int"), migrate={"count": narrower}))
    assert shops.results() == Counter({10: 10, 20: 10, 30: 10}), "values are those that a function has made"
    shops.send()
    shops.run(counted(Counting("total", gives_up="count")))
    assert shops.results() == Counter({10: 20, 20: 10, 30: 10}), "what is given up begins anew"
