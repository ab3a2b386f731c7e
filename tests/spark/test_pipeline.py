"""Pipelines in one Spark session on a Roster broker."""

from __future__ import annotations

import logging
import os
import re
import time
import traceback
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.client import GroupMember, UnknownTopicError, UnreachableError
from roster.model import TopicPartition
from roster.records.produce import WriteError
from roster.spark import ConsoleSink, FunctionError, KafkaSink, ParquetSink, Pipeline, PipelineError, Progress
from roster.testing.broker import BrokerProcess
from tests.spark.spark_topics import Topics
from tests.spark.tuned import tuned
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from roster.spark import Batch, Sink

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


ROW = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def pairs(df: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in df.select("partition", "offset").collect())


def test_rows_have_the_columns_of_sparks_kafka_source(spark: SparkSession, topics: Topics, group: str) -> None:
    topic = topics.create(2)
    topics.fill(topic, 2, 3, headers=[("h", b"1"), ("h", None)], timestamp=1_700_000_000_123)
    topics.fill(topic, 2, 1)
    seen: list[Any] = []
    frames: list[DataFrame] = []

    def look(df: DataFrame, batch: Batch) -> None:
        frames.append(df)
        seen.extend(df.orderBy("partition", "offset").collect())

    Pipeline(spark, topics.bootstrap, group, topic, include_headers=True).foreach_batch(look).run(available_now=True)
    assert [f"{name} {kind}" for name, kind in frames[0].dtypes] == [
        "key binary",
        "value binary",
        "topic string",
        "partition int",
        "offset bigint",
        "timestamp timestamp",
        "timestampType int",
        "headers array<struct<key:string,value:binary>>",
    ]
    assert [(r.key, r.value, r.topic, r.partition, r.offset, r.timestampType) for r in seen] == [
        (b"k0", b"0", topic, 0, 0, 0),
        (b"k2", b"2", topic, 0, 1, 0),
        (b"k0", b"0", topic, 0, 2, 0),
        (b"k1", b"1", topic, 1, 0, 0),
    ]
    assert seen[0].timestamp.timestamp() == 1_700_000_000.123
    assert [tuple(h) for h in seen[0].headers] == [("h", b"1"), ("h", None)]
    assert seen[2].headers is None


@pytest.mark.gate
def test_an_aggregate_over_partitions_counts_every_record_once(
    spark: SparkSession, topics: Topics, group: str, tmp_path: Path
) -> None:
    topic = topics.create(3, 3000)
    reports: list[Progress] = []

    def pipeline() -> Pipeline:
        return (
            tuned(min_offsets_per_task=100, small_batch_offsets=0)(
                spark,
                topics.bootstrap,
                group,
                [topic],
                max_offsets_per_batch=800,
                target_batch_ms=100_000,  # a slow machine would cut batches down to one task
                on_progress=reports.append,
            )
            .transform(lambda df: df.groupBy("key").count())
            .write(ParquetSink(str(tmp_path)))
        )

    pipeline().run(available_now=True)
    topics.fill(topic, 3, 700)
    pipeline().run(available_now=True)
    counted = spark.read.parquet(str(tmp_path)).groupBy("key").sum("count").collect()
    expected = {b"k%d" % key: sum(n % 7 == key for n in range(3000)) + 100 for key in range(7)}
    assert {bytes(row.key): row[1] for row in counted} == expected
    assert topics.committed(group) == topics.ends(topic) == ParquetSink(str(tmp_path)).positions()
    assert sum(report.rows for report in reports) == 3700
    assert [report.tasks for report in reports] == [2] * len(reports)
    assert max(report.rows for report in reports) == 800


