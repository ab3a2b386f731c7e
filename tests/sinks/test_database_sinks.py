"""The sink into PostgreSQL without Spark, against the real server: exactly once, fenced, types, refusals, waiting."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import random
import threading
import time
import warnings
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import types as T

from roster.pipeline.spark_schemas import arrow_schema
from roster.records.produce import WriteError
from roster.sinks import postgres
from roster.sinks.postgres_tables import PositionsTable
from roster.sinks.tasks import postgres as writing
from roster.spark import PipelineError, PostgresSink, SinkFencedError
from tests.clocks import patch_time
from tests.examples_tried import examples
from tests.real.realparts.databases import PASSWORD, Postgres, running
from tests.sinks.table_places import T0, T1, batch, opened, plain
from tests.sinks.table_worker import GROUP, KEYS, SCHEMA, latest, uncommitted, upserted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.process]


def test_a_driver_that_stood_still_for_longer_than_a_database_is_waited_for_asks_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server has ended its transaction meanwhile; the answer to the next one says who has taken its place."""
    now, answers = [0.0], iter([psycopg.errors.IdleInTransactionSessionTimeout("terminating connection"), "fenced"])
    patch_time(monkeypatch, writing, monotonic=lambda: now[0], sleep=lambda seconds: None)

    def work() -> Any:
        now[0] += 500
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    assert writing.Server("", "shop", timeout=120).patiently(work) == "fenced"


class Place:
    """A database of its own for one test."""

    def __init__(self) -> None:
        self.server = running(Postgres)
        self.url = self.server.create()
        self.engine = sa.create_engine(
            self.url.replace("postgresql://", "postgresql+psycopg://"),
            poolclass=sa.NullPool,
            isolation_level="AUTOCOMMIT",
        )
        self.opened: list[PostgresSink] = []

    def sink(self, table: str = "orders", **more: Any) -> PostgresSink:
        sink = PostgresSink(self.url, table, **more)
        self.opened.append(sink)
        return sink

    def run(self, statement: str) -> list[Any]:
        with self.engine.connect() as connection:
            done = connection.exec_driver_sql(statement)
            return [tuple(row) for row in done] if done.returns_rows else []

    def orders(self) -> list[Any]:
        return sorted(self.run('select "partition", "offset", shop from orders'))

    def tables(self) -> list[str]:
        return sorted(sa.inspect(self.engine).get_table_names())


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    for sink in place.opened:
        sink.close()
    place.engine.dispose()


def store(sink: PostgresSink, ranges: Any, write: Any = uncommitted) -> None:
    of = batch(ranges)
    sink.commit(write(sink, of), of)


def write_rows(sink: PostgresSink, columns: T.StructType, values: list[dict[str, Any]], start: int = 0) -> None:
    """One batch with these rows, of one offset."""
    of = batch({T0: (start, start + 1)})
    writer = sink.task_writer(of, columns)
    output = writer.open()
    try:
        for each in pa.Table.from_pylist(values, arrow_schema(columns)).to_batches():
            output.write(each)
        staged = output.close()
    except BaseException:
        output.abort()
        raise
    sink.commit(sink.collect(writer, [staged], of), of)


def test_rows_and_positions_count_together_and_no_staging_is_left(place: Place) -> None:
    sink = opened(place.sink(), T0, T1)
    dropped = batch({T0: (0, 7)})
    sink.abort(uncommitted(sink, dropped), dropped)
    assert place.orders() == []
    store(sink, {T0: (0, 10), T1: (0, 4)})
    store(sink, {T1: (4, 9)})
    assert place.orders() == plain({0: 10, 1: 9})
    assert sink.positions(GROUP, [T0, T1]) == {T0: 10, T1: 9}
    assert sink.positions("another", [T0]) == {}
    assert place.sink("elsewhere").positions(GROUP, [T0]) == {}
    assert place.tables() == ["orders", "roster_positions"]


def test_of_two_owners_of_a_partition_one_wins(place: Place) -> None:
    one, two = (opened(place.sink(), T0, member=name) for name in ("one", "two"))
    for start in (0, 10):
        of = batch({T0: (start, start + 10)})
        first, second = uncommitted(one, of), uncommitted(two, of)
        one.commit(first, of)
        with pytest.raises(SinkFencedError, match="t-0 stands at"):
            two.commit(second, of)
    assert place.orders() == plain({0: 20})
    assert place.tables() == ["orders", "roster_positions"]


