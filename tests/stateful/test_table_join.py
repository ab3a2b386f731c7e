"""Rows joined with a table topic on a broker, against plain dictionaries; the tasks run in this process."""

from __future__ import annotations

import json
import pickle
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from roster.model import TopicPartition
from roster.model.topology import Subtopology
from roster.pipeline.batch import Batch, Owner, Range, Split
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import Options
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.state_options import State
from roster.pipeline.tasks.reader import ReaderConfig
from roster.spark.joined_batches import TableJoins
from roster.spark.operations import Operations
from roster.spark.stateful_operators import TableJoin
from roster.spark.steps import Filtered, Mapped, chained
from roster.stateful.tasks import table_join
from roster.stateful.tasks.subtopology import SubtopologyPlan
from roster.stateful.tasks.table_join import Rows
from roster.stateful.tasks.task import JoinTask, TopologyPlan
from tests.librdkafka import idempotent_producer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.spark_topics import Topics

RECORDS = StructType([StructField("key", BinaryType()), StructField("n", LongType())])
ENTRY = StructType([StructField("name", StringType()), StructField("size", LongType())])
RANK = StructType([StructField("rank", LongType())])
KAFKA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    n = batch["value"].cast(pa.string()).cast(pa.int64())
    return pa.RecordBatch.from_arrays([batch["key"], n], ["key", "n"])


def operations() -> Operations:
    session: Any = None
    return Operations(session)


class Joined:
    """A source and two tables of two partitions, and what plain dictionaries say of them."""

    def __init__(self, topics: Topics, folder: Path) -> None:
        self.topics, self.folder = topics, folder
        self.source, *self.tables = (topics.create(2) for _ in range(3))
        self.producer = idempotent_producer(topics.bootstrap)
        self.entries: dict[tuple[int, int, bytes | None], Any] = {}
        self.begins = [0, 0]

    def options(self) -> Options:
        return Options(None, self.topics.bootstrap, "g", (self.source,), state=State(dir=str(self.folder)))

    def put(self, table: int, partition: int, key: bytes | None, entry: Any) -> None:
        value = None if entry is None else json.dumps(entry)
        self.producer.produce(self.tables[table], value, key, partition=partition)
        if key is not None:
            self.entries[table, partition, key] = entry

    def batch(self, how: str, rows: list[tuple[int, bytes | None, int]]) -> tuple[list[Any], list[Any]]:
        """Rows as they come out of tasks of a new process, and as they should."""
        for partition, key, n in rows:
            self.producer.produce(self.source, str(n), key, partition=partition)
        assert self.producer.flush(60) == 0
        ends = [self.begins[number] + sum(p == number for p, _, _ in rows) for number in range(2)]
        ranges = {
            TopicPartition(self.source, number): Range(self.begins[number], ends[number])
            for number in range(2)
            if ends[number] > self.begins[number]
        }
        self.begins = ends
        function, columns = chained([Mapped(numbered, RECORDS)], KAFKA)
        ways = []
        for table, schema, steps in zip(self.tables, (ENTRY, RANK), ([Filtered(pc.field("n") < 15)], []), strict=True):
            lookup, columns = TableJoin(table, "key", schema, how).resolved(columns)
            ways.append(Rows(table, lookup, chained(steps, columns)[0], lookup.columns))
        joins = TableJoins.open(self.options(), ways, (self.source,))
        joins.begin(Batch(0, Owner("g", 1, "m"), ranges))
        splits = [(Split(p.topic, p.partition, span.start, span.end),) for p, span in ranges.items()]
        config = ReaderConfig(bootstrap=self.topics.bootstrap, group="g")
        plan = SubtopologyPlan(Subtopology(0, (self.source,)), (), tables=tuple(ways))
        work = TopologyPlan((plan,), {}, None)
        task = JoinTask(config, [*splits, ()], work, {}, tables={0: joins.sides()}, backlogs={}, function=function)
        task = pickle.loads(pickle.dumps(task))
        found = [row for part in task.read(range(len(splits) + 1)) for row in part.to_pylist()]
        joins.close()
        expected = []
        for partition, key, n in rows:
            entry, rank = (self.entries.get((table, partition, key)) for table in range(2))
            if n < 15 and (how == "left" or None not in (entry, rank)):
                said = {"name": None, "size": None, "rank": None} | (entry or {}) | (rank or {})
                expected.append({"key": key, "n": n} | {name: said[name] for name in ("name", "size", "rank")})
        return sorted(found, key=str), sorted(expected, key=str)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_rows_see_the_tables_as_they_are_when_their_batch_begins(topics: Topics, tmp_path: Path, how: str) -> None:
    chance = random.Random(how)
    joined = Joined(topics, tmp_path)
    keys = [b"a", b"b", "\u00e9".encode(), b"", b"long" * 200]
    for number in range(8):
        for _ in range(chance.randrange(4)):
            entry = chance.choice([None, {}, {"name": f"n{number}"}, {"name": "x", "size": number, "more": [1]}])
            joined.put(0, chance.randrange(2), chance.choice([*keys, None]), entry)
            joined.put(1, chance.randrange(2), chance.choice(keys), chance.choice([None, {"rank": number}]))
        rows: list[Any] = [
            (chance.randrange(2), chance.choice([*keys, None]), n) for n in range(chance.randrange(1, 20))
        ]
        found, expected = joined.batch(how, rows)
        assert found == expected


