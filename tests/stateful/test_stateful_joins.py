"""Joins in stateful pipelines, in a Spark session on a Roster broker, against plain Python."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from roster.spark import KafkaSink, Pipeline, PipelineError, State
from tests.librdkafka import idempotent_producer
from tests.spark.spark_topics import Topics, committed_records

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_rows_joined_with_tables_are_counted_by_what_they_say(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    orders, shops, ranks, out = topics.create(2), topics.create(2), topics.create(2), topics.create(1)
    group = f"g-{uuid.uuid4().hex[:8]}"
    producer = idempotent_producer(topics.bootstrap)
    countries = {"a": "FR", "b": "IT", "c": "FR"}
    expected: Counter[tuple[str, str, int]] = Counter()

    def send(count: int) -> None:
        for number in range(count):
            shop = "abcd"[number % 4]
            producer.produce(orders, json.dumps({"shop": shop, "price": number}), shop, partition=number % 2)
            if shop in countries and number >= 4:
                expected[(countries[shop], shop, "abc".index(shop))] += 1
        assert producer.flush(60) == 0

    def run() -> dict[tuple[str, str, int], int]:
        pipeline = Pipeline(spark, topics.bootstrap, group, orders, state=State(dir=str(tmp_path)))
        (
            pipeline.json_columns("shop string, price long")
            .join_table(shops, on="shop", schema="country string")
            .filter(pc.field("price") >= 4)
            .join_table(ranks, on="shop", schema="rank long", how="left")
            .aggregate(["country", "shop", "rank"], {"orders": "count(*)"}, store="by-country")
            .filter(pc.field("orders") > 0)
            .write(KafkaSink(topics.bootstrap, out))
            .run(available_now=True)
        )
        found: dict[tuple[str, str, int], Any] = {}
        for _, _, value in committed_records(topics, out):
            row = json.loads(value or b"")
            found[(row["country"], row["shop"], row["rank"])] = row["orders"]
        return found

    for shop, country in countries.items():
        rank = "abc".index(shop)
        producer.produce(shops, json.dumps({"country": country}), shop, partition=rank % 2)
        producer.produce(ranks, json.dumps({"rank": rank}), shop, partition=rank % 2)
    send(60)
    assert run() == expected
    countries["c"] = "DE"
    producer.produce(shops, json.dumps({"country": "DE"}), "c", partition=0)
    send(30)
    assert run() == expected
    assert set(expected) == {("FR", "a", 0), ("IT", "b", 1), ("FR", "c", 2), ("DE", "c", 2)}


def test_two_streams_are_joined_exactly_through_restarts_and_a_lost_store(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    orders, payments, out = topics.create(2), topics.create(2), topics.create(1)
    group = f"g-{uuid.uuid4().hex[:8]}"
    producer = idempotent_producer(topics.bootstrap)
    begin = datetime(2024, 5, 1, tzinfo=UTC)
    sent: dict[str, list[tuple[str, int]]] = {orders: [], payments: []}

    def send(topic: str, keys: range, second: int) -> None:
        for number in keys:
            at = (begin + timedelta(seconds=second)).isoformat()
            value = {"order": f"o{number}", "ordered" if topic == orders else "paid": at}
            producer.produce(topic, json.dumps(value), f"o{number}", partition=number % 2)
            sent[topic].append((f"o{number}", second))
        assert producer.flush(60) == 0

    kept: list[tuple[str, str]] = []
    """Side and key of the rows that may still find partners, as of the last batch."""

    def run(directory: str) -> Counter[tuple[str, bool, bool]]:
        def note(_: Any) -> None:
            kept[:] = [(row["side"], row["key"]["order"]) for row in pipeline.store("join").prefix()]

        pipeline = Pipeline(
            spark, topics.bootstrap, group, orders, state=State(dir=str(tmp_path / directory)), on_progress=note
        )
        (
            pipeline.json_columns("order string, ordered timestamp")
            .join(
                payments,
                "order",
                "order string, paid timestamp",
                within=timedelta(seconds=10),
                how="full",
                column="ordered",
                other_column="paid",
            )
            .filter(pc.field("order") != "o0")
            .write(KafkaSink(topics.bootstrap, out))
            .run(available_now=True)
        )
        rows = [json.loads(value or b"") for _, _, value in committed_records(topics, out)]
        return Counter((row["order"], row["ordered"] is not None, row["paid"] is not None) for row in rows)

    def expected() -> Counter[tuple[str, bool, bool]]:
        """Pairs in time, and rows whose time is over: no row here is late."""
        found: Counter[tuple[str, bool, bool]] = Counter()
        for topic, other in ((orders, payments), (payments, orders)):
            for key, at in sent[topic]:
                partners = [t for order, t in sent[other] if order == key and abs(t - at) <= 10]
                now = max((t for order, t in sent[other] if int(order[1:]) % 2 == int(key[1:]) % 2), default=0)
                found[(key, True, True)] += len(partners) if topic == orders else 0
                found[(key, topic == orders, topic != orders)] += not partners and at + 20 < now
        return +Counter({place: count for place, count in found.items() if place[0] != "o0"})

    send(orders, range(20), 1)
    send(payments, range(5, 10), 3)
    assert run("one") == expected()
    send(payments, range(8, 15), 11)
    send(payments, range(30, 32), 11)
    assert run("one") == expected(), "rows of an earlier run are found"
    send(orders, range(20, 30), 60)
    send(payments, range(24, 30), 65)
    assert run("two") == expected(), "a new store is filled from the changelog"
    assert expected()[("o1", True, False)] == expected()[("o30", False, True)] == 1
    in_time = {("left", f"o{number}") for number in range(20, 30)} | {
        ("right", f"o{number}") for number in range(24, 30)
    }
    assert kept == sorted(in_time, key=lambda row: (row[1], row[0]))
    assert topics.committed(group).keys() == topics.ends(orders).keys() | topics.ends(payments).keys()
    with pytest.raises(PipelineError, match=rf"topics: the topics .* equally many partitions.*{orders} 2, {out} 1"):
        (
            Pipeline(spark, topics.bootstrap, f"{group}-2", orders)
            .json_columns("k string", keep=["timestamp"])
            .join(out, "k", "k string", within=timedelta(seconds=1))
            .write(KafkaSink(topics.bootstrap, out))
            .run(available_now=True)
        )
