"""A store against a plain dictionary, under kill -9, with readers beside a writer, with files that are not sound."""

from __future__ import annotations

import platform
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.records.native import HASH, kernel
from roster.state import Position, StateError, hash_snapshot, store_files
from roster.state.byte_slices import listed
from roster.state.hash_store import HashStore
from roster.state.lmdb_snapshot import LONGEST_KEY
from roster.state.lmdb_store import LmdbStore
from roster.state.pending import Pending
from roster.state.store import (
    PendingError,
    StoreDamagedError,
    StoreFullError,
    StoreInUseError,
    StoreMissingError,
)
from tests.examples_tried import examples
from tests.state.store_worker import ENGINES, KEYS, values

hash_snapshot.use(kernel(None, HASH))


@pytest.fixture(params=ENGINES.values(), ids=ENGINES, scope="module")
def engine(request):
    return request.param


keys = st.binary(max_size=3) | st.sampled_from(
    [
        b"",
        b"k" * LONGEST_KEY,
        b"k" * (LONGEST_KEY + 1),
        b"k" * 600 + b"a",
        b"l" * 600,
        bytes(LONGEST_KEY + 1),
        b"\xff" * 700,
    ]
)
changes = st.dictionaries(keys, st.none() | st.binary(max_size=5), max_size=6)
positions = st.builds(
    Position, st.integers(0, 2**63 - 1), st.dictionaries(st.text(max_size=3), st.integers(0, 2**63 - 1))
)
actions = st.one_of(
    st.tuples(st.just("commit"), changes, positions),
    st.tuples(st.just("keep"), changes, positions),
    st.tuples(st.just("settle"), st.booleans(), st.none()),
    st.tuples(st.sampled_from(["reopen", "clear"]), st.none(), st.none()),
)


def put(model, changed):
    for key, value in changed.items():
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value


@given(st.lists(actions, max_size=8), st.lists(keys, max_size=4), keys, keys, st.integers(0, 5))
@settings(max_examples=examples(60))
def test_a_store_is_a_sorted_dictionary_with_a_position(engine, tmp_path_factory, script, asked, start, stop, limit):
    path = tmp_path_factory.mktemp("store")
    model: dict[bytes, bytes] = {}
    position, pending = Position(), None
    store = engine(path)
    for action, what, at in script:
        if action == "commit":
            store.commit(list(what), list(what.values()), at)
            put(model, what)
            position = at
        elif action == "keep" and pending is None:
            store.keep(Pending("a", list(what), list(what.values()), at))
            pending = what, at
        elif action == "settle":
            assert store.settle("a" if what else "b") == (what and pending is not None)
            if what and pending is not None:
                put(model, pending[0])
                position = pending[1]
            pending = None
        elif action == "clear":
            store.clear()
            model, position, pending = {}, Position(), None
        elif action == "reopen":
            store.close()
            store = engine(path)
    with store, store.snapshot() as snapshot:
        assert snapshot.position == position
        wanted = [*asked, *model]
        assert snapshot.multi_get(wanted) == [model.get(key) for key in wanted]
        assert listed(snapshot.multi_get(pa.array(wanted, pa.large_binary()))) == [model.get(key) for key in wanted]
        assert sorted(snapshot.scan()) == sorted(model.items())
        within = sorted((k, v) for k, v in model.items() if start <= k < stop)
        assert sorted(snapshot.scan(start, stop)) == within
        short = all(len(key) < 400 for key in [*model, start, stop])
        if short:
            assert snapshot.scan(start, stop, limit) == within[:limit]
        assert (snapshot.pending() is None) == (pending is None)


