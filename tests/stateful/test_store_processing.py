"""Batches at a store against a plain computation: whatever befalls batches, stores and owners, each sees the state."""

from __future__ import annotations

import os
import time
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.pipeline.batch import Batch, Owner, Range
from roster.pipeline.errors import FunctionError, PipelineError, SinkFencedError
from roster.spark.stateful_batches import tokens_of
from roster.state import Position
from roster.state.aggregate import Aggregation, Update
from roster.state.aggregate_functions import Aggregate, Kind
from roster.state.definition import Definition
from roster.state.hash_store import HashStore
from roster.state.lmdb_store import LmdbStore
from roster.stateful.changelogs import Changelog, Changelogs
from roster.stateful.stores import StoreTargets
from roster.stateful.tasks import store_location
from roster.stateful.tasks.catch_up import StoreTarget, catch_up
from roster.stateful.tasks.host_stores import stores_found
from roster.stateful.tasks.processing import Report, process_batch
from roster.stateful.tasks.relay import Relay
from roster.stateful.tasks.store_location import Place, open_store
from roster.stateful.tasks.subtopology import definition_of
from tests.examples_tried import examples

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from roster.state import Snapshot

SOURCE = TopicPartition("t", 0)
LOG = TopicPartition("g-s-changelog", 0)
TASK = TaskId(0, 0)
TASKS = Subtopology(0, ("t",), ("s",))
KEPT = Definition.of({"operator": "replace"}, pa.schema([("k", pa.binary())]), None)


