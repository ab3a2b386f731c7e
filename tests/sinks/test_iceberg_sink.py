"""Iceberg tables: what a snapshot holds, and lost commits; `test_tables` has what they share with Delta."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.table import Transaction
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType, TimestampType

from roster.model import TopicPartition
from roster.spark import IcebergSink, PipelineError, SinkFencedError
from tests.sinks.table_places import T0, T1, IcebergPlace, batch, opened, plain, rows
from tests.sinks.table_worker import GROUP, SCHEMA, uncommitted

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def place(tmp_path: Path) -> IcebergPlace:
    return IcebergPlace(str(tmp_path))


def test_what_a_snapshot_has_beside_files(place: IcebergPlace) -> None:
    sink = opened(place.sink(partition_by=["shop"]), T0, T1)
    for ranges in ({T0: (0, 10)}, {T0: (10, 12), T1: (0, 7)}):
        each = batch(ranges)
        sink.commit(uncommitted(sink, each), each)
    assert len(place.table().snapshots()) == 2
    assert place.table().scan(row_filter="shop = 1").to_arrow()["shop"].to_pylist() == [1] * 6
    assert place.table().current_snapshot().summary["roster.positions.g"] == '{"t":{"0":12,"1":7}}'


def test_positions_outlive_the_snapshots_of_others(place: IcebergPlace) -> None:
    sink = opened(place.sink(), T0)
    first = batch({T0: (0, 3)})
    sink.commit(uncommitted(sink, first), first)
    table = place.table()
    table.append(table.scan().to_arrow().slice(0, 1))
    assert sink.positions(GROUP, [T0]) == {T0: 3}


@pytest.mark.parametrize("theirs", [T0, T1])
def test_a_commit_that_is_overtaken_looks_at_the_positions_again(
    place: IcebergPlace, monkeypatch: pytest.MonkeyPatch, theirs: TopicPartition
) -> None:
    one, two = opened(place.sink(), T0, T1), opened(place.sink(), T0, T1)
    mine, other = batch({T0: (0, 10)}), batch({theirs: (0, 4)})
    files = uncommitted(one, mine), uncommitted(two, other)
    commit = IcebergSink._try_commit
    overtaken: list[bool] = []

    def late(self: IcebergSink, *arguments: Any) -> None:
        if self is one and not overtaken:
            overtaken.append(True)
            two.commit(files[1], other)
        commit(self, *arguments)

    monkeypatch.setattr(IcebergSink, "_try_commit", late)
    if theirs == T0:
        with pytest.raises(SinkFencedError, match="t-0 stands at 4, not at 0"):
            one.commit(files[0], mine)
        assert rows(place) == plain({0: 4})
    else:
        one.commit(files[0], mine)
        assert rows(place) == plain({0: 10, 1: 4})
        assert one.positions(GROUP, [T0, T1]) == {T0: 10, T1: 4}


def test_a_commit_whose_answer_is_lost_counts_once(place: IcebergPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(place.sink(), T0)
    only = batch({T0: (0, 10)})
    files = uncommitted(sink, only)
    commit = Transaction.commit_transaction
    calls = []

    def lossy(self: Transaction) -> None:
        calls.append(commit(self))
        raise OSError("the connection broke")

    monkeypatch.setattr(Transaction, "commit_transaction", lossy)
    sink.commit(files, only)
    assert len(calls) == 1
    assert rows(place) == plain({0: 10})


def test_dates_times_and_nulls_are_read_as_written(place: IcebergPlace) -> None:
    schema = StructType(
        [
            StructField("text", StringType()),
            StructField("day", DateType()),
            StructField("at", TimestampType()),
            StructField("n", LongType()),
        ]
    )
    day = datetime.date(2024, 2, 29)
    moment = datetime.datetime(2024, 2, 29, 1, 2, 3, 456_789, tzinfo=datetime.UTC)
    sink = opened(place.sink(partition_by=["day"]), T0)
    only = batch({T0: (0, 3)})
    writer = sink.task_writer(only, schema)
    output = writer.open()
    columns = {
        "text": ["a", None, "c"],
        "day": [day, None, day],
        "at": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
        "n": [1, 2, None],
    }
    output.write(pa.RecordBatch.from_pydict(columns))
    sink.commit(sink.collect(writer, [output.close()], only), only)
    found = place.table().scan(row_filter="day = '2024-02-29'").to_arrow().sort_by("text").to_pylist()
    assert [(r["text"], r["day"], r["at"], r["n"]) for r in found] == [("a", day, moment, 1), ("c", day, moment, None)]
    assert place.table().scan().count() == 3
    entries = place.table().inspect.files().to_pylist()
    assert sorted(entry["record_count"] for entry in entries) == [1, 2]


def test_a_batch_without_rows_moves_the_positions(place: IcebergPlace) -> None:
    sink = opened(place.sink(), T0)
    only = batch({T0: (0, 5)})
    writer = sink.task_writer(only, SCHEMA)
    sink.commit(sink.collect(writer, [writer.open().close()], only), only)
    assert sink.positions(GROUP, [T0]) == {T0: 5}
    assert rows(place) == []


def test_what_does_not_fit_is_refused(place: IcebergPlace) -> None:
    opened(place.sink(), T0).task_writer(batch({T0: (0, 1)}), SCHEMA)
    with pytest.raises(PipelineError, match="the rows and the table differ in n, offset, partition, shop"):
        opened(place.sink(), T0).task_writer(batch({T0: (0, 1)}), StructType([StructField("n", LongType())]))
    wider = StructType([StructField(f.name, LongType()) for f in SCHEMA.fields])
    sink = opened(place.sink(), T0)
    with pytest.raises(PipelineError, match="the rows and the table differ in partition, shop"):
        sink.task_writer(batch({T0: (0, 1)}), wider)
    sink = opened(place.sink(partition_by=["shop"]), T0)
    with pytest.raises(PipelineError, match="partition_by: the table is partitioned by nothing"):
        sink.task_writer(batch({T0: (0, 1)}), SCHEMA)
    with pytest.raises(PipelineError, match="'orders' has no namespace and name"):
        IcebergSink("orders", {})
    broken = {"type": "sql", "uri": "sqlite:////no/such/folder/catalog.db", "warehouse": "file:///no"}
    sink = IcebergSink("a.b", broken)
    with pytest.raises(PipelineError, match=r"IcebergSink: a\.b cannot be read: OperationalError"):
        sink.open(None, GROUP)  # type: ignore[arg-type]
