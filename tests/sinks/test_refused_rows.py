"""Rows that a database refuses: their records are found, whatever made the rows, and become dead letters."""

from __future__ import annotations

import itertools
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from roster.pipeline.batch_sink import Source
from roster.pipeline.errors import RefusedRowsError
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.dead_letters import salvage_of
from roster.spark import Pipeline, PipelineError, PostgresSink, State
from tests.pipeline.tasks.test_dead_letters import read_all
from tests.sinks.table_places import T0, batch
from tests.sinks.table_worker import GROUP, forking
from tests.sinks.test_database_sinks import Place, place
from tests.spark.spark_topics import idempotent_producer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

__all__ = ["place"]


class Letters:
    """What is rejected, and by what."""

    def __init__(self) -> None:
        self.rejected: list[tuple[int, str, str]] = []

    def reject(self, record: pa.RecordBatch, error: Exception, by: str) -> None:
        (row,) = record.to_pylist()
        self.rejected.append((row["offset"], str(error), by))


def records(offsets: range) -> pa.RecordBatch:
    count = len(offsets)
    return pa.RecordBatch.from_pydict(
        {"topic": ["t"] * count, "partition": [0] * count, "offset": offsets, "headers": pa.nulls(count)}
    )


ROWS = pa.schema([("offset", pa.int64()), ("n", pa.int64())])


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=40), st.data())
def test_the_records_of_refused_rows_are_found_round_by_round(counts: list[int], data: Any) -> None:
    """A count of -1: the function raises at the record; else it makes so many rows of it."""

    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        offsets = batch.column("offset").to_pylist()
        if any(counts[offset] < 0 for offset in offsets):
            raise KeyError("x")
        made = [{"offset": offset, "n": n} for offset in offsets for n in range(counts[offset])]
        return pa.RecordBatch.from_pylist(made, ROWS)

    rounds: list[dict[int, str]] = []
    left = {offset: count for offset, count in enumerate(counts) if count >= 0}
    wanted = {offset: ("'x'", "map_arrow") for offset, count in enumerate(counts) if count < 0}
    cuts = sorted(data.draw(st.sets(st.integers(1, len(counts)), max_size=2)) | {0, len(counts)})
    for number in range(3):
        letters = Letters()
        salvage = salvage_of(ArrowFunction(function, ROWS), letters, rounds, hide_headers=True)  # type: ignore[arg-type]
        made = [
            row
            for span in itertools.pairwise(cuts)
            for rows in salvage(records(range(*span)))
            for row in rows.to_pylist()
        ]
        assert made == [{"offset": offset, "n": n} for offset, count in left.items() for n in range(count)]
        assert letters.rejected == [(offset, *wanted[offset]) for offset in sorted(wanted)]
        bad = data.draw(st.sets(st.integers(0, max(len(made) - 1, 0)), max_size=3)) if made else set()
        rounds.append({row: f"no row {row} of round {number}" for row in bad})
        for row in sorted(bad, reverse=True):  # the first one of a record is what is told
            offset = made[row]["offset"]
            left.pop(offset, None)
            wanted[offset] = rounds[-1][row], "write"


COLUMNS = T.StructType(
    [
        T.StructField("id", T.IntegerType()),
        T.StructField("name", T.StringType()),
        T.StructField("price", T.DoubleType()),
    ]
)


def written(sink: PostgresSink, tasks: list[list[dict[str, Any]]], rounds: int) -> list[list[tuple[int, str]]]:
    """Write a batch as a pipeline does: a row a record, again without those that are refused; return these by task."""
    sink.open(None, GROUP)  # type: ignore[arg-type]
    sink.bind(Source("b:1", GROUP, dead_letters=""))
    sink.claim([T0], batch({}).owner, {})
    schema, of = arrow_schema(COLUMNS), batch({T0: (0, 100)})
    refused: list[Any] = []
    while True:
        writer, results, rejected = sink.task_writer(of, COLUMNS), [], []
        for task, rows in enumerate(tasks):
            letters, output = Letters(), writer.open()
            table = pa.Table.from_pylist(rows, schema).append_column("offset", pa.array(range(len(rows)), pa.int64()))
            salvage = salvage_of(None, letters, [each.get(task, {}) for each in refused], hide_headers=False)  # type: ignore[arg-type]
            for each in table.to_batches(max_chunksize=4):
                for found in salvage(each):
                    output.write(found.drop_columns(["offset"]))
            results.append(output.close())
            rejected.append([(offset, told) for offset, told, _ in letters.rejected])
        try:
            sink.commit(sink.collect(writer, results, of), of)
        except RefusedRowsError as error:
            refused.append(error.rows)
        else:
            break
    assert len(refused) == rounds
    assert sink.positions(GROUP, [T0]) == {T0: 100}
    return rejected


