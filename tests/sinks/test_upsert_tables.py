"""Tables with one row a key: equal to rows replaced one by one, whoever writes, dies or comes back.

ROSTER_TABLE_KILLS is the number of kills of one run (4 without it).
"""

from __future__ import annotations

import os
import random
import time
import uuid
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BooleanType, DateType, LongType, StringType, StructField, StructType, TimestampType

from roster.pipeline.spark_schemas import arrow_schema
from roster.sinks import delta, table
from roster.spark import Owner, PipelineError, SinkFencedError
from tests.clocks import patch_time
from tests.examples_tried import examples, some
from tests.sinks.table_places import FILES, T0, T1, DeltaPlace, IcebergPlace, Place, Server, batch, opened
from tests.sinks.table_worker import GROUP, KEYS, UPDATED, forking, latest, uncommitted, upserted, work

if TYPE_CHECKING:
    from pathlib import Path

    from roster.sinks.table import TableSink

pytestmark = pytest.mark.timeout(900)

KILLS = int(os.environ.get("ROSTER_TABLE_KILLS", "4"))
TINY = 1_500
"""Bytes of a file: a few rows."""


@pytest.fixture(params=FILES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return FILES[request.param](str(tmp_path))


def sink_of(place: Place, **more: Any) -> TableSink:
    return place.sink(**{"mode": "upsert", "keys": KEYS, "target_file_bytes": TINY, **more})


def rows(place: Place) -> list[tuple[Any, ...]]:
    found = place.arrow().select(UPDATED.names).to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def ends(sink: TableSink) -> dict[int, int]:
    return {p.partition: at for p, at in sink.positions(GROUP, [T0, T1]).items()}


@pytest.mark.parametrize(
    ("partition_by", "target"), [([], TINY), ([], 1 << 20), (["partition"], TINY), (["name"], 1 << 20)]
)
@pytest.mark.sampled(4)
def test_the_last_row_of_each_key_is_there(place: Place, partition_by: list[str], target: int) -> None:
    sink = opened(sink_of(place, partition_by=partition_by, target_file_bytes=target), T0, T1)
    at = [0, 0]
    for size in some((1, 30, 2, 50, 0, 7, 90), quick=4):
        each = batch({T0: (at[0], at[0] + size), T1: (at[1], at[1] + 3)})
        sink.commit(upserted(sink, each), each)
        at = [at[0] + size, at[1] + 3]
        assert rows(place) == latest({0: at[0], 1: at[1]})
    assert ends(sink) == {0: at[0], 1: at[1]}


@pytest.mark.process
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.gate
def test_a_table_in_an_object_store(kind: str, tmp_path: Path, s3: Server) -> None:
    place = FILES[kind](str(tmp_path), s3)
    sink = opened(sink_of(place, partition_by=["partition"]), T0, T1)
    for start in range(0, 120, 40):
        each = batch({T0: (start, start + 40), T1: (start, start + 40)})
        sink.commit(upserted(sink, each), each)
    assert rows(place) == latest({0: 120, 1: 120})
    assert len(place.live_files()) > 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(2))
def test_random_histories_of_two_owners_of_all_partitions(place: Place, seed: int) -> None:
    """Each owner writes, commits late, dies and claims again at random moments: one of two wins, none is half done."""
    chance = random.Random(seed)
    owners = [opened(sink_of(place), T0, T1, member=name) for name in "ab"]
    at: list[dict[Any, int]] = [{}, {}]
    held: list[Any] = [None, None]
    for _ in range(examples(40, quick=15)):
        me = chance.randrange(2)
        if chance.random() < 0.2:
            owners[me] = opened(sink_of(place), member=f"n{chance.random()}")
            at[me], held[me] = {}, None
        elif held[me] is None:
            at[me] = at[me] or {T0: 0, T1: 0, **owners[me].claim([T0, T1], Owner(GROUP, 1, "x"), {})}
            chosen = chance.sample([T0, T1], chance.randint(1, 2))
            each = batch({p: (at[me][p], at[me][p] + chance.randint(1, 30)) for p in chosen})
            held[me] = each, upserted(owners[me], each)
        else:
            each, updates = held[me]
            try:
                owners[me].commit(updates, each)
                at[me].update(each.next_offsets)
            except SinkFencedError:
                at[me] = {}
            held[me] = None
        if count := ends(owners[0]):
            assert rows(place) == latest(count)


