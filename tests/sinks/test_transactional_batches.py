"""Batches as Kafka transactions: Kafka → Kafka, read committed, equals a plain computation on both brokers."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from roster.pipeline.options import Tuning
from roster.sinks import kafka_transactions
from roster.sinks.kafka_transactions import TransactionalSink
from roster.sinks.tasks import shuffle
from roster.sinks.tasks.shuffle import WriteBatches
from roster.spark import KafkaSink, Pipeline, PipelineError
from roster.testing.broker import running_broker
from tests.listed_transactions import states_of_transactions
from tests.spark.spark_topics import Topics, committed_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.real.realparts.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def both(cluster: Cluster) -> Iterator[Topics]:
    """Topics on Roster's broker and on Apache Kafka."""
    with Topics(cluster.bootstrap) as made:
        yield made


def doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Two rows for each, with the key's partition left to the sink."""
    values = pc.binary_join_element_wise(rows["partition"].cast(pa.string()), rows["value"].cast(pa.string()), ":")
    return pa.RecordBatch.from_pydict(
        {"key": pa.concat_arrays([rows["key"]] * 2), "value": pa.concat_arrays([values] * 2)}
    )


def pipeline(spark: SparkSession, topics: Topics, group: str, topic: str, sink: Any, **options: Any) -> Pipeline:
    options = {"trigger_interval_ms": 0, "max_offsets_per_batch": 500, **options}
    return Pipeline(spark, topics.bootstrap, group, [topic], **options).write(sink)


@pytest.mark.sampled(1)
def test_a_pipeline_writes_each_result_once_and_the_offsets_with_them(
    spark: SparkSession, both: Topics, group: str
) -> None:
    topic, out = both.create(3, 1500), both.create(4)
    phases: list[Any] = []
    sink = KafkaSink(both.bootstrap, out, exactly_once=True)
    made = pipeline(spark, both, group, topic, sink, on_progress=lambda p: phases.append(p.phases))
    made.map_arrow(doubled, "key binary, value string").run(available_now=True)
    found = committed_records(both, out)
    expected = Counter({b"%d:%d" % (number % 3, number): 2 for number in range(1500)})
    assert Counter(value for _, _, value in found) == expected
    assert {key: len({p for p, k, _ in found if k == key}) for _, key, _ in found} == {b"k%d" % n: 1 for n in range(7)}
    assert both.committed(group) == both.ends(topic)
    assert len(phases) >= 3
    assert all(set(each) == {"plan", "work", "transaction"} for each in phases)
    assert set(states_of_transactions(both.admin, group)) <= {"CompleteCommit", "CompleteAbort", "Empty"}


@pytest.mark.gate
def test_offsets_are_committed_where_a_transform_leaves_no_row(spark: SparkSession, both: Topics, group: str) -> None:
    topic, out = both.create(1, 20), both.create(1)
    made = pipeline(spark, both, group, topic, KafkaSink(both.bootstrap, out, exactly_once=True))
    made.transform(lambda df: df.where("offset > 100").selectExpr("cast(offset as string) value"))
    made.run(available_now=True)
    assert both.committed(group) == both.ends(topic)
    assert committed_records(both, out) == []