def row(number: int, name: str | None = "a", price: float | None = 1.0) -> dict[str, Any]:
    return {"id": number, "name": name, "price": price}


@pytest.mark.process
@pytest.mark.real
def test_rows_that_break_a_rule_of_the_table_are_left_out_and_all_others_are_there_once(place: Place) -> None:
    place.run("create table shops (name varchar(9) primary key)")
    place.run("insert into shops values ('a')")
    more = ", tripled smallint generated always as (id * 300) stored"
    more += ", foreign key (name) references shops (name) deferrable initially deferred"
    columns = "id bigint unique, name varchar(9) not null, price double precision"
    place.run(f"create table orders ({columns}, check (id < 90){more})")
    rows = [row(number) for number in range(40)]
    rows[3]["name"] = rows[30]["name"] = None
    rows[7]["id"] = 91
    rows[8]["id"] = 2
    rows[22]["name"] = "nobody"
    rows[20]["name"] = "much too long"
    rows[24]["id"] = -110
    other = [row(100 - number) for number in range(12, 20)] + [row(5)]
    found = written(place.sink(), [rows, [], other], 1)
    bad = [3, 7, 8, 20, 22, 24, 30]
    assert [offset for offset, _ in found[0]] == bad
    assert found[1:] == [[], [(8, found[2][0][1])]], "the row of the first task is there before"
    kept = [row["id"] for number, row in enumerate(rows) if number not in bad] + [each["id"] for each in other[:-1]]
    assert sorted(place.run("select id from orders")) == sorted((number,) for number in kept)
    told = dict(found[0])
    assert "null" in told[3].lower()
    assert "check" in told[7].lower() or "constraint" in told[7].lower()
    assert "unique" in told[8].lower() or "duplicate" in told[8].lower()
    assert "foreign key" in told[22].lower()
    assert "out of range" in told[24].lower()
    assert [name for name in place.tables() if name != "shops"] == ["orders", "roster_positions"]


