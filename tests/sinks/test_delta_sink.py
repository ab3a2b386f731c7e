"""Delta tables: what a commit holds, and failures of the storage; `test_tables` has what they share with Iceberg."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.types import (
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from roster.sinks import table
from roster.spark import DeltaSink, PipelineError, SinkFencedError
from tests.clocks import patch_time
from tests.sinks.table_places import T0, T1, DeltaPlace, batch, opened, plain, rows
from tests.sinks.table_worker import GROUP, SCHEMA, uncommitted

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def place(tmp_path: Path) -> DeltaPlace:
    return DeltaPlace(str(tmp_path))


def test_what_a_commit_has_beside_files(place: DeltaPlace) -> None:
    sink = opened(place.sink(partition_by=["shop"]), T0, T1)
    for ranges in ({T0: (0, 10)}, {T0: (10, 12), T1: (0, 7)}):
        each = batch(ranges)
        sink.commit(uncommitted(sink, each), each)
    assert place.table().version() == 2
    assert place.table().metadata().partition_columns == ["shop"]
    assert place.table().transaction_version("roster/g/t/0") == 12
    assert place.table().history(1)[0]["roster"]["member"] == "m"


def test_owners_of_other_partitions_do_not_disturb_each_other(place: DeltaPlace) -> None:
    one, two = opened(place.sink(), T0), opened(place.sink(), T1)
    for start in range(0, 30, 10):
        first, second = batch({T0: (start, start + 10)}), batch({T1: (start, start + 10)})
        both = uncommitted(one, first), uncommitted(two, second)
        one.commit(both[0], first)
        two.commit(both[1], second)
    assert rows(place) == plain({0: 30, 1: 30})


def test_a_position_that_another_sink_has_passed_moves_up(place: DeltaPlace) -> None:
    sink = opened(place.sink(), T0)
    first = batch({T0: (0, 5)})
    sink.commit(uncommitted(sink, first), first)
    assert sink.claim([T0, T1], first.owner, {T0: 8, T1: 3}) == {T0: 8}
    second = batch({T0: (8, 9)})
    sink.commit(uncommitted(sink, second), second)
    assert sink.positions(GROUP, [T0]) == {T0: 9}
    gap = batch({T0: (12, 13)})
    with pytest.raises(SinkFencedError, match="stands at 9, not at 12"):
        sink.commit(uncommitted(sink, gap), gap)


def test_a_commit_whose_answer_is_lost_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = DeltaPlace(str(tmp_path))
    sink = opened(place.sink(), T0)
    sink.task_writer(batch({T0: (0, 1)}), SCHEMA)
    commit = DeltaTable.create_write_transaction
    calls = []

    def lossy(self: DeltaTable, *arguments: Any, **more: Any) -> None:
        calls.append(commit(self, *arguments, **more))
        raise DeltaError("the connection broke")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lossy)
    only = batch({T0: (0, 10)})
    sink.commit(uncommitted(sink, only), only)
    assert len(calls) == 1
    assert rows(place) == plain({0: 10})
    second = batch({T0: (10, 11)})
    sink.commit(uncommitted(sink, second), second)
    assert rows(place) == plain({0: 11})


def test_a_storage_that_goes_on_failing_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(DeltaPlace(str(tmp_path)).sink(), T0)
    sink.task_writer(batch({T0: (0, 1)}), SCHEMA)

    def broken(*_: Any, **__: Any) -> None:
        raise DeltaError("the disk is full")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", broken)
    patch_time(monkeypatch, table, sleep=lambda _: None)
    only = batch({T0: (0, 10)})
    with pytest.raises(
        PipelineError, match=r"DeltaSink: 100 commits in a row failed .* with DeltaError: the disk is full"
    ):
        sink.commit(uncommitted(sink, only), only)


def test_what_a_commit_says_of_its_files(tmp_path: Path) -> None:
    schema = StructType(
        [
            StructField("n", LongType()),
            StructField("text", StringType()),
            StructField("day", DateType()),
            StructField("at", TimestampType()),
            StructField("flag", BooleanType()),
            StructField("long", StringType()),
        ]
    )
    day = datetime.date(2024, 2, 29)
    moment = datetime.datetime(2024, 2, 29, 1, 2, 3, 456_789, tzinfo=datetime.UTC)
    place = DeltaPlace(str(tmp_path))
    sink = opened(place.sink(partition_by=["day", "flag"]), T0)
    only = batch({T0: (0, 3)})
    writer = sink.task_writer(only, schema)
    output = writer.open()
    output.write(
        pa.table(
            {
                "n": [1, None, 3],
                "text": ["a", "c", "b"],
                "day": [day, day, None],
                "at": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
                "flag": [True, True, False],
                "long": ["x" * 50] * 3,
            }
        ).to_batches()[0]
    )
    sink.commit(sink.collect(writer, [output.close()], only), only)
    lines = (tmp_path / "table" / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    added = [json.loads(line)["add"] for line in lines if '"add"' in line]
    assert [add["partitionValues"] for add in added] == [
        {"day": "2024-02-29", "flag": "true"},
        {"day": None, "flag": "false"},
    ] or [add["partitionValues"] for add in added] == [
        {"day": None, "flag": "false"},
        {"day": "2024-02-29", "flag": "true"},
    ]
    found = {add["partitionValues"]["flag"]: json.loads(add["stats"]) for add in added}
    assert found["true"] == {
        "numRecords": 2,
        "minValues": {"n": 1, "text": "a", "at": "2024-02-29T01:02:03.456Z", "long": "x" * 32},
        "maxValues": {"n": 1, "text": "c", "at": "2024-02-29T01:02:03.457Z", "long": "x" * 32 + "\U0010ffff"},
        "nullCount": {"n": 1, "text": 0, "at": 1, "long": 0},
    }
    read = place.table().to_pyarrow_table().sort_by("text").to_pylist()
    assert [row["at"] for row in read] == [moment, moment, None]
    assert [(row["day"], row["flag"]) for row in read] == [(day, True), (None, False), (day, True)]


@pytest.mark.parametrize(
    ("fields", "options", "problem"),
    [
        ({"partition": IntegerType(), "shop": IntegerType(), "ofset": LongType()}, {}, "table differ in offset, ofset"),
        ({"partition": LongType(), "offset": LongType(), "shop": IntegerType()}, {}, "differ in partition"),
        ({"n": LongType()}, {"partition_by": ["day"]}, "partition_by: the rows have no column `day` .they have n."),
        ({"n": LongType(), "at": TimestampType()}, {"partition_by": ["at"]}, "column `at` is timestamp: only text"),
        ({"n": LongType()}, {"partition_by": ["n"]}, "all columns partition the output"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    tmp_path: Path, fields: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    place = DeltaPlace(str(tmp_path))
    opened(place.sink(), T0).task_writer(batch({T0: (0, 1)}), SCHEMA)
    sink = opened(place.sink(**options), T0)
    with pytest.raises(PipelineError, match=problem):
        sink.task_writer(batch({T0: (0, 1)}), StructType([StructField(*field) for field in fields.items()]))


def test_a_table_is_not_partitioned_anew(tmp_path: Path) -> None:
    place = DeltaPlace(str(tmp_path))
    opened(place.sink(), T0).task_writer(batch({T0: (0, 1)}), SCHEMA)
    with pytest.raises(PipelineError, match="partition_by: the table is partitioned by nothing"):
        opened(place.sink(partition_by=["shop"]), T0).task_writer(batch({T0: (0, 1)}), SCHEMA)


def test_a_place_that_cannot_be_reached_is_one_error() -> None:
    options = {"aws_endpoint_url": "http://127.0.0.1:1", "allow_http": "true", "aws_region": "x", "max_retries": "0"}
    with pytest.raises(PipelineError, match=r"DeltaSink: s3://none/table cannot be read: .* Check table and"):
        DeltaSink(
            "s3://none/table", storage_options={**options, "aws_access_key_id": "a", "aws_secret_access_key": "b"}
        ).open(None, "g")  # type: ignore[arg-type]


def test_warming_up_creates_nothing(tmp_path: Path) -> None:
    sink = opened(DeltaPlace(str(tmp_path)).sink(), T0)
    output = sink.task_writer(None, SCHEMA).open()
    assert output.close() == []
    assert not (tmp_path / "table").exists()
