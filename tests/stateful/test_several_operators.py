"""Pipelines of several stateful operators: in one task with a store each, and in tasks one behind the other."""

from __future__ import annotations

import itertools
import json
import random
import urllib.request
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from roster.spark import KafkaSink, ParquetSink, Pipeline, PipelineError, State, Window
from tests.librdkafka import idempotent_producer
from tests.real.realparts.apache import free_ports
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

CLICKS = "id long, user string, page string, clicked timestamp"
HOUR = timedelta(hours=1)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
USERS, PAGES = 17, 5
QUICK = {"consumer": {"heartbeat.interval.ms": 200}, "trigger_interval_ms": 0, "max_offsets_per_batch": 300}


class Clicks:
    """Clicks keyed by user, a fifth of them sent twice; each partition's time only grows."""

    def __init__(self, topics: Topics, partitions: int) -> None:
        self._topics, self.topic = topics, topics.create(partitions)
        self._numbers, self._chance = itertools.count(), random.Random(3)
        self.sent: list[tuple[str, str, datetime]] = []

    def send(self, count: int) -> None:
        producer = idempotent_producer(self._topics.bootstrap)
        for number in itertools.islice(self._numbers, count):
            user, page = f"u{number % USERS}", f"p{self._chance.randrange(PAGES)}"
            self._put(producer, user, page, BEGIN + timedelta(minutes=number), number, self._chance.choice((1, 1, 2)))
            self.sent.append((user, page, BEGIN + timedelta(minutes=number)))
        assert producer.flush(60) == 0

    def close_windows(self) -> None:
        """Send one click for each user long after all others."""
        producer = idempotent_producer(self._topics.bootstrap)
        for number in range(USERS):
            self._put(producer, f"u{number}", "late", BEGIN + timedelta(days=400), -1 - number, 1)
        assert producer.flush(60) == 0

    def _put(self, producer: Any, user: str, page: str, at: datetime, number: int, times: int) -> None:
        value = json.dumps({"id": number, "user": user, "page": page, "clicked": at.isoformat()})
        for _ in range(times):
            producer.produce(self.topic, value, user)

    def by_hour(self) -> Counter[tuple[str, str, datetime]]:
        """Clicks by user, page and hour."""
        return Counter((user, page, at.replace(minute=0)) for user, page, at in self.sent)

    def by_page(self) -> dict[str, dict[str, Any]]:
        """What the pipeline's results are in the end: of each page hours of users with clicks, and the clicks."""
        hours, clicks = Counter[str](), Counter[str]()
        for (_, page, _), count in self.by_hour().items():
            hours[page] += 1
            clicks[page] += count
        return {page: {"page": page, "hours": hours[page], "clicks": clicks[page]} for page in hours}


def declared(made: Pipeline) -> Pipeline:
    """First rows and hours of users in tasks `0_n`, two stores each; totals by page in tasks `1_n`."""
    hourly = Window("clicked", HOUR)
    return (
        made.json_columns(CLICKS)
        .deduplicate("id", within=timedelta(days=1), column="clicked", store="ids")
        .aggregate(["user", "page"], {"clicks": "count(*)"}, window=hourly, results="final", store="hours")
        .filter(pc.field("page") != "late")
        .repartition("page", partitions=2)
        .aggregate("page", {"hours": "count(*)", "clicks": "sum(clicks)"}, store="pages")
    )


def last_results(topics: Topics, out: str) -> dict[str, dict[str, Any]]:
    return {(key or b"").decode(): json.loads(value or b"") for _, key, value in committed_records(topics, out)}


