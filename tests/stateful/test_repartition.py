"""Pipelines of two sub-topologies: rows go to the task that has their new key, and count there once."""

from __future__ import annotations

import itertools
import json
import random
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from roster.model import TopicPartition
from roster.spark import KafkaSink, Pipeline, State
from tests.librdkafka import idempotent_producer
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

CARRIERS = ("AA", "DL", "UA", None, "WN", "B6")
FLIGHTS = "aircraft string, carrier string, delay long"


class Flights:
    """Flights keyed by aircraft, so that those of a carrier are in every partition."""

    def __init__(self, topics: Topics, partitions: int) -> None:
        self._topics, self.topic = topics, topics.create(partitions)
        self._numbers = itertools.count()
        self._chance = random.Random(5)
        self.delays: Counter[str | None] = Counter()
        self.counts: Counter[str | None] = Counter()

    def send(self, count: int) -> None:
        producer = idempotent_producer(self._topics.bootstrap)
        for number in itertools.islice(self._numbers, count):
            carrier, delay = self._chance.choice(CARRIERS), self._chance.randrange(-10, 90)
            aircraft = f"N{number % 37}"
            value = json.dumps({"aircraft": aircraft, "carrier": carrier, "delay": delay})
            producer.produce(self.topic, value, aircraft)
            if delay > 0:
                self.delays[carrier] += delay
                self.counts[carrier] += 1
        assert producer.flush(60) == 0

    def totals(self) -> dict[str | None, dict[str, Any]]:
        return {
            carrier: {"carrier": carrier, "flights": count, "delay": self.delays[carrier]}
            for carrier, count in self.counts.items()
        }


def pipeline(spark: SparkSession, flights: Flights, topics: Topics, group: str, out: str, **options: Any) -> Pipeline:
    return declared(Pipeline(spark, topics.bootstrap, group, flights.topic, **options)).write(
        KafkaSink(topics.bootstrap, out)
    )


def declared(made: Pipeline) -> Pipeline:
    made.json_columns(FLIGHTS, keep=["timestamp"]).repartition("carrier", partitions=3).filter(pc.field("delay") > 0)
    return made.aggregate("carrier", {"flights": "count(*)", "delay": "sum(delay)"}, store="totals")


def last_results(topics: Topics, out: str) -> dict[str | None, dict[str, Any]]:
    # Records without a key are in several partitions, so the order is that of their counts.
    found = sorted((json.loads(value or b"") for _, _, value in committed_records(topics, out)), key=_flights)
    return {each["carrier"]: each for each in found}


def _flights(result: dict[str, Any]) -> int:
    return int(result["flights"])


def test_totals_by_another_key_equal_a_plain_computation(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    flights, out, group = Flights(topics, 2), topics.create(2), f"g-{uuid.uuid4().hex[:8]}"
    between, changelog = f"{group}-by-carrier-repartition", f"{group}-totals-changelog"
    quick = {"consumer": {"heartbeat.interval.ms": 200}, "trigger_interval_ms": 0, "max_offsets_per_batch": 400}

    def application(name: str, **more: Any) -> Pipeline:
        return pipeline(spark, flights, topics, group, out, state=State(dir=str(tmp_path / name)), **quick, **more)

    def is_done() -> bool:
        return last_results(topics, out) == flights.totals()

    again = application("one")
    for count in (500, 500):
        flights.send(count)
        again.run(available_now=True)
    assert is_done()
    settings = topics.admin.topic_configs(between)
    assert (settings["cleanup.policy"], settings["retention.ms"]) == ("delete", "-1")
    counts = topics.admin.list_topics(internal=True)
    assert (counts[between], counts[changelog]) == (3, 3)
    one, two = application("one").start(), application("two").start()
    try:
        until(lambda: len(topics.admin.describe_group(group).members) == 2, 180, "two members")
        flights.send(300)
        until(is_done, 180, "results of both")
        one.stop(now=True)
        flights.send(300)
        until(is_done, 180, "results of the one that goes on")
        committed = topics.admin.group_offsets(group)
        assert {partition.topic for partition in committed} == {flights.topic, between}
    finally:
        for each in (one, two):
            each.stop(now=True)
        for each in (one, two):
            each.wait(120)
    begins = topics.admin.beginning_offsets([TopicPartition(between, number) for number in range(3)])
    assert any(begins.values()), "records that are processed are deleted"
    assert all(begins[partition] <= committed[partition].offset for partition in begins)
