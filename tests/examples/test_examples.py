"""The examples run as they are, on one topic, and their results are right.

Those with Spark run in the tests' session; one second run, and those without Spark, are programs of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assigned

from roster.client import Admin, OffsetAndMetadata
from roster.model import TopicPartition
from roster.testing import running_broker
from tests.librdkafka import idempotent_producer
from tests.spark.programs import run_in_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
ORDERS = [("Rome", "book", 12.5), ("Oslo", "lamp", 30), ("Rome", "lamp", 28), ("Oslo", "book", None)]
TOTALS = ["Oslo 2 30.0", "Rome 2 40.5"]
PAYMENTS = [("A", 10, minute) for minute in (0, 4, 13, 21, 30)] + [("B", 2000, 31), ("C", 10, 32), ("C", -2000, 33)]
VISITS = [("1", "/a", 0), ("2", "/b", 1), ("1", "/a", 2), ("3", "/a", 5), ("3", "/a", 5), ("4", "/b", 9)]
COUNTS = ["(no key) 1", "Oslo 2", "Rome 2"]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with running_broker() as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("orders", 3)
        admin.create_topic("orders-with-country", 1)
        for topic in ("totals-by-shop", "largest-orders", "payments", "suspicious", "visits-by-page"):
            admin.create_topic(topic, 1)
        admin.create_topic("visits", 2)
        producer = idempotent_producer(broker.bootstrap)
        for shop, item, price in ORDERS:
            order = json.dumps({"shop": shop, "item": item, "price": price})
            producer.produce("orders", order, shop, partition=2 * (shop == "Oslo"))
        producer.produce("orders", b"no order", partition=0)
        admin.create_topic("shops", 3, configs={"cleanup.policy": "compact"})
        producer.produce("shops", '{"country": "Norway"}', "Oslo", partition=2)
        for card, amount, minute in [*PAYMENTS, ("D", 10, 59)]:
            paid = {"card": card, "amount": amount, "paid": f"2026-03-01T10:{minute:02}:00Z"}
            producer.produce("payments", json.dumps(paid), card)
        for visit, page, minute in VISITS:
            told = {"visit": visit, "page": page, "at": f"2026-03-01T10:{minute:02}:00Z"}
            producer.produce("visits", json.dumps(told), visit)
        assert producer.flush(60) == 0
        yield broker.bootstrap


def run(directory: Path, name: str, *arguments: str) -> list[str]:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def first_records(bootstrap: str, topic: str, count: int) -> list[tuple[bytes, Any]]:
    """Keys and JSON values of a topic of one partition."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": f"check-{topic}", "auto.offset.reset": "earliest"})
    reader.assign([Assigned(topic, 0, 0)])
    found = [(record.key(), json.loads(record.value())) for record in reader.consume(count, timeout=60)]
    reader.close()
    return found


def test_every_example_is_tested_and_in_the_list():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    source = Path(__file__).read_text()
    assert {name for name in names if f'"{name}"' not in source} == set()
    listed = (EXAMPLES / "README.md").read_text()
    assert {name for name in names if f"| `{name}.py` |" not in listed} == set()


TWICE = ["totals_to_parquet", "totals_in_sqlite"]
ONCE = ["clean_with_arrow", "enrich_to_kafka", "totals_by_shop", "largest_orders", "suspicious_sessions"]
ONCE += ["enrich_from_topic", "visits_by_page"]


@pytest.fixture(scope="module")
def spark_runs(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, bootstrap: str
) -> dict[str, list[list[str]]]:
    """The output of each Spark example, by name, one list of lines for each of its runs."""
    directory = tmp_path_factory.mktemp("spark-examples")
    runs: dict[str, list[list[str]]] = {}
    for name in [*TWICE, *ONCE]:
        output = run_in_session(spark, directory, EXAMPLES / f"{name}.py", bootstrap)
        runs[name] = [output.splitlines()]
    with Admin(bootstrap) as admin:  # as after a crash between the transaction and the commit to the group
        admin.delete_group("totals-in-sqlite")
    alone, again = TWICE
    runs[alone].append(run(directory, alone, bootstrap))
    runs[again].append(run_in_session(spark, directory, EXAMPLES / f"{again}.py", bootstrap).splitlines())
    return runs


@pytest.mark.process
@pytest.mark.gate
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["totals_to_parquet", "totals_in_sqlite"])
def test_totals_are_right_and_a_second_run_adds_nothing(name, spark_runs):
    first, second = spark_runs[name]
    assert first[-2:] == TOTALS
    assert second[-2:] == TOTALS


@pytest.mark.process
@pytest.mark.gate
@pytest.mark.timeout(1800)
def test_records_are_cleaned_inside_the_task(spark_runs):
    assert spark_runs["clean_with_arrow"][0][-1] == "4 orders, 1 problems"


