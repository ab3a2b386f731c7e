"""Partitions without records in a Spark session: what they close comes once, also behind and amid a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roster.spark import KafkaSink, ParquetSink, Pipeline, PipelineError, State, Window
from roster.state.processor.batch import TimeMode
from tests.librdkafka import idempotent_producer
from tests.spark.apps.idle import SIZE, joined, windows
from tests.spark.apps.timers import Reminder, timed
from tests.spark.programs import APPS, environment, start
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process]

PROGRAM = APPS / "idle.py"
BEGIN = datetime(2025, 3, 1, 12, tzinfo=UTC)


class Feed:
    """Sends rows, and knows the windows that come of them."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self._producer, self._topic = idempotent_producer(topics.bootstrap), topic
        self.windows: Counter[tuple[datetime, str]] = Counter()

    def send(self, partition: int, key: str, *seconds: int, late: bool = False) -> None:
        for second in seconds:
            at = BEGIN + timedelta(seconds=second)
            row = {"k": key, "n": 1, "at": at.isoformat(), "paid": at.isoformat()}
            self._producer.produce(self._topic, json.dumps(row), key, partition)
            if not late:
                self.windows[at - timedelta(seconds=second % SIZE.seconds), key] += 1
        assert self._producer.flush(60) == 0


def rows(topics: Topics, topic: str) -> list[dict[str, Any]]:
    return [json.loads(value or b"") for _, _, value in committed_records(topics, topic)]


def found(topics: Topics, out: str) -> list[tuple[tuple[datetime, str], int]]:
    results = rows(topics, out)
    assert all(row["count"] == row["total"] for row in results)
    return sorted(((datetime.fromisoformat(row["window_start"]), row["k"]), row["count"]) for row in results)


@pytest.mark.gate
def test_each_window_of_quiet_partitions_comes_once_though_its_owner_is_killed_behind_it(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, out, late = topics.create(2), topics.create(1), topics.create(1)
    feed, group = Feed(topics, topic), f"idle-{uuid.uuid4().hex[:8]}"
    feed.send(0, "a", 0, 1, 2, 3, 5)
    feed.send(1, "b", 1, 1, 4)
    arguments = [topics.bootstrap, group, topic, out, late]
    log = (tmp_path / "log").open("w")
    command = [sys.executable, str(PROGRAM), "windows", *arguments, str(tmp_path / "one")]
    application = start(command, stdout=log, stderr=log)
    try:
        until(
            lambda: application.poll() is not None or len(found(topics, out)) == len(feed.windows),
            120,
            "the last windows of both partitions",
        )
        assert application.poll() is None, (tmp_path / "log").read_text()[-3000:]
    finally:
        application.send_signal(signal.SIGKILL)
        application.wait()
        log.close()
    assert found(topics, out) == sorted(feed.windows.items())
    feed.send(0, "a", 5, late=True)
    feed.send(1, "b", 20, 21)
    pipeline = windows(spark, *arguments, str(tmp_path / "another")).start()
    try:
        until(
            lambda: not pipeline.is_active or len(found(topics, out)) == len(feed.windows),
            120,
            "the window behind the kill",
        )
        assert pipeline.is_active
    finally:
        pipeline.stop()
        pipeline.wait(60)
    assert found(topics, out) == sorted(feed.windows.items())
    assert [row["k"] for row in rows(topics, late)] == ["a"], "what was closed without records stays closed"
    # A run up to the log ends closes nothing by the clock.
    feed.send(0, "c", 60, late=True)
    windows(spark, *arguments, str(tmp_path / "another")).run(available_now=True)
    assert found(topics, out) == sorted(feed.windows.items())


@pytest.mark.gate
def test_rows_of_a_join_come_once_though_the_other_topic_is_empty_and_a_turn_is_killed_amid_its_transaction(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, other, out, late = (topics.create(1) for _ in range(4))
    feed = Feed(topics, topic)
    feed.send(0, "a", 0, 1, 2, 60, 61)
    arguments = [topics.bootstrap, f"idle-{uuid.uuid4().hex[:8]}", topic, out, late, str(tmp_path), other]
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, str(PROGRAM), "joined", *arguments]
        application = subprocess.run(command, stdout=log, stderr=log, env=environment(), timeout=120, check=False)
    assert application.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
    assert len(topics.everything(out)) == 3, "the rows that the turn wrote"
    pipeline = joined(spark, *arguments).start()
    try:
        until(
            lambda: not pipeline.is_active or len(rows(topics, out)) == 5,
            120,
            "the last rows, by the clock",
        )
        feed.send(0, "late", 1)
        Feed(topics, other).send(0, "late too", 60)
        until(lambda: not pipeline.is_active or len(rows(topics, late)) == 2, 120, "the rows that come back too late")
        assert pipeline.is_active
    finally:
        pipeline.stop()
        pipeline.wait(60)
    seconds = [(datetime.fromisoformat(row["at"]) - BEGIN).seconds for row in rows(topics, out)]
    assert sorted(seconds) == [0, 1, 2, 60, 61]
    assert all(row["m"] is None for row in rows(topics, out))
    assert sorted(row["k"] for row in rows(topics, late)) == ["late", "late too"]


@pytest.mark.gate
def test_timers_of_event_time_are_due_in_a_partition_without_records(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, out = topics.create(2), topics.create(1)
    topics.fill(topic, 1, 3)
    pipeline = Pipeline(
        spark, topics.bootstrap, "idle-timers", topic, state=State(dir=str(tmp_path)), idle_after="1 second"
    )
    pipeline.map_arrow(timed, "k long, n long, at timestamp").transform_with_state(
        Reminder(TimeMode.EVENT), "k", "k long, n long, due long", time_mode="EventTime", event_time="at"
    ).write(KafkaSink(topics.bootstrap, out))
    pipeline.start()
    try:
        until(lambda: not pipeline.is_active or len(rows(topics, out)) == 3, 120, "the timers of all numbers")
        assert pipeline.is_active
    finally:
        pipeline.stop()
        pipeline.wait(60)
    assert sorted((row["n"], row["due"]) for row in rows(topics, out)) == [(0, 2000), (1, 4000), (2, 6000)]


def test_idle_after_is_refused_where_it_closes_nothing_or_results_need_a_position(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(1)

    def refused(message: str, *, sink: Any = None, window: Any = None, state: bool = True, **options: Any) -> None:
        pipeline = Pipeline(spark, topics.bootstrap, "idle", topic, **{"idle_after": "1 minute"} | options)
        pipeline.json_columns("k string, at timestamp")
        if state:
            pipeline.aggregate("k", {"n": "count(*)"}, window=window)
        pipeline.write(sink or KafkaSink(topics.bootstrap, topics.create(1)))
        with pytest.raises(PipelineError, match=message):
            pipeline.run(available_now=True)

    window = Window("at", "1 hour")
    refused("there are no windows, sessions, first rows, joins of two topics and timers of event time")
    refused("there are no windows, sessions", state=False, sink=ParquetSink(str(tmp_path)))
    refused("results in a table have no position", window=window, sink=ParquetSink(str(tmp_path)))
    refused("cannot be paused: the stream time of a partition without records", window=window, paused=True)
