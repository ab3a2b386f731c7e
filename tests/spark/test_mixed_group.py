"""A pipeline in one group with a Java and a kafka-python consumer, on Apache Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from roster.model import TopicPartition
from roster.spark import ParquetSink, Pipeline
from tests.real.realparts.cluster import unique
from tests.real.realparts.groups import consumed_since, marks_of, partitions
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
OTHERS = ("java", "kafka-python")


@pytest.mark.parametrize("leader", ["pipeline", *OTHERS])
@pytest.mark.sampled(1)
def test_any_of_them_leads_and_who_leaves_is_taken_over_at_the_committed_offsets(
    apache_kafka: Any, client: Any, leader: str, spark: SparkSession, tmp_path: Path
) -> None:
    cluster = apache_kafka
    topic, group = cluster.create_topic(partitions=6, records=10), unique("group")
    everything = set(partitions(topic, 6))
    pipeline = Pipeline(
        spark,
        cluster.bootstrap,
        group,
        topic,
        assignors=["range"],
        consumer={"heartbeat.interval.ms": 250, "session.timeout.ms": 6_000, "max.poll.interval.ms": 20_000},
        trigger_interval_ms=0,
    ).write(ParquetSink(tmp_path))

    def committed() -> dict[TopicPartition, int]:
        return ParquetSink(tmp_path).positions()

    def caught_up(end: int, others: list[Any]) -> bool:
        theirs = {partition for member in others for partition in member.owned}
        read = {partition: member.positions.get(partition) for member in others for partition in member.owned}
        ours = {(p.topic, p.partition): at for p, at in committed().items() if (p.topic, p.partition) not in theirs}
        return {**read, **ours} == dict.fromkeys(everything, end)

    if leader == "pipeline":
        pipeline.start()
        until(lambda: committed() == {TopicPartition(*p): 10 for p in everything}, 90)
    others = [client(kind, cluster, group, topics=[topic]) for kind in sorted(OTHERS, key=lambda kind: kind != leader)]
    others[0].wait_for(lambda m: m.owned, 60)
    if leader != "pipeline":
        pipeline.start()
    try:
        for member in others:
            member.wait_for(lambda m: len(m.owned) == 2, 60, "a third of the partitions")
        cluster.produce(dict.fromkeys(everything, 5))
        until(lambda: caught_up(15, others), 60, lambda: (committed(), others))
        for member in others:
            member.commit()
        mine_before = committed()
        leaving, staying = others
        gone = {TopicPartition(*partition) for partition in leaving.owned}
        marks = marks_of([staying])
        leaving.close()
        staying.wait_for(lambda m: len(m.owned) == 3, 60, "a half of the partitions")
        cluster.produce(dict.fromkeys(everything, 5))
        until(lambda: caught_up(20, [staying]), 60, lambda: (committed(), staying))
        again = [piece for piece in consumed_since([staying], marks) if piece[2] < 15]
        assert not again, "taken over from the committed offsets"
        taken = gone & {p for p, at in committed().items() if at == 20}
        rows = {(row.partition, row.offset) for row in spark.read.parquet(str(tmp_path)).collect()}
        for partition in taken:
            if partition not in mine_before:
                mine = {offset for number, offset in rows if number == partition.partition}
                assert mine == set(range(15, 20)), "taken over from the committed offsets"
    finally:
        pipeline.stop()
        assert pipeline.wait(120)
    found = spark.read.parquet(str(tmp_path)).select("partition", "offset")
    assert found.count() == found.distinct().count(), "nothing twice"
