"""Joins in stateful pipelines, in a Spark session on a Roster broker, against plain Python."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from roster.spark import KafkaSink, Pipeline
from tests.librdkafka import idempotent_producer
from tests.spark.spark_topics import Topics, committed_records

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_rows_joined_with_a_table_are_counted_by_what_it_says(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    orders, shops, out = topics.create(2), topics.create(2), topics.create(1)
    group = f"g-{uuid.uuid4().hex[:8]}"
    producer = idempotent_producer(topics.bootstrap)
    countries = {"a": "FR", "b": "IT", "c": "FR"}
    expected: Counter[tuple[str, str]] = Counter()

    def send(count: int) -> None:
        for number in range(count):
            shop = "abcd"[number % 4]
            producer.produce(orders, json.dumps({"shop": shop, "price": number}), shop, partition=number % 2)
            if shop in countries and number >= 4:
                expected[(countries[shop], shop)] += 1
        assert producer.flush(60) == 0

    def run() -> dict[tuple[str, str], int]:
        pipeline = Pipeline(spark, topics.bootstrap, group, orders, state_dir=str(tmp_path))
        (
            pipeline.json_columns("shop string, price long")
            .join_table(shops, on="shop", schema="country string")
            .filter(pc.field("price") >= 4)
            .aggregate(["country", "shop"], {"orders": "count(*)"}, store="by-country")
            .filter(pc.field("orders") > 0)
            .write(KafkaSink(topics.bootstrap, out))
            .run(available_now=True)
        )
        found: dict[tuple[str, str], Any] = {}
        for _, _, value in committed_records(topics, out):
            row = json.loads(value or b"")
            found[(row["country"], row["shop"])] = row["orders"]
        return found

    for shop, country in countries.items():
        producer.produce(shops, json.dumps({"country": country}), shop, partition="abc".index(shop) % 2)
    send(60)
    assert run() == expected
    countries["c"] = "DE"
    producer.produce(shops, json.dumps({"country": "DE"}), "c", partition=0)
    send(30)
    assert run() == expected
    assert set(expected) == {("FR", "a"), ("IT", "b"), ("FR", "c"), ("DE", "c")}
