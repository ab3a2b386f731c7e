"""The Parquet sink where executors may have disks of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from roster.model import TopicPartition
from roster.spark import Batch, Owner, ParquetSink, PipelineError, Range
from roster.spark.sinks import parquet

pytestmark = pytest.mark.spark

T0 = TopicPartition("t", 0)
OWNER = Owner("g", 1, "m")


def batch(number: int, start: int, end: int) -> Batch:
    return Batch(number, OWNER, {T0: Range(start, end)})


def opened(spark: SparkSession, path: Path, **options: object) -> ParquetSink:
    sink = ParquetSink(path, **options)  # type: ignore[arg-type]
    sink.open(spark, "g")
    sink.claim([T0], OWNER, {})
    return sink


@pytest.fixture
def several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink takes the session's executors for processes that may run on other machines."""
    monkeypatch.setattr(parquet, "runs_in_one_process", lambda spark: False)


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy((frame["id"] % 7).alias("n")).count()


def test_rows_on_another_machines_disk_are_one_error_and_nothing_counts(
    spark: SparkSession, tmp_path: Path, several_processes: None
) -> None:
    sink = opened(spark, tmp_path / "out")
    first = batch(0, 0, 10)
    sink.commit(sink.write(spark.range(0, 10, 1, 2), first), first)
    second = batch(1, 10, 20)
    staged = sink.write(spark.range(10, 20, 1, 2), second)
    # One executor's file is not on this disk.
    min((tmp_path / ".out.staging").rglob("part-*.parquet")).unlink()
    with pytest.raises(PipelineError, match=r"^path: executors wrote 10 rows, of which the driver finds 5 in .*share"):
        sink.commit(staged, second)
    assert not list((tmp_path / ".out.staging").rglob("*.parquet"))
    assert ParquetSink(tmp_path / "out").positions() == {T0: 10}
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(10))


def test_no_file_at_all_is_noticed_where_columns_become_folders(
    spark: SparkSession, tmp_path: Path, several_processes: None
) -> None:
    sink = opened(spark, tmp_path / "out", partition_by=["n"])
    only = batch(0, 0, 50)
    staged = sink.write(counted(spark.range(50)), only)
    for file in (tmp_path / ".out.staging").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(PipelineError, match=r"executors wrote 7 rows, of which the driver finds 0"):
        sink.commit(staged, only)
    assert ParquetSink(tmp_path / "out").positions() == {}


@pytest.mark.parametrize("rows", [0, 50])
def test_what_was_written_and_found_agrees(
    spark: SparkSession, tmp_path: Path, several_processes: None, rows: int
) -> None:
    for partition_by in ((), ("n",)):
        sink = opened(spark, tmp_path / f"out{len(partition_by)}", partition_by=partition_by)
        only = batch(0, 0, 50)
        frame = counted(spark.range(rows)) if rows else counted(spark.range(50)).where("false")
        staged = sink.write(frame, only)
        assert staged.rows == (7 if rows else 0)
        sink.commit(staged, only)
        assert sink.rows() == staged.rows


def test_rows_are_counted_only_where_executors_are_other_processes(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path / "out")
    assert sink.write(spark.range(3), batch(0, 0, 3)).rows is None