def test_two_owners_that_begin_a_partition_at_once_write_it_once(place: Place) -> None:
    sinks = [opened(place.sink(), T0, T1) for _ in range(3)]
    of, won = batch({T0: (0, 10), T1: (0, 10)}), []
    written = [uncommitted(sink, of) for sink in sinks]

    def commit(number: int) -> None:
        try:
            sinks[number].commit(written[number], of)
            won.append(number)
        except SinkFencedError:
            pass

    threads = [threading.Thread(target=commit, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert place.orders() == plain({0: 10, 1: 10})


def test_one_row_a_key_is_left_after_updates_deletes_and_null_keys(place: Place) -> None:
    for seed in range(examples(3)):
        chance, table = random.Random(seed), f"updates_{seed}"
        sink = opened(place.sink(table, mode="upsert", keys=KEYS), T0, T1)
        at = {0: 0, 1: 0}
        for _ in range(4):
            spans = {0: chance.randrange(120), 1: chance.randrange(120)}
            of = {T0: (at[0], at[0] + spans[0]), T1: (at[1], at[1] + spans[1])}
            store(sink, of, upserted)
            at = {number: at[number] + size for number, size in spans.items()}
            assert sorted(place.run(f"select * from {table}"), key=repr) == latest(at)


def test_keys_alone_make_a_row(place: Place) -> None:
    columns = T.StructType([T.StructField("id", T.IntegerType())])
    sink = opened(place.sink(mode="upsert", keys="id"), T0)
    write_rows(sink, columns, [{"id": 1}, {"id": 2}, {"id": 1}])
    write_rows(sink, columns, [{"id": 2}, {"id": 3}], 1)
    assert sorted(place.run("select * from orders")) == [(1,), (2,), (3,)]


def test_names_of_columns_are_taken_as_they_are(place: Place) -> None:
    names = ["select", "Total %", 'say "x"', "a.b (c)", "ä:b"]
    columns = T.StructType([T.StructField(name, T.LongType()) for name in names])
    for mode, keys in (("append", ()), ("upsert", names[:2])):
        sink = opened(place.sink(f"names_{mode}", mode=mode, keys=keys), T0)
        for start in (0, 1):
            write_rows(sink, columns, [dict(zip(names, range(5), strict=True))], start)
        assert place.run(f"select * from names_{mode}") == [(0, 1, 2, 3, 4)] * (2 if mode == "append" else 1)


def test_texts_that_differ_are_different_keys(place: Place) -> None:
    columns = T.StructType([T.StructField("name", T.StringType()), T.StructField("n", T.LongType())])
    names = ["a", "A", "a ", "ä", "", "日本", "a\tb", "'; drop"]
    sink = opened(place.sink(mode="upsert", keys=["name"]), T0)
    write_rows(sink, columns, [{"name": name, "n": n} for n, name in enumerate(names)])
    write_rows(sink, columns, [{"name": name, "n": n + 10} for n, name in enumerate(names[:4])], 1)
    found = dict(place.run("select name, n from orders"))
    assert found == {name: n + 10 if n < 4 else n for n, name in enumerate(names)}


ALL = T.StructType(
    [
        T.StructField("yes", T.BooleanType()),
        T.StructField("tiny", T.ByteType()),
        T.StructField("small", T.ShortType()),
        T.StructField("whole", T.IntegerType()),
        T.StructField("large", T.LongType()),
        T.StructField("single", T.FloatType()),
        T.StructField("double", T.DoubleType()),
        T.StructField("price", T.DecimalType(38, 18)),
        T.StructField("Text", T.StringType()),
        T.StructField("bytes", T.BinaryType()),
        T.StructField("day", T.DateType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("local", T.TimestampNTZType()),
        T.StructField("tags", T.ArrayType(T.StringType())),
        T.StructField("of", T.MapType(T.StringType(), T.DoubleType())),
        T.StructField(
            "inner", T.StructType([T.StructField("d", T.DecimalType(9, 2)), T.StructField("b", T.BinaryType())])
        ),
    ]
)
AT = datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
VALUES = {
    "yes": True,
    "tiny": -128,
    "small": 32767,
    "whole": -(2**31),
    "large": 2**63 - 1,
    "single": 0.5,
    "double": 1e300,
    "price": Decimal("-12345678901234567890.000000000000000001"),
    "Text": "a'b\\c \n日本",
    "bytes": b"\x00\xff'",
    "day": date(1969, 12, 31),
    "at": AT,
    "local": AT.replace(tzinfo=None),
    "tags": ["a", None, 'quote"'],
    "of": {"x": 1.5, "nan": float("nan")},
    "inner": {"d": Decimal("1.10"), "b": b"\xff"},
}


def test_values_of_every_type_come_back_as_they_were(place: Place) -> None:
    sink = opened(place.sink(), T0)
    of_map = {**VALUES, "of": list(VALUES["of"].items())}
    write_rows(sink, ALL, [of_map, dict.fromkeys(ALL.names)])
    table = sa.Table("orders", sa.MetaData(), autoload_with=place.engine)
    with place.engine.connect() as connection:
        found, empty = sorted(
            (row._asdict() for row in connection.execute(sa.select(table))), key=lambda r: r["yes"] is None
        )
    assert set(empty.values()) == {None}
    wanted = dict(VALUES)
    nested = {"tags": ["a", None, 'quote"'], "of": {"x": 1.5, "nan": None}, "inner": {"d": "1.10", "b": "/w=="}}
    for name, value in nested.items():
        given = found.pop(name)
        assert (json.loads(given) if isinstance(given, str) else given) == value
        wanted.pop(name)
    found["yes"] = bool(found["yes"])
    assert found == wanted
    # The table that was made is one that is taken again.
    write_rows(opened(place.sink(), T0), ALL, [dict.fromkeys(ALL.names)], 1)


@pytest.mark.parametrize(("kind", "value"), [(T.StringType(), "a\0b"), (T.ArrayType(T.StringType()), ["a\0b"])])
def test_a_value_that_the_database_cannot_hold_is_named_and_no_row_is_lost(
    place: Place, kind: T.DataType, value: Any
) -> None:
    columns = T.StructType([T.StructField("id", T.IntegerType()), T.StructField("odd", kind)])
    with pytest.raises(WriteError, match="column `odd` has"):
        write_rows(opened(place.sink(), T0), columns, [{"id": 1, "odd": None}, {"id": 2, "odd": value}])
    assert place.run("select * from orders") == []
    assert place.tables() == ["orders", "roster_positions"]


FIRST, LAST = -2_440_588, 2_145_042_905
DAY_US = 86_400_000_000


def test_the_first_and_last_times_of_a_database_are_stored_and_others_named(place: Place) -> None:
    times = pa.schema([("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))])
    columns = T.StructType([T.StructField("day", T.DateType()), T.StructField("at", T.TimestampType())])
    first, last = FIRST, LAST
    latest_us = min((last + 1) * DAY_US - 1, 2**63 - 1)

    def write(day: int, at: int) -> None:
        cells = pa.array([day], pa.int32()).cast(pa.date32()), pa.array([at], pa.int64()).cast(times.field("at").type)
        output = place.sink().task_writer(batch({T0: (0, 1)}), columns).open()
        try:
            output.write(pa.record_batch(list(cells), schema=times))
            output.close()
        except WriteError:
            output.abort()
            raise

    for day, at in ((first, first * DAY_US), (last, latest_us)):
        write(day, at)
    outside = [(first - 1, 0), (last + 1, 0), (2**31 - 1, 0), (0, first * DAY_US - 1), (0, -(2**63) + 1)]
    outside += [(0, latest_us + 1)] if latest_us < 2**63 - 1 else []
    for day, at in outside:
        with pytest.raises(WriteError, match=f"column `{'at' if at else 'day'}` has a time"):
            write(day, at)


def test_text_with_a_backslash_before_u0000_is_no_nul(place: Place) -> None:
    columns = T.StructType([T.StructField("tags", T.ArrayType(T.StringType()))])
    write_rows(opened(place.sink(), T0), columns, [{"tags": ["\\u0000"]}])
    (found,) = place.run("select tags from orders")[0]
    assert (json.loads(found) if isinstance(found, str) else found) == ["\\u0000"]


def test_one_error_lists_all_columns_that_differ(place: Place) -> None:
    place.run("create table orders (shop varchar(20), price integer not null, extra integer not null, spare integer)")
    fields = {"shop": T.StringType(), "price": T.LongType(), "day": T.DateType()}
    columns = T.StructType([T.StructField(name, kind) for name, kind in fields.items()])
    sink = place.sink(mode="upsert", keys="shop")
    sink.open(None, GROUP)  # type: ignore[arg-type]
    with pytest.raises(PipelineError) as caught:
        sink.task_writer(None, columns)
    text = str(caught.value)
    assert "`day` (date) is none of the table's columns" in text
    assert "the rows have no `extra`, which must not be null" in text
    assert "spare" not in text
    assert "unique constraint of exactly shop" in text
    assert "`price` is bigint, and integer" in text


def begin(sink: PostgresSink, **fields: T.DataType) -> None:
    """What a run does with a sink before it joins its group."""
    sink.open(None, GROUP)  # type: ignore[arg-type]
    sink.task_writer(None, T.StructType([T.StructField(name, kind) for name, kind in fields.items()]))


def test_a_key_that_takes_different_texts_for_the_same_is_refused(place: Place) -> None:
    place.run("create collation any_case (provider=icu, locale='und-u-ks-level2', deterministic=false)")
    place.run("create table orders (id varchar(9) collate any_case unique, n bigint)")
    with pytest.raises(PipelineError, match=r"the key `id` is compared as .*, for which different texts are the same"):
        begin(place.sink(mode="upsert", keys="id"), id=T.StringType(), n=T.LongType())
    begin(place.sink(), id=T.StringType(), n=T.LongType())


NO_INDEX = "the table has no unique constraint of exactly id"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("id citext primary key", "the key `id` is compared as citext, .*; use text"),
        ("id char(5) primary key", r"the key `id` is compared as character\(5\), .*; use text"),
        ("id name primary key", "`id` is string, and name in the table"),
        ("id code primary key", "`id` is string, and code in the table"),
        ("id text unique deferrable", "the unique constraint `orders_id_key` is deferrable"),
        ("id text primary key, unique (id) deferrable", "the unique constraint .* is deferrable"),
        ("id text / unique index on orders (id) where n > 0", NO_INDEX),
        ("id text / unique index on orders (lower(id))", NO_INDEX),
        ("id text / unique index on orders (id collate any_case)", "the key `id` is compared as any_case"),
        ("id text unique / unique index on orders (id collate any_case)", "compared as any_case"),
    ],
)
def test_a_table_that_does_not_tell_keys_apart_is_refused_as_the_run_starts(
    place: Place, table: str, problem: str
) -> None:
    place.run("create extension citext")
    place.run("create domain code as varchar(2)")
    place.run("create collation any_case (provider=icu, locale='und-u-ks-level2', deterministic=false)")
    columns, _, index = table.partition(" / ")
    place.run(f"create table orders (n bigint, {columns})")
    if index:
        place.run(f"create {index}")
    with pytest.raises(PipelineError, match=problem), warnings.catch_warnings(action="ignore"):
        begin(place.sink(mode="upsert", keys="id"), id=T.StringType(), n=T.LongType())


@pytest.mark.parametrize(
    ("kind", "kept", "changed", "problem"),
    [
        ("varchar(2)", "ab", "ab  ", r"column `x` has a value whose end character varying\(2\) cuts"),
        ("char(3)", "ab ", "ab", r"column `x` has a value that character\(3\) pads"),
        ("char(3)", "abc", "abc ", r"column `x` has a value whose end character\(3\) cuts"),
    ],
)
def test_a_row_with_a_value_that_the_column_would_change_is_refused(
    place: Place, kind: str, kept: str, changed: str, problem: str
) -> None:
    place.run(f"create table orders (x {kind})")
    sink, columns = opened(place.sink(), T0), T.StructType([T.StructField("x", T.StringType())])
    with pytest.raises(WriteError, match=problem):
        write_rows(sink, columns, [{"x": kept}, {"x": changed}])
    write_rows(sink, columns, [{"x": kept}])
    assert place.run("select x from orders") == [(kept,)]


def test_a_column_of_a_strange_type_is_named(place: Place) -> None:
    place.run("create table orders (x point)")
    with pytest.raises(PipelineError, match="`x` is string, and point in the table"):
        begin(place.sink(), x=T.StringType())


def test_a_number_that_the_table_always_makes_itself_is_named_as_the_run_starts(place: Place) -> None:
    place.run("create table orders (id bigint generated always as identity)")
    with pytest.raises(PipelineError, match="`id` is computed by the table"):
        begin(place.sink(), id=T.LongType())


def test_a_refused_start_leaves_nothing_behind(place: Place) -> None:
    place.run("create table orders (id bigint not null, n bigint)")
    with pytest.raises(PipelineError, match="must not be null"):
        begin(place.sink(), n=T.LongType())
    with pytest.raises(PipelineError, match="unique constraint"):
        begin(place.sink(mode="upsert", keys="id"), id=T.LongType())
    assert place.tables() == ["orders"]
    begin(place.sink(), id=T.LongType())
    assert place.tables() == ["orders"]


RIGHTS = ["usage on schema public", "create on schema public", "select on orders", "insert on orders"]
"""What a user of an appending sink needs, the first to connect at all."""


def test_a_right_that_is_missing_is_noticed_as_the_run_starts(place: Place) -> None:
    columns, user = {"id": T.LongType()}, f"user_{place.url.partition('shop_')[2].partition('?')[0]}"
    place.run("create table orders (id bigint primary key)")
    store(place.sink("other"), {T0: (0, 1)})
    place.run(f"create role {user} login password 'word'")
    place.run(f"grant all on roster_positions to {user}")
    place.run("revoke all on schema public from public")
    url, before = place.url.replace(f"roster:{PASSWORD}", f"{user}:word"), place.tables()
    for right in RIGHTS:
        place.run(f"grant {right} to {user}")
        sink = PostgresSink(url, "orders")
        place.opened.append(sink)
        if right == RIGHTS[-1]:
            begin(sink, **columns)
        else:
            with pytest.raises(PipelineError, match=r"(?i)denied.*what the user may do") as caught:
                begin(sink, **columns)
            assert "word" not in str(caught.value).replace("password", "")
        assert place.tables() == before
    upserting = PostgresSink(url, "orders", mode="upsert", keys="id")
    place.opened.append(upserting)
    with pytest.raises(PipelineError, match=r"(?i)denied"):
        begin(upserting, **columns)


def test_a_table_with_wider_columns_and_more_of_them_is_taken(place: Place) -> None:
    place.run("create table orders (shop varchar(99) unique, n bigint, note varchar(9) default 'new', id integer)")
    columns = T.StructType([T.StructField("n", T.IntegerType()), T.StructField("shop", T.StringType())])
    sink = opened(place.sink(mode="upsert", keys="shop"), T0)
    write_rows(sink, columns, [{"n": 1, "shop": "a"}])
    place.run("update orders set note = 'kept'")
    write_rows(sink, columns, [{"n": 2, "shop": "a"}, {"n": 3, "shop": "b"}], 1)
    assert sorted(place.run("select shop, n, note from orders")) == [("a", 2, "kept"), ("b", 3, "new")]


def test_a_row_that_the_table_refuses_ends_the_run_and_moves_no_position(place: Place) -> None:
    place.run("create table orders (id bigint check (id < 5))")
    columns = T.StructType([T.StructField("id", T.IntegerType())])
    sink = opened(place.sink(), T0)
    told = r"(?i)`orders` refuses a row of t-0 0-0, .*constraint.*\. Leave such rows out .*dead_letter_topic takes"
    with pytest.raises(PipelineError, match=told) as caught:
        write_rows(sink, columns, [{"id": 4}, {"id": 5}])
    assert "row contains (5)" in str(caught.value)
    assert place.run("select * from orders") == []
    assert sink.positions(GROUP, [T0]) == {}


def test_columns_that_change_within_a_run_are_checked_again(place: Place) -> None:
    sink = opened(place.sink(), T0)
    store(sink, {T0: (0, 3)})
    with pytest.raises(PipelineError, match="`region` \\(string\\) is none of the table's columns"):
        sink.task_writer(batch({T0: (3, 6)}), T.StructType([*SCHEMA.fields, T.StructField("region", T.StringType())]))


def test_rows_that_staging_has_lost_are_not_taken_for_written(place: Place) -> None:
    """As after a crash of PostgreSQL, which empties tables without a log."""
    sink = opened(place.sink(), T0)
    for harm in ("delete from", "drop table"):
        of = batch({T0: (0, 10)})
        written = uncommitted(sink, of)
        place.run(f"{harm} {next(name for name in place.tables() if name.startswith('roster_staging_'))}")
        with pytest.raises(SinkFencedError, match="lost its rows"):
            sink.commit(written, of)
    assert place.orders() == []
    assert sink.positions(GROUP, [T0]) == {}
    store(sink, {T0: (0, 10)})
    assert place.orders() == plain({0: 10})


def test_staging_of_killed_tasks_is_dropped(place: Place) -> None:
    dead = opened(place.sink(), T0)
    uncommitted(dead, batch({T0: (0, 10)}))
    (left,) = [name for name in place.tables() if name.startswith("roster_staging_")]
    opened(place.sink(), T0)
    assert left in place.tables()  # its application may be alive
    old = left.replace(left.split("_")[2], f"{int(time.time()) - postgres._ORPHAN_SECONDS - 60:08x}")
    place.run(f"alter table {left} rename to {old}")
    opened(place.sink(), T0)
    assert not [name for name in place.tables() if name.startswith("roster_staging_")]
    uncommitted(dead, batch({T0: (0, 10)}))
    dead.close()
    assert place.tables() == ["orders", "roster_positions"]


def test_a_commit_whose_answer_is_lost_counts_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(place.sink(), T0)
    store(sink, {T0: (0, 5)})
    transaction = psycopg.Connection.transaction

    @contextlib.contextmanager
    def lost(connection: psycopg.Connection, *given: Any, **more: Any) -> Iterator[None]:
        with transaction(connection, *given, **more):
            yield
        monkeypatch.undo()
        raise psycopg.OperationalError("the connection is gone")

    of = batch({T0: (5, 10)})
    written = uncommitted(sink, of)
    monkeypatch.setattr(psycopg.Connection, "transaction", lost)
    sink.commit(written, of)
    assert psycopg.Connection.transaction is transaction
    assert place.orders() == plain({0: 10})
    with pytest.raises(SinkFencedError):
        sink.commit(written, of)


def test_a_writer_that_stands_still_in_its_transaction_holds_up_no_other(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver freezes with the positions locked: the one in its place writes, and the frozen one is fenced."""
    monkeypatch.setattr(writing, "LOCK_SECONDS", 1)
    frozen, other = (opened(place.sink(timeout_ms=20_000), T0, member=name) for name in ("frozen", "other"))
    store(frozen, {T0: (0, 5)})
    of = batch({T0: (5, 10)})
    written, fenced = uncommitted(frozen, of), list[str]()
    stands_still, goes_on, move = threading.Event(), threading.Event(), PositionsTable.store

    def standing_still(*given: Any) -> None:
        if threading.current_thread() is driver and not stands_still.is_set():
            stands_still.set()
            assert goes_on.wait(60)
        move(*given)

    def commit() -> None:
        try:
            frozen.commit(written, of)
        except SinkFencedError as error:
            fenced.append(str(error))

    monkeypatch.setattr(PositionsTable, "store", standing_still)
    driver = threading.Thread(target=commit)
    driver.start()
    try:
        assert stands_still.wait(60)
        store(other, {T0: (5, 10)})
    finally:
        goes_on.set()
        driver.join()
    assert place.orders() == plain({0: 10})
    assert ["t-0 stands at 10, not at 5" in text for text in fenced] == [True]
    assert place.tables() == ["orders", "roster_positions"]


def test_a_database_that_is_away_is_waited_for(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(place.sink(), T0)
    store(sink, {T0: (0, 5)})
    caplog.set_level(logging.WARNING, "roster.pipeline")
    sleep = time.sleep

    def first(starting: threading.Thread, seconds: float) -> None:
        """The server starts while the sink makes its first pause."""
        monkeypatch.undo()
        starting.start()
        sleep(seconds)

    for moment in ("task", "commit", "claim"):
        at = sink.positions(GROUP, [T0])[T0]
        of = batch({T0: (at, at + 5)})
        written = uncommitted(sink, of) if moment == "commit" else None
        place.server.kill()
        starting = threading.Thread(target=place.server.start)
        caplog.clear()
        patch_time(monkeypatch, writing, sleep=functools.partial(first, starting))
        try:
            if moment == "claim":
                assert sink.positions(GROUP, [T0]) == {T0: at}
            elif moment == "task":
                store(sink, {T0: (at, at + 5)})
            else:
                try:
                    sink.commit(written, of)
                except SinkFencedError:  # staging is empty after a crash
                    store(sink, {T0: (at, at + 5)})
        finally:
            monkeypatch.undo()
            starting.join()
        assert any("does not answer; waiting for up to 120 s" in line for line in caplog.messages)
        assert any("answers again" in line for line in caplog.messages)
        assert PASSWORD not in caplog.text
    assert place.orders() == plain({0: 15})


def test_a_database_that_stays_away_ends_the_run_with_one_line(tmp_path: Path) -> None:
    url = f"postgresql://roster:{PASSWORD}@/shop?host={tmp_path}&password={PASSWORD}"
    sink = PostgresSink(url, "orders")
    with pytest.raises(PipelineError, match=r"PostgresSink: .*shop") as caught:
        sink.open(None, GROUP, timeout_ms=1)  # type: ignore[arg-type]
    assert PASSWORD not in str(caught.value) + repr(sink)


def test_a_refused_login_is_not_waited_for(place: Place) -> None:
    sink = PostgresSink(place.url.replace(PASSWORD, "wrong-word"), "orders")
    began = time.monotonic()
    with pytest.raises(PipelineError, match="authentication failed") as caught:
        sink.open(None, GROUP, timeout_ms=3_600_000)  # type: ignore[arg-type]
    assert time.monotonic() - began < 60
    assert "wrong-word" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: PostgresSink(f"no url {PASSWORD}", "t"), "url: it is not a URL of a database"),
        (
            lambda: PostgresSink("mariadb+pymysql://h/d", "t"),
            "mariadb+pymysql is not PostgreSQL. For example postgresql://",
        ),
        (lambda: PostgresSink("postgresql+psycopg2://h/d", "t"), "is not PostgreSQL"),
        (lambda: PostgresSink("postgresql://h/d", ""), "table: no table given"),
        (lambda: PostgresSink(f"postgresql://u:x@y:{PASSWORD}@h/d", "t"), "as %2F, %40 and %3A"),
        (lambda: PostgresSink("postgresql://h/d", "t", mode="merge"), "mode: 'merge' is not possible"),
        (lambda: PostgresSink("postgresql://h/d", "t", keys="id"), "Add mode='upsert'"),
        (lambda: PostgresSink("postgresql://h/d", "t", timeout_ms=0), "timeout_ms: 0 is not a number"),
    ],
)
def test_arguments_are_checked_at_once(make: Any, problem: str) -> None:
    with pytest.raises(PipelineError) as caught:
        make()
    assert problem in str(caught.value)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("name", ["password", "sslpassword"])
def test_no_parameter_of_a_url_that_may_be_a_secret_is_shown(name: str, tmp_path: Path) -> None:
    sink = PostgresSink(f"postgresql://u@/d?host={tmp_path}/none&{name}=s3%2Fxyz", "t", timeout_ms=1)
    with pytest.raises(PipelineError) as caught:
        sink.open(None, GROUP, timeout_ms=1)  # type: ignore[arg-type]
    assert "none" in str(caught.value)
    assert "xyz" not in str(caught.value)


def test_a_parameter_of_a_url_that_the_driver_does_not_take_is_one_error() -> None:
    with pytest.raises(PipelineError, match="url: it is not a URL of a database"):
        PostgresSink("postgresql://u@h/d?nosuch=1", "t")
    sink = PostgresSink("postgresql://u@h/d?connect_timeout=soon", "t", timeout_ms=1)
    with pytest.raises(PipelineError, match="connect_timeout"):
        sink.open(None, GROUP, timeout_ms=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"id": T.IntegerType(), "": T.IntegerType()}, "a column has no name"),
        (
            {"id": T.IntegerType(), "gap": T.DayTimeIntervalType(), "nothing": T.NullType()},
            "`gap` is interval .*`nothing` is void",
        ),
        ({"id": T.IntegerType(), "x" * 64: T.IntegerType()}, "has more than 63 bytes"),
        ({"id": T.IntegerType(), "roster_row": T.IntegerType()}, "is a column of staging"),
        ({"n": T.IntegerType()}, "the rows have no column `id`"),
        ({"id": T.DoubleType()}, "keys: "),
    ],
)
def test_rows_are_checked_before_work_begins(fields: dict[str, T.DataType], problem: str) -> None:
    sink = PostgresSink("postgresql://h/d", "t", mode="upsert", keys="id")
    with pytest.raises(PipelineError, match=problem):
        sink.check(T.StructType([T.StructField(name, kind) for name, kind in fields.items()]))


def test_two_tables_of_a_group_have_positions_of_their_own(place: Place) -> None:
    one, two = (opened(place.sink(name), T0) for name in ("orders", "copies"))
    store(one, {T0: (0, 5)})
    assert two.positions(GROUP, [T0]) == {}
    store(two, {T0: (0, 5)})
    assert place.run("select count(*) from copies") == [(5,)]
