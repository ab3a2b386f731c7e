"""A hash store against a dictionary and the store in LMDB, as it grows and frees segments, killed anywhere, damaged."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.records.native import HASH, kernel
from roster.state import Position, hash_snapshot, hash_store
from roster.state.hash_snapshot import Head
from roster.state.hash_store import HashStore
from roster.state.lmdb_store import LmdbStore
from roster.state.pending import Pending
from roster.state.store import StateError, StoreDamagedError, StoreFullError
from roster.wire.columns import hash_kernel
from roster.wire.columns.hash_layout import MOST_BYTES, checked
from tests.examples_tried import examples, some
from tests.wire.plain_kernel import PlainKernel

LOOPS = kernel(None, HASH)
hash_snapshot.use(LOOPS)
Changes = dict[bytes, bytes | None]
Model = dict[bytes, bytes]


def changes(chance: random.Random, count: int, keys: int, size: int) -> Changes:
    """So many random changes of keys; a fifth of them removes one."""
    return {
        b"%d" % chance.randrange(keys): None if chance.random() < 0.2 else chance.randbytes(chance.randrange(size + 1))
        for _ in range(count)
    }


def put(model: Model, changed: Changes) -> None:
    for key, value in changed.items():
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value


def check(store: HashStore | LmdbStore, model: Model, asked: list[bytes]) -> None:
    with store.snapshot() as snapshot:
        assert snapshot.entries == len(model)
        assert snapshot.scan() == sorted(model.items())
        assert list(snapshot.multi_get(asked)) == [model.get(key) for key in asked]


steps = st.tuples(
    st.sampled_from(["commit", "load", "keep", "settle", "drop", "apply and keep", "reopen", "pause", "clear", "read"]),
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 3, 70, 900]),
    st.sampled_from([8, 500, 5_000]),
    st.sampled_from([0, 30, 3_000]),
)


@given(st.lists(steps, min_size=4, max_size=30))
@settings(max_examples=examples(60))
def test_every_operation_in_any_order_gives_what_a_dictionary_and_lmdb_have(  # noqa: PLR0912 - one for each operation
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, int, int, int, int]]
) -> None:
    places = {engine: tmp_path_factory.mktemp("store") for engine in (HashStore, LmdbStore)}
    stores: list[Any] = [engine(path) for engine, path in places.items()]
    model: Model = {}
    kept: Changes | None = None
    for number, (action, seed, count, keys, size) in enumerate(script, 1):
        chance = random.Random(seed)
        changed, position = changes(chance, count, keys, size), Position(number)
        column = pa.array(list(changed), pa.large_binary()), pa.array(changed.values(), pa.large_binary())
        if action in {"commit", "load"}:
            for store in stores:
                if action == "commit":
                    store.commit(*column, position)
                else:
                    store.load([column, ([b"twice"], [b"1"]), ([b"twice"], [b"2"])], lambda at=position: at)
            put(model, changed)
            if action == "load":
                model[b"twice"] = b"2"
        elif action in {"settle", "drop"}:
            for store in stores:
                assert store.settle("t" if action == "settle" else "u", position) == (
                    action == "settle" and kept is not None
                )
            if action == "settle":
                put(model, kept or {})
            kept = None
        elif action in {"keep", "apply and keep"}:
            is_applied = action == "apply and keep" and kept is not None and stores[0].kept is not None
            if kept is not None and not is_applied:
                continue
            if is_applied:
                put(model, kept or {})
            sizes = [store.keep(Pending("t", *column, position), position if is_applied else None) for store in stores]
            assert [entries for entries, _ in sizes] == [len(model)] * 2
            kept = changed
        elif action == "reopen":
            for store in stores:
                store.close()
            stores = [engine(path) for engine, path in places.items()]
        elif action == "pause":
            for store in stores:
                store.pause()
                assert store.resume()
        elif action == "clear":
            for store in stores:
                store.clear()
            model, kept = {}, None
        start, stop = sorted(chance.sample([b"", b"1", b"3", b"42", b"99"], 2))
        scans = [
            store.scan(start, chance_stop, limit)
            for store in stores
            for chance_stop, limit in [(stop, 7), (None, None)]
        ]
        assert scans[:2] == scans[2:]
        assert stores[0].position() == stores[1].position()
        for store in stores:
            pending = store.pending()
            assert (None if pending is None else pending.changes()) == kept
    for store in stores:
        check(store, model, [b"%d" % key for key in range(0, 5_000, 9)])
        store.close()


def test_what_is_written_anew_again_and_again_takes_no_more_room(tmp_path: Path) -> None:
    chance, model = random.Random(3), dict[bytes, bytes]()
    with HashStore(tmp_path) as store:
        for turn in range(60):
            changed = changes(chance, 1_500, 2_000, 700)
            store.keep(Pending("t", list(changed), list(changed.values()), Position(turn)))
            assert store.settle("t")
            put(model, changed)
        check(store, model, [b"%d" % key for key in range(3_000)])
        large = {b"large": chance.randbytes(5 << 20), b"behind": b"b"}
        for turn in range(12):
            store.commit(list(large), list(large.values()), Position(turn))
        put(model, large)
        check(store, model, [b"large", b"behind"])
    assert (tmp_path / "data" / "heap").stat().st_size < 40 << 20
    assert [path.name for path in (tmp_path / "data").glob("index.*")] != ["index.0"]


def test_a_store_has_a_limit_and_a_key_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_store, "MOST_BYTES", 3 << 20)
    with HashStore(tmp_path) as store:
        store.commit([b"k"], [b"v"], Position(1))
        with pytest.raises(StoreFullError, match="limit of 3145728 bytes"):
            store.commit([b"%d" % n for n in range(5)], [bytes(1 << 20)] * 5, Position(2))
        assert (store.position(), store.scan()) == (Position(1), [(b"k", b"v")])
        monkeypatch.setattr(hash_store, "NONE", 1_000)
        with pytest.raises(StateError, match="a key with its value has more than"):
            store.commit([b"l"], [bytes(1_000)], Position(2))
    assert MOST_BYTES == 128 << 30


@pytest.mark.parametrize("can_allocate", [True, False])
def test_a_full_disk_leaves_a_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_allocate: bool
) -> None:
    """Where a file system allocates, and where zeros have to be written."""
    if not can_allocate:
        monkeypatch.delattr(os, "posix_fallocate")
    changed = {b"%d" % key: b"%d" % key * 500 for key in range(1_000)}
    with HashStore(tmp_path) as store:
        store.commit(list(changed), list(changed.values()), Position(1))
        check(store, changed, list(changed))
    path, limits = tmp_path / "file", resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_bytes(b"before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            hash_store._grow(path, 200_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"before"
    hash_store._grow(path, 200_000)
    assert path.read_bytes() == b"before" + bytes(200_000 - 6)


def test_removed_keys_and_new_ones_share_an_index(tmp_path: Path) -> None:
    with HashStore(tmp_path) as store:
        names = [b"%d" % n for n in range(300)]
        store.commit(names, names, Position(1))
        store.commit(names[::2], [None] * 150, Position(2))
        store.commit([b"new" + name for name in names], names, Position(3))
        assert list(store.multi_get(names)) == [None if n % 2 == 0 else name for n, name in enumerate(names)]
        assert store.count() == 450


@pytest.mark.parametrize("bits", range(2, 8))
def test_an_index_is_made_from_one_of_another_size(bits: int) -> None:
    loops, chance = PlainKernel(hash_kernel), random.Random(bits)
    loops._space |= {"SMALL_BITS": 3, "SKIPPED_BITS": 2}  # as if these few slots were many
    for _ in some(range(60), quick=10):
        count, seed = chance.randint(1, (1 << bits) - 1), chance.randrange(1 << 56)
        names = b"".join(b"%04d" % number for number in chance.sample(range(10_000), count))
        ends, nothing = 4 * np.arange(count + 1), np.zeros(count + 1, np.int64)
        heap, scratch, segments = (
            np.zeros(32 * (count + 1), np.uint8),
            np.zeros(3 * 64, np.int64),
            np.zeros(2, np.int64),
        )
        where, hashes, size = np.zeros(count, np.int64), np.zeros(count, np.int64), len(heap)
        columns = ends, np.frombuffer(names, np.uint8), nothing, np.zeros(0, np.uint8), np.ones(count, np.uint8)
        loops.hash_append(0, count, *columns, seed, heap, 0, 16, size, where, hashes, np.zeros(1, np.int64))
        old, state = np.zeros(1 << bits, np.int64), np.zeros(3, np.int64)
        loops.hash_apply(0, count, where, hashes, old, bits, seed, heap, size, 1 << bits, segments, scratch, state)
        for other in range(max(bits - 1, count.bit_length()), bits + 3):
            slots = np.zeros(1 << other, np.int64)
            assert loops.hash_rebuild(old, len(old), slots, other, seed, heap, size) == count
            for hashed, offset in zip(hashes, where, strict=True):
                place = loops.find_slot(hashed, heap, offset + 16, 4, slots, other, seed, heap, size)
                assert slots[place] == loops.slot_of(hashed, offset, other)


class Moments:
    """Copies of a store's files, as a kill in each of many moments would leave them."""

    def __init__(self, path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copies: list[tuple[str, Path]] = []
        self._path, self._folder = path, folder
        for name in ("_note", "_write_head_file", "_note_piece", "_map_index", "_free_run", "_moved"):
            monkeypatch.setattr(HashStore, name, self._around(getattr(HashStore, name), name))
        for name in ("_grow", "_segments_of"):
            monkeypatch.setattr(hash_store, name, self._around(getattr(hash_store, name), name))
        loops = hash_snapshot.hash_loops()  # other tests of this process may have said which, as tasks do
        for name in ("hash_append", "hash_move", "hash_rebuild"):
            monkeypatch.setattr(loops, name, self._around(getattr(loops, name), name))
        monkeypatch.setattr(loops, "hash_apply", self._in_parts(loops.hash_apply))

    def take(self, name: str) -> None:
        copy = self._folder / f"{len(self.copies)}"
        shutil.copytree(self._path, copy)
        self.copies.append((name, copy))

    def _around(self, work: Callable[..., Any], name: str) -> Callable[..., Any]:
        def both(*arguments: Any, **named: Any) -> Any:
            self.take(f"before {name}")
            result = work(*arguments, **named)
            self.take(f"after {name}")
            return result

        return both

    def _in_parts(self, apply: Callable[..., int]) -> Callable[..., int]:
        """Apply the first half, and the rest."""

        def parts(first: int, rows: int, *rest: Any) -> int:
            middle, state = (first + rows) // 2, rest[-1]
            self.take("before apply")
            result = apply(first, middle, *rest)
            self.take("in the middle of apply")
            if result == 0:
                result = apply(middle, rows, *rest)
            self.take("after apply")
            assert state[0] >= state[1]
            return result

        return parts


def batches() -> Iterator[tuple[str, Changes]]:
    """A history in which the index grows, is made anew as most is removed, and segments are freed."""
    chance = random.Random(9)
    yield "commit", changes(chance, 40, 60, 20)
    yield "settle", changes(chance, 700, 600, 90)
    yield "drop", changes(chance, 50, 600, 90)
    yield "keep", changes(chance, 300, 4_000, 40)
    yield "apply", changes(chance, 300, 4_000, 40)
    yield "settle", {b"large": bytes(3 << 20), b"%d" % 1: b"after"}
    for turn in range(5):
        yield "settle", {b"%d" % key: bytes([turn]) * 6_000 for key in range(300)}
    yield "commit", dict.fromkeys([b"%d" % key for key in range(4_000)])
    yield "settle", changes(chance, 700, 600, 90)


def test_killed_in_any_moment_it_has_what_was_settled_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of each batch, among them doubling, and freeing segments, with half of a batch in the index."""
    path, model, position = tmp_path / "store", dict[bytes, bytes](), 0
    kept, seen = dict[bytes, bytes | None](), set[str]()
    for number, (action, changed) in enumerate(batches(), 1):
        states = {position: dict(model)}
        folder = tmp_path / "copies" / str(number)
        folder.mkdir(parents=True)
        with monkeypatch.context() as patched, HashStore(path) as store:
            moments = Moments(path, folder, patched)
            pending = Pending(str(number), list(changed), list(changed.values()), Position(number))
            if action == "apply":
                assert store.settle(str(number - 1)), "the one before is kept"
                put(model, kept)
                states[number - 1] = dict(model)
            if action == "commit":
                store.commit(pending.keys, pending.values, pending.position)
            else:
                store.keep(pending)
                if action != "keep":
                    assert store.settle(str(number) if action != "drop" else None) is (action != "drop")
            kept = changed
            if action not in {"drop", "keep"}:
                put(model, changed)
                position = number
            states[position] = dict(model)
        for name, copy in some(moments.copies, quick=3):
            _check_copy(copy, name, states, random.Random(number))
        seen |= {name for name, _ in moments.copies}
        shutil.rmtree(folder)
    with HashStore(path) as store:
        check(store, model, [b"%d" % key for key in range(4_000)])
    assert {"in the middle of apply", "after hash_rebuild", "after hash_move", "after _moved", "before _grow"} <= seen


def test_killed_as_a_freed_segment_is_written_anew_it_has_nothing_of_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of removals is in a segment without any other live entry, which is freed with it, as it is applied."""
    monkeypatch.setattr(hash_store, "_LEAST_GARBAGE", 0)
    removed: Changes = {b"%d" % key * 40: None for key in range(1_000)}
    following: Changes = {b"following %d" % key: b"%d" % key * 9_000 for key in range(160)}
    (tmp_path / "copies").mkdir()
    with HashStore(tmp_path / "store") as store:
        store.commit([b"gone"], [bytes(950_000)], Position(1))
        pending = Pending("t", [*removed, b"gone"], [None] * 1_001, Position(2))
        store.keep(pending)
        with monkeypatch.context() as patched:
            moments = Moments(tmp_path / "store", tmp_path / "copies", patched)
            store.keep(Pending("u", list(following), list(following.values()), Position(3)), Position(2))
    states = {(1, False): [(b"gone", bytes(950_000))], (2, False): [], (2, True): sorted(following.items())}
    seen = set()
    for name, copy in moments.copies:
        with HashStore(copy) as killed:
            state = killed.position().changelog, killed.settle("u")
            assert (killed.discarded, killed.scan()) == (None, states[state]), name
            seen.add(state)
    assert seen == states.keys()


def test_killed_as_room_for_a_large_entry_is_reserved_it_uses_that_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_store, "_LEAST_GARBAGE", 0)
    path, large = tmp_path / "0", bytes(5 << 20)
    with HashStore(path) as store:
        for turn in range(4):
            store.commit([b"large"], [large], Position(turn))
    size = (path / "data" / "heap").stat().st_size
    for kill in some(range(4, 9), quick=2):
        copies = tmp_path / f"copies of {kill}"
        copies.mkdir()
        with monkeypatch.context() as patched, HashStore(path) as store:
            moments = Moments(path, copies, patched)
            store.commit([b"large"], [large], Position(kill))
        path = next(copy for name, copy in moments.copies if name == "after _free_run")
    with HashStore(path) as store:
        store.commit([b"large"], [large], Position(9))
        assert store.scan() == [(b"large", large)]
    assert (path / "data" / "heap").stat().st_size == size