def test_owners_of_other_partitions_share_files(place: Place) -> None:
    one, two = (opened(sink_of(place, target_file_bytes=1 << 20), each) for each in (T0, T1))
    for start in range(0, 60, 20):
        first, second = batch({T0: (start, start + 20)}), batch({T1: (start, start + 20)})
        updates = upserted(one, first), upserted(two, second)
        one.commit(updates[0], first)
        two.commit(updates[1], second)
    assert rows(place) == latest({0: 60, 1: 60})
    assert len(place.live_files()) == 1


def test_a_commit_that_comes_second_merges_only_what_has_changed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is lost to another one that replaced other files: what it had written before is still used."""
    one, two = (opened(sink_of(place, partition_by="partition"), each, member=str(each)) for each in (T0, T1))
    first = batch({T0: (0, 20)})
    one.commit(upserted(one, first), first)
    slow, quick = batch({T0: (20, 40)}), batch({T1: (0, 20)})
    late = upserted(one, slow)
    made: list[str] = []
    write = type(late)._write
    attempt = type(one)._try_commit

    def written(merge: Any, part: Any) -> Any:
        files = write(merge, part)
        if merge is late:
            made.extend(file.name.rpartition("/")[2] for file in files)
        return files

    def overtaken(sink: Any, *arguments: Any) -> None:
        if sink is one and not ends(two).get(1):
            two.commit(upserted(two, quick), quick)
        attempt(sink, *arguments)

    monkeypatch.setattr(type(late), "_write", written)
    monkeypatch.setattr(type(one), "_try_commit", overtaken)
    one.commit(late, slow)
    assert rows(place) == latest({0: 40, 1: 20})
    assert made
    assert set(made) <= place.live_files()


def test_of_two_owners_one_wins_and_the_others_files_go(place: Place) -> None:
    old, new = (opened(sink_of(place), T0, member=name) for name in ("old", "new"))
    first = batch({T0: (0, 10)}, "old")
    old.commit(upserted(old, first), first)
    slow, quick = batch({T0: (10, 30)}, "old"), batch({T0: (10, 14)}, "new")
    late = upserted(old, slow)
    new.commit(upserted(new, quick), quick)
    before = place.files()
    with pytest.raises(SinkFencedError, match="t-0 stands at 14, not at 10"):
        old.commit(late, slow)
    assert rows(place) == latest({0: 14})
    assert place.files() == before


def test_only_files_with_a_batch_s_keys_are_replaced(place: Place) -> None:
    sink = opened(sink_of(place), T0, T1)
    both = batch({T0: (0, 200), T1: (0, 200)})
    sink.commit(upserted(sink, both), both)
    again = batch({T0: (200, 400), T1: (200, 201)})
    sink.commit(upserted(sink, again), again)  # divided by now
    before = place.live_files()
    assert len(before) > 4
    few = batch({T1: (201, 202)})
    sink.commit(upserted(sink, few), few)
    assert 1 <= len(before - place.live_files()) <= 2
    assert rows(place) == latest({0: 400, 1: 202})


def test_the_number_of_files_follows_the_rows_and_not_the_batches(place: Place) -> None:
    sink = opened(sink_of(place, target_file_bytes=3_000), T0)
    batches = examples(20)
    for number in range(batches):
        each = batch({T0: (20 * number, 20 * number + 20)})
        sink.commit(upserted(sink, each), each)
    assert rows(place) == latest({0: 20 * batches})
    assert len(place.live_files()) <= 4, "of 8 batches or 20"


def test_rows_appended_by_others_are_replaced_too(tmp_path: Path) -> None:
    """Statistics and files of another writer, with a key twice."""
    from deltalake import write_deltalake

    place = DeltaPlace(str(tmp_path))
    sink = opened(sink_of(place), T0)
    first = batch({T0: (0, 50)})
    sink.commit(upserted(sink, first), first)
    more = place.arrow().slice(0, 9)
    write_deltalake(place.table(), more, mode="append")
    place.table().optimize.compact()
    every = batch({T0: (50, 900)})
    sink.commit(upserted(sink, every), every)
    assert rows(place) == latest({0: 900})


def test_a_column_that_was_renamed_keeps_its_values(tmp_path: Path) -> None:
    """Files have the name of before; Iceberg tells columns by their ids."""
    place = IcebergPlace(str(tmp_path))
    sink = opened(sink_of(place), T0)
    first = batch({T0: (0, 60)})
    sink.commit(upserted(sink, first), first)
    before = place.arrow().select(UPDATED.names).to_pylist()
    with place.table().update_schema() as update:
        update.rename_column("text", "words")
    schema = StructType([StructField("words", f.dataType) if f.name == "text" else f for f in UPDATED])
    sink = opened(sink_of(place), T0)
    second = batch({T0: (60, 61)})
    writer = sink.task_writer(second, schema)
    output = writer.open()
    output.write(pa.RecordBatch.from_pylist([{"partition": 0, "name": "new", "n": 60, "words": "x"}], writer.schema))
    sink.commit(sink.collect(writer, [output.close()], second), second)
    after = {row["name"]: row["words"] for row in place.arrow().to_pylist()}
    assert after == {**{row["name"]: row["text"] for row in before}, "new": "x"}


def test_a_table_with_delete_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg writes none: the manifest of data files is made to be one of deletes."""
    from pyiceberg.manifest import ManifestContent, ManifestFile

    sink = opened(sink_of(IcebergPlace(str(tmp_path))), T0)
    first, second = batch({T0: (0, 5)}), batch({T0: (5, 6)})
    sink.commit(upserted(sink, first), first)
    monkeypatch.setattr(ManifestFile, "content", ManifestContent.DELETES)
    with pytest.raises(PipelineError, match=r"IcebergSink: shop\.orders has delete files"):
        sink.commit(upserted(sink, second), second)