@pytest.mark.gate
def test_a_failed_batch_leaves_nothing_for_readers_of_committed_records(
    spark: SparkSession, topics: Topics, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, out = topics.create(2, 1000), topics.create(2)
    sink = KafkaSink(topics.bootstrap, out)
    calls: list[int] = []
    commit = TransactionalSink.commit_batch

    def failing(bound: TransactionalSink, written: None, batch: Any) -> Any:
        calls.append(batch.number)
        if len(calls) == 2:
            raise RuntimeError("the driver breaks between the records and their commit")
        return commit(bound, written, batch)

    monkeypatch.setattr(TransactionalSink, "commit_batch", failing)
    with pytest.raises(RuntimeError, match="between"):
        pipeline(spark, topics, group, topic, sink).run(available_now=True)
    half = committed_records(topics, out)
    assert 0 < len(half) == sum(topics.committed(group).values()) < 1000
    pipeline(spark, topics, group, topic, KafkaSink(topics.bootstrap, out)).run(available_now=True)
    assert Counter(value for _, _, value in committed_records(topics, out)) == Counter(b"%d" % n for n in range(1000))
    assert topics.committed(group) == topics.ends(topic)


@pytest.mark.sampled(1)
def test_a_large_batch_is_written_by_tasks_that_own_their_partitions_in_the_order_of_its_rows(
    spark: SparkSession, both: Topics, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_transactions, "_MOST_DRIVER_BYTES", 0)
    monkeypatch.setattr(Pipeline, "_tuning", Tuning(min_offsets_per_task=50, small_batch_offsets=0))
    topic, out = both.create(3, 3000), both.create(4)
    # Record batches of some records each, and two tasks that read from each partition.
    sink = KafkaSink(both.bootstrap, out, options={"batch.size": 1000}, exactly_once=True)
    made = pipeline(spark, both, group, topic, sink, max_offsets_per_batch=1500, tasks=6)
    made.run(available_now=True)
    found = committed_records(both, out)
    for partition in range(3):
        values = [value for number, _, value in found if number == partition]
        assert values == [b"%d" % number for number in range(partition, 3000, 3)]
    assert len(found) == 3000
    assert both.committed(group) == both.ends(topic)


@pytest.mark.gate
def test_a_batch_larger_than_expected_is_done_again_by_tasks_that_write(
    spark: SparkSession, topics: Topics, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_transactions, "_MOST_DRIVER_BYTES", 20_000)
    monkeypatch.setattr(kafka_transactions, "_FIRST_BYTES_PER_OFFSET", 1)
    topic, out = topics.create(2, 1500), topics.create(3)
    pipeline(spark, topics, group, topic, KafkaSink(topics.bootstrap, out), max_offsets_per_batch=1500).transform(
        lambda df: df.selectExpr("key", "rpad(string(value), 100, '.') AS value")
    ).run(available_now=True)
    assert Counter(int((v or b"").rstrip(b".")) for _, _, v in committed_records(topics, out)) == Counter(range(1500))


@pytest.mark.gate
def test_a_writing_task_that_runs_again_costs_the_batch_and_nothing_else(
    spark: SparkSession, topics: Topics, group: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first attempt of a task that writes dies after its records were sent."""
    monkeypatch.setattr(kafka_transactions, "_MOST_DRIVER_BYTES", 0)
    mark = str(tmp_path / "died")

    class DyingWriter(WriteBatches):
        def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            results = list(super().__call__(batches))
            if not os.path.exists(mark):  # noqa: PTH110 - pickled by value
                open(mark, "w").close()  # noqa: PTH123
                os._exit(1)
            yield from results

    monkeypatch.setattr(shuffle, "WriteBatches", DyingWriter)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        topic, out = topics.create(2, 1000), topics.create(3)
        pipeline(spark, topics, group, topic, KafkaSink(topics.bootstrap, out)).run(available_now=True)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert (tmp_path / "died").exists()
    assert Counter(v for _, _, v in committed_records(topics, out)) == Counter(b"%d" % n for n in range(1000))
    assert sum(topics.ends(out).values()) > 1000, "the first attempt's records are there, and aborted"


def test_what_cannot_be_exactly_once_is_said(
    spark: SparkSession, topics: Topics, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.create(1, 10)
    with running_broker() as other, Topics(other.bootstrap) as elsewhere:
        out = elsewhere.create(1)
        with pytest.raises(PipelineError, match=r"exactly_once: .*not in the cluster that the pipeline reads from"):
            pipeline(spark, topics, group, topic, KafkaSink(other.bootstrap, out, exactly_once=True)).run()
        with caplog.at_level(logging.INFO, "roster.pipeline"):
            pipeline(spark, topics, group, topic, KafkaSink(other.bootstrap, out)).run(available_now=True)
        assert [line for line in caplog.messages if "at least once" in line and "not in the cluster" in line]
        assert len(committed_records(elsewhere, out)) == 10
    sink = KafkaSink(topics.bootstrap, topic, options={"transaction.timeout.ms": 2**31 - 1})
    with pytest.raises(PipelineError, match=r"transaction\.max\.timeout\.ms"):
        pipeline(spark, topics, group, topic, sink).run()
    with pytest.raises(PipelineError, match="exactly_once"):
        KafkaSink(topics.bootstrap, topic, exactly_once="yes")  # type: ignore[arg-type]
