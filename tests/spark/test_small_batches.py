"""Batches of a few records are done by the driver: the rows that tasks read; what does not fit is left to them."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from roster.records.encoding import EncodingWriter
from roster.records.produce import KafkaWriter
from roster.spark import FunctionError, KafkaSink, ParquetSink, Pipeline
from roster.spark.batch import Split
from roster.spark.jobs import runner, small_batches
from roster.spark.jobs.runner import ReadBatches, SparkRunner
from roster.spark.jobs.small_batches import MOST_BYTES, MOST_OFFSETS, CancelledError, SmallBatches, copied
from roster.spark.jobs.spark_jobs import SparkJobs
from roster.spark.tasks.arrow_function import ArrowFunction, as_struct
from roster.spark.tasks.reader import ReaderConfig, ReadError
from roster.spark.tasks.steps import Filtered, Mapped
from tests.spark.spark_topics import committed_records
from tests.spark.tuned import tuned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from roster.spark import Batch, Progress
    from tests.spark.spark_topics import Topics

CONFIG = ReaderConfig(bootstrap="127.0.0.1:9092", group="g")
FEW = [(Split("t", 0, 0, 5), Split("t", 1, 3, 8))]


class Reads:
    """In place of `read_splits`: yields record batches or raises, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *found: pa.RecordBatch | Exception) -> None:
        self.found, self.calls = found, 0
        self.config = CONFIG
        monkeypatch.setattr(small_batches, "read_splits", self)

    def __call__(self, config: ReaderConfig, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
        self.calls, self.config = self.calls + 1, config
        assert config.read_timeout_ms <= 2_000
        for each in self.found:
            if isinstance(each, Exception):
                raise each
            yield each


def values(*each: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(each, pa.binary())})


def read(batches: SmallBatches) -> list[pa.RecordBatch] | None:
    return batches.read(FEW) if batches.takes(FEW) else None


def test_the_records_of_a_small_batch_are_read_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    Reads(monkeypatch, values(b"a", b"b"), values(b"c"))
    assert read(SmallBatches(CONFIG)) == [values(b"a", b"b"), values(b"c")]


@pytest.mark.parametrize(
    "tasks",
    [
        [],
        [()],
        [(Split("t", 0, 0, 5),), (Split("t", 1, 0, 5),)],
        [(Split("t", 0, 0, MOST_OFFSETS), Split("t", 1, 0, 1))],
    ],
    ids=["none", "empty", "two tasks", "too many"],
)
def test_other_batches_are_left_to_tasks(tasks: list[Any]) -> None:
    assert not SmallBatches(CONFIG).takes(tasks)


@pytest.mark.parametrize(
    "found",
    [[ReadError("no record for 2000 ms")], [values(b"a"), ReadError("gone")], [values(b"x" * MOST_BYTES), values(b"")]],
    ids=["silence", "an error after some", "large"],
)
def test_what_cannot_be_read_at_once_is_left_to_tasks_for_a_while(
    found: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, batches = Reads(monkeypatch, *found), SmallBatches(CONFIG)
    assert [read(batches) for _ in range(101)] == [None] * 101
    assert reads.calls == 1
    reads.found = (values(b"a"),)
    assert read(batches) is not None


def test_a_batch_that_is_cancelled_is_not_left_to_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    Reads(monkeypatch, values(b"a"))
    batches = SmallBatches(CONFIG)
    batches.cancel()
    with pytest.raises(CancelledError):
        read(batches)
    with pytest.raises(CancelledError):
        batches.leave("a writer's error")
    batches.begin()
    assert read(batches) is not None


@pytest.mark.parametrize("encodes", [False, True])
def test_a_writer_that_waits_for_a_broker_notices_that_the_batch_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, encodes: bool
) -> None:
    plain = KafkaWriter((), "t")
    opened: list[Any] = []
    monkeypatch.setattr(KafkaWriter, "open", lambda _, on_wait=None: opened.append(on_wait))
    monkeypatch.setattr(EncodingWriter, "open", lambda _, on_wait=None: opened.append(on_wait))
    batches = SmallBatches(CONFIG)
    batches.opening(EncodingWriter(plain) if encodes else plain).open()
    batches.cancel()
    with pytest.raises(CancelledError):
        opened[0]()