def test_manifests_without_files_are_left_out(tmp_path: Path) -> None:
    place = IcebergPlace(str(tmp_path))
    sink = opened(sink_of(place, target_file_bytes=1 << 20), T0)
    for start in range(0, 60, 10):
        each = batch({T0: (start, start + 10)})
        sink.commit(upserted(sink, each), each)
    assert len(place.table().current_snapshot().manifests(place.table().io)) <= 2
    assert rows(place) == latest({0: 60})


MOMENTS = [
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    *(datetime(1969, 12, 31, 23, 59, 59, 900_000 + n, tzinfo=UTC) for n in range(0, 5000, 700)),
    *(datetime(2026, 1, 1, 0, 0, n // 3, n * 100 + 1, tzinfo=UTC) for n in range(12)),
    None,
]
TEXTS = [
    *(f"{'x' * 31}{n}" for n in range(5)),
    *(f"{'y' * 32}{n}" for n in range(5)),
    "y" * 32 + "\U0010ffff\U0010ffff",
    "",
]
TYPED = StructType(
    [
        StructField("day", DateType()),
        StructField("at", TimestampType()),
        StructField("text", StringType()),
        StructField("flag", BooleanType()),
        StructField("n", LongType()),
    ]
)
typed_keys = st.tuples(
    st.sampled_from([None, date(1969, 5, 1), date(2026, 1, 1)]),
    st.sampled_from(MOMENTS),
    st.sampled_from(TEXTS),
    st.sampled_from([True, False, None]),
)


@settings(max_examples=examples(8, quick=3), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.lists(typed_keys, max_size=40), min_size=2, max_size=5),
    order=st.permutations(["day", "at", "text", "flag"]),
    partition_by=st.sampled_from([[], ["day"], ["text"], ["flag", "day"]]),
)
@pytest.mark.parametrize("kind", FILES)
def test_keys_of_all_kinds_are_found_by_the_statistics_of_their_files(
    kind: str, tmp_path: Path, batches: list[list[Any]], order: list[str], partition_by: list[str]
) -> None:
    """Times below a millisecond, long texts, nulls, the extremes of a type: each is one row, in files of a few rows."""
    folder = tmp_path / uuid.uuid4().hex
    folder.mkdir()
    place = FILES[kind](str(folder))
    sink = opened(sink_of(place, keys=order, partition_by=partition_by), T0)
    wanted: dict[Any, int] = {}
    offset = 0
    for keys in batches:
        each = batch({T0: (offset, offset + len(keys))})
        writer = sink.task_writer(each, TYPED)
        output = writer.open()
        found = [(*key, offset + number) for number, key in enumerate(keys)]
        columns = zip(*found, strict=True) if found else [[]] * 5
        types = arrow_schema(TYPED).types
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        output.write(pa.RecordBatch.from_arrays(arrays, TYPED.names))
        sink.commit(sink.collect(writer, [output.close()], each), each)
        offset += len(keys)
        # A partition column of a Delta table cannot tell "" from null.
        joined = {"text"} & {*partition_by} if kind == "delta" else set()
        for *key, n in found:
            wanted[tuple(None if joined and part == "" else part for part in key)] = n
    rows = [tuple(row[name] for name in TYPED.names) for row in place.arrow().to_pylist()]
    assert sorted(rows, key=repr) == sorted(((*key, n) for key, n in wanted.items()), key=repr)


def test_files_that_were_replaced_are_deleted_after_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = DeltaPlace(str(tmp_path))
    sink = opened(sink_of(place), T0)
    now = time.time_ns()
    for hours, start in ((3, 0), (3, 50), (0, 100), (0, 150)):
        patch_time(monkeypatch, delta, time_ns=lambda ago=hours * 3600 * 10**9: now - ago)
        each = batch({T0: (start, start + 50)})
        sink.commit(upserted(sink, each), each)
    before, replaced = place.files(), place.files() - place.live_files()
    later = time.monotonic() + 1000
    patch_time(monkeypatch, delta, table, monotonic=lambda: later)
    last = batch({T0: (200, 201)})
    live = place.live_files()
    sink.commit(upserted(sink, last), last)
    sink.close()
    gone = before - place.files()
    assert gone
    assert gone < replaced, "the files of the last hour stay for those who read them"
    assert rows(place) == latest({0: 201})
    assert live - place.live_files() <= place.files()


SIZE = 10


def _work(kind: str, folder: str, member: str, partition: int, end: Any) -> None:
    make = partial(sink_of, FILES[kind](folder))
    work(make, member, [partition], lambda: end.value, SIZE, upserted)


@pytest.mark.process
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.gate) for kind in FILES])
def test_kills_and_take_overs(kind: str, tmp_path: Path) -> None:
    """Two owners of each partition; one of the four is killed at a random moment, again and again."""
    context = forking()
    chance = random.Random(KILLS)
    end = context.Value("q", 1_000_000, lock=False)  # until the last kill there is always more
    place = FILES[kind](str(tmp_path))
    sink = opened(sink_of(place))
    sink.task_writer(batch({T0: (0, 1)}), UPDATED)

    def start(number: int, partition: int) -> Any:
        process = context.Process(target=_work, args=(kind, str(tmp_path), f"m{number}", partition, end))
        process.start()
        return process

    running = [(number % 2, start(number, number % 2)) for number in range(4)]
    for number in range(4, 4 + KILLS):
        partition, victim = running.pop(chance.randrange(4))
        victim.join(chance.uniform(0.0, 1.0))
        assert victim.exitcode is None
        victim.kill()
        victim.join()
        running.append((partition, start(number, partition)))
    end.value = max(ends(sink).values(), default=0) + 5 * SIZE
    for _, process in running:
        process.join()
        assert process.exitcode == 0
    found = ends(sink)
    assert min(found[0], found[1]) >= end.value
    assert rows(place) == latest(found)
    print(f"{kind}: {KILLS} kills, {found}")


