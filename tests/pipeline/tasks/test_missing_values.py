"""A key that no record has is told once in a run: the operator that goes by it, the column, the topics, the fix."""

from __future__ import annotations

import json
import uuid
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from roster.model import TopicPartition
from roster.pipeline.batch import Range, Split
from roster.pipeline.tasks import reader
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.avro_values import CONFLUENT, AvroColumns, Known, Writer
from roster.pipeline.tasks.dead_letters import Salvage
from roster.pipeline.tasks.json_values import JsonColumns, JsonError
from roster.pipeline.tasks.missing_values import MissingValues, Sought, columns_with_values, merged_seen
from roster.pipeline.tasks.reader import Counts, ReaderConfig, ReadTask
from roster.records.native import AVRO, compiled
from roster.spark import KafkaSink, ParquetSink, Pipeline, PipelineError, State
from roster.spark.jobs.runner import SparkRunner
from roster.wire.avro.columns import of_arrow
from tests.librdkafka import idempotent_producer
from tests.spark.spark_topics import committed_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

SHOP = Sought("shop")
BY_SHOP, BY_DAY = Sought("shop", "aggregate", ("orders",)), Sought("day", "aggregate", ("orders",))


def test_a_column_has_a_value_if_one_task_saw_one() -> None:
    rows = pa.record_batch({"shop": pa.array([None, None], pa.string()), "day": [1, None]})
    assert columns_with_values(rows, [SHOP, Sought("day")]) == {SHOP: False, Sought("day"): True}
    assert columns_with_values(rows.slice(0, 0), [SHOP]) == {}, "of no rows nothing is known"
    assert merged_seen({SHOP: False}, {SHOP: True}, {SHOP: False}, {BY_DAY: False}) == {SHOP: True, BY_DAY: False}


def test_each_column_is_told_once_and_with_its_operator(caplog: pytest.LogCaptureFixture) -> None:
    missing = MissingValues("shops")
    missing.note({SHOP: True, BY_SHOP: True})
    missing.note({SHOP: False, BY_SHOP: False})
    assert not caplog.records, "it had values before"
    missing.note({Sought("day"): False, BY_DAY: False, BY_DAY._replace(use="repartition"): False})
    missing.note({BY_DAY._replace(use="deduplicate"): False})
    (text,) = (record.getMessage() for record in caplog.records)
    assert text == (
        "shops: aggregate by 'day': it is null in all records of 'orders' so far, so they are one group in each"
        " partition; check its name and the records, or name another column"
    )


def test_times_that_no_timestamp_holds_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where a function that follows has seen values in its columns."""
    stamps = pa.array([1_700_000_000_000_000, None], pa.timestamp("us", tz="UTC"))
    read = pa.record_batch({"timestamp": stamps, "value": pa.array([b"{}", b"{}"])})
    monkeypatch.setattr(reader, "read_splits", lambda *_: iter([read]))
    counts: list[Counts] = []
    counted = SimpleNamespace(add=lambda each: counts.extend(each.values()))
    config = ReaderConfig("localhost:9092", group="g")
    for _ in range(2):
        list(ReadTask(config, [[Split("orders", 0, 0, 2)]], counted=cast("Any", counted)).read([0]))
    missing = MissingValues("shops")
    for each in counts:
        missing.note(each.seen, {BY_SHOP: True})
    (text,) = (record.getMessage() for record in caplog.records)
    assert text.startswith("shops: 'timestamp' is null in records of 'orders', whose times no timestamp can hold")


def bad(topic: str, count: int, good: int = 0) -> dict[Sought, int]:
    seen: dict[Sought, int] = {Sought("avro_columns: no frame", "bad", (topic,)): count}
    return seen | ({Sought("", "read", (topic,)): good} if good else {})


def test_a_topic_of_which_no_record_has_the_format_ends_the_run() -> None:
    begun = {TopicPartition("a", 0): Range(0, 9), TopicPartition("b", 0): Range(5, 9)}
    missing = MissingValues("shops")
    missing.note(bad("a", 9), bad("b", 99), ranges=begun)
    with pytest.raises(
        PipelineError, match=r"avro_columns: none of the first 10 records of topic 'a' has the format: no fr"
    ):
        missing.note(bad("a", 1), ranges={TopicPartition("a", 0): Range(9, 10)})
    with pytest.raises(
        PipelineError, match=r"none of the first 100 records of topic 'b' has the format: no frame\. Read"
    ):
        missing.note(bad("b", 1), ranges=begun)
    missing = MissingValues("shops")
    missing.note(bad("a", 4), bad("a", 5, good=1), ranges=begun)
    missing.note(bad("a", 5_000), ranges=begun)
    assert merged_seen(bad("a", 4), bad("a", 5, good=1)) == bad("a", 9, good=1)


def test_values_that_have_nothing_of_the_format_are_counted_by_topic() -> None:
    for mode in ("PERMISSIVE", "FAILFAST"):
        read = JsonColumns(pa.schema([("a", pa.int64()), ("b", pa.int64())]), "value", mode, ())
        values = [b"no", None, b"[]", b'{"a": 1, "b": "x"}', b"", b"\x00\x01"]
        topics = ["one", "one", "one", "two", "three", "four"]
        with nullcontext() if mode == "PERMISSIVE" else pytest.raises(JsonError):
            read(pa.record_batch({"value": pa.array(values, pa.binary()), "topic": topics}))
        seen = {(sought.use, sought.topics): has for sought, has in read.values_seen().items() if sought.use}
        assert seen == {("bad", ("one",)): 2, ("read", ("two",)): 1, ("read", ("three",)): 1, ("bad", ("four",)): 1}


@pytest.mark.parametrize("mode", ["PERMISSIVE", "FAILFAST"])
def test_a_topic_of_json_is_no_topic_of_avro_in_any_mode(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task counts its own records, and what the sink has written is dropped."""
    fields, topics = pa.schema([("shop", pa.string())]), ["a"] * 20
    stamps = pa.array([0] * 20, pa.timestamp("us", tz="UTC"))
    values = pa.array([b'{"shop": "a"}'] * 20, pa.binary())
    read = pa.record_batch({"topic": topics, "value": values, "timestamp": stamps})
    monkeypatch.setattr(reader, "read_splits", lambda *_: iter([read]))
    known = Known("", CONFLUENT, "value", {1: Writer("AVRO", '{"type": "record", "name": "R", "fields": []}')})
    kind = of_arrow(pa.struct(list(fields)), "columns")
    function = ArrowFunction(AvroColumns(kind, fields, known, compiled(AVRO), "value", mode), fields)
    set_aside: list[object] = []
    given: Any = function if mode == "PERMISSIVE" else Salvage(function, lambda *each: set_aside.append(each))
    given.values_seen = function.values_seen
    counts: dict[int, Counts] = {}
    task = ReadTask(
        ReaderConfig("localhost:9092", group="g"),
        [[Split("a", n, 0, 20)] for n in (0, 1)],
        function=given,
        counted=cast("Any", SimpleNamespace(add=counts.update)),
    )
    assert sum(len(list(task.read([n]))) for n in (0, 1)) == (2 if mode == "PERMISSIVE" else 0)
    assert len(set_aside) == (0 if mode == "PERMISSIVE" else 40)
    dropped: list[object] = []
    runner: Any = object.__new__(SparkRunner)
    runner._write_batch = lambda *_: "rows"
    runner._failed, runner._counted = SimpleNamespace(value={}), SimpleNamespace(value=counts)
    runner._missing = MissingValues("g")
    batch = SimpleNamespace(ranges={TopicPartition("a", n): Range(0, 20) for n in (0, 1)})
    told = "avro_columns: none of the first 40 records of topic 'a' has the format: the value does not begin with"
    with pytest.raises(PipelineError, match=told):
        runner._write(SimpleNamespace(abort=lambda written, _: dropped.append(written)), batch, [])
    assert dropped == ["rows"]