def test_dead_letters_keep_the_headers_of_records_that_the_driver_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, values(b"a"))
    read(SmallBatches(replace(CONFIG, dead_letters=KafkaWriter((), "failed")), ArrowFunction(iter, values().schema)))
    assert reads.config.include_headers
    read(SmallBatches(CONFIG))
    assert not reads.config.include_headers


@pytest.mark.parametrize(
    ("mode", "steps", "does"),
    [
        ("auto", [], True),
        ("auto", [Filtered(pc.field("n") > 0)], True),
        ("auto", [Filtered(pc.field("n") > 0), Mapped(lambda rows: rows, "n long")], False),
        ("driver", [Mapped(lambda rows: rows, "n long")], True),
        ("tasks", [], False),
    ],
)
def test_functions_of_the_user_run_in_the_driver_only_if_that_is_asked_for(
    mode: str, steps: list[Any], does: bool
) -> None:
    assert (SmallBatches.of(mode, CONFIG, steps, None) is not None) is does


def test_a_function_is_given_as_tasks_get_it() -> None:
    seen: list[int] = []

    def count(rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(rows.num_rows)
        assert len(seen) == 1, "kept from an earlier batch"
        return rows

    function = ArrowFunction(count, values().schema)
    for _ in range(2):
        mine = copied(function)
        assert mine is not None
        assert [*mine(values(b"a"))] == [values(b"a")]
    assert seen == []


@pytest.mark.parametrize("include_headers", [False, True])
def test_driver_and_tasks_read_the_same_rows(spark: SparkSession, topics: Topics, include_headers: bool) -> None:
    topic = topics.create(3)
    topics.fill(topic, 3, 30, headers=[("h", b"1"), ("h", None)], timestamp=1_700_000_000_123)
    topics.fill(topic, 3, 30)
    config = ReaderConfig(bootstrap=topics.bootstrap, group="g", include_headers=include_headers)
    columns = as_struct(config.schema)
    tasks = [tuple(Split(topic, number, number, 20) for number in range(3))]
    jobs = SparkJobs(spark, "g")
    runner: Any = SparkRunner(jobs, ReadBatches(jobs, config, None), columns, small=SmallBatches(config))
    frame = runner._frame(tasks)
    assert is_local(frame)
    assert sum(counts.records for counts in runner._counted.value.values()) == 57
    runner._small = None
    by_tasks = runner._frame(tasks)
    assert frame.schema == by_tasks.schema
    assert frame.rdd.getNumPartitions() == by_tasks.rdd.getNumPartitions() == 1
    assert [*map(tuple, frame.collect())] == [*map(tuple, by_tasks.collect())]


def is_local(df: DataFrame) -> bool:
    plan: Any = df._jdf.queryExecution().logical()
    return "LocalRelation" in plan.toString()


def test_a_pipeline_reads_small_batches_itself_and_large_ones_in_tasks(spark: SparkSession, topics: Topics) -> None:
    topic, seen = topics.create(2, 10), dict[int, tuple[bool, int]]()
    reports: list[Progress] = []

    def look(df: DataFrame, batch: Batch) -> None:
        seen[batch.offsets] = is_local(df), df.count()

    def pipeline(change: Callable[[DataFrame], DataFrame]) -> Pipeline:
        made = Pipeline(spark, topics.bootstrap, group, topic, on_progress=reports.append, log=False)
        return made.transform(change).foreach_batch(look)

    group = f"g-{uuid.uuid4().hex[:8]}"
    pipeline(lambda df: df.where("offset > 0")).run(available_now=True)
    topics.fill(topic, 2, 2 * MOST_OFFSETS)
    pipeline(lambda df: df).run(available_now=True)
    assert seen == {10: (True, 8), 2 * MOST_OFFSETS: (False, 2 * MOST_OFFSETS)}
    assert [report.rows for report in reports] == [10, 2 * MOST_OFFSETS]


def where(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The process that does the rows. Raises at offset 3."""
    if 3 in rows.column("offset").to_pylist():
        raise ValueError("three")
    pids = pa.array([os.getpid()] * rows.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays([rows.column("offset"), pids], ["offset", "pid"])


@pytest.mark.parametrize("mode", ["driver", "auto"])
def test_sinks_that_write_in_tasks_write_small_batches_in_the_driver(
    spark: SparkSession, topics: Topics, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, jobs = topics.create(2, 10), list[int]()
    results = SparkRunner._results
    monkeypatch.setattr(SparkRunner, "_results", lambda *given: jobs.append(1) or results(*given))
    sink = ParquetSink(tmp_path / "out")
    options: dict[str, Any] = {"log": False, "dead_letter_topic": topics.create(1)}
    reports: list[Progress] = []
    tuned(small_batches=mode)(
        spark, topics.bootstrap, f"g-{topic}", topic, on_progress=reports.append, **options
    ).filter(pc.field("offset") < 4).map_arrow(where, "offset long, pid long").write(sink).run(available_now=True)
    rows = sink.read(spark).collect()
    assert sorted(row.offset for row in rows) == [0, 0, 1, 1, 2, 2]
    assert ({row.pid for row in rows} == {os.getpid()}) is (mode == "driver")
    assert len(jobs) == (1 if mode == "driver" else 2), "the first is that of the warm-up"
    assert [(report.rows, report.dead_letters) for report in reports] == [(10, 2)]


def test_a_small_batch_of_bad_records_only_is_done_once(spark: SparkSession, topics: Topics) -> None:
    topic, letters = topics.create(1, 3), topics.create(1)
    seen: list[int] = []
    reports: list[Progress] = []
    options: dict[str, Any] = {"log": False, "dead_letter_topic": letters, "on_progress": reports.append}
    pipeline = Pipeline(spark, topics.bootstrap, f"g-{topic}", topic, **options)
    pipeline.json_columns("a struct<b: int>", mode="FAILFAST").foreach_batch(
        lambda df, batch: seen.append(df.count())
    ).run(available_now=True)
    assert seen == [0]
    assert [(report.rows, report.dead_letters) for report in reports] == [(3, 3)]
    assert sum(topics.ends(letters).values()) == 3


def test_an_error_of_the_function_in_the_driver_is_that_of_a_task(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, errors = topics.create(2, 10), []
    for mode in ("driver", "tasks"):
        sink = ParquetSink(tmp_path / mode)
        pipeline = tuned(small_batches=mode)(spark, topics.bootstrap, f"{mode}-{topic}", topic, log=False)
        with pytest.raises(FunctionError) as caught:
            pipeline.map_arrow(where, "offset long, pid long").write(sink).run(available_now=True)
        errors.append(str(caught.value))
        assert sink.positions() == {}
        assert not [*(tmp_path / mode).rglob("*.parquet")]
    assert errors[0] == errors[1]


def test_what_the_driver_cannot_write_a_task_writes_once(
    spark: SparkSession, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, copy = topics.create(2, 10), topics.create(2)
    real, failed = runner.written, list[int]()  # record batches that were made in the driver

    def full(writer: Any, rows: Iterator[pa.RecordBatch]) -> Any:
        failed.append(len(real(writer, rows)))
        raise OSError("no space left on device")

    reports: list[Progress] = []
    pipeline = Pipeline(spark, topics.bootstrap, f"g-{topic}", topic, log=False, on_progress=reports.append)
    pipeline.write(KafkaSink(topics.bootstrap, copy, exactly_once=True))
    warm_up = SparkRunner.warm_up

    def warm(*given: Any) -> None:
        warm_up(*given)
        monkeypatch.setattr(runner, "written", full)

    monkeypatch.setattr(SparkRunner, "warm_up", warm)
    pipeline.run(available_now=True)
    assert failed
    assert [report.rows for report in reports] == [10]
    assert committed_records(topics, copy) == committed_records(topics, topic)