def test_entries_that_an_older_index_lacks_are_not_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots of zeros are free, so nothing but the count of a segment's live bytes tells."""
    monkeypatch.setattr(hash_store, "_LEAST_GARBAGE", 0)
    names = [b"%d" % key for key in range(150)]
    with HashStore(tmp_path) as store:
        store.commit(names, [bytes(6_000)] * 150, Position(1))
        store._at.slots[store._at.slots != 0] *= np.arange(150) % 10 != 0
        others = [name for name, value in zip(names, store.multi_get(names), strict=True) if value is not None]
        assert 100 < len(others) < 136

        def write_anew() -> None:
            for turn in range(4):
                store.commit(others, [bytes([turn]) * 6_000] * len(others), Position(2 + turn))

        with pytest.raises(StoreDamagedError, match="entries are missing"):
            write_anew()


def _check_copy(copy: Path, name: str, states: dict[int, Model], chance: random.Random) -> None:
    """A reader, and then a writer, see one of the states; the writer goes on with it."""
    with HashStore(copy, read_only=True) as reader, reader.snapshot() as snapshot:
        position = snapshot.position.changelog
        model = dict(states[position])
        assert snapshot.scan() == sorted(model.items()), (name, position)
        snapshot.pending()
    with HashStore(copy) as store:
        assert store.discarded is None, name
        assert store.position().changelog == position
        store.settle(None)
        for turn in range(3):
            changed = changes(chance, 900, 2_000, 2_000)
            store.commit(list(changed), list(changed.values()), Position(100 + turn))
            put(model, changed)
        check(store, model, [b"%d" % key for key in range(0, 4_000, 3)])


