"""Pipelines whose group balances lag."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from roster.assignors import LagOptions, lag_sticky
from roster.client import GroupMember
from roster.pipeline.driver.members import group_member
from roster.spark import ConsoleSink, ParquetSink, Pipeline
from tests.spark.spark_topics import Topics
from tests.spark.tuned import tuned
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from roster.pipeline.options import Options

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def stop(pipelines: list[Pipeline]) -> None:
    """All at once, then wait for each."""
    for pipeline in pipelines:
        pipeline.stop()
    assert all(pipeline.wait(120) for pipeline in pipelines)


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
            consumer={"heartbeat.interval.ms": 300},
            assignors=("lag-cooperative-sticky",),
        )
        .write(ParquetSink(str(tmp_path)))
        .start()
        for _ in range(2)
    ]
    until(lambda: topics.committed(group) == topics.ends(topic))
    until(lambda: [len(m.assignment) for m in topics.admin.describe_group(group).members] == [2, 2])
    assert topics.admin.describe_group(group).protocol == "lag-cooperative-sticky"
    stop(shared)
    rows = spark.read.parquet(str(tmp_path)).select("partition", "offset").collect()
    assert sorted((row.partition, row.offset) for row in rows) == topics.everything(topic)


@pytest.mark.parametrize(("options", "moves"), [(LagOptions(), True), (LagOptions(movement_cost=1_000), False)])
@pytest.mark.gate
def test_the_options_of_a_policy_decide_what_a_rebalance_moves(
    spark: SparkSession, topics: Topics, options: LagOptions, moves: bool
) -> None:
    """Both have read everything but what one of them has got since, when new partitions come."""
    group, topic = f"g-{uuid.uuid4().hex[:8]}", topics.create(4, 4)
    members: dict[str | None, GroupMember] = {}

    def join(options: Options) -> GroupMember:
        return members.setdefault(options.settings.client_id, group_member(options))

    shared = [
        tuned(membership=join)(
            spark,
            topics.bootstrap,
            group,
            [topic],
            consumer={"client.id": f"app-{number}", "heartbeat.interval.ms": 300, "metadata.max.age.ms": 500},
            trigger_interval_ms=600_000,
            # An eager one decides in one round: between two, who got a new partition would read what it had left.
            assignors=lag_sticky(options),
            capacity=1,
        )
        .write(ConsoleSink())
        .start()
        for number in range(2)
    ]

    def owned() -> dict[str, set[int]]:
        return {m.client_id: {n for _, n in m.assignment} for m in topics.admin.describe_group(group).members}

    def shares() -> list[int]:
        return [len(numbers) for numbers in owned().values()]

    def has_worked(number: int) -> bool:
        progress = shared[number].last_progress
        return progress is not None and progress.generation == members[f"app-{number}"].ownership().generation

    until(lambda: topics.committed(group) == topics.ends(topic))
    until(lambda: shares() == [2, 2])
    # Only who has had a batch since its assignment leaves what comes now unread.
    for number in (number for number in range(2) if not has_worked(number)):
        for partition in owned()[f"app-{number}"]:
            topics.fill_one(topic, partition, 1)
    until(lambda: has_worked(0) and has_worked(1))
    before = owned()["app-0"]
    for number in before:
        topics.fill_one(topic, number, 300)
    topics.admin.create_partitions(topic, 6)
    until(lambda: shares() == [3, 3])
    assert (not before <= owned()["app-0"]) == moves
    stop(shared)


@pytest.mark.parametrize(("capacities", "shares"), [((3, 1), [3, 1]), ((40, 1), [4, 0])])
@pytest.mark.gate
def test_an_application_gets_as_much_as_it_counts_for(
    spark: SparkSession, topics: Topics, capacities: tuple[int, int], shares: list[int]
) -> None:
    group, topic = f"g-{uuid.uuid4().hex[:8]}", topics.create(4, 40)
    shared = [
        Pipeline(
            spark,
            topics.bootstrap,
            group,
            [topic],
            consumer={"client.id": f"app-{capacity}", "heartbeat.interval.ms": 300},
            assignors="lag-sticky",
            capacity=capacity,
        )
        .write(ConsoleSink())
        .start()
        for capacity in capacities
    ]

    def owned() -> list[int]:
        numbers = {m.client_id: len(m.assignment) for m in topics.admin.describe_group(group).members}
        return [numbers.get(f"app-{capacity}", -1) for capacity in capacities]

    until(lambda: topics.exists(group))
    until(lambda: owned() == shares)
    stop(shared)


@pytest.mark.gate
def test_the_application_counts_for_the_tasks_it_runs_at_once(spark: SparkSession, topics: Topics) -> None:
    asked: list[Options] = []

    def look(options: Options) -> Any:
        asked.append(options)
        return group_member(options)

    topic = topics.create(1)
    for capacity in (None, 7):
        pipeline = tuned(membership=look)(
            spark, topics.bootstrap, f"g-{uuid.uuid4().hex[:8]}", topic, capacity=capacity
        )
        pipeline.write(ConsoleSink()).run(available_now=True)
    assert [options.capacity for options in asked] == [spark.sparkContext.defaultParallelism, 7]