@pytest.mark.gate
def test_operators_of_one_task_and_of_the_next_equal_a_plain_computation(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    clicks, out, group = Clicks(topics, 3), topics.create(2), f"g-{uuid.uuid4().hex[:8]}"
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]

    def application(number: int) -> Pipeline:
        made = Pipeline(
            *(spark, topics.bootstrap, group, clicks.topic),
            state=State(dir=str(tmp_path / str(number)), application_server=addresses[number], standbys=1),
            **QUICK,  # type: ignore[arg-type]
        )
        return declared(made).write(KafkaSink(topics.bootstrap, out))

    clicks.send(600)
    application(0).run(available_now=True)
    partly = last_results(topics, out)
    assert partly, "closed hours have come through both sub-topologies"
    counts = topics.admin.list_topics(internal=True)
    names = ("ids-changelog", "hours-changelog", "pages-changelog", "by-page-repartition")
    assert [counts[f"{group}-{name}"] for name in names] == [3, 3, 2, 2]
    one, two = application(0).start(), application(1).start()
    try:
        until(lambda: len(topics.admin.describe_group(group).members) == 2, 180, "two members")
        clicks.send(300)
        until(lambda: len(two.store("hours").tasks | one.store("hours").tasks) == 3, 180, "all tasks run")
        one.stop(now=True)
        one.wait(120)
        clicks.send(300)
        clicks.close_windows()
        until(lambda: last_results(topics, out) == clicks.by_page(), 180, "results of the one that goes on")
        by_page = two.store("pages")
        assert {row["page"]: row for row in by_page.range()} == clicks.by_page()
        assert (two.store("ids").tasks, by_page.tasks) == ({"0_0", "0_1", "0_2"}, {"1_0", "1_1"})
        assert len(two.store("hours").prefix()) == USERS, "those of the last clicks are open"
        with urllib.request.urlopen(f"http://{addresses[1]}/stores", timeout=60) as response:
            stores = json.load(response)["stores"]
        assert [each["store"] for each in stores] == ["ids", "hours", "pages"]
        with urllib.request.urlopen(f"http://{addresses[1]}/stores/pages/get?key=p1", timeout=60) as response:
            assert json.load(response)["row"] == clicks.by_page()["p1"]
    finally:
        for each in (one, two):
            each.stop(now=True)
            each.wait(120)


@pytest.mark.gate
def test_results_of_the_last_operator_are_in_files_once(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    clicks, group, out = Clicks(topics, 2), f"g-{uuid.uuid4().hex[:8]}", str(tmp_path / "out")
    for number in range(3):
        clicks.send(200)
        if number == 2:
            clicks.close_windows()
        made = Pipeline(spark, topics.bootstrap, group, clicks.topic, state=State(dir=str(tmp_path / "state")), **QUICK)  # type: ignore[arg-type]
        declared(made).write(ParquetSink(out)).run(available_now=True)
    rows = spark.read.parquet(out).collect()
    last = {row.page: row for row in sorted(rows, key=lambda each: each.hours)}
    assert {page: row.asDict() for page, row in last.items()} == clicks.by_page()
    assert len({(row.page, row.hours) for row in rows}) == len(rows), "an update is there once"


@pytest.mark.gate
def test_rows_joined_with_tables_go_on_to_another_key_and_through_three_sub_topologies(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    clicks, group, out = Clicks(topics, 2), f"g-{uuid.uuid4().hex[:8]}", topics.create(1)
    users, pages = topics.create(2), topics.create(3)
    producer = idempotent_producer(topics.bootstrap)
    as_java = idempotent_producer(topics.bootstrap, {"partitioner": "murmur2_random"})
    for number in range(USERS):
        producer.produce(users, json.dumps({"country": f"c{number % 3}"}), f"u{number}")
    for number in range(1, PAGES):
        as_java.produce(pages, json.dumps({"weight": number}), f"p{number}")
    assert producer.flush(60) == as_java.flush(60) == 0
    clicks.send(500)

    def pipeline(partitions: int) -> Pipeline:
        made = Pipeline(spark, topics.bootstrap, group, clicks.topic, state=State(dir=str(tmp_path / "state")), **QUICK)  # type: ignore[arg-type]
        made.json_columns(CLICKS).join_table(users, on="user", schema="country string")
        made.repartition("page", partitions=partitions).filter(pc.field("page") != "p0")
        made.join_table(pages, on="page", schema="weight long", how="left").filter(pc.field("weight") > 1)
        made.deduplicate(["id"], within=timedelta(days=900), column="clicked")
        made.repartition("country", partitions=2)
        made.aggregate("country", {"clicks": "count(*)", "weight": "sum(weight)"}, store="countries")
        return made.write(KafkaSink(topics.bootstrap, out))

    with pytest.raises(PipelineError, match=rf"the rows would be in 2 partitions, and '{pages}', .* has 3. Use repart"):
        pipeline(2).run(available_now=True)
    pipeline(3).run(available_now=True)
    clicks.send(100)
    pipeline(3).run(available_now=True)
    expected: dict[str, dict[str, Any]] = {}
    for user, page, _ in clicks.sent:
        if (weight := int(page[1:])) > 1:
            country = f"c{int(user[1:]) % 3}"
            row = expected.setdefault(country, {"country": country, "clicks": 0, "weight": 0})
            row["clicks"] += 1
            row["weight"] += weight
    assert last_results(topics, out) == expected
