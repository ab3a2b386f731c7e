"""Restores of long changelogs: in pieces, after kills and with damaged files a store has what a plain replay has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.state import Position, sorted_load
from roster.state.cleaning import store_bytes
from roster.state.lmdb_store import LmdbStore
from roster.state.sorted_load import SortedLoad, slice_ends
from roster.state.store import StoreFullError
from roster.stateful.tasks import catch_up as catching_up
from roster.stateful.tasks.catch_up import StoreTarget, catch_up
from roster.stateful.tasks.store_location import on_sound
from tests.examples_tried import examples
from tests.stateful.test_store_processing import Log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOG = TopicPartition("g-s-changelog", 0)
KEYS = [b"", b"a", b"b", b"c", b"c" * 479 + b"1" * 40, b"c" * 479 + b"0" * 40, b"c" * 480, b"d", b"\xff"]


class KilledError(Exception):
    """The process ends here."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catching_up, "_FEWEST_SORTED", 1)
    monkeypatch.setattr(SortedLoad, "sorted_bytes", 100)
    monkeypatch.setattr(sorted_load, "_SLICE", 1)
    monkeypatch.setattr(sorted_load, "_LEAST_OF_RUN", 400)


def log_of(changes: list[tuple[bytes, bytes | None]]) -> Log:
    log = Log()
    for at in range(0, len(changes), 3):
        keys, values = zip(*changes[at : at + 3], strict=True)
        rows = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
        log.write(rows, committed=at % 4 != 3)
    return log


def target(log: Log) -> StoreTarget:
    return StoreTarget(LOG, 0, len(log.records), {"t": 7}, None)


def plain(log: Log) -> list[tuple[bytes, bytes]]:
    state = dict(record for record in log.records if record is not None)
    return sorted((key, value) for key, value in state.items() if value is not None)


changes = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.sampled_from([b"", b"1", b"22"])), max_size=60)


@given(changes, changes, st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=8))
@settings(max_examples=examples(60))
def test_a_long_restore_in_pieces_and_through_kills_equals_a_plain_replay(
    tmp_path_factory: pytest.TempPathFactory, before: Any, behind: Any, kills: list[tuple[bool, int]]
) -> None:
    path, log = tmp_path_factory.mktemp("long") / "store", log_of(before)
    whole = Log()
    whole.records = log.records + log_of(behind).records
    for number, (is_while_writing, after) in enumerate(kills):
        if number == 3:
            log = whole  # it has grown meanwhile
        with pytest.MonkeyPatch.context() as patched, LmdbStore(path) as store:
            left = [after]

            def step(*_: Any, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise KilledError

            def fetch(partition: TopicPartition, start: int, end: int, log: Log = log) -> Iterator[pa.RecordBatch]:
                for batch in log.fetch(partition, start, end):
                    step()
                    yield batch

            if is_while_writing:
                patched.setattr(SortedLoad, "_note", step if after % 2 else noted_then(step))
            try:
                catch_up(store, target(log), log.fetch if is_while_writing else fetch, until=0.0)
            except KilledError:
                continue
    turns = 0
    with LmdbStore(path) as store:
        while catch_up(store, target(whole), whole.fetch, until=0.0).position < len(whole.records):
            turns += 1
            assert turns < 1000
        assert store.position() == Position(len(whole.records), {"t": 7})
        assert sorted(store.scan()) == plain(whole)
        assert store.count() == len(plain(whole))
        assert not store.sorted_runs.exists()


def noted_then(step: Any) -> Any:
    note = SortedLoad._note

    def both(self: SortedLoad) -> None:
        note(self)
        step()

    return both


def test_progress_ascends_and_reaches_the_end_only_when_all_is_in_the_store(tmp_path: Path) -> None:
    log = log_of([(b"%03d" % (number * 7 % 50), b"%d" % number) for number in range(100)])
    positions, sizes = list[int](), list[int]()
    while not positions or positions[-1] < len(log.records):
        with LmdbStore(tmp_path / "store") as store:
            positions.append(catch_up(store, target(log), log.fetch, until=0.0).position)
            is_whole = list(store.scan()) == plain(log)
            sizes.append(store_bytes(store.path))
        assert is_whole == (positions[-1] == len(log.records))
    assert positions == sorted(positions)
    assert len(positions) > 20
    assert max(sizes) > sizes[-1], "the runs are counted, and gone at the end"


def test_a_damaged_run_is_noticed_and_the_store_made_anew(tmp_path: Path) -> None:
    log = log_of([(b"%d" % number, b"value") for number in range(20)])
    with LmdbStore(tmp_path / "store") as store:
        while not SortedLoad(store, 0).is_begun:
            catch_up(store, target(log), log.fetch, until=0.0)
        entries = store.sorted_runs / "entries"
        content = bytearray(entries.read_bytes())
        content[len(content) // 2] ^= 4
        entries.write_bytes(content)
        assert on_sound(store, lambda: catch_up(store, target(log), log.fetch)).position == len(log.records)
        assert store.discarded == "a sorted run does not have its checksum"
        assert sorted(store.scan()) == plain(log)


def test_a_full_disk_is_told_and_the_restore_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of([(b"%d" % number, b"value") for number in range(20)])
    with LmdbStore(tmp_path / "store") as store:
        with monkeypatch.context() as full:
            full.setattr(SortedLoad, "_note", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(StoreFullError, match="no room on the disk"):
                catch_up(store, target(log), log.fetch)
        assert catch_up(store, target(log), log.fetch).position == len(log.records)
        assert sorted(store.scan()) == plain(log)


def test_what_a_load_has_left_is_not_used_by_a_store_that_was_cleared(tmp_path: Path) -> None:
    log = log_of([(b"%d" % number, b"value") for number in range(20)])
    with LmdbStore(tmp_path / "store") as store:
        catch_up(store, target(log), log.fetch, until=0.0)
        store.clear()
        other = log_of([(b"other", b"1")])
        catch_up(store, target(other), other.fetch)
        assert store.scan() == [(b"other", b"1")]
        store.sorted_runs.mkdir()
        (store.sorted_runs / "load.json").write_text("[0, [], []]")
        SortedLoad(store, 0)
        assert not store.sorted_runs.exists(), "what an earlier release has left takes no room"


@given(st.lists(st.sets(st.binary(max_size=3), max_size=30), min_size=1, max_size=6), st.integers(1, 40))
@settings(max_examples=examples(100))
def test_slices_of_sorted_columns_are_in_order_and_as_large_as_asked(runs: list[set[bytes]], rows: int) -> None:
    keys = [pa.array(sorted(run), pa.large_binary()) for run in runs]
    starts, last = [0] * len(keys), None
    while any(start < len(column) for start, column in zip(starts, keys, strict=True)):
        ends = slice_ends(keys, starts, rows)
        taken = [column[start:end].to_pylist() for column, start, end in zip(keys, starts, ends, strict=True)]
        slice_keys = sorted(key for some in taken for key in some)
        assert slice_keys, "it comes to an end"
        assert len(slice_keys) <= max(rows, len(keys))
        assert last is None or slice_keys[0] > last, "equal keys are in one slice"
        starts, last = ends, slice_keys[-1]
    assert starts == [len(column) for column in keys]


def test_runs_that_follow_each_other_are_read_in_whole_slices() -> None:
    keys = [pa.array([b"%02d" % (10 * run + row) for row in range(10)], pa.large_binary()) for run in range(10)]
    assert slice_ends(keys, [0] * 10, 10) == [10] + [0] * 9