def killed_in_its_second_try(sink: PostgresSink, tasks: list[list[dict[str, Any]]]) -> None:
    """Die with the rows of the second try moved, and its transaction not committed."""
    move = sink._move

    def dying(*given: Any) -> None:
        move(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    sink._move = dying  # type: ignore[method-assign]
    written(sink, tasks, 1)


@pytest.mark.process
@pytest.mark.real
def test_a_second_try_that_is_killed_amid_its_transaction_leaves_nothing_and_is_done_once(place: Place) -> None:
    place.run("create table orders (id bigint check (id < 90), name varchar(9), price double precision)")
    tasks = [[row(number) for number in (1, 2, 91, 3)], [row(92), row(4)]]
    process = forking().Process(target=killed_in_its_second_try, args=[PostgresSink(place.url, "orders"), tasks])
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert place.run("select * from orders") == place.run("select * from roster_positions") == []
    found = written(place.sink(), tasks, 1)
    assert [[offset for offset, _ in each] for each in found] == [[2], [0]]
    assert sorted(place.run("select id from orders")) == [(1,), (2,), (3,), (4,)]


@pytest.mark.process
@pytest.mark.real
def test_values_that_no_table_of_the_database_takes_are_left_out(place: Place) -> None:
    rows = [row(number) for number in range(10)]
    odd = row(4, "a\0b")
    rows[4] = odd
    rows[9] = {**odd, "id": 9}
    found = written(place.sink(), [rows, [row(20)]], 1)
    assert [offset for offset, _ in found[0]] == [4, 9]
    assert "character NUL" in found[0][0][1]
    assert sorted(place.run("select id from orders")) == [(n,) for n in (0, 1, 2, 3, 5, 6, 7, 8, 20)]


@pytest.mark.real
@pytest.mark.process
def test_text_that_is_no_utf8_is_left_out(place: Place) -> None:
    sink = place.sink()
    sink.open(None, GROUP)  # type: ignore[arg-type]
    sink.bind(Source("b:1", GROUP, dead_letters=""))
    columns = T.StructType([T.StructField("name", T.StringType())])
    output = sink.task_writer(batch({T0: (0, 3)}), columns).open()
    output.write(pa.record_batch({"name": pa.array([b"a", b"\xff", b"c"]).view(pa.string())}))
    staged = output.close()
    assert staged is not None
    assert (staged.rows, list(staged.refused)) == (2, [1])
    assert staged.refused[1] == "column `name` has text that is not UTF-8"


@pytest.mark.process
@pytest.mark.real
def test_the_last_row_of_a_key_that_is_not_refused_counts(place: Place) -> None:
    place.run("create table orders (id bigint, name varchar(99) unique, price double precision, check (price < 90))")
    one = [row(0, "a"), row(1, "b"), row(2, "a", 95.0), row(3, "c", 99.0), row(4, "a", 91.0)]
    two = [row(5, "b", 92.0), row(6, "d"), row(7, "b", 93.0)]
    found = written(place.sink(mode="upsert", keys=["name"]), [one, two], 2)
    assert [[offset for offset, _ in each] for each in found] == [[2, 3, 4], [0, 2]]
    assert sorted(place.run("select id, name from orders")) == [(0, "a"), (1, "b"), (6, "d")]


@pytest.mark.process
@pytest.mark.real
def test_a_table_that_takes_no_row_gets_none(place: Place) -> None:
    place.run("create table orders (id bigint check (id < 0), name varchar(9), price double precision)")
    found = written(place.sink(), [[row(number) for number in range(9)]], 1)
    assert [offset for offset, _ in found[0]] == list(range(9))
    assert place.run("select * from orders") == []


@pytest.mark.process
@pytest.mark.real
def test_what_is_no_rows_fault_still_ends_the_run(place: Place) -> None:
    place.run("create table orders (id bigint, name varchar(9), price double precision)")
    place.run("create function broken() returns trigger language plpgsql as $$ begin return missing(); end $$")
    place.run("create trigger t before insert on orders for each row execute function broken()")
    with pytest.raises(PipelineError, match=r"function missing\(\) does not exist"):
        written(place.sink(), [[row(1)]], 1)


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.gate
@pytest.mark.real
def test_refused_rows_of_a_pipeline_are_dead_letters_and_with_state_the_error_says_why_not(
    spark: SparkSession, topics: Topics, place: Place, tmp_path: Path
) -> None:
    place.run("create table orders (id bigint check (id % 7 <> 3), word text not null)".replace("%", "%%"))
    place.run("create table totals (word text unique, orders bigint check (orders < 2))")
    topic, letters = topics.create(2), topics.create(1, name="letters")
    producer, wanted = idempotent_producer(topics.bootstrap), []
    for number in range(400):
        value = "{" if number == 200 else json.dumps({"id": number, "word": None if number == 100 else "w"})
        producer.produce(topic, value, str(number), partition=number % 2, headers=[("trace", b"1")])
        if value == "{" or number % 7 == 3 or number == 100:
            wanted.append((number % 2, number // 2, "map_arrow" if value == "{" else "write"))
    assert producer.flush(60) == 0

    def twice(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.take(pa.array([n // 2 for n in range(2 * rows.num_rows)]))

    progress: list[Any] = []
    pipeline = Pipeline(
        spark, topics.bootstrap, "refused", topic, dead_letter_topic=letters, max_offsets_per_batch=150,
        on_progress=progress.append,
    ).json_columns("id long, word string", mode="FAILFAST")  # fmt: skip
    pipeline.map_arrow(twice, "id long, word string").write(place.sink()).run(available_now=True)
    found = []
    for message in read_all(topics.bootstrap, letters, len(wanted) + 1):
        headers = {name.removeprefix("__connect.errors."): value.decode() for name, value in message.headers()}
        assert (headers["topic"], headers["trace"]) == (topic, "1")
        found.append((int(headers["partition"]), int(headers["offset"]), headers["class.name"]))
        if headers["class.name"] == "write":
            assert "violates" in headers["exception.message"]
            assert headers["stage"] == "TASK_PUT"
    again = [letter for letter in wanted if letter[2] == "map_arrow"]  # of a batch that was done twice
    assert sorted(found) == sorted(wanted + again)
    assert sum(report.dead_letters for report in progress) == len(wanted)
    good = [number for number in range(400) if number % 7 != 3 and number not in (100, 200)]
    assert sorted(place.run("select id from orders")) == sorted(2 * [(number,) for number in good])

    stateful = Pipeline(
        spark, topics.bootstrap, "refused-totals", topic, dead_letter_topic=letters,
        state=State(dir=str(tmp_path / "s")),
    ).json_columns("id long, word string").aggregate("word", {"orders": "count(*)"})  # fmt: skip
    told = r"refuses a row of .*It does not become a dead letter: a result of operators comes of many records\. Leave"
    with pytest.raises(PipelineError, match=told):
        stateful.write(place.sink("totals", mode="upsert")).run(available_now=True)
