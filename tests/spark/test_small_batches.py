"""Batches of a few records are read by the driver: the rows that tasks read; what does not fit is left to them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.spark import Pipeline, small_batches
from roster.spark.arrow_function import as_struct
from roster.spark.batch import Split
from roster.spark.execution import SparkRunner
from roster.spark.reader import ReaderConfig, ReadError
from roster.spark.small_batches import MOST_BYTES, MOST_OFFSETS, SmallBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from roster.spark import Batch, Progress
    from tests.spark.spark_topics import Topics

CONFIG = ReaderConfig(bootstrap="127.0.0.1:9092", group="g")
FEW = [(Split("t", 0, 0, 5), Split("t", 1, 3, 8))]


class FakeSession:
    """Takes a table for a DataFrame."""

    def createDataFrame(self, rows: pa.Table, schema: object) -> Any:
        return FakeFrame(rows)


class FakeFrame:
    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def coalesce(self, partitions: int) -> FakeFrame:
        assert partitions == 1
        return self


class Reads:
    """In place of `read_splits`: yields record batches or raises, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *found: pa.RecordBatch | Exception) -> None:
        self.found, self.calls = found, 0
        monkeypatch.setattr(small_batches, "read_splits", self)
        monkeypatch.setattr(small_batches, "arrow_schema", lambda _: pa.schema([("value", pa.binary())]))

    def __call__(self, config: ReaderConfig, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
        self.calls += 1
        assert config.read_timeout_ms <= 2_000
        for each in self.found:
            if isinstance(each, Exception):
                raise each
            yield each


def values(*each: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(each, pa.binary())})


def small() -> SmallBatches:
    session: Any = FakeSession()
    columns: Any = None
    return SmallBatches(session, CONFIG, columns)


def test_the_rows_of_a_small_batch_become_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    Reads(monkeypatch, values(b"a", b"b"), values(b"c"))
    made: Any = small().frame(FEW)
    assert made is not None
    assert made[0].rows.column("value").to_pylist() == [b"a", b"b", b"c"]
    assert made[1] == 3


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
def test_other_batches_are_left_to_tasks_unread(tasks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, values(b"a"))
    assert small().frame(tasks) is None
    assert reads.calls == 0


@pytest.mark.parametrize(
    "found",
    [[ReadError("no record for 2000 ms")], [values(b"a"), ReadError("gone")], [values(b"x" * MOST_BYTES), values(b"")]],
    ids=["silence", "an error after some", "large"],
)
def test_what_cannot_be_read_at_once_is_left_to_tasks_for_a_while(
    found: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, batches = Reads(monkeypatch, *found), small()
    assert [batches.frame(FEW) for _ in range(101)] == [None] * 101
    assert reads.calls == 1
    reads.found = (values(b"a"),)
    assert batches.frame(FEW) is not None


def test_a_range_of_gaps_is_left_to_tasks_and_the_next_batch_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, batches = Reads(monkeypatch), small()
    assert batches.frame(FEW) is None
    reads.found = (values(b"a"),)
    assert batches.frame(FEW) is not None


@pytest.mark.parametrize("include_headers", [False, True])
def test_driver_and_tasks_read_the_same_rows(spark: SparkSession, topics: Topics, include_headers: bool) -> None:
    topic = topics.create(3)
    topics.fill(topic, 3, 30, headers=[("h", b"1"), ("h", None)], timestamp=1_700_000_000_123)
    topics.fill(topic, 3, 30)
    config = ReaderConfig(bootstrap=topics.bootstrap, group="g", include_headers=include_headers)
    columns = as_struct(config.schema)
    tasks = [tuple(Split(topic, number, number, 20) for number in range(3))]
    made = SmallBatches(spark, config, columns).frame(tasks)
    assert made is not None
    runner: Any = SparkRunner(spark, config, None, columns, None)
    runner._small = None
    frame, by_tasks = made[0], runner._frame(tasks)
    assert made[1] == 57
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
