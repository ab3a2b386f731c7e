"""Batches as Kafka transactions: Kafka → Kafka, read committed, equals a plain computation on both brokers."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assigned

from roster.spark import KafkaSink, Pipeline
from tests.spark.spark_topics import Topics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.real.realparts.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def both(cluster: Cluster) -> Iterator[Topics]:
    """Topics on Roster's broker and on Apache Kafka."""
    with Topics(cluster.bootstrap) as made:
        yield made


@pytest.fixture
def group() -> str:
    return f"txn-{uuid.uuid4().hex[:8]}"


def committed(topics: Topics, topic: str, seconds: float = 60) -> list[tuple[int, bytes | None, bytes | None]]:
    """Each record that librdkafka reads at read_committed: partition, key, value; by partition in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": topics.bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: list[tuple[int, bytes | None, bytes | None]] = []
    for partition in sorted(topics.ends(topic)):
        consumer.assign([Assigned(topic, partition.partition, 0)])
        while True:
            message = consumer.poll(seconds)
            assert message is not None, f"{partition} is held up by an open transaction"
            if message.error() is not None:
                break
            found.append((message.partition(), message.key(), message.value()))
    consumer.close()
    return found


def doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Two rows for each, with the key's partition left to the sink."""
    values = pc.binary_join_element_wise(rows["partition"].cast(pa.string()), rows["value"].cast(pa.string()), ":")
    return pa.RecordBatch.from_pydict(
        {"key": pa.concat_arrays([rows["key"]] * 2), "value": pa.concat_arrays([values] * 2)}
    )


def pipeline(spark: SparkSession, topics: Topics, group: str, topic: str, sink: Any, **options: Any) -> Pipeline:
    options = {"trigger_interval_ms": 0, "max_offsets_per_batch": 500, **options}
    return Pipeline(spark, topics.bootstrap, group, [topic], **options).write(sink)


@pytest.mark.parametrize("path", ["map", "transform"])
def test_a_pipeline_writes_each_result_once_and_the_offsets_with_them(
    spark: SparkSession, both: Topics, group: str, path: str
) -> None:
    topic, out = both.create(3, 1500), both.create(4)
    phases: list[Any] = []
    sink = KafkaSink(both.bootstrap, out, exactly_once=True)
    made = pipeline(spark, both, group, topic, sink, on_progress=lambda p: phases.append(p.phases))
    if path == "map":
        made.map_arrow(doubled, "key binary, value string")
    else:
        made.transform(
            lambda df: df.selectExpr("key", "concat(partition, ':', string(value)) AS value").union(
                df.selectExpr("key", "concat(partition, ':', string(value)) AS value")
            )
        )
    made.run(available_now=True)
    found = committed(both, out)
    expected = Counter({b"%d:%d" % (number % 3, number): 2 for number in range(1500)})
    assert Counter(value for _, _, value in found) == expected
    assert {key: len({p for p, k, _ in found if k == key}) for _, key, _ in found} == {b"k%d" % n: 1 for n in range(7)}
    assert both.committed(group) == both.ends(topic)
    assert len(phases) >= 3
    assert all(set(each) == {"plan", "work", "transaction"} for each in phases)
    states = {each.state for each in both.admin.list_transactions() if each.transactional_id.startswith(group)}
    assert states <= {"CompleteCommit", "CompleteAbort", "Empty"}


def test_a_failed_batch_leaves_nothing_for_readers_of_committed_records(
    spark: SparkSession, both: Topics, group: str
) -> None:
    topic, out = both.create(2, 1000), both.create(2)
    sink = KafkaSink(both.bootstrap, out)
    calls: list[int] = []
    commit = sink.commit

    def failing(staged: Any, batch: Any) -> None:
        calls.append(batch.number)
        if len(calls) == 2:
            raise RuntimeError("the driver breaks between the records and their commit")
        commit(staged, batch)

    sink.commit = failing  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="between"):
        pipeline(spark, both, group, topic, sink).run(available_now=True)
    half = committed(both, out)
    assert 0 < len(half) == sum(both.committed(group).values()) < 1000
    pipeline(spark, both, group, topic, KafkaSink(both.bootstrap, out)).run(available_now=True)
    assert Counter(value for _, _, value in committed(both, out)) == Counter(b"%d" % n for n in range(1000))
    assert both.committed(group) == both.ends(topic)
