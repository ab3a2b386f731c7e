"""Results of stateful pipelines in files and tables: exactly once, also if the state's commit behind theirs fails."""

from __future__ import annotations

import json
import os
import uuid
from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from roster.model import TopicPartition
from roster.pipeline.errors import SinkFencedError
from roster.sinks.kafka_transactions import TransactionalSink
from roster.spark import ParquetSink, Pipeline, PipelineError, State, Window
from tests.librdkafka import idempotent_producer
from tests.spark.apps.late import Results
from tests.spark.spark_topics import committed_records

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

KINDS = os.environ.get("ROSTER_STATEFUL_TABLES", "parquet,iceberg").split(",")
"""Sinks that are tried: "parquet,delta,iceberg" for all."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Stopped(BaseException):
    """What stands for a driver that is killed."""


def fails(monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException) -> None:
    """Let the commit of state and offsets fail the given time, when the results have been committed already."""
    commit, calls = TransactionalSink.commit_batch, iter(range(1, 1000))

    def failing(sink: TransactionalSink, written: None, batch: Any) -> Any:
        if next(calls) == at:
            raise error
        return commit(sink, written, batch)

    monkeypatch.setattr(TransactionalSink, "commit_batch", failing)


@pytest.mark.parametrize(
    ("kind", "has_several"), [*((kind, False) for kind in KINDS), (KINDS[0], True)], ids=[*KINDS, f"{KINDS[0]}-several"]
)
@pytest.mark.sampled(1)
def test_results_are_in_the_sink_once_though_state_is_behind(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, has_several: bool
) -> None:
    """Of one operator, or of the last of two in a task behind a task with another one."""
    topic, group = topics.create(2), f"g-{uuid.uuid4().hex[:8]}"
    producer = idempotent_producer(topics.bootstrap)
    sent: dict[str, list[int]] = defaultdict(list)
    results = Results(kind, tmp_path / "out")

    def send(first: int, count: int) -> None:
        for number in range(first, first + count):
            producer.produce(topic, json.dumps({"name": f"k{number % 3}", "n": number}), partition=number % 3 % 2)
            sent[f"k{number % 3}"].append(number)
        assert producer.flush(60) == 0

    def run(directory: str) -> None:
        made = Pipeline(
            spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / directory)), max_offsets_per_batch=20
        ).json_columns("name string, n long", keep=["timestamp"])
        if has_several:
            made.deduplicate("n", within=timedelta(days=1), store="first").repartition("name", partitions=2)
            made.deduplicate("n", within=timedelta(days=1), store="second")
        made.aggregate("name", {"count": "count(*)", "total": "sum(n)"})
        made.write(results.sink()).run(available_now=True)

    def check() -> None:
        """Each result is one of the running totals, none is there twice, and the last ones are those of all rows."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for row in results.rows(spark):
            found[row["name"]].append((row["count"], row["total"]))
        assert found.keys() == sent.keys()
        for name, numbers in sent.items():
            totals = sorted(found[name])
            assert len(set(totals)) == len(totals)
            assert all(total == sum(numbers[:count]) for count, total in totals)
            assert totals[-1] == (len(numbers), sum(numbers))

    send(0, 30)
    with monkeypatch.context() as patch:
        fails(patch, 2, Stopped())
        with pytest.raises(Stopped):
            run("one")
    send(30, 30)
    with monkeypatch.context() as patch:
        # Another owner's state, and a transaction that is lost while it goes on.
        fails(patch, 3, SinkFencedError("lost"))
        run("two")
    check()
    ends = {TopicPartition(topic, number): end for (_, number), end in topics.ends(topic).items()}
    committed = topics.committed(group)
    assert {partition: at for partition, at in committed.items() if partition.topic == topic} == ends


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.gate
def test_late_rows_are_in_their_topic_once_though_state_is_behind(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    topic, late, group = topics.create(1), topics.create(1), f"g-{uuid.uuid4().hex[:8]}"
    results = Results(kind, tmp_path / "out")
    producer = idempotent_producer(topics.bootstrap)

    def send(*seconds: int) -> None:
        for second in seconds:
            producer.produce(topic, json.dumps({"name": "k", "at": f"2026-01-01T12:00:{second:02}Z"}))
        assert producer.flush(60) == 0

    def run() -> None:
        (
            Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / "state")), log=False)
            .json_columns("name string, at timestamp")
            .aggregate(
                "name",
                {"n": "count(*)"},
                window=Window("at", timedelta(seconds=10)),
                results="final",
                late_topic=late,
            )
            .write(results.sink())
            .run(available_now=True)
        )

    send(1, 2, 15)
    run()
    send(3, 27, 4)
    with monkeypatch.context() as patch:
        fails(patch, 1, Stopped())
        with pytest.raises(Stopped):
            run()
    assert committed_records(topics, late) == [], "they count with the state, which does not yet"
    run()
    rows = results.rows(spark)
    assert sorted((row["window_start"].minute, row["n"]) for row in rows) == [(0, 1), (0, 2)]
    told = [(key, json.loads(value or b"")["at"]) for _, key, value in committed_records(topics, late)]
    assert told == [(b"k", "2026-01-01T12:00:03.000000Z"), (b"k", "2026-01-01T12:00:04.000000Z")]


@pytest.mark.gate
def test_no_record_is_passed_over_where_group_and_changelog_are_gone_and_the_results_are_not(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, group, results = topics.create(1), f"g-{uuid.uuid4().hex[:8]}", Results("parquet", tmp_path / "out")
    producer = idempotent_producer(topics.bootstrap)

    def send() -> None:
        for number in range(10):
            producer.produce(topic, json.dumps({"name": "k", "n": number}))
        assert producer.flush(60) == 0

    def run(starting_offsets: str) -> None:
        options: dict[str, Any] = {"starting_offsets": starting_offsets, "log": False}
        (
            Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / "state")), **options)
            .json_columns("name string, n long")
            .aggregate("name", {"count": "count(*)"}, store="counts")
            .write(results.sink())
            .run(available_now=True)
        )

    send()
    run("earliest")
    topics.admin.delete_group(group)
    topics.admin.delete_topic(f"{group}-counts-changelog")
    send()
    with pytest.raises(PipelineError, match=f"starting_offsets: the results of {topic}-0 end at 10, and the group has"):
        run("latest")
    assert not topics.exists(group) or topics.committed(group) == {}
    run("earliest")
    assert sorted(row["count"] for row in results.rows(spark)) == [10, 20]


def test_what_a_table_cannot_have_is_named(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    visits = Window.session("timestamp", timedelta(minutes=1))
    pipeline = Pipeline(
        spark, topics.bootstrap, f"g-{uuid.uuid4().hex[:8]}", topics.create(1), state=State(dir=str(tmp_path))
    )
    with pytest.raises(PipelineError, match="write: sessions take earlier results back"):
        (
            pipeline.aggregate("key", {"n": "count(*)"}, window=visits)
            .write(ParquetSink(tmp_path / "refused"))
            .run(available_now=True)
        )
