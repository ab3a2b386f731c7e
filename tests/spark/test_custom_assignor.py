"""Pipelines in a group with an assignor of the application's own."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from roster.assignors import Assignor, JoinContext
from roster.model import Plan, Problem, TopicPartition
from roster.spark import ParquetSink, Pipeline
from tests.spark.spark_topics import Topics
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


class Named(Assignor):
    """Gives each member the partitions it asks for, a digit each, and sends to all what all asked for."""

    name = "named"

    def __init__(self, wish: bytes) -> None:
        self.wish = wish
        self.received: list[tuple[set[int], bytes | None]] = []

    def subscription_user_data(self, join: JoinContext) -> bytes:
        return self.wish

    def assign(self, problem: Problem) -> Plan:
        wishes = {m: data or b"" for m, data in zip(problem.members, problem.user_data, strict=True)}
        given = {member: {problem.topics[0]: [int(n) for n in wish.decode()]} for member, wish in wishes.items()}
        said = b",".join(sorted(wishes.values()))
        return Plan.from_assignment(problem, given, user_data=dict.fromkeys(problem.members, said))

    def on_assignment(self, partitions: frozenset[TopicPartition], user_data: bytes | None, generation: int) -> None:
        self.received.append(({p.partition for p in partitions}, user_data))


@pytest.mark.timeout(600)
@pytest.mark.gate
def test_applications_share_a_topic_by_an_assignor_of_their_own(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    group, topic = f"g-{uuid.uuid4().hex[:8]}", topics.create(4, 400)
    own = [Named(b"3"), Named(b"012")]
    shared = [
        Pipeline(spark, topics.bootstrap, group, topic, assignors=assignor, consumer={"heartbeat.interval.ms": 300})
        .write(ParquetSink(tmp_path))
        .start()
        for assignor in own
    ]
    until(lambda: [each.received[-1:] for each in own] == [[({3}, b"012,3")], [({0, 1, 2}, b"012,3")]])
    until(lambda: topics.committed(group) == topics.ends(topic))
    assert topics.admin.describe_group(group).protocol == "named"
    for pipeline in shared:
        pipeline.stop()
    assert all(pipeline.wait(120) for pipeline in shared)
    rows = spark.read.parquet(str(tmp_path)).select("partition", "offset").collect()
    assert sorted((row.partition, row.offset) for row in rows) == topics.everything(topic)