class Log:
    """A changelog partition with markers and aborted records, as a broker has it."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None] | None] = []
        self.begin, self.open_from, self.looks = 0, -1, 0

    def write(self, changes: pa.Table, *, committed: bool) -> None:
        entries = list(zip(changes["key"].to_pylist(), changes["value"].to_pylist(), strict=True))
        self.records += entries if committed else [None] * len(entries)
        self.records.append(None)  # the marker

    def fetch(self, _: TopicPartition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        found = [(at, *entry) for at, entry in enumerate(self.records[start:end], start) if entry is not None]
        for at in range(0, len(found), 2):
            offsets, keys, values = zip(*found[at : at + 2], strict=True)
            columns = [pa.array(offsets, pa.int64()), pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, ["offset", "key", "value"])

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.begin)

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, len(self.records))

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.looks += 1
        if self.open_from < 0 or self.looks > 3:
            return self.end_offsets(partitions)
        return dict.fromkeys(partitions, self.open_from)


def replace_values(rows: pa.Table, snapshot: Snapshot) -> Update:
    """Sets each key to its new value, removes it for "", and tells what was there."""
    pairs = dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
    changes = pa.table(
        [pa.array(pairs, pa.binary()), pa.array([value or None for value in pairs.values()], pa.binary())],
        ["key", "value"],
    )
    return Update(pa.table({"seen": [str(entries(snapshot))]}), changes)


def entries(snapshot: Any) -> list[tuple[bytes, bytes]]:
    """What an operator has put into a store."""
    return list(snapshot.scan(stop=b"\xff"))


def batch_of(start: int, size: int) -> Batch:
    return Batch(0, Owner("g", 1, "m"), {SOURCE: Range(start, start + size)})


KINDS = ["abort", "lost answer", "killed", "second attempt", "other owner", "new disk", "zombie", "by tasks", "died"]
keys = st.sampled_from([b"a", b"b", b"c"])
steps = st.tuples(
    st.sampled_from(["commit"] * 4 + KINDS),
    st.dictionaries(keys, st.sampled_from([b"", b"1", b"2", b"3"]), min_size=1),
)


@pytest.fixture(autouse=True)
def none_stays_open() -> Iterator[None]:
    yield
    store_location.close_unused(0.0)
    store_location._open = None


@pytest.fixture(params=[True, False], ids=["ordered", "hashed"], scope="module")
def is_ordered(request: pytest.FixtureRequest) -> bool:
    """Both engines of a store."""
    return bool(request.param)


@pytest.mark.parametrize("stays", [False, True])
@given(script=st.lists(steps, max_size=10))
@example(script=[("commit", {b"a": b"1"}), ("other owner", {b"b": b"1"}), ("other owner", {b"c": b"1"})])
@example(script=[("commit", {b"a": b"1"}), ("second attempt", {b"a": b"2"}), ("lost answer", {b"a": b"3"})])
@example(script=[("commit", {b"a": b"1"}), ("abort", {b"a": b"2"}), ("commit", {b"a": b"3"})])
@settings(max_examples=examples(25, "ROSTER_STATE_SCRIPTS"))
def test_a_turn_sees_the_state_of_all_committed_batches(
    is_ordered: bool, tmp_path_factory: pytest.TempPathFactory, stays: bool, script: Any
) -> None:
    store_location.close_unused(0.0)
    if stays:
        store_location.keep_open()
    disk = tmp_path_factory.mktemp("state")
    log, model = Log(), {}
    changelogs = Changelogs([Changelog("g-s-changelog", "id", 1, TASKS)])
    applications = [
        (StoreTargets(log, changelogs, 1.0), Place(str(disk / name), "g-s-changelog", "id", is_ordered))
        for name in "ab"
    ]
    at = 0

    def target(targets: StoreTargets, place: Place, changes: dict[bytes, bytes]) -> tuple[Update, Report]:
        rows = pa.table({"k": list(changes), "v": list(changes.values())})
        with place.open("0_0") as store:
            return process_batch(
                store, targets.prepare(batch_of(at, 5))[TASK][0], replace_values, KEPT, rows, {"t": at + 5}, log.fetch
            )

    for kind, changes in script:
        if kind == "other owner":
            applications.reverse()
            applications[0][0].forget([SOURCE])
        if kind == "new disk":
            applications[0] = applications[0][0], Place(str(disk / uuid.uuid4().hex), "g-s-changelog", "id", is_ordered)
        if kind == "died":  # its process, after the batch before
            store_location.close_unused(0.0)
        targets, place = applications[0]
        update, report = target(targets, place, changes)
        assert update.results["seen"].to_pylist() == [str(sorted(model.items()))], kind
        if kind == "killed":
            continue  # nothing was sent
        reports = {TASK: (report,)}
        if kind == "second attempt":
            reports = {TASK: (report, target(targets, place, changes)[1])}
        log.write(update.changes, committed=kind != "abort")
        if kind in ("abort", "lost answer"):
            targets.forget([SOURCE])
        else:
            # What tasks write themselves leaves the ends unknown.
            ends = {} if kind == "by tasks" else {LOG: len(log.records)}
            targets.committed(tokens_of(reports), batch_of(at, 5), ends)
        if kind == "zombie":  # an earlier owner's last batch, which does not count
            log.write(update.changes, committed=False)
        if kind != "abort":
            model = {key: value for key, value in {**model, **changes}.items() if value}
            at += 5
    targets, place = applications[0]
    targets.forget([SOURCE])
    target(targets, place, {})
    with place.open("0_0") as store:
        assert dict(entries(store)) == model
        assert store.position() == Position(len(log.records), {"t": at})


def test_a_store_is_brought_up_by_what_is_left_of_the_log_and_not_by_more(is_ordered: bool, tmp_path: Path) -> None:
    log, targets = Log(), None
    place = Place(str(tmp_path), "g-s-changelog", "id", is_ordered)
    for number in range(4):
        changes = pa.table({"key": [b"%d" % number], "value": [b"v"]})
        log.write(changes, committed=True)
    targets = StoreTargets(log, Changelogs([Changelog("g-s-changelog", "id", 1, TASKS)]), 1.0)
    fetched: list[tuple[int, int]] = []

    def fetch(partition: TopicPartition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        fetched.append((start, end))
        return log.fetch(partition, start, end)

    def restored() -> int:
        targets.forget([SOURCE])
        with place.open("0_0") as store:
            return catch_up(store, targets.prepare(batch_of(0, 5))[TASK][0], fetch).records

    assert (restored(), fetched) == (4, [(0, 8)])
    log.write(pa.table({"key": [b"x"], "value": [b"v"]}), committed=True)
    assert (restored(), fetched[1:]) == (1, [(8, 10)])
    assert (restored(), len(fetched)) == (0, 2)
    log.write(pa.table({"key": [b"x"], "value": [b"v"]}), committed=True)
    a_day_ago = time.time() - 86_400
    os.utime(place.path("0_0") / "data" / ("data.mdb" if is_ordered else "head"), (a_day_ago, a_day_ago))
    assert (restored(), fetched[2:]) == (6, [(0, 12)]), "tombstones may be gone that it has not seen"
    fetched.pop()
    log.begin = len(log.records) + 3  # records are gone that the store has not seen
    log.records += [None] * 5
    assert (restored(), fetched[2:]) == (0, [(15, 17)])
    with place.open("0_0") as store:
        assert store.scan() == []


def test_a_store_of_the_other_engine_is_restored_once_and_the_log_says_so(
    is_ordered: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    place, earlier = (Place(str(tmp_path), "g-s-changelog", "id", kind) for kind in (is_ordered, not is_ordered))
    log.write(pa.table({"key": [b"k", b"l"], "value": [b"v", b"w"]}), committed=True)
    target = StoreTarget(LOG, 0, len(log.records), {}, None)
    for at, restored in ((earlier, 2), (place, 2), (place, 0)):
        with at.open("0_0") as store:
            assert catch_up(store, target, log.fetch).records == restored
            assert store.scan() == [(b"k", b"v"), (b"l", b"w")]
    other, own = (LmdbStore.layout, HashStore.layout) if not is_ordered else (HashStore.layout, LmdbStore.layout)
    assert [message.split(": ", 1)[1] for message in caplog.messages if "anew" in message] == [
        f"it has format {other}, this release keeps such state in {own}; it is made anew from its changelog"
    ]
    assert stores_found(place).keys() == {TASK}
    assert stores_found(earlier) == {}


def test_a_restore_that_is_cancelled_goes_on_where_it_was(
    is_ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roster.stateful.tasks.catch_up._MOST_OFFSETS", 4)
    log, place = Log(), Place(str(tmp_path), "g-s-changelog", "id", is_ordered)
    for number in range(6):
        log.write(pa.table({"key": [b"%d" % number], "value": [b"v"]}), committed=True)
    targets, fetched = (
        StoreTargets(log, Changelogs([Changelog("g-s-changelog", "id", 1, TASKS)]), 1.0),
        list[tuple[int, int]](),
    )

    def fetch(partition: TopicPartition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        fetched.append((start, end))
        if len(fetched) == 2:
            raise RuntimeError("cancelled")
        return log.fetch(partition, start, end)

    with place.open("0_0") as store, pytest.raises(RuntimeError):
        catch_up(store, targets.prepare(batch_of(0, 5))[TASK][0], fetch)
    with place.open("0_0") as store:
        applied = catch_up(store, targets.prepare(batch_of(0, 5))[TASK][0], fetch)
        assert dict(store.scan()) == {b"%d" % number: b"v" for number in range(6)}
        assert store.position() == Position(12, {"t": 0})
    assert applied.records == 4
    assert fetched == [(0, 4), (4, 8), (4, 8), (8, 12)]


def test_a_piece_of_restoring_ends_in_time_among_aborted_records_too(
    is_ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, place = Log(), Place(str(tmp_path), "g-s-changelog", "id", is_ordered)
    first, last = (pa.table({"key": [key], "value": [b"v"]}) for key in (b"first", b"last"))
    log.write(first, committed=True)
    log.records += [None] * 400_000
    log.write(last, committed=True)
    now = 0.0
    monkeypatch.setattr("roster.stateful.tasks.catch_up.time", SimpleNamespace(monotonic=lambda: now))

    def fetch(partition: TopicPartition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        nonlocal now
        now += (end - start) / 100_000
        return log.fetch(partition, start, end)

    target, pieces = StoreTarget(TopicPartition("g-s-changelog", 0), 0, len(log.records), {}, None), list[float]()
    with place.open("0_0") as store:
        while store.position().changelog < target.end:
            began = now
            catch_up(store, target, fetch, until=now + 0.5)
            pieces.append(now - began)
        assert dict(store.scan()) == {b"first": b"v", b"last": b"v"}
    assert max(pieces) <= 1.0, "of 0.5 s each"
    assert len(pieces) <= 10, "each goes on where the one before was"


def test_records_that_are_in_the_state_do_not_count_again(is_ordered: bool, tmp_path: Path) -> None:
    log, place = Log(), Place(str(tmp_path), "g-s-changelog", "id", is_ordered)
    targets, rows = (
        StoreTargets(log, Changelogs([Changelog("g-s-changelog", "id", 1, TASKS)]), 1.0),
        pa.table({"k": [b"a"], "v": [b"1"]}),
    )

    def target(start: int) -> None:
        with place.open("0_0") as store:
            prepared = targets.prepare(batch_of(start, 5))[TASK][0]
            update, _ = process_batch(store, prepared, replace_values, KEPT, rows, {"t": start + 5}, log.fetch)
            log.write(update.changes, committed=True)

    target(0)
    target(5)
    for start in (5, 0, 15):  # the group's offset is not the one that was committed with the state
        with pytest.raises(SinkFencedError, match=r"is that of \{'t': 10\}, and the batch begins at"):
            target(start)
    target(10)


def test_times_of_sources_go_on_where_an_earlier_release_worked_without_them(tmp_path: Path) -> None:
    log, place, rows = Log(), Place(str(tmp_path), "g-s-changelog", "id"), pa.table({"k": [b"a"], "v": [b"1"]})
    targets = StoreTargets(log, Changelogs([Changelog("g-s-changelog", "id", 1, TASKS)]), 1.0)
    relay = Relay(pa.schema([("k", pa.binary())]), "t")
    for start in (0, 15, 10):
        with place.open("0_0") as store:
            prepared = targets.prepare(batch_of(start, 5))[TASK][0]
            definition = definition_of(relay, rows.schema)
            update, _ = process_batch(store, prepared, relay, definition, rows, {"t": start + 5}, log.fetch)
            log.write(update.changes, committed=True)
        assert update.results == rows


def test_tokens_of_a_batch_replace_all_that_its_tasks_had() -> None:
    targets = StoreTargets(Log(), Changelogs([Changelog("g-s-changelog", "id", 1, TASKS)]), 1.0)
    targets.committed({TASK: "a"}, batch_of(0, 5))
    assert targets.prepare(batch_of(5, 5))[TASK][0].token == "a"
    targets.committed({}, batch_of(5, 5))  # two attempts ended
    assert targets.prepare(batch_of(10, 5))[TASK][0].token is None


def test_a_batch_waits_until_the_transactions_before_are_decided() -> None:
    log = Log()
    log.records, log.open_from = [None] * 9, 4
    targets = StoreTargets(log, Changelogs([Changelog("c", "id", 1, TASKS)]), 60.0)
    assert targets.prepare(batch_of(3, 2))[TASK][0].end == 9
    assert log.looks == 4
    log.looks = -10_000
    with pytest.raises(SinkFencedError, match="c-0: a transaction is open from offset 4 on"):
        StoreTargets(log, Changelogs([Changelog("c", "id", 1, TASKS)]), 0.0).prepare(batch_of(3, 2))


def test_ends_that_the_batch_before_has_left_are_not_asked_for() -> None:
    log, changelogs = Log(), Changelogs([Changelog("g-s-changelog", "id", 1, TASKS)])
    targets = StoreTargets(log, changelogs, 1.0)

    def end() -> tuple[int, int]:
        return targets.prepare(batch_of(0, 5))[TASK][0].end, log.looks

    assert end() == (0, 1)
    targets.committed({TASK: "token"}, batch_of(0, 5), {LOG: 7})
    assert end() == (7, 1)
    targets.committed({TASK: "token"}, batch_of(0, 5), {TopicPartition("out", 0): 9})
    assert end() == (0, 2), "tasks wrote the changes themselves"
    targets.committed({}, batch_of(0, 5), {LOG: 7})
    assert end() == (0, 3), "of two attempts either may have written"
    targets.committed({TASK: "token"}, batch_of(0, 5), {LOG: 7})
    targets.forget([SOURCE])
    assert end() == (0, 4), "others may have owned the task"
    targets.committed({TASK: "token"}, batch_of(0, 5), {LOG: 7})
    assert targets.last([TASK])[TASK][0].end == 0
    assert log.looks == 5


def test_a_topic_that_has_grown_ends_the_run() -> None:
    targets = StoreTargets(Log(), Changelogs([Changelog("c", "id", 1, TASKS)]), 1.0)
    beyond = Batch(0, Owner("g", 1, "m"), {TopicPartition("t", 1): Range(0, 1)})
    with pytest.raises(PipelineError, match="the topic 't' has grown, its changelog 'c' has 1 partitions"):
        targets.prepare(beyond)


def test_a_process_that_hangs_with_a_store_does_not_hold_up_its_task(
    is_ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roster.stateful.tasks.store_location._PATIENCE", 0.0)
    place = Place(str(tmp_path), "g-s-changelog", "id", is_ordered)
    held = open_store(place.path("0_0"), is_ordered=is_ordered)
    with place.open("0_0") as copy:
        copy.commit([b"k"], [b"v"], Position(1))
    held.close()
    with place.open("0_0") as store:
        assert store.position() == Position()
        with place.open("0_0") as other:
            assert other.position() == Position(1)
    names = sorted(path.name for path in place.path("0_0").parent.iterdir())
    assert names == ["0_0", "0_0.1"]


def test_two_attempts_leave_no_token() -> None:
    assert tokens_of({TASK: (Report("a"),), TaskId(0, 1): (Report("b"), Report("c"))}) == {TASK: "a"}


def test_what_was_committed_last_is_applied_at_the_end_of_a_run_and_restored_by_nobody(
    is_ordered: bool, tmp_path: Path
) -> None:
    log, place = Log(), Place(str(tmp_path), "g-s-changelog", "id", is_ordered)
    changelogs = Changelogs([Changelog("g-s-changelog", "id", 1, TASKS)])
    rows, nothing = (pa.table({"k": pa.array(k, pa.binary()), "v": pa.array(k, pa.binary())}) for k in ([b"a"], []))

    def taken(targets: StoreTargets, rows: pa.Table, at: int) -> Report:
        target = targets.prepare(batch_of(at, 5))[TASK][0]
        with place.open("0_0") as store:
            update, report = process_batch(store, target, replace_values, KEPT, rows, {"t": at + 5}, log.fetch)
        log.write(update.changes, committed=True)
        targets.committed({TASK: report.token}, batch_of(at, 5))
        return report

    targets = StoreTargets(log, changelogs, 1.0)
    taken(targets, rows, 0)
    assert targets.last([]) == {}, "of tasks that others run by then"
    (target,) = targets.last([TASK])[TASK]
    with place.open("0_0") as store:
        assert catch_up(store, target, log.fetch).records == 0, "what is aside is taken"
        assert dict(entries(store)) == {b"a": b"a"}
        assert store.position() == Position(len(log.records), {"t": 5})
    assert taken(StoreTargets(log, changelogs, 1.0), nothing, 5).stores[0].restored == 0
    targets.forget([SOURCE])
    assert targets.last([TASK]) == {}, "its outcome is not known any more"


def test_more_values_than_a_column_holds_name_the_option(tmp_path: Path) -> None:
    rows, parts = 64, 33  # of 1 MiB each
    keys, values = pa.array(["k"] * rows), pa.array([bytes(1 << 20)] * rows)
    table = pa.table({"k": pa.chunked_array([keys] * parts), "v": pa.chunked_array([values] * parts)})
    largest = Aggregation(("k",), {"largest": Aggregate(Kind.MAX, "v")})
    target = StoreTarget(TopicPartition("g-s-changelog", 0), 0, 0, {"t": 0}, None)
    with LmdbStore(tmp_path / "s") as store, pytest.raises(FunctionError, match=r"^max_offsets_per_batch: lower it"):
        process_batch(store, target, largest, KEPT, table, {"t": 5}, Log().fetch)
