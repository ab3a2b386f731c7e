"""Bits of a task's store flip on the disk: no result is computed from them, and the store is restored."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import lmdb
import pyarrow as pa
import pytest

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.spark.queries.store_reads import ReadsHere, Wanted
from roster.state.aggregate import Aggregation
from roster.state.aggregate_functions import ALL_ROWS, Aggregate, Kind
from roster.state.changelog import SCHEMA
from roster.state.definition import STATE_KEY
from roster.state.entries import Span
from roster.state.file_store import TaskStore
from roster.state.store import Position
from roster.stateful.tasks.catch_up import StoreTarget
from roster.stateful.tasks.host_stores import RestoreJob, restore_copy
from roster.stateful.tasks.processing import process_batch
from roster.stateful.tasks.store_location import Place, on_sound, open_store
from roster.stateful.tasks.subtopology import definition_of
from tests.examples_tried import some
from tests.stateful.test_store_processing import Log

CHANGELOG = TopicPartition("g-aggregates-changelog", 0)
TOTALS = Aggregation(("k",), {"n": Aggregate(Kind.COUNT, ALL_ROWS), "s": Aggregate(Kind.SUM, "v")})
KEPT = definition_of(TOTALS, pa.schema([("k", pa.string()), ("v", pa.int64())]))
KEYS = [f"user-{number:03}" for number in range(400)]
ADDED = [f"user-{number:03}+" for number in range(0, 400, 7)]
"""Keys that come for the first time, each beside one that is there."""


class Task:
    """A task's store on one host, its changelog, and the totals as a dictionary has them."""

    def __init__(self, disk: Path, is_ordered: bool) -> None:
        self.place, self.log = Place(str(disk), CHANGELOG.topic, "id", is_ordered), Log()
        self.totals: dict[str, tuple[int, int]] = {}
        self.at = 0

    @property
    def data(self) -> Path:
        """The file of the store."""
        return self.place.path("0_0") / "data" / ("data.mdb" if self.place.is_ordered else "heap")

    def stored(self) -> TaskStore:
        """Open the store."""
        return open_store(self.place.path("0_0"), is_ordered=self.place.is_ordered)

    def put(self, data: bytes) -> None:
        """Let the store be as it was at first, but for these data."""
        path, first = self.place.path("0_0"), self.place.root / "first"
        if not first.exists():
            shutil.copytree(path, first)
        shutil.rmtree(path)
        shutil.copytree(first, path)
        self.data.write_bytes(data)

    def fetch(self, _: TopicPartition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the committed records in one batch."""
        found = [(at, *entry) for at, entry in enumerate(self.log.records[start:end], start) if entry is not None]
        if found:
            yield pa.RecordBatch.from_arrays([pa.array(each) for each in zip(*found, strict=True)], SCHEMA.names)

    def turn(
        self, keys: list[str], value: int, token: str | None = None
    ) -> tuple[bool, dict[str, tuple[int, int]], str]:
        """Count a record of each key; return whether the store was restored, the results, and the attempt's token."""
        rows = pa.table({"k": pa.array(keys, pa.string()), "v": pa.array([value] * len(keys), pa.int64())})
        target = StoreTarget(CHANGELOG, 0, len(self.log.records), {"t": self.at}, token)
        with self.place.open("0_0") as store:
            inputs = {"t": self.at + len(keys)}
            update, report = on_sound(
                store, partial(process_batch, store, target, TOTALS, KEPT, rows, inputs, self.fetch)
            )
            is_new = store.discarded is not None
        columns = update.results.to_pydict()
        results = dict(zip(columns["k"], zip(columns["n"], columns["s"], strict=True), strict=True))
        self.changes = update.changes
        return is_new, results, report.token

    def committed(self, keys: list[str], value: int, token: str | None = None) -> str:
        """Count a record of each key, and commit that."""
        _, results, token = self.turn(keys, value, token)
        self.log.write(self.changes, committed=True)
        self.totals |= results
        self.at += len(keys)
        return token


@pytest.fixture(scope="module", params=[True, False], ids=["ordered", "hashed"])
def task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Task:
    """A task that has counted each key five times, all of it applied to its store."""
    task, token = Task(tmp_path_factory.mktemp("state"), request.param), None
    for value in range(5):
        token = task.committed(KEYS, value, token)
    task.committed([], 0, token)
    task.put(task.data.read_bytes())
    assert task.totals == dict.fromkeys(KEYS, (5, 10))
    return task


def after(totals: dict[str, tuple[int, int]], keys: list[str], value: int) -> dict[str, tuple[int, int]]:
    old = [totals.get(key, (0, 0)) for key in keys]
    return {key: (n + 1, s + value) for key, (n, s) in zip(keys, old, strict=True)}


def flipped(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def places_of(data: bytes, entry: bytes) -> list[int]:
    """Where an entry is in a file, old versions of its page included."""
    found, at = [], data.find(entry)
    while at >= 0:
        found.append(at)
        at = data.find(entry, at + 1)
    return found


def stored_entries(store: Path) -> dict[bytes, bytes]:
    """What is stored, as LMDB has it, or the heap."""
    if (store / "data" / "heap").exists():
        with open_store(store, is_ordered=False) as opened:
            return dict(opened.scan())
    with lmdb.open(str(store / "data"), max_dbs=2, lock=False, readonly=True) as environment:
        values = environment.open_db(b"values", create=False)
        with environment.begin() as transaction:
            return dict(transaction.cursor(db=values))


@pytest.mark.parametrize("part", ["key", "value"])
def test_one_flipped_bit_of_an_entry_is_in_no_result(task: Task, part: str) -> None:
    sound, chance = task.data.read_bytes(), random.Random(5)
    entries = sorted(stored_entries(task.place.path("0_0")).items())
    wanted = after(task.totals, KEYS + ADDED, 100)
    for key, value in some(chance.sample([entry for entry in entries if entry[0] != STATE_KEY], 60)):
        begin, size = (0, len(key)) if part == "key" else (len(key), len(value))
        offset, bit = begin + chance.randrange(size), chance.randrange(8)
        damaged = sound
        for at in places_of(sound, key + value):
            damaged = flipped(damaged, at + offset, bit)
        task.put(damaged)
        is_new, results, _ = task.turn(KEYS + ADDED, 100)
        assert (is_new, results) == (True, wanted), (key, offset, bit)
        assert task.turn(KEYS, 100)[0] is False, "it has been restored"
    task.put(sound)


def test_a_flipped_bit_anywhere_in_a_store_is_in_no_result(task: Task) -> None:
    sound, chance = task.data.read_bytes(), random.Random(8)
    wanted, restored = after(task.totals, KEYS + ADDED, 100), 0
    for _ in some(range(200), quick=60):
        task.put(flipped(sound, chance.randrange(len(sound)), chance.randrange(8)))
        is_new, results, _ = task.turn(KEYS + ADDED, 100)
        assert results == wanted
        restored += is_new
    assert restored, "some of them were of what is in use"
    task.put(sound)


@pytest.fixture
def damaged(task: Task, tmp_path: Path) -> Task:
    """A copy of the task whose store has a flipped bit in one entry."""
    shutil.copytree(task.place.root.parent, tmp_path / CHANGELOG.topic)
    copy = Task(tmp_path, task.place.is_ordered)
    copy.log, copy.totals, copy.at = task.log, task.totals, task.at
    key, value = min(stored_entries(copy.place.path("0_0")).items())
    data = copy.data.read_bytes()
    for at in places_of(data, key + value):
        data = flipped(data, at + len(key), 0)
    copy.data.write_bytes(data)
    return copy


def test_a_store_that_is_restored_says_so_once(damaged: Task, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert damaged.turn(KEYS, 1)[0]
    (said,) = caplog.messages
    part = "an entry" if damaged.place.is_ordered else "a slot or an entry"
    assert said == (
        f"store {damaged.place.path('0_0')}: the files are damaged ({part} does not have its checksum); "
        "it is made anew from its changelog"
    )


def test_a_value_that_cannot_be_decoded_is_restored_too(damaged: Task) -> None:
    with damaged.stored() as store:
        store.clear()
        entries = dict(each for each in damaged.log.records if each is not None)
        cut = {key: value[:-1] for key, value in entries.items()} | {STATE_KEY: entries[STATE_KEY]}
        store.commit(list(cut), list(cut.values()), Position(len(damaged.log.records), {"t": damaged.at}))
    assert damaged.turn(KEYS, 1)[:2] == (True, after(damaged.totals, KEYS, 1))


def test_a_query_of_a_damaged_store_says_what_to_delete(damaged: Task) -> None:
    reads = ReadsHere(damaged.place, KEPT)
    (outcome,) = reads(Span(), [Wanted(TaskId(0, 0), 1, None)])
    path = damaged.place.path("0_0")
    assert outcome.read is None
    assert outcome.problem.endswith(f"delete {path}, it is restored from the changelog")


def test_a_copy_that_is_damaged_is_restored(damaged: Task) -> None:
    whole = dict(each for each in damaged.log.records if each is not None)
    damaged.data.write_bytes(damaged.data.read_bytes()[:100])
    job = RestoreJob(TaskId(0, 0), StoreTarget(CHANGELOG, 0, len(damaged.log.records), {}, None))
    copy = restore_copy(damaged.place, job, damaged.fetch, float("inf"))
    assert (copy.position, copy.problem) == (job.target.end, "")
    with damaged.stored() as store:
        assert dict(store.scan()) == whole
