"""The Parquet sink where executors may have disks of their own."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from roster.model import TopicPartition
from roster.sinks.commit_log import STAGING, UNCOMMITTED
from roster.spark import Batch, Owner, ParquetSink, PipelineError, Range

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


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy((frame["id"] % 7).alias("n")).count()


def uncommitted(path: Path) -> list[Path]:
    return sorted((path / STAGING).rglob(f"*{UNCOMMITTED}"))


@pytest.mark.gate
def test_no_file_at_all_is_noticed_where_columns_become_folders(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path / "out", partition_by=["n"])
    only = batch(0, 0, 50)
    written = sink.write(counted(spark.range(50)), only)
    assert len(uncommitted(tmp_path / "out")) == 7
    for file in uncommitted(tmp_path / "out"):
        file.unlink()
    with pytest.raises(PipelineError, match=r"executors wrote 7 rows, and the driver finds 0 of them"):
        sink.commit(written, only)
    assert ParquetSink(tmp_path / "out").positions() == {}


def test_frames_of_a_transform_are_written_in_tasks(spark: SparkSession, tmp_path: Path) -> None:
    for partition_by in ((), ("n",)):
        sink = opened(spark, tmp_path / f"out{len(partition_by)}", partition_by=partition_by)
        empty, only = batch(0, 0, 50), batch(1, 50, 100)
        sink.commit(sink.write(counted(spark.range(50)).where("false"), empty), empty)
        assert sink.read(spark).count() == 0
        sink.commit(sink.write(counted(spark.range(50)), only), only)
        assert sorted(row.n for row in sink.read(spark).collect()) == list(range(7))
        assert sink.rows() == 7


def test_a_frame_that_fails_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path / "out")
    with pytest.raises(PySparkException, match="USER_RAISED"):
        sink.write(spark.range(10).selectExpr("if(id < 9, id, raise_error('no'))"), batch(0, 0, 10))
    assert not list((tmp_path / "out" / STAGING).iterdir())


EVERY_TYPE = (
    "key binary, value string, i int, b byte, s short, n long, f float, d double, yes boolean, day date, at timestamp, "
    "d5 decimal(5,2), d15 decimal(15,2), d30 decimal(30,2), headers array<struct<key: string, value: binary>>, "
    "m map<string, int>, must int not null"
)
MOMENT = datetime.datetime(2024, 2, 29, 1, 2, 3, 456_789, tzinfo=datetime.UTC)
VALUES = [
    *(b"k", "ü", 1, 2, 3, 4, 1.5, 2.5, True, datetime.date(1900, 1, 1), MOMENT),
    *(Decimal("1.23"), Decimal("-1.23"), Decimal("1e20"), [("h", b"v"), ("h", None)], {"a": 1, "b": None}, 7),
]


def in_tasks(sink: ParquetSink, frame: DataFrame, batch: Batch) -> Any:
    """Write a frame's rows as the tasks do: one task a record batch, or one without any."""
    writer = sink.task_writer(batch, frame.schema)
    assert writer is not None
    results = []
    for part in frame.toArrow().to_batches() or [None]:
        output = writer.open()
        if part is not None:
            output.write(part)
        results.append(output.close())
    return sink.collect(writer, results, batch)


