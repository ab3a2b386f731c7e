"""The Parquet sink where executors may have disks of their own."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from roster.model import TopicPartition
from roster.sinks import parquet
from roster.spark import Batch, Owner, ParquetSink, PipelineError, Range
from roster.stateful.table_sink import TableStateSink

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
    written = sink.write(spark.range(10, 20, 1, 2), second)
    # One executor's file is not on this disk.
    min((tmp_path / ".out.staging").rglob("part-*.parquet")).unlink()
    with pytest.raises(
        PipelineError, match=r"^path: executors wrote 10 rows, and the driver finds 5 of them in .*share"
    ):
        sink.commit(written, second)
    assert not list((tmp_path / ".out.staging").rglob("*.parquet"))
    assert ParquetSink(tmp_path / "out").positions() == {T0: 10}
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(10))


@pytest.mark.gate
def test_no_file_at_all_is_noticed_where_columns_become_folders(
    spark: SparkSession, tmp_path: Path, several_processes: None
) -> None:
    sink = opened(spark, tmp_path / "out", partition_by=["n"])
    only = batch(0, 0, 50)
    written = sink.write(counted(spark.range(50)), only)
    for file in (tmp_path / ".out.staging").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(PipelineError, match=r"executors wrote 7 rows, and the driver finds 0 of them"):
        sink.commit(written, only)
    assert ParquetSink(tmp_path / "out").positions() == {}


@pytest.mark.parametrize("rows", [0, 50])
@pytest.mark.sampled(1)
def test_what_was_written_and_found_agrees(
    spark: SparkSession, tmp_path: Path, several_processes: None, rows: int
) -> None:
    for partition_by in ((), ("n",)):
        sink = opened(spark, tmp_path / f"out{len(partition_by)}", partition_by=partition_by)
        only = batch(0, 0, 50)
        frame = counted(spark.range(rows)) if rows else counted(spark.range(50)).where("false")
        written = sink.write(frame, only)
        assert written.rows == (7 if rows else 0)
        sink.commit(written, only)
        assert sink.rows() == written.rows


@pytest.mark.gate
def test_rows_are_counted_only_where_executors_are_other_processes(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path / "out")
    assert sink.write(spark.range(3), batch(0, 0, 3)).rows is None


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
        sinks = [opened(spark, tmp_path / name) for name in ("spark", "tasks")]
        only = batch(0, 0, 2)
        for sink, write in zip(
            sinks, (lambda s: s.write(frame, only), lambda s: in_tasks(s, frame, only)), strict=True
        ):
            sink.commit(write(sink), only)
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
    assert one.name.split(".", 1)[1] == other.name.split(".", 1)[1] == "snappy.parquet"
    read = [spark.read.parquet(str(tmp_path / name)) for name in ("spark", "tasks")]
    assert read[0].schema == read[1].schema
    assert sorted(read[0].collect(), key=repr) == sorted(read[1].collect(), key=repr)
    assert [(tmp_path / name / "_roster" / "schema.json").read_text() for name in ("spark", "tasks")] == [
        frame.schema.json()
    ] * 2


@pytest.mark.parametrize("names", [(), ("n",), ("text", "n")])
@pytest.mark.sampled(1)
def test_an_output_goes_on_whoever_writes_the_next_batch(
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
    assert len(folders) == {0: 1, 1: 2, 2: 8}[len(names)], "both writers use the same folders"


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
        ruin(next((tmp_path / ".out.staging").rglob("part-*.parquet")))
        with pytest.raises(
            PipelineError, match=r"^path: executors wrote 10 rows, and the driver finds 5 of them in .*share"
        ):
            sink.commit(written, batch(0, 0, 10))
    assert not list((tmp_path / ".out.staging").rglob("*.parquet"))
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
        (
            {},
            "id long, at timestamp_ntz",
            "outputTimestampType is INT96, and a column is timestamp_ntz. Set TIMESTAMP_",
        ),
        ({"partition_by": ["at"]}, "id long, at timestamp", "of a type that pyarrow writes in another way"),
        ({"partition_by": ["id"]}, "id long", "none but partition_by"),
        ({"partition_by": ["ID"]}, "id long, n int", "none but partition_by"),
        ({"compression": "lz4"}, "id long", "pyarrow has no compression 'lz4'. Use one of none, "),
        ({}, "id long, wait interval day to second", "of a type that"),
        ({}, "id long, any array<variant>", "of a type that"),
    ],
)
@pytest.mark.sampled(1)
def test_what_only_spark_writes_is_left_to_it(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], schema: str, why: str
) -> None:
    sink = opened(spark, tmp_path / "out", **options)
    columns = spark.createDataFrame([], schema).schema
    assert sink.task_writer(batch(0, 0, 1), columns) is None
    assert not list((tmp_path / ".out.staging").glob("*.json")), "no folder is left behind"
    assert why in sink.why_spark_writes(columns)
    stateful = TableStateSink(sink, columns, *([MagicMock()] * 2), None)
    with pytest.raises(
        PipelineError, match=r"^write: ParquetSink cannot write results of state inside the tasks: "
    ) as no:
        stateful.task_writer(None, columns)
    assert why.partition(". ")[0] in str(no.value)
    assert str(no.value).endswith("other sink") or str(no.value).endswith("such as DeltaSink")


@pytest.mark.parametrize(
    "options", [{"compression": "zip"}, {"target_file_bytes": 0}, {"row_group_bytes": -1}], ids=lambda o: next(iter(o))
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=next(iter(options))):
        ParquetSink("out", **options)
