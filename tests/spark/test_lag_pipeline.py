"""Pipelines whose group balances lag."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from spark_topics import Topics, until

from roster.spark import ConsoleSink, ParquetSink, Pipeline
from roster.spark.membership import group_member

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from roster.spark.options import Options

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


def test_two_applications_share_a_topic_by_lag(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """Naming the assignor is all; every record is counted once across the hand-over."""
    group, topic = f"g-{uuid.uuid4().hex[:8]}", topics.create(4, 1000)
    shared = [
        Pipeline(
            spark,
            topics.bootstrap,
            group,
            [topic],
            max_offsets_per_batch=100,
            heartbeat_interval_ms=300,
            assignors=("lag-cooperative-sticky",),
        )
        .write(ParquetSink(str(tmp_path)))
        .start()
        for _ in range(2)
    ]
    until(lambda: topics.committed(group) == topics.ends(topic))
    until(lambda: [len(m.assignment) for m in topics.admin.describe_group(group).members] == [2, 2])
    assert topics.admin.describe_group(group).protocol == "lag-cooperative-sticky"
    for pipeline in shared:
        pipeline.stop()
    assert all(pipeline.wait(30) for pipeline in shared)
    rows = spark.read.parquet(str(tmp_path)).select("partition", "offset").collect()
    assert sorted((row.partition, row.offset) for row in rows) == topics.everything(topic)


def test_the_application_counts_for_the_tasks_it_runs_at_once(spark: SparkSession, topics: Topics) -> None:
    asked: list[Options] = []

    def look(options: Options) -> Any:
        asked.append(options)
        return group_member(options)

    topic = topics.create(1)
    for capacity in (None, 7):
        Pipeline(spark, topics.bootstrap, f"g-{uuid.uuid4().hex[:8]}", topic, capacity=capacity, membership=look).write(
            ConsoleSink()
        ).run(available_now=True)
    assert [options.capacity for options in asked] == [spark.sparkContext.defaultParallelism, 7]