def test_readers_see_one_row_a_key(place: Place) -> None:
    sink = opened(sink_of(place), T0)
    for start in range(0, 100, 25):
        each = batch({T0: (start, start + 25)})
        sink.commit(upserted(sink, each), each)
        wanted = latest({0: start + 25})
        for read in (place.duckdb().to_arrow_table(), place.polars().to_arrow()):
            assert sorted((tuple(row.values()) for row in read.select(UPDATED.names).to_pylist()), key=repr) == wanted


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"mode": "replace"}, "mode: 'replace' is not possible. Use 'append' or 'upsert'"),
        ({"mode": "append"}, "keys: rows are appended, whatever their keys. Add mode='upsert'"),
        ({"keys": []}, "keys: nothing says which columns tell the rows apart"),
        ({"keys": ["nmae"]}, "keys: the rows have no column `nmae`"),
        ({"partition_by": ["n"]}, "partition_by: `n` is none of the keys partition, name"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(place: Place, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(PipelineError) as refused:
        opened(sink_of(place, **options)).check(UPDATED)
    assert problem in str(refused.value)


@pytest.mark.parametrize("options", [{"keys": ["name"]}, {"mode": "append", "keys": []}])
def test_a_table_keeps_its_keys(place: Place, options: dict[str, Any]) -> None:
    opened(sink_of(place), T0).task_writer(batch({T0: (0, 1)}), UPDATED)
    with pytest.raises(PipelineError, match="the table has one row for each of"):
        opened(sink_of(place, **options), T0).task_writer(batch({T0: (0, 1)}), UPDATED)


def test_a_table_of_appended_rows_has_no_keys(place: Place) -> None:
    from tests.sinks.table_worker import SCHEMA

    plain = opened(place.sink(), T0)
    first = batch({T0: (0, 1)})
    plain.commit(uncommitted(plain, first), first)
    with pytest.raises(PipelineError, match=r"keys: the table has no roster.keys"):
        opened(sink_of(place, keys=["shop"]), T0).task_writer(batch({T0: (1, 2)}), SCHEMA)