def test_map_arrow_runs_in_the_reading_task(spark: SparkSession, topics: Topics, group: str, tmp_path: Path) -> None:
    topic = topics.create(2, 50_000)

    def count_twice(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for _ in range(2):
            yield pa.RecordBatch.from_pydict({"n": [rows.num_rows]})

    progress: list[Progress] = []
    (
        Pipeline(spark, topics.bootstrap, group, [topic], on_progress=progress.append)
        .map_arrow(count_twice, "n long")
        .write(ParquetSink(str(tmp_path)))
        .run(available_now=True)
    )
    assert ParquetSink(str(tmp_path)).read(spark).groupBy().sum("n").first()[0] == 100_000
    assert progress[0].rows == 50_000, "rows are records read, whatever the function makes of them"


@pytest.mark.gate
def test_map_arrow_returning_other_columns_than_declared_fails_the_batch(
    spark: SparkSession, topics: Topics, group: str
) -> None:
    topic = topics.create(1, 3)
    with pytest.raises(
        FunctionError, match=r"^map_arrow: the function returned the columns \(offset int64\), its schema"
    ):
        (
            Pipeline(spark, topics.bootstrap, group, [topic])
            .map_arrow(lambda rows: rows.select(["offset"]), "at timestamp")
            .foreach_batch(lambda df, batch: df.collect())
            .run(available_now=True)
        )
    assert topics.committed(group) == {TopicPartition(topic, 0): 0}


@pytest.mark.gate
def test_a_batch_without_results_counts(spark: SparkSession, topics: Topics, group: str, tmp_path: Path) -> None:
    topic = topics.create(1, 10)
    (
        Pipeline(spark, topics.bootstrap, group, [topic])
        .transform(lambda df: df.where("offset > 100"))
        .write(ParquetSink(str(tmp_path)))
        .run(available_now=True)
    )
    sink = ParquetSink(str(tmp_path))
    assert sink.positions() == {TopicPartition(topic, 0): 10}
    assert sink.rows() == 0


@pytest.mark.parametrize("partition_by", [(), ("partition",)], ids=["plain", "partitioned"])
@pytest.mark.gate
def test_an_output_without_rows_can_be_read(
    spark: SparkSession, topics: Topics, group: str, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    topic, out = topics.create(1, 10), str(tmp_path / "out")
    with pytest.raises(PipelineError, match=r"out holds no results yet\. Run the pipeline first"):
        ParquetSink(out).read(spark)

    def run(least: int) -> None:
        sink = ParquetSink(out, partition_by=partition_by)
        pipeline = Pipeline(spark, topics.bootstrap, group, [topic], max_offsets_per_batch=5)
        pipeline.transform(lambda df: df.where(f"offset >= {least}")).write(sink).run(available_now=True)

    run(100)
    empty = ParquetSink(out).read(spark)
    assert (empty.count(), set(empty.columns)) == (0, {*ROW})
    if not partition_by:
        assert spark.read.parquet(out).columns == ROW
        assert len(list((tmp_path / "out").glob("*.parquet"))) == 1, "not one a batch"
    topics.fill(topic, 1, 10)
    run(12)
    assert pairs(spark.read.parquet(out)) == [(0, offset) for offset in range(12, 20)]
    assert pairs(ParquetSink(out).read(spark)) == pairs(spark.read.parquet(out))


@pytest.mark.gate
def test_a_path_may_have_spaces_percent_signs_and_any_letters(
    spark: SparkSession, topics: Topics, group: str, tmp_path: Path
) -> None:
    topic = topics.create(1, 10)
    out = tmp_path / "out 100%25 Łódź#1"
    Pipeline(spark, topics.bootstrap, group, [topic]).write(ParquetSink(out)).run(available_now=True)
    assert pairs(ParquetSink(out).read(spark)) == topics.everything(topic)
    assert len(list(out.glob("*.parquet"))) == 1


@pytest.mark.gate
def test_partition_by_makes_folders(spark: SparkSession, topics: Topics, group: str, tmp_path: Path) -> None:
    topic = topics.create(2, 20)
    sink = ParquetSink(str(tmp_path), partition_by=["partition"])
    Pipeline(spark, topics.bootstrap, group, [topic]).write(sink).run(available_now=True)
    assert {path.parent.name for path in tmp_path.rglob("part-*.parquet")} == {"partition=0", "partition=1"}
    assert pairs(spark.read.parquet(str(tmp_path))) == topics.everything(topic)


@pytest.mark.gate
def test_several_pipelines_in_one_driver(spark: SparkSession, topics: Topics, group: str, tmp_path: Path) -> None:
    topic = topics.create(4, 2000)
    shared = [
        Pipeline(
            spark,
            topics.bootstrap,
            group,
            [topic],
            max_offsets_per_batch=100,
            consumer={"heartbeat.interval.ms": 300},
            trigger_interval_ms=0,
        )
        .write(ParquetSink(str(tmp_path / "shared")))
        .start()
        for _ in range(2)
    ]
    other = Pipeline(spark, topics.bootstrap, f"{group}-2", [topic]).write(ParquetSink(str(tmp_path / "other"))).start()
    until(lambda: topics.committed(group) == topics.committed(f"{group}-2") == topics.ends(topic))
    until(lambda: len(topics.admin.describe_group(group).members) == 2)
    for pipeline in [*shared, other]:
        pipeline.stop()
    assert all(pipeline.wait(120) for pipeline in [*shared, other])
    for out in ("shared", "other"):
        assert pairs(spark.read.parquet(str(tmp_path / out))) == topics.everything(topic)
    assert topics.admin.describe_group(group).members == [], "they have left"


def test_new_partitions_and_new_topics_are_picked_up(
    spark: SparkSession, topics: Topics, group: str, tmp_path: Path
) -> None:
    name = f"grow-{uuid.uuid4().hex[:6]}"
    first = topics.create(1, 10, name=name)
    pipeline = Pipeline(
        spark,
        topics.bootstrap,
        group,
        f"pattern:{name}-.*",
        consumer={"metadata.max.age.ms": 300, "heartbeat.interval.ms": 300},
        trigger_interval_ms=0,
    )
    pipeline.write(ParquetSink(str(tmp_path))).start()
    until(lambda: topics.committed(group) == topics.ends(first))
    topics.admin.create_partitions(first, 2)
    until(lambda: topics.admin.list_topics()[first] == 2)
    topics.fill(first, 2, 10)
    second = topics.create(1, 10, name=name)
    until(lambda: topics.committed(group) == {**topics.ends(first), **topics.ends(second)})
    pipeline.stop()
    assert pipeline.wait(120)
    assert spark.read.parquet(str(tmp_path)).count() == 30


def test_a_batch_that_outlasts_the_rebalance_timeout_is_cancelled_and_handed_over_uncommitted(
    spark: SparkSession, topics: Topics, group: str, tmp_path: Path
) -> None:
    topic = topics.create(2, 100)
    hold = tmp_path / "hold"
    hold.touch()
    begun = tmp_path / "begun"
    path, mark = str(hold), str(begun)

    def wait_while_held(rows: pa.RecordBatch) -> pa.RecordBatch:
        import os
        import time

        open(mark, "w").close()  # noqa: PTH123
        while os.path.exists(path):  # noqa: PTH110
            time.sleep(0.05)
        return rows

    pipeline = (
        Pipeline(
            spark,
            topics.bootstrap,
            group,
            [topic],
            consumer={"max.poll.interval.ms": 3_000, "session.timeout.ms": 6_000, "heartbeat.interval.ms": 200},
            trigger_interval_ms=0,
        )
        .map_arrow(
            wait_while_held,
            "key binary, value binary, topic string, partition int, offset long, "
            "timestamp timestamp, timestampType int",
        )
        .write(ParquetSink(str(tmp_path / "out")))
        .start()
    )
    until(begun.exists, what="a task of the first batch")
    with GroupMember(topics.bootstrap, group, [topic], heartbeat_interval_ms=200, session_timeout_ms=6_000) as other:
        # A cancelled job may take longer than the margin to end: the other then holds both until the first is back.
        def single() -> frozenset[TopicPartition] | None:
            ownership = other.ownership()
            other.release(ownership.revoking)
            return ownership.partitions if len(ownership.partitions) == 1 and not ownership.revoking else None

        mine = until(single, 30, "the other member's share")
        assert mine is not None
        assert ParquetSink(str(tmp_path / "out")).positions() == {}, "nothing of the cancelled batch counts"
        hold.unlink()
        (kept,) = topics.ends(topic).keys() - mine
        until(lambda: ParquetSink(str(tmp_path / "out")).positions() == {kept: 50})
    until(lambda: topics.committed(group) == topics.ends(topic))
    pipeline.stop()
    assert pipeline.wait(120)
    assert pairs(spark.read.parquet(str(tmp_path / "out"))) == topics.everything(topic)


def test_a_broker_killed_and_restarted_costs_no_record_and_doubles_none(
    spark: SparkSession, group: str, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Topics(broker.bootstrap) as topics:
        topic = topics.create(2, 1000)
        pipeline = Pipeline(
            spark,
            broker.bootstrap,
            group,
            topic,
            max_offsets_per_batch=100,
            consumer={"heartbeat.interval.ms": 300},
            trigger_interval_ms=0,
        )
        pipeline.write(ParquetSink(str(tmp_path / "out"))).start()
        until(lambda: pipeline.last_progress is not None and pipeline.last_progress.batch >= 2)
        broker.kill()
        broker.start()
        topics.fill(topic, 2, 200)
        until(lambda: topics.committed(group) == topics.ends(topic))
        pipeline.stop()
        assert pipeline.wait(120)
        assert pairs(spark.read.parquet(str(tmp_path / "out"))) == topics.everything(topic)


def test_the_kafka_sink_writes_every_row(spark: SparkSession, topics: Topics, group: str) -> None:
    source, target = topics.create(2, 500), topics.create(2)
    (
        Pipeline(spark, topics.bootstrap, group, [source], include_headers=True)
        .transform(lambda df: df.selectExpr("key", "concat('v', cast(value as string)) value", "partition", "headers"))
        .write(KafkaSink(topics.bootstrap, target))
        .run(available_now=True)
    )
    got: list[Any] = []
    (
        Pipeline(spark, topics.bootstrap, f"{group}-2", [target])
        .foreach_batch(lambda df, batch: got.extend(df.collect()))
        .run(available_now=True)
    )
    assert sorted(bytes(row.value) for row in got) == sorted(b"v%d" % n for n in range(500))
    assert all(int(bytes(row.value)[1:]) % 2 == row.partition for row in got)


@pytest.mark.gate
def test_the_kafka_sink_raises_what_could_not_be_written(spark: SparkSession, topics: Topics, group: str) -> None:
    source = topics.create(1, 5)
    failing = KafkaSink(topics.bootstrap)
    with pytest.raises(WriteError, match=r"^5 of 5 rows not written: no such topic: no-such-topic") as caught:
        (
            Pipeline(spark, topics.bootstrap, group, [source])
            .transform(lambda df: df.selectExpr("value", "'no-such-topic' AS topic"))
            .write(failing)
            .run(available_now=True)
        )
    assert caught.value.__notes__ == [f"The batch had {source}-0 offsets 0 to 4; it is not committed."]
    assert topics.committed(group) == {TopicPartition(source, 0): 0}
    with pytest.raises(PipelineError, match="no column `value`"):
        (
            Pipeline(spark, topics.bootstrap, group, [source])
            .transform(lambda df: df.select("key"))
            .write(KafkaSink(topics.bootstrap, source))
            .run(available_now=True)
        )


def test_a_kafka_sink_that_cannot_work_is_refused_before_the_group_is_joined(
    spark: SparkSession, topics: Topics, group: str
) -> None:
    pipeline = Pipeline(spark, topics.bootstrap, group, [topics.create(1, 1)])
    with pytest.raises(PipelineError, match=r"there is no topic 'no-such-topic'.*roster topics create"):
        pipeline.write(KafkaSink(topics.bootstrap, "no-such-topic")).run()
    other = Pipeline(spark, topics.bootstrap, group, [topics.create(1, 1)])
    with pytest.raises(PipelineError, match=r"KafkaSink: 'acks\.all' is not a setting here"):
        other.write(KafkaSink(topics.bootstrap, "t", options={"acks.all": 1})).run()
    assert group not in {found.group_id for found in topics.admin.list_groups()}


@pytest.mark.gate
def test_the_kafka_sink_writes_inside_the_reading_tasks(spark: SparkSession, topics: Topics, group: str) -> None:
    source, target = topics.create(2), topics.create(4)
    topics.fill(source, 2, 300, headers=[("h", b"1")], timestamp=1_700_000_000_123)

    def double(rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [rows["key"], rows["value"].cast(pa.string()), rows["headers"], rows["timestamp"]]
        return pa.RecordBatch.from_arrays(columns, ["key", "value", "headers", "timestamp"])

    schema = "key binary, value string, headers array<struct<key: string, value: binary>>, timestamp timestamp"
    pipeline = Pipeline(spark, topics.bootstrap, group, [source], include_headers=True)
    sink = KafkaSink(topics.bootstrap, target, keep_timestamps=True, options={"compression.type": "lz4"})
    pipeline.map_arrow(double, schema).write(sink).run(available_now=True)
    got: list[Any] = []
    reading = Pipeline(spark, topics.bootstrap, f"{group}-2", [target], include_headers=True)
    reading.foreach_batch(lambda df, batch: got.extend(df.collect())).run(available_now=True)
    assert sorted(int(row.value) for row in got) == list(range(300))
    assert {(row.headers[0].key, bytes(row.headers[0].value)) for row in got} == {("h", b"1")}
    assert {row.timestamp.microsecond for row in got} == {123_000}
    assert len({(bytes(row.key), row.partition) for row in got}) == 7, "a key's records lie in one partition"


def test_the_console_sink_prints(
    spark: SparkSession, topics: Topics, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topics.create(1, 3)
    Pipeline(spark, topics.bootstrap, group, [topic]).write(ConsoleSink(2)).run(available_now=True)
    printed = capsys.readouterr().out
    assert "batch 0, generation 1" in printed
    assert "only showing top 2 rows" in printed


def test_a_failing_function_ends_the_run_and_leaves_the_batch_uncommitted(
    spark: SparkSession, topics: Topics, group: str, tmp_path: Path
) -> None:
    topic = topics.create(1, 10)

    calls = spark.sparkContext.accumulator(0)

    def fail(rows: pa.RecordBatch) -> pa.RecordBatch:
        if 7 in rows.column("offset").to_pylist():
            calls.add(rows.num_rows == 10)
            raise ValueError("the user's mistake")
        return rows.select(["offset"])

    def run(sink: Sink) -> str:
        pipeline = Pipeline(spark, topics.bootstrap, group, [topic]).map_arrow(fail, "offset long").write(sink)
        with pytest.raises(FunctionError) as caught:
            pipeline.run(available_now=True)
        assert len(traceback.format_exception(caught.value)) < 10
        return str(caught.value)

    place = (
        rf"map_arrow: ValueError: the user's mistake \(test_pipeline\.py, line \d+, in fail\), given {topic}-0 offset 7"
    )
    assert re.fullmatch(place, run(ParquetSink(str(tmp_path))))
    assert calls.value == 1, "not tried again"
    assert re.fullmatch(place, run(ConsoleSink())), "what Spark makes of it is cut down"
    assert topics.committed(group) == {TopicPartition(topic, 0): 0}
    assert topics.admin.describe_group(group).members == []
    assert not list((tmp_path / "_roster" / "staging").iterdir())


def test_what_cannot_work_is_one_clear_error(spark: SparkSession, topics: Topics, group: str, tmp_path: Path) -> None:
    topic = topics.create(1, 1)
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        Pipeline(spark, topics.bootstrap, group, ["no-such-topic"]).foreach_batch(print).run()
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        Pipeline(spark, "127.0.0.1:1", group, [topic], start_timeout_ms=500).foreach_batch(print).run()
    with pytest.raises(PipelineError, match="write: the pipeline has no sink"):
        Pipeline(spark, topics.bootstrap, group, [topic]).run()
    with pytest.raises(PipelineError, match=r"map_arrow: 'a blah' is not a schema: .*BLAH"):
        Pipeline(spark, topics.bootstrap, group, [topic]).map_arrow(iter, "a blah").foreach_batch(print).run()
    with pytest.raises(PipelineError, match="transform: the function returned None, not a DataFrame"):
        Pipeline(spark, topics.bootstrap, group, [topic]).transform(print).foreach_batch(print).run()  # type: ignore[arg-type]
    for wrong, named in [
        ({topic: {1: 0}}, "the topic has 1 partitions"),
        ({"other": {0: 0}}, "does not read this topic"),
    ]:
        with pytest.raises(PipelineError, match=f"starting_offsets: .*{named}"):
            Pipeline(spark, topics.bootstrap, group, [topic], starting_offsets=wrong).foreach_batch(print).run()
    pipeline = Pipeline(spark, topics.bootstrap, group, [topic]).foreach_batch(print)
    with pytest.raises(PipelineError, match="has a sink already"):
        pipeline.foreach_batch(print)
    Pipeline(spark, topics.bootstrap, group, [topic]).write(ParquetSink(str(tmp_path))).run(available_now=True)
    with pytest.raises(PipelineError, match="holds the results of group"):
        Pipeline(spark, topics.bootstrap, "another", [topic]).write(ParquetSink(str(tmp_path))).run(available_now=True)


@pytest.mark.gate
def test_a_pipeline_shows_how_it_stands_and_can_be_started_again(
    spark: SparkSession, topics: Topics, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roster.pipeline")
    topic = topics.create(2, 20)
    rows: list[tuple[int, int]] = []
    pipeline = Pipeline(spark, topics.bootstrap, group, topic).foreach_batch(lambda df, batch: rows.extend(pairs(df)))
    assert (pipeline.status, pipeline.is_active, pipeline.exception) == ("new", False, None)
    assert repr(pipeline) == f"<Pipeline group={group!r} topics={topic!r} sink=ForeachBatch [new]>"
    pipeline.stop()  # nothing to stop
    for records in (20, 30):
        pipeline.start()
        assert pipeline.is_active
        with pytest.raises(PipelineError, match="start: the pipeline is running already"):
            pipeline.start()
        until(lambda: topics.committed(group) == topics.ends(topic) and len(rows) == records)  # noqa: B023
        assert pipeline.status == "running"
        (member,) = topics.admin.describe_group(group).members
        assert member.client_id == "roster-tests", "the application's name"
        pipeline.stop()
        assert pipeline.wait(120)
        assert (pipeline.status, pipeline.is_active) == ("stopped", False)
        topics.fill(topic, 2, 10)
    assert f"{group}: stopped reason=stop() batches=" in caplog.text
    assert f"{group}: joined partitions=" in caplog.text
    assert "lag=0 [stopped]>" in repr(pipeline)


@pytest.mark.gate
def test_a_failed_start_is_heard(
    spark: SparkSession, topics: Topics, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline(spark, topics.bootstrap, group, ["no-such-topic"]).foreach_batch(print).start()
    until(lambda: not pipeline.is_active)
    assert isinstance(pipeline.exception, UnknownTopicError)
    assert repr(pipeline).endswith("exception=UnknownTopicError [failed]>")
    (record,) = [
        record for record in caplog.records if record.name == "roster.pipeline" and record.levelname == "ERROR"
    ]
    assert record.getMessage().startswith(f'{group}: failed reason="UnknownTopicError: ')
    with pytest.raises(UnknownTopicError):
        pipeline.wait()


@pytest.mark.gate
def test_stopped_while_no_broker_answers_it_ends_at_once_and_well(spark: SparkSession, group: str) -> None:
    pipeline = Pipeline(spark, "127.0.0.1:1", group, ["t"], start_timeout_ms=2**31 - 1).foreach_batch(print).start()
    until(lambda: pipeline.status == "joining")
    pipeline.stop()
    assert pipeline.wait(120)
    assert (pipeline.status, pipeline.exception) == ("stopped", None)


@pytest.mark.gate
def test_a_batch_that_gets_nowhere_gives_the_partitions_to_others(
    spark: SparkSession, topics: Topics, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.create(2, 20)
    hold = tmp_path / "hold"
    hold.touch()
    path = str(hold)

    def wait_while_held(rows: pa.RecordBatch) -> pa.RecordBatch:
        while os.path.exists(path):  # noqa: PTH110
            time.sleep(0.05)
        return rows.select(["partition", "offset"])

    def pipeline(**options: Any) -> Pipeline:
        return (
            Pipeline(spark, topics.bootstrap, group, topic, consumer={"heartbeat.interval.ms": 200}, **options)
            .map_arrow(wait_while_held, "partition int, offset long")
            .write(ParquetSink(tmp_path / "out"))
        )

    stuck = pipeline(max_batch_ms=2_000).start()
    until(lambda: "handed back partitions" in caplog.text, what="the group is left")
    stuck.stop(now=True)
    hold.unlink()
    assert stuck.wait(180)
    assert ParquetSink(tmp_path / "out").positions() == {}
    pipeline().run(available_now=True)
    assert pairs(spark.read.parquet(str(tmp_path / "out"))) == topics.everything(topic)


@pytest.mark.gate
def test_after_gives_the_rows_that_do_not_count_yet(spark: SparkSession, topics: Topics, group: str) -> None:
    topic = topics.create(2, 20)
    p0, p1 = (TopicPartition(topic, number) for number in range(2))
    found: list[Any] = []

    def store(df: DataFrame, batch: Batch) -> None:
        for stored in ({}, {p0: 4, p1: 10}, {p0: 12}):
            rows, positions = batch.after(df, stored)
            found.append((pairs(rows), positions))
        with pytest.raises(PipelineError, match="after: the rows have no column topic and no partition"):
            batch.after(df.select("offset"), {})

    Pipeline(spark, topics.bootstrap, group, topic).foreach_batch(store).run(available_now=True)
    first, second = [(0, n) for n in range(10)], [(1, n) for n in range(10)]
    assert found == [
        (first + second, {p0: 10, p1: 10}),
        (first[4:], {p0: 10, p1: 10}),
        (second, {p0: 12, p1: 10}),
    ]


@pytest.mark.parametrize("watermark", ["0 seconds", None])
def test_what_belongs_into_a_stream_is_named_once(
    spark: SparkSession, topics: Topics, group: str, caplog: pytest.LogCaptureFixture, watermark: str | None
) -> None:
    topic = topics.create(1, 6)
    (
        Pipeline(spark, topics.bootstrap, group, topic, max_offsets_per_batch=2)
        .transform(lambda df: df if watermark is None else df.withWatermark("timestamp", watermark))
        .transform(lambda df: df.dropDuplicates(["key"]))
        .foreach_batch(lambda df, batch: df.collect())
        .run(available_now=True)
    )
    assert caplog.text.count("dropDuplicates takes the rows of one batch only") == 1