def test_half_a_head_does_not_count(tmp_path: Path) -> None:
    with HashStore(tmp_path) as store:
        store.commit([b"k"], [b"v"], Position(5))
        number = store._word >> 7
        begin, _ = store._area(number + 1)
    head = tmp_path / "data" / "head"
    content = bytearray(head.read_bytes())
    content[begin : begin + 100] = b"x" * 100
    head.write_bytes(content)
    with HashStore(tmp_path) as store:
        assert (store.discarded, store.position(), store.scan()) == (None, Position(5), [(b"k", b"v")])
        store.commit([b"k"], [b"w"], Position(6))
        assert store.scan() == [(b"k", b"w")]


def test_a_head_of_many_inputs_gets_a_larger_file(tmp_path: Path) -> None:
    inputs = {f"topic {number}": number for number in range(3_000)}
    with HashStore(tmp_path) as store, HashStore(tmp_path, read_only=True) as reader:
        for turn in range(3):
            store.commit([b"k"], [b"%d" % turn], Position(turn, inputs))
            assert (reader.position(), reader.scan()) == (Position(turn, inputs), [(b"k", b"%d" % turn)])
        store.pause()
        assert store.resume()
    head = Head(1, 9, Position(2, inputs))
    assert Head.decode(head.encode()) == head