@pytest.mark.parametrize("how", ["inner", "left"])
def test_rows_with_the_same_large_value_are_joined_piece_by_piece(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup, _ = TableJoin("t", "key", ENTRY, how).resolved(RECORDS)
    known = {b"a": b'{"name":"%s"}' % (b"n" * 1000), b"b": b'{"name":"m"}'}
    keys = [b"b", *[b"a"] * 40, None, b"gone", b"b"]
    rows = pa.RecordBatch.from_pydict({"key": keys, "n": range(len(keys))}, arrow_schema(RECORDS))

    def joined() -> list[pa.RecordBatch]:
        return list(lookup.joined(rows, lambda names: [known.get(name) for name in names]))

    (whole,) = joined()
    monkeypatch.setattr(table_join, "_PIECE_BYTES", 5000)
    parts = joined()
    assert pa.Table.from_batches(parts).to_pylist() == whole.to_pylist()
    assert max(part.num_rows for part in parts) <= 9
    assert len(parts) == 9
    assert [part.num_rows for part in lookup.joined(rows.slice(0, 0), lambda _: [])] == [0]


@pytest.mark.usefixtures("missing_at_once")
def test_topics_that_are_not_partitioned_alike_are_refused(topics: Topics, tmp_path: Path) -> None:
    source, table = topics.create(2), topics.create(3)

    def joined(table: str) -> Rows:
        lookup, _ = TableJoin(table, "key", ENTRY, "left").resolved(RECORDS)
        return Rows(table, lookup, None, lookup.columns)

    options = Options(None, topics.bootstrap, "g", (source,), state=State(dir=str(tmp_path)))
    with pytest.raises(PipelineError, match=rf"join_table: .* equally many partitions.*{source} 2, {table} 3"):
        TableJoins.open(options, [joined(table)], (source,))
    with pytest.raises(PipelineError, match="join_table: there is no topic 'nowhere-at-all'"):
        TableJoins.open(options, [joined("nowhere-at-all")], (source,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TableJoin("t", "key", ENTRY, "outer"), "how: 'outer' is not possible"),
        (lambda: TableJoin("t", "shop", ENTRY, "left").resolved(RECORDS), "on: no column 'shop'"),
        (lambda: TableJoin("t", "key", RECORDS, "left").resolved(RECORDS), "rows have a column 'key' already"),
        (
            lambda: operations().aggregate("k", {"n": "count(*)"}).join_table("t", "k", ENTRY),
            "join_table: it comes before the stateful operators of a sub-topology",
        ),
        (
            lambda: operations().join_table("t", "k", ENTRY).join_table("t", "k", ENTRY),
            "join_table: 't' is joined already",
        ),
        (
            lambda: operations().join_table("t", "k", ENTRY).repartition("j").join_table("t", "j", RANK),
            "join_table: 't' is joined already",
        ),
    ],
)
def test_joins_that_cannot_be_are_named(make: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        make()
