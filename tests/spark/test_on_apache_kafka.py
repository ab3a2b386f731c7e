"""What only a full Kafka has: transactions, compaction, deleted records; and a group shared with other clients."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from roster.model import TopicPartition
from roster.pipeline.batch import Split
from roster.pipeline.driver.members import StableEndsMember
from roster.pipeline.tasks.reader import ReaderConfig, ReadError, read_splits
from roster.spark import ParquetSink, Pipeline, PipelineError
from tests.spark.spark_topics import Topics
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def kafka(apache_kafka: Any) -> Iterator[Topics]:
    with Topics(apache_kafka.bootstrap) as topics:
        yield topics


def values(config: ReaderConfig, *splits: Split) -> list[bytes]:
    return [value for batch in read_splits(config, splits) for value in batch.column("value").to_pylist()]


def test_transactions_are_read_as_the_isolation_level_says_and_control_records_end_ranges(kafka: Topics) -> None:
    topic = kafka.create(1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for name, end in [("a", "commit"), ("b", "abort"), ("c", "commit"), ("d", None)]:
        producer.begin_transaction()
        for number in range(3):
            producer.produce(topic, f"{name}{number}".encode())
        producer.flush()
        if end == "commit":
            producer.commit_transaction()
        elif end == "abort":
            producer.abort_transaction()
    partition = TopicPartition(topic, 0)
    high = kafka.ends(topic)[partition]
    with StableEndsMember(kafka.bootstrap, f"of-{topic}", [topic]) as member:
        (stable,) = member.end_offsets([partition]).values()
    assert (stable, high) == (12, 15), "three transactions of three records and a marker, and an open one"
    committed = ReaderConfig(kafka.bootstrap, "g", isolation_level="read_committed", read_timeout_ms=20_000)
    dirty = ReaderConfig(kafka.bootstrap, "g", read_timeout_ms=20_000)
    assert values(committed, Split(topic, 0, 0, stable)) == [b"a0", b"a1", b"a2", b"c0", b"c1", b"c2"]
    assert values(committed, Split(topic, 0, 3, 8)) == [], "a range of a marker and aborted records ends"
    assert values(dirty, Split(topic, 0, 2, 9)) == [b"a2", b"b0", b"b1", b"b2", b"c0"]
    assert len(values(dirty, Split(topic, 0, 0, high))) == 12
    producer.abort_transaction()
    with StableEndsMember(kafka.bootstrap, f"of-{topic}", [topic]) as member:
        (stable,) = member.end_offsets([partition]).values()
    assert values(committed, Split(topic, 0, 11, stable)) == [], "nothing visible up to the log's end"


@pytest.mark.gate
def test_deleted_records_end_the_run_or_are_skipped(kafka: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = kafka.create(1, 20)
    config = ReaderConfig(kafka.bootstrap, "g", read_timeout_ms=20_000)
    assert len(values(config, Split(topic, 0, 0, 20))) == 20
    group = f"g-{uuid.uuid4().hex[:8]}"
    first = Pipeline(
        spark,
        kafka.bootstrap,
        group,
        topic,
        starting_offsets={topic: {0: 5}},
        max_offsets_per_batch=1,
        on_progress=lambda _: first.stop(),
    )
    first.write(ParquetSink(str(tmp_path))).run()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    next(iter(admin.delete_records([Place(topic, 0, 10)]).values())).result(30)
    with pytest.raises(ReadError, match=f"{topic}-0: offsets 5 to 20 wanted, the log holds 10 to 20"):
        values(config, Split(topic, 0, 5, 20))
    skipping = ReaderConfig(kafka.bootstrap, "g", fail_on_data_loss=False)
    assert values(skipping, Split(topic, 0, 5, 20)) == [b"%d" % n for n in range(10, 20)]
    assert values(skipping, Split(topic, 0, 5, 8)) == []
    again = Pipeline(spark, kafka.bootstrap, group, topic).write(ParquetSink(str(tmp_path)))
    with pytest.raises(PipelineError, match=r"the next offset is 6, but the log holds 10 to 20.*Set it to False"):
        again.run(available_now=True)
    allowed = Pipeline(spark, kafka.bootstrap, group, topic, fail_on_data_loss=False)
    allowed.write(ParquetSink(str(tmp_path))).run(available_now=True)
    assert ParquetSink(str(tmp_path)).positions() == {TopicPartition(topic, 0): 20}
    assert spark.read.parquet(str(tmp_path)).count() == 11


def test_a_group_shared_with_another_client_hands_over_at_the_committed_offsets(
    kafka: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic, group = kafka.create(4, 400), f"g-{uuid.uuid4().hex[:8]}"
    pipeline = Pipeline(
        spark,
        kafka.bootstrap,
        group,
        topic,
        consumer={"heartbeat.interval.ms": 300, "session.timeout.ms": 6_000, "metadata.max.age.ms": 2_000},
        trigger_interval_ms=0,
    )
    pipeline.write(ParquetSink(str(tmp_path))).start()
    until(lambda: kafka.committed(group) == kafka.ends(topic))
    other = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": group,
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 300,
        }
    )
    other.subscribe([topic])
    try:
        until(lambda: other.poll(0.1) or len(other.assignment()) == 2, 60, "the other client's share")
        kafka.fill(topic, 4, 400)
        theirs = []
        while len(theirs) < 200:
            message = other.poll(30)
            assert message is not None
            assert message.error() is None
            theirs.append((message.partition(), message.offset()))
        other.commit(asynchronous=False)
    finally:
        other.close()
    kafka.fill(topic, 4, 400)
    until(lambda: kafka.committed(group) == kafka.ends(topic))
    pipeline.stop()
    assert pipeline.wait(120)
    rows = [(row.partition, row.offset) for row in spark.read.parquet(str(tmp_path)).collect()]
    assert sorted(rows + theirs) == kafka.everything(topic)