def history(path: Path) -> tuple[Model, Model]:
    """A store with a pending batch; its values, and those with the batch."""
    chance, model = random.Random(21), dict[bytes, bytes]()
    with HashStore(path) as store:
        for turn in range(4):
            changed = changes(chance, 300, 400, 60)
            store.commit(list(changed), list(changed.values()), Position(turn))
            put(model, changed)
        pending = changes(chance, 30, 500, 60)
        store.keep(Pending("t", list(pending), list(pending.values()), Position(9)))
    after = dict(model)
    put(after, pending)
    return model, after


def _outcome(path: Path, model: Model, after: Model) -> bool:
    """Return whether damage was noticed; fail for any other value than the right ones."""
    asked = [b"%d" % key for key in range(600)]
    try:
        with HashStore(path) as store:
            if store.discarded is not None:
                return True
            with store.snapshot() as snapshot:
                assert list(snapshot.multi_get(asked)) == [model.get(key) for key in asked]
                assert snapshot.scan() == sorted(model.items())
            assert store.settle("t")
            check(store, after, asked)
            for turn in range(8):  # until segments are freed
                more = {b"%d" % key: bytes([turn]) * 6_000 for key in range(100, 200)}
                store.commit(list(more), list(more.values()), Position(10 + turn))
                put(after, more)
            check(store, after, asked)
    except StoreDamagedError:
        return True
    return False


