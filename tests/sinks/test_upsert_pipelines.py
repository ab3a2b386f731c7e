"""Pipelines into tables with one row a key: updates replace, retracted results go, and both survive a lost commit."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roster.sinks.kafka_transactions import TransactionalSink
from roster.spark import Pipeline, PipelineError, State, Window
from tests.librdkafka import idempotent_producer
from tests.sinks.table_places import PLACES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

KINDS = [
    "delta",
    pytest.param("iceberg", marks=pytest.mark.gate),
    pytest.param("postgres", marks=pytest.mark.real),
]
GAP = timedelta(seconds=10)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Stopped(BaseException):
    """What stands for a driver that is killed."""


def sessions(rows: list[tuple[str, int]]) -> set[tuple[str, int, int]]:
    """The sessions of (name, second) as (name, first second, number of rows), worked out by sorting."""
    found: list[list[Any]] = []
    for name, second in sorted(rows):
        if found and found[-1][0] == name and second - found[-1][2] <= GAP.seconds:
            found[-1][2], found[-1][3] = second, found[-1][3] + 1
        else:
            found.append([name, second, second, 1])
    return {(name, first, count) for name, first, _, count in found}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.gate
def test_sessions_that_grow_backwards_leave_one_row_each(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The results of a session's later beginning are deleted, also where the state's commit behind them fails."""
    topic, group, place = topics.create(2), f"g-{uuid.uuid4().hex[:8]}", PLACES[kind](str(tmp_path))
    producer = idempotent_producer(topics.bootstrap)
    sent: list[tuple[str, int]] = []

    def send(*seconds: int) -> None:
        for second in seconds:
            for number in range(4):
                row = (f"k{number}", second + 3 * number)
                sent.append(row)
                value = {"name": row[0], "at": (BEGIN + timedelta(seconds=row[1])).isoformat()}
                producer.produce(topic, json.dumps(value), partition=number % 2)
        assert producer.flush(60) == 0

    def run(directory: str) -> None:
        (
            Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / directory)), log=False)
            .json_columns("name string, at timestamp")
            .aggregate("name", {"n": "count(*)"}, window=Window.session("at", GAP, grace=timedelta(minutes=5)))
            .write(place.sink(mode="upsert"))
            .run(available_now=True)
        )

    def check() -> None:
        rows = place.arrow().to_pylist()
        found = [(r["name"], round((r["window_start"] - BEGIN).total_seconds()), r["n"]) for r in rows]
        assert len(found) == len(set(found))
        assert set(found) == sessions(sent)

    send(40, 60, 100)
    run("one")
    check()
    send(35, 95, 52)
    with monkeypatch.context() as patch:
        commit = TransactionalSink.commit_batch

        def failing(sink: TransactionalSink, written: None, batch: Any) -> None:
            raise Stopped

        patch.setattr(TransactionalSink, "commit_batch", failing)
        with pytest.raises(Stopped):
            run("one")
        assert TransactionalSink.commit_batch is not commit
    check()
    send(30, 88, 70)
    run("two")
    check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.gate
def test_without_state_the_last_record_of_a_key_counts(
    spark: SparkSession, topics: Topics, tmp_path: Path, kind: str
) -> None:
    """Tasks that read parts of one partition, and a transform."""
    topic, group, place = topics.create(2), f"g-{uuid.uuid4().hex[:8]}", PLACES[kind](str(tmp_path))
    producer = idempotent_producer(topics.bootstrap)
    last: dict[int, int] = {}

    def run(*, transforms: bool) -> None:
        first = max(last.values(), default=0)
        for number in range(first, first + 500):
            last[number % 37] = number
            producer.produce(topic, json.dumps({"id": number % 37, "n": number}), partition=number % 37 % 2)
        assert producer.flush(60) == 0
        pipeline = Pipeline(spark, topics.bootstrap, group, topic, max_offsets_per_batch=300, log=False)
        pipeline.json_columns("id int, n long")
        if transforms:
            pipeline.transform(lambda df: df.where("n >= 0"))
        pipeline.write(place.sink(mode="upsert", keys="id")).run(available_now=True)

    for transforms in (False, True):
        run(transforms=transforms)
        assert {row["id"]: row["n"] for row in place.arrow().to_pylist()} == last
        assert len(place.arrow()) == len(last)


@pytest.mark.real
@pytest.mark.gate
def test_the_pipeline_of_the_page_on_databases_runs(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic, place = topics.create(1), PLACES["postgres"](str(tmp_path))
    producer = idempotent_producer(topics.bootstrap)
    for number in range(10):
        producer.produce(topic, json.dumps({"shop": f"s{number % 2}", "price": number}))
    assert producer.flush(60) == 0
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "write-to-a-database.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    there = {
        '"localhost:9092", "totals", "orders"': f"*{(topics.bootstrap, uuid.uuid4().hex, topic)}, state=state",
        "postgresql://roster:word@db/shop": place.url,
        '"totals", mode': '"results", mode',
        ".run()": ".run(available_now=True)",
    }
    for said, ours in there.items():
        assert said in code
        code = code.replace(said, ours)
    exec(code, {"spark": spark, "state": State(dir=str(tmp_path / "state"))})
    rows = {row["shop"]: (row["orders"], row["total"]) for row in place.arrow().to_pylist()}
    assert rows == {"s0": (5, 20.0), "s1": (5, 25.0)}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, r"write: sessions take earlier results back. Use \w+\(…, mode='upsert'\)"),
        ({"mode": "upsert", "keys": "key"}, "keys: sessions take results back by window_start, key"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_sessions_need_a_table_that_can_delete_their_results(
    spark: SparkSession, topics: Topics, tmp_path: Path, kind: str, options: dict[str, Any], problem: str
) -> None:
    group, state = f"g-{uuid.uuid4().hex[:8]}", State(dir=str(tmp_path / "state"))
    with pytest.raises(PipelineError, match=problem):
        (
            Pipeline(spark, topics.bootstrap, group, topics.create(1), state=state)
            .aggregate("key", {"n": "count(*)"}, window=Window.session("timestamp", GAP))
            .write(PLACES[kind](str(tmp_path)).sink(**options))
            .run(available_now=True)
        )
