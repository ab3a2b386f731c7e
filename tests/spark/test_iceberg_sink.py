"""Iceberg tables: each offset once, whoever writes, dies or comes back."""

from __future__ import annotations

import datetime
import multiprocessing
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Transaction
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType, TimestampType

from roster.model import TopicPartition
from roster.spark import Batch, IcebergSink, Owner, PipelineError, Range, SinkFencedError
from tests.spark.table_worker import GROUP, SCHEMA, staged, work

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Place:
    """A catalog in SQLite and a warehouse beside it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}

    def sink(self, **more: Any) -> IcebergSink:
        return IcebergSink("shop.orders", self.catalog, **more)

    def table(self) -> Any:
        return load_catalog("default", **self.catalog).load_table("shop.orders")

    def rows(self) -> list[tuple[int, int, int]]:
        return sorted((r["partition"], r["offset"], r["shop"]) for r in self.table().scan().to_arrow().to_pylist())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(str(tmp_path))


def opened(sink: IcebergSink, *partitions: TopicPartition, member: str = "m") -> IcebergSink:
    sink.open(None, GROUP)  # type: ignore[arg-type]
    sink.claim(partitions, Owner(GROUP, 1, member), {})
    return sink


def batch(ranges: dict[TopicPartition, tuple[int, int]], member: str = "m") -> Batch:
    return Batch(0, Owner(GROUP, 1, member), {p: Range(*span) for p, span in ranges.items()})


def plain(ends: dict[int, int]) -> list[tuple[int, int, int]]:
    return [(partition, offset, offset % 3) for partition, end in sorted(ends.items()) for offset in range(end)]


@pytest.mark.parametrize("partition_by", [[], ["shop"]])
def test_batches_are_rows_and_positions_in_one_snapshot(place: Place, partition_by: list[str]) -> None:
    sink = opened(place.sink(partition_by=partition_by), T0, T1)
    for ranges in ({T0: (0, 10)}, {T0: (10, 12), T1: (0, 7)}):
        each = batch(ranges)
        sink.commit(staged(sink, each), each)
    assert place.rows() == plain({0: 12, 1: 7})
    assert sink.positions(GROUP, [T0, T1]) == {T0: 12, T1: 7}
    assert sink.positions("another", [T0]) == {}
    assert len(place.table().snapshots()) == 2
    assert place.table().scan(row_filter="shop = 1").to_arrow()["shop"].to_pylist() == [1] * 6
    assert place.table().current_snapshot().summary["roster.positions.g"] == '{"t":{"0":12,"1":7}}'


def test_positions_outlive_the_snapshots_of_others(place: Place) -> None:
    sink = opened(place.sink(), T0)
    first = batch({T0: (0, 3)})
    sink.commit(staged(sink, first), first)
    table = place.table()
    table.append(table.scan().to_arrow().slice(0, 1))
    assert sink.positions(GROUP, [T0]) == {T0: 3}


def test_of_two_owners_one_wins_and_the_other_reads_again(place: Place) -> None:
    old, new = (opened(place.sink(), T0, member=name) for name in ("old", "new"))
    slow, quick = batch({T0: (0, 10)}, "old"), batch({T0: (0, 4)}, "new")
    late = staged(old, slow)
    new.commit(staged(new, quick), quick)
    with pytest.raises(SinkFencedError, match="t-0 stands at 4, not at 0"):
        old.commit(late, slow)
    assert old.claim([T0], slow.owner, {}) == {T0: 4}
    assert place.rows() == plain({0: 4})


@pytest.mark.parametrize("theirs", [T0, T1])
def test_a_commit_that_is_overtaken_looks_at_the_positions_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, theirs: TopicPartition
) -> None:
    one, two = opened(place.sink(), T0, T1), opened(place.sink(), T0, T1)
    mine, other = batch({T0: (0, 10)}), batch({theirs: (0, 4)})
    files = staged(one, mine), staged(two, other)
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
        assert place.rows() == plain({0: 4})
    else:
        one.commit(files[0], mine)
        assert place.rows() == plain({0: 10, 1: 4})
        assert one.positions(GROUP, [T0, T1]) == {T0: 10, T1: 4}


def test_a_commit_whose_answer_is_lost_counts_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(place.sink(), T0)
    only = batch({T0: (0, 10)})
    files = staged(sink, only)
    commit = Transaction.commit_transaction
    calls = []

    def lossy(self: Transaction) -> None:
        calls.append(commit(self))
        raise OSError("the connection broke")

    monkeypatch.setattr(Transaction, "commit_transaction", lossy)
    sink.commit(files, only)
    assert len(calls) == 1
    assert place.rows() == plain({0: 10})


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_of_two_owners(place: Place, seed: int) -> None:
    chance = random.Random(seed)
    owners = [opened(place.sink(), T0, T1, member=name) for name in "ab"]
    at: list[dict[TopicPartition, int]] = [{}, {}]
    held: list[Any] = [None, None]
    for _ in range(40):
        me = chance.randrange(2)
        if held[me] is None:
            at[me] = at[me] or {T0: 0, T1: 0, **owners[me].claim([T0, T1], Owner(GROUP, 1, "x"), {})}
            chosen = chance.sample([T0, T1], chance.randint(1, 2))
            each = batch({p: (at[me][p], at[me][p] + chance.randint(1, 5)) for p in chosen})
            held[me] = each, staged(owners[me], each)
            continue
        each, files = held[me]
        held[me] = None
        if chance.random() < 0.2:  # it dies
            owners[me], at[me] = opened(place.sink()), {}
            continue
        try:
            owners[me].commit(files, each)
            at[me].update(each.next_offsets)
        except SinkFencedError:
            at[me] = {}
    ends = owners[0].positions(GROUP, [T0, T1])
    assert place.rows() == plain({p.partition: end for p, end in ends.items()})


def _work(root: str, member: str, end: int) -> None:
    work(Place(root).sink, member, 2, end, 20)


@pytest.mark.process
def test_twenty_kills_and_take_overs(place: Place) -> None:
    """Two applications at a time on the same partitions; one of them is killed at a random moment, twenty times."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pyiceberg.catalog.sql", "pyiceberg.io.pyarrow", "tests.spark.test_iceberg_sink"])
    chance = random.Random(3)
    end = 400
    opened(place.sink()).task_writer(batch({T0: (0, 1)}), SCHEMA)

    def start(number: int) -> Any:
        process = context.Process(target=_work, args=(place.root, f"m{number}", end))
        process.start()
        return process

    running = [start(0), start(1)]
    for number in range(2, 22):
        victim = chance.choice(running)
        victim.join(chance.uniform(0.0, 1.0))
        victim.kill()
        victim.join()
        running.remove(victim)
        running.append(start(number))
    for process in running:
        process.join()
        assert process.exitcode == 0
    assert place.rows() == plain({0: end, 1: end})


def test_dates_times_and_nulls_are_read_as_written(place: Place) -> None:
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


def test_a_batch_without_rows_moves_the_positions(place: Place) -> None:
    sink = opened(place.sink(), T0)
    only = batch({T0: (0, 5)})
    writer = sink.task_writer(only, SCHEMA)
    sink.commit(sink.collect(writer, [writer.open().close()], only), only)
    assert sink.positions(GROUP, [T0]) == {T0: 5}
    assert place.rows() == []


def test_what_does_not_fit_is_refused(place: Place) -> None:
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