def test_a_pending_batch_counts_only_under_its_token(engine, tmp_path):
    with engine(tmp_path) as store:
        store.keep(Pending("a", [b"k"], [b"v"], Position(9)))
        with pytest.raises(PendingError, match="settle the pending batch before the next one"):
            store.keep(Pending("b", [b"k"], [b"w"], Position(10)))
        assert not store.settle("b")
        assert store.multi_get([b"k"]) == [None]
        store.keep(Pending("c", [b"k"], [b"w"], Position(10)))
    with engine(tmp_path) as store:
        assert store.pending().token == "c"
        assert store.settle("c", Position(12))
        assert (store.multi_get([b"k"]), store.position()) == ([b"w"], Position(12))
        assert not store.settle("c")


def worker(path, engine, commits=10**9, limit=0):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.state.store_worker", str(path), str(commits), str(limit), engine.__name__],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.process
def test_killed_at_any_moment_a_store_is_at_one_commit_or_the_next(engine, tmp_path):
    chance = random.Random(11)
    told = 0
    for _ in range(examples(3, "ROSTER_STORE_KILLS")):
        process = worker(tmp_path, engine)
        for _ in range(chance.randint(1, 5)):
            told = int(process.stdout.readline())
        process.kill()
        process.communicate()
        with engine(tmp_path) as store, store.snapshot() as snapshot:
            assert store.discarded is None
            position = snapshot.position
            assert position.changelog >= told
            assert position.inputs == {"t": 10 * position.changelog}
            assert snapshot.multi_get(KEYS) == values(position.changelog)


@pytest.mark.process
def test_readers_beside_a_writer_see_the_values_of_one_commit(engine, tmp_path):
    process = worker(tmp_path, engine)
    process.stdout.readline()
    seen = []
    for _ in range(40):
        with engine(tmp_path, read_only=True) as store, store.snapshot() as snapshot:
            position = snapshot.position.changelog
            assert snapshot.multi_get(KEYS[::100]) == values(position)[::100]
            seen.append(position)
    process.kill()
    process.communicate()
    assert seen == sorted(seen)
    assert seen[0] > 0


@pytest.mark.process
def test_a_full_disk_is_one_clear_error_and_the_store_is_as_before(engine, tmp_path):
    out, _ = worker(tmp_path, engine, limit=12_000_000).communicate()
    name, at, message = out.splitlines()[-1].split(" ", 2)
    assert name == "StoreFullError"
    assert message.startswith(f"store {tmp_path} on host {platform.node()}: no room on the disk")
    with engine(tmp_path) as store:
        assert store.position().changelog == int(at) > 0
        assert store.multi_get(KEYS) == values(int(at))


def test_a_full_map_is_named_with_its_limit(tmp_path):
    with LmdbStore(tmp_path, map_size=1 << 20) as store:
        store.commit([b"k"], [b"v"], Position(1))
        with pytest.raises(StoreFullError, match="limit of 1048576 bytes"):
            store.commit([b"%d" % n for n in range(2_000)], [bytes(1_000)] * 2_000, Position(2))
        assert (store.position(), store.multi_get([b"k"])) == (Position(1), [b"v"])


def test_a_second_writer_is_refused(engine, tmp_path):
    with engine(tmp_path), pytest.raises(StoreInUseError, match="another process writes it"):
        engine(tmp_path)
    engine(tmp_path).close()