def files_below(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*.parquet") if "_roster" not in p.parts)


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
@pytest.mark.sampled(1)
def test_what_tasks_write_is_what_spark_writes(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    rows = [tuple(VALUES), (*(None for _ in VALUES[:-1]), 8)]
    frame = spark.createDataFrame(rows, EVERY_TYPE).coalesce(1)
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    try:
        frame.write.parquet(str(tmp_path / "spark"))
        sink, only = opened(spark, tmp_path / "tasks"), batch(0, 0, 2)
        sink.commit(in_tasks(sink, frame, only), only)
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", str(before))
    ((one,), (other,)) = (files_below(tmp_path / name) for name in ("spark", "tasks"))
    given, wanted = pq.read_metadata(other), pq.read_metadata(one)
    columns = [[str(meta.schema.column(n)) for n in range(meta.num_columns)] for meta in (given, wanted)]
    assert columns[0] == columns[1]
    keys = [b"org.apache.spark.sql.parquet.row.metadata", b"org.apache.spark.version"]
    assert sorted(given.metadata) == sorted(wanted.metadata) == keys
    assert [json.loads(meta.metadata[keys[0]]) for meta in (given, wanted)] == [json.loads(frame.schema.json())] * 2
    assert given.metadata[keys[1]] == wanted.metadata[keys[1]]
    assert [given.row_group(0).column(n).compression for n in range(given.num_columns)] == [
        "SNAPPY"
    ] * given.num_columns
    assert other.name.split(".", 1)[1] == "snappy.parquet"
    read = [spark.read.parquet(str(tmp_path / name)) for name in ("spark", "tasks")]
    assert read[0].schema == read[1].schema
    assert sorted(read[0].collect(), key=repr) == sorted(read[1].collect(), key=repr)
    assert (tmp_path / "tasks" / "_roster" / "schema.json").read_text() == frame.schema.json()


@pytest.mark.parametrize("names", [(), ("n",), ("text", "n")])
@pytest.mark.sampled(1)
def test_batches_with_and_without_a_transform_use_the_same_folders(
    spark: SparkSession, tmp_path: Path, names: tuple[str, ...]
) -> None:
    sink = opened(spark, tmp_path / "out", partition_by=names)
    texts = ["a", None, "", "b/c=%", "ü"]
    frames = []
    for number in range(4):
        rows = [(number * 10 + at, at % 2, texts[at % 5]) for at in range(10)]
        frames.append(spark.createDataFrame(rows, "id long, n int, text string"))
        each = batch(number, number * 10, number * 10 + 10)
        sink.commit((sink.write if number % 2 else lambda f, b: in_tasks(sink, f, b))(frames[-1], each), each)
    found = sink.read(spark).select("id", "n", "text").collect()
    wanted = [(r.id, r.n, (r.text or None) if "text" in names else r.text) for f in frames for r in f.collect()]
    assert sorted(map(tuple, found)) == sorted(wanted)
    assert sink.rows() == 40
    folders = {p.parent.relative_to(tmp_path / "out").as_posix() for p in files_below(tmp_path / "out")}
    assert len(folders) == {0: 1, 1: 2, 2: 8}[len(names)]


@pytest.mark.gate
def test_tasks_without_rows_leave_columns_behind(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path / "out")
    frame = spark.createDataFrame([], "id long, must int not null")
    for number in range(2):
        sink.commit(in_tasks(sink, frame, batch(number, number, number + 1)), batch(number, number, number + 1))
    assert len(files_below(tmp_path / "out")) == 1
    assert spark.read.parquet(str(tmp_path / "out")).count() == 0
    assert ParquetSink(tmp_path / "out").positions() == {T0: 2}


def test_files_of_tasks_on_another_machines_disk_are_one_error_and_nothing_counts(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = opened(spark, tmp_path / "out")
    for ruin in (Path.unlink, lambda file: file.write_bytes(b"cut off")):
        written = in_tasks(sink, spark.range(10), batch(0, 0, 10))
        ruin(uncommitted(tmp_path / "out")[0])
        with pytest.raises(
            PipelineError, match=r"^path: executors wrote 10 rows, and the driver finds 5 of them in .*share"
        ):
            sink.commit(written, batch(0, 0, 10))
    assert not uncommitted(tmp_path / "out")
    assert ParquetSink(tmp_path / "out").positions() == {}


@pytest.mark.gate
def test_limits_and_compression_are_followed(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path / "out", compression="zstd", target_file_bytes=1, row_group_bytes=1)
    frame = spark.range(10)
    only = batch(0, 0, 10)
    sink.commit(in_tasks(sink, frame.repartition(3), only), only)
    files = files_below(tmp_path / "out")
    assert len(files) > 1
    assert {file.name.split(".", 1)[1] for file in files} == {"zstd.parquet"}
    assert {pq.read_metadata(file).row_group(0).column(0).compression for file in files} == {"ZSTD"}
    second = batch(1, 10, 20)
    sink.commit(sink.write(frame, second), second)
    assert {pq.read_metadata(file).row_group(0).column(0).compression for file in files_below(tmp_path / "out")} == {
        "ZSTD"
    }
    assert sink.rows() == 20


@pytest.mark.parametrize(
    ("options", "schema", "why"),
    [
        ({"partition_by": ["at"]}, "id long, at timestamp", "partition_by: column `at` is timestamp: only text"),
        ({"partition_by": ["id"]}, "id long", "partition_by: all columns partition the output"),
        ({"partition_by": ["ID"]}, "id long, n int", "partition_by: the rows have no column `ID`"),
        ({"compression": "lz4"}, "id long", "compression: pyarrow has no compression 'lz4'. Use one of none, "),
        ({}, "id long, wait interval day to second", "ParquetSink: pyarrow writes column `wait`, which is interval"),
        ({}, "id long, any array<variant>", "ParquetSink: pyarrow writes column `any`, which is array<variant>"),
        ({}, "id long, Id long", "ParquetSink: there are two columns 'id'"),
    ],
)
@pytest.mark.sampled(1)
def test_what_would_not_be_as_spark_writes_it_is_refused(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], schema: str, why: str
) -> None:
    sink = opened(spark, tmp_path / "out", **options)
    with pytest.raises(PipelineError) as no:
        sink.task_writer(batch(0, 0, 1), spark.createDataFrame([], schema).schema)
    assert str(no.value).startswith(why)
    assert not list((tmp_path / "out" / STAGING).iterdir()), "no folder is left behind"


def test_times_without_a_zone_are_written_in_microseconds(spark: SparkSession, tmp_path: Path) -> None:
    sink, only = opened(spark, tmp_path / "out"), batch(0, 0, 1)
    frame = spark.sql(
        "select timestamp'2024-02-29 01:02:03Z' as at, timestamp_ntz'2024-02-29 01:02:03.456789' as plain"
    )
    sink.commit(sink.write(frame, only), only)
    assert [field.dataType for field in sink.read(spark).schema] == [field.dataType for field in frame.schema]
    assert sink.read(spark).collect() == frame.collect()


@pytest.mark.parametrize(
    "options", [{"compression": "zip"}, {"target_file_bytes": 0}, {"row_group_bytes": -1}], ids=lambda o: next(iter(o))
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=next(iter(options))):
        ParquetSink("out", **options)