def _aggregate(pipeline: Pipeline, _: str) -> Pipeline:
    return pipeline.aggregate("key", {"n": "count(*)"})


def _deduplicate(pipeline: Pipeline, _: str) -> Pipeline:
    return pipeline.deduplicate("key", within=timedelta(days=1))


def _repartition(pipeline: Pipeline, _: str) -> Pipeline:
    return pipeline.repartition("key").aggregate("key", {"n": "count(*)"})


def _join(pipeline: Pipeline, other: str) -> Pipeline:
    return pipeline.json_columns("shop string", keep=["timestamp"]).join(
        other, "shop", "shop string, paid long", within=timedelta(hours=1)
    )


def _join_table(pipeline: Pipeline, other: str) -> Pipeline:
    return pipeline.join_table(other, "key", "paid long")


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("declare", "told", "results"),
    [
        (_aggregate, "aggregate by 'key': {}, so they are one group in each partition", 2),
        (_deduplicate, "deduplicate by 'key': {}, so only the first of each partition goes on", 2),
        (_repartition, "repartition by 'key': {}, so all go to partition 0", 1),
        (_join_table, "join_table by 'key': {}, so none finds an entry", 0),
    ],
)
@pytest.mark.sampled(1)
def test_records_without_a_key_are_told(
    spark: SparkSession,
    topics: Topics,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    declare: Callable[[Pipeline, str], Pipeline],
    told: str,
    results: int,
) -> None:
    topic, other, out = topics.create(2), topics.create(2), topics.create(1)
    producer = idempotent_producer(topics.bootstrap)

    def run(key: str | None) -> list[str]:
        caplog.clear()
        for number in range(20):
            producer.produce(topic, b"{}", key, partition=number % 2)
        assert producer.flush(60) == 0
        group = f"g-{uuid.uuid4().hex[:8]}"
        pipeline = Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / group)))
        declare(pipeline, other).write(KafkaSink(topics.bootstrap, out)).run(available_now=True)
        return [record.getMessage() for record in caplog.records if " is null in all records " in record.getMessage()]

    null = f"it is null in all records of {topic!r} so far"
    (text,) = run(None)
    assert text.endswith(f": {told.format(null)}; produce records with keys, or name another column")
    assert len(committed_records(topics, out)) == results
    assert run("k") == [], "a record has one now"


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_side_of_a_join_that_has_no_key_is_told(
    spark: SparkSession, topics: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    orders, payments = topics.create(1), topics.create(1)
    producer = idempotent_producer(topics.bootstrap)
    for topic, value in ((orders, {"shop": "a"}), (payments, {"Shop": "a", "paid": 1})):
        producer.produce(topic, json.dumps(value), "a")
    assert producer.flush(60) == 0
    pipeline = Pipeline(
        spark, topics.bootstrap, f"g-{uuid.uuid4().hex[:8]}", orders, state=State(dir=str(tmp_path / "state"))
    )
    _join(pipeline, payments).write(ParquetSink(str(tmp_path / "out"))).run(available_now=True)
    texts: list[Any] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (text,) = [text for text in texts if "null in all" in text or "no record so far" in text]
    assert f"join by 'shop': it is null in all records of {payments!r} so far, so they pair with nothing" in text