def test_a_reader_writes_nothing_and_finds_no_store_where_there_is_none(engine, tmp_path):
    with pytest.raises(StoreMissingError, match="there is none"):
        engine(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()
    engine(tmp_path).close()
    with engine(tmp_path, read_only=True) as store, pytest.raises(StateError, match="open for reading only"):
        store.commit([b"k"], [b"v"], Position(1))


def written(path, engine):
    with engine(path) as store:
        store.commit([b"k"], [b"v"], Position(5))


def test_after_a_restart_of_the_machine_a_store_is_thrown_away(engine, tmp_path, monkeypatch):
    written(tmp_path, engine)
    monkeypatch.setattr(store_files, "boot_id", lambda: "another")
    with pytest.raises(StoreDamagedError, match="machine was started anew"):
        engine(tmp_path, read_only=True)
    with engine(tmp_path) as store:
        assert "machine was started anew" in store.discarded
        assert (store.position(), store.multi_get([b"k"])) == (Position(), [None])


@pytest.mark.parametrize(
    ("engine", "file", "content", "reason"),
    [
        (LmdbStore, "store.json", b"{", "store.json is missing or damaged"),
        (LmdbStore, "store.json", b'{"format": 0, "boot": ""}', "it has format 0, this release keeps such state in 2"),
        (LmdbStore, "data/data.mdb", bytes(100_000), "files are damaged"),
        (LmdbStore, "data/data.mdb", b"cut", ""),
        (HashStore, "store.json", b"{", "store.json is missing or damaged"),
        (HashStore, "store.json", b'{"format": 3, "boot": ""}', "it has format 3, this release keeps such state in 4"),
        (HashStore, "data/head", bytes(100_000), "its head does not have its checksum"),
        (HashStore, "data/head", b"cut", "its head has 3 bytes"),
        (HashStore, "data/head", b"", "head is missing"),
        (HashStore, "data/heap", b"", "heap is missing"),
        (HashStore, "data/heap", b"cut", "its heap has 3 bytes, 48 are in use"),
        (HashStore, "data/index.0", b"cut", "its index has 3 bytes, 4096 are in use"),
        (HashStore, "data/segments", bytes(8), "it has 0 segments"),
    ],
)
def test_files_that_are_not_sound_are_thrown_away_and_the_reason_is_said(engine, tmp_path, file, content, reason):
    written(tmp_path, engine)
    (tmp_path / file).write_bytes(content)
    with engine(tmp_path) as store:
        assert reason in store.discarded
        assert (store.position(), store.scan()) == (Position(), [])
        store.commit([b"k"], [b"w"], Position(1))
    with engine(tmp_path) as store:
        assert (store.discarded, store.scan()) == (None, [(b"k", b"w")])


def test_a_file_cut_short_is_found_before_a_read_behind_its_end_kills_the_process(engine, tmp_path):
    with engine(tmp_path) as store:
        store.commit([b"%05d" % n for n in range(5_000)], [bytes(100)] * 5_000, Position(1))
    data = tmp_path / "data" / ("heap" if engine is HashStore else "data.mdb")
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size // 2)
    with pytest.raises(StoreDamagedError, match=r"bytes, \d+ are in use"):
        engine(tmp_path, read_only=True)
    with engine(tmp_path) as store:
        assert "are in use" in store.discarded


@pytest.mark.process
def test_a_reader_that_stays_open_goes_over_to_a_file_made_anew(engine, tmp_path):
    written(tmp_path, engine)
    with engine(tmp_path, read_only=True) as reader:
        assert reader.position() == Position(5)
        program = (
            "import sys; from tests.state.test_store import *\n"
            "with ENGINES[sys.argv[2]](sys.argv[1]) as store:\n"
            "    store.discard('damaged'); store.commit([b'k'], [b'w'], Position(6))"
        )
        words = [sys.executable, "-c", program, str(tmp_path), engine.__name__]
        subprocess.run(words, check=True, cwd=Path(__file__).parents[2])
        assert (reader.position(), reader.multi_get([b"k"])) == (Position(6), [b"w"])


def test_batches_behind_and_between_what_is_there_are_loaded_alike(engine, tmp_path):
    with engine(tmp_path) as store:
        store.load([([b"a", b"c"], [b"1", b"2"]), ([b"d"], [b"3"])], Position(3))
        store.load([([b"e", b"b", b"e"], [b"4", b"5", b"6"]), ([b"d", b"f"], [None, b"7"])], Position(4))
        expected = [(b"a", b"1"), (b"b", b"5"), (b"c", b"2"), (b"e", b"6"), (b"f", b"7")]
        assert (store.scan(), store.position(), store.count()) == (expected, Position(4), 5)