@pytest.mark.parametrize(("name", "tries"), [("index", 250), ("heap", 250), ("head", 60), ("segments", 64)])
def test_a_flipped_bit_is_in_no_value(tmp_path: Path, name: str, tries: int) -> None:
    model, after = history(tmp_path / "sound")
    file = next((tmp_path / "sound" / "data").glob(f"{name}*")).name
    sound, chance = (tmp_path / "sound" / "data" / file).read_bytes(), random.Random(name)
    used = [place for place, byte in enumerate(sound) if byte] if name != "head" else list(range(8 + 64))
    noticed = 0
    for turn in some(range(tries)):
        place = chance.choice(used) if turn % 4 else chance.randrange(max(used) + 1)
        damaged = tmp_path / "damaged"
        shutil.copytree(tmp_path / "sound", damaged)
        content = bytearray(sound)
        content[place] ^= 1 << chance.randrange(8)
        (damaged / "data" / file).write_bytes(content)
        noticed += _outcome(damaged, model, dict(after))
        shutil.rmtree(damaged)
    assert noticed


def test_a_slot_with_up_to_three_flipped_bits_is_noticed() -> None:
    chance = random.Random(4)
    for _ in range(2_000):
        number = chance.randrange(1 << 57)
        flipped = checked(number)
        for bit in chance.sample(range(64), chance.randint(1, 3)):
            flipped ^= 1 << bit
        assert checked(flipped >> 7) != flipped