@pytest.mark.process
@pytest.mark.gate
@pytest.mark.timeout(1800)
def test_orders_get_their_shops_country(spark_runs, bootstrap):
    assert "enrich_to_kafka" in spark_runs
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "auto.offset.reset": "earliest"})
    reader.subscribe(["orders-with-country"])
    found = [json.loads(record.value()) for record in reader.consume(5, timeout=60)]
    reader.close()
    countries = {"Rome": "Italy", "Oslo": "Norway"}
    expected = [(shop, item, price, countries[shop]) for shop, item, price in ORDERS]
    got = [(order["shop"], order["item"], order.get("price"), order["country"]) for order in found if "shop" in order]
    assert sorted(got, key=str) == sorted(expected, key=str)


@pytest.mark.process
@pytest.mark.gate
@pytest.mark.timeout(1800)
def test_totals_by_shop_follow_the_group(spark_runs, bootstrap):
    assert "totals_by_shop" in spark_runs
    found = dict(first_records(bootstrap, "totals-by-shop", 2))
    totals = {b"Oslo": 30.0, b"Rome": 40.5}
    assert found == {shop: {"shop": shop.decode(), "orders": 2, "revenue": of} for shop, of in totals.items()}


@pytest.mark.process
@pytest.mark.gate
@pytest.mark.timeout(1800)
def test_the_largest_orders_are_those_larger_than_all_before(spark_runs, bootstrap):
    assert "largest_orders" in spark_runs
    found = sorted((key, order["price"]) for key, order in first_records(bootstrap, "largest-orders", 3))
    assert found == [(b"Oslo", 30.0), (b"Rome", 12.5), (b"Rome", 28.0)]


@pytest.mark.process
@pytest.mark.gate
@pytest.mark.timeout(1800)
def test_orders_get_what_a_topic_says_of_their_shop(spark_runs):
    assert spark_runs["enrich_from_topic"][0][-2:] == ["None 3", "Norway 2"]


@pytest.mark.process
@pytest.mark.gate
@pytest.mark.timeout(1800)
def test_suspicious_sessions_come_once_they_are_over(spark_runs, bootstrap):
    assert "suspicious_sessions" in spark_runs
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "check-sessions", "auto.offset.reset": "earliest"})
    reader.assign([Assigned("suspicious", 0, 0)])
    found = [json.loads(record.value()) for record in reader.consume(2, timeout=60)]
    reader.close()
    assert [
        (of["card"], of["payments"], of["total"], of["window_start"][11:16], of["window_end"][11:16]) for of in found
    ] == [
        ("A", 5, 50.0, "10:00", "10:40"),
        ("B", 1, 2000.0, "10:31", "10:41"),
    ]


@pytest.mark.process
@pytest.mark.gate
@pytest.mark.timeout(1800)
def test_visits_that_are_reported_twice_count_once(spark_runs, bootstrap):
    assert "visits_by_page" in spark_runs
    found = sorted(
        (key, row["visits"], row["last"][11:16]) for key, row in first_records(bootstrap, "visits-by-page", 2)
    )
    assert found == [
        (b"/a", 2, "10:05"),
        (b"/b", 2, "10:09"),
    ]


@pytest.mark.process
@pytest.mark.parametrize("name", ["worker_without_spark", "cooperative_kafka_python"])
def test_members_without_spark_count_each_order_once(name, tmp_path, bootstrap):
    assert run(tmp_path, name, bootstrap) == COUNTS


@pytest.mark.process
def test_the_lag_report_knows_what_is_not_read(tmp_path, bootstrap):
    with Admin(bootstrap) as admin:
        admin.commit_group_offsets("reported", {TopicPartition("orders", 0): OffsetAndMetadata(1)})
    (line,) = [json.loads(line) for line in run(tmp_path, "lag_report", bootstrap) if '"reported"' in line]
    assert line == {"group": "reported", "topic": "orders", "lag": 2, "known": False, "state": "Empty"}


@pytest.mark.process
def test_an_assignor_of_ones_own_assigns_by_racks_that_members_send(tmp_path, bootstrap):
    expected = ["east [0, 2] of racks ['east', 'west']", "west [1] of racks ['east', 'west']"]
    assert run(tmp_path, "custom_assignor", bootstrap) == expected


@pytest.mark.process
def test_who_gets_what_moves_two_partitions_and_says_why(tmp_path):
    assert run(tmp_path, "who_gets_what") == [
        "orders-2: a to c (balance: a had 3 and keeps 2, c goes from 0 to 2)",
        "orders-5: b to c (balance: b had 3 and keeps 2, c goes from 0 to 2)",
        "a now: orders-0, orders-1",
        "b now: orders-3, orders-4",
        "c now: nothing",
        "c one round later: orders-2",
        "c one round later: orders-5",
    ]