CHURN = """
import random, sys
from tests.state.test_hash_store import *
chance = random.Random(int(sys.argv[2]))
with HashStore(sys.argv[1]) as store:
    turn = store.position().changelog
    while True:
        turn += 1
        keys = [b"%d" % key for key in range(turn * 37 % 4_000, turn * 37 % 4_000 + 1_000)]
        values = [None if key[-1:] == b"%d" % (turn % 10) else b"%d " % turn * 150 for key in keys]
        if turn % 4:
            store.keep(Pending("t%d" % turn, keys, values, Position(turn)))
            store.settle("t%d" % turn)
        else:
            store.load([(keys[:300], values[:300]), (keys[300:], values[300:])], Position(turn))
        print(turn, flush=True)
"""


def churned(turns: int) -> Model:
    model: Model = {}
    for turn in range(1, turns + 1):
        for key in range(turn * 37 % 4_000, turn * 37 % 4_000 + 1_000):
            name = b"%d" % key
            put(model, {name: None if name[-1:] == b"%d" % (turn % 10) else b"%d " % turn * 150})
    return model


@pytest.mark.process
def test_killed_while_it_grows_and_frees_segments_it_has_all_that_was_settled(tmp_path: Path) -> None:
    chance = random.Random(5)
    for kill in range(examples(8, "ROSTER_STORE_KILLS", quick=2)):
        process = subprocess.Popen(
            [sys.executable, "-c", CHURN, str(tmp_path), str(kill)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(chance.randint(1, 60))]
        process.kill()
        told = int([*lines, *process.stdout.read().split()][-1])  # it went on while this process waited
        process.communicate()
        with HashStore(tmp_path) as store:
            position = store.position().changelog
            assert store.discarded is None
            assert told <= position <= told + 1
            store.settle(None)
            check(store, churned(position), [b"%d" % key for key in range(5_000)])
