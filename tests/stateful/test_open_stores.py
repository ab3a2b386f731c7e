"""Stores that stay open between tasks: others may write and remove them meanwhile, and find no lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roster.state import Position
from roster.state.file_store import TaskStore
from roster.state.pending import Pending, WithChanges
from roster.state.store import PendingError, StoreInUseError
from roster.state.store_files import check_unused, remove_store
from roster.stateful.tasks import store_location
from roster.stateful.tasks.store_location import close_unused, keep_open, open_store, opened
from tests.state.store_worker import KEYS, values

if TYPE_CHECKING:
    from collections.abc import Iterator


NAMES = {"data.mdb": "LmdbStore", "head": "HashStore"}


@pytest.fixture(autouse=True)
def stays() -> Iterator[None]:
    keep_open()
    yield
    close_unused(0.0)
    store_location._open = None


@pytest.fixture(params=[True, False], ids=["ordered", "hashed"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both engines of a store; the file that its writes change."""
    monkeypatch.setattr(store_location.opened, "__kwdefaults__", {"is_ordered": request.param})
    monkeypatch.setattr(store_location.opened.__wrapped__, "__kwdefaults__", {"is_ordered": request.param})
    return "data.mdb" if request.param else "head"


def files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def others(path: Path, commits: int, engine: str) -> subprocess.Popen[str]:
    """Another process that writes the store so often."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.state.store_worker", str(path), str(commits), "0", NAMES[engine]],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_a_process_that_a_function_has_forked_does_not_keep_the_lock(engine: str, tmp_path: Path) -> None:
    with opened(tmp_path / "a") as store:
        forked = os.dup(store._files._writer)  # type: ignore[arg-type]
    with opened(tmp_path / "a") as again:
        assert again is store
    os.close(forked)
    check_unused(tmp_path / "a")


def test_a_long_pending_batch_does_not_stay_in_memory(engine: str, tmp_path: Path) -> None:
    for size, is_kept in ((10, True), (2 << 20, False)):
        with opened(tmp_path / str(size)) as store:
            store.keep(Pending("token", [b"k"], [bytes(size)], Position(9)))
            assert (store.kept is not None) is is_kept


def test_a_store_stays_open_and_not_locked_until_it_is_not_used(engine: str, tmp_path: Path) -> None:
    before = files()
    with opened(tmp_path / "a") as first:
        with pytest.raises(StoreInUseError):
            check_unused(tmp_path / "a")
        first.keep(Pending("token", [b"k"], [b"v"], Position(9)))
    check_unused(tmp_path / "a")
    with opened(tmp_path / "a") as again:
        assert again is first
        assert again.kept is not None
        with pytest.raises(StoreInUseError):
            check_unused(tmp_path / "a")
    close_unused(60.0)
    assert files() > before
    close_unused(0.0)
    assert files() == before
    with opened(tmp_path / "a") as again:
        assert again is not first
        assert again.kept is None
        pending = again.pending()
        assert pending is not None
        assert pending.changes() == {b"k": b"v"}
    close_unused(0.0)
    assert files() == before


def test_after_an_error_and_where_nothing_is_kept_open_a_store_is_closed(engine: str, tmp_path: Path) -> None:
    before = files()
    with pytest.raises(ValueError, match="three"), opened(tmp_path):
        raise ValueError("three")
    store_location._open = None
    with opened(tmp_path):
        pass
    assert files() == before


@pytest.mark.process
def test_what_another_process_has_written_meanwhile_is_found(engine: str, tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        first.keep(Pending("token", [KEYS[0]], [b"v"], Position(9)))
    process = others(tmp_path, 10**9, engine)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == 1
    with pytest.raises(StoreInUseError), opened(tmp_path):
        pass
    process.kill()
    process.communicate()
    with opened(tmp_path) as store:
        assert store is not first
        assert store.kept is None, "it may not be the pending batch any more"
        at = store.position().changelog
        assert at >= 1
        assert store.multi_get(KEYS) == values(at)
        store.commit([b"more"], [b"m"], Position(at + 1))
    assert others(tmp_path, 1, engine).wait() == 0
    with opened(tmp_path) as store:
        assert store.position().changelog == at + 2
        assert store.multi_get([KEYS[0], b"more"]) == [values(at + 2)[0], b"m"]


def test_a_store_that_was_removed_cut_short_or_replaced_is_opened_anew(engine: str, tmp_path: Path) -> None:
    def write() -> TaskStore:
        with opened(tmp_path / "s") as store:
            store.commit([b"k"], [b"v"], Position(1))
        return store

    write()
    remove_store(tmp_path / "s")
    with opened(tmp_path / "s") as store:
        assert store.position() == Position()
    assert (tmp_path / "s" / "data" / engine).exists(), "nobody else would see what is written to a removed file"
    write()
    os.truncate(tmp_path / "s" / "data" / engine, 100)
    with opened(tmp_path / "s") as store:
        assert store.discarded is not None
        assert store.position() == Position()
    first = write()
    shutil.rmtree(tmp_path / "s" / "data")
    with opened(tmp_path / "s") as store:
        assert store is not first
        assert store.position() == Position()


def test_what_is_kept_is_applied_by_the_write_that_keeps_the_next_batch(engine: str, tmp_path: Path) -> None:
    is_ordered = engine == "data.mdb"
    with open_store(tmp_path, is_ordered=is_ordered) as store:
        assert store.keep(Pending("a", [b"k", b"l"], [b"1", b"1"], Position(5, {"t": 5}))) == (0, 0)
        with store.snapshot() as snapshot:
            assert store.kept is not None
            assert WithChanges(snapshot, store.kept.changes()).multi_get([b"l", b"m"]) == [b"1", None]
        entries, size = store.keep(Pending("b", [b"k"], [None], Position(9)), Position(6, {"t": 5}))
        assert (entries, store.position(), size > 0) == (2, Position(6, {"t": 5}), True)
        assert store.multi_get([b"k", b"l"]) == [b"1", b"1"]
        pending = store.pending()
        assert pending is not None
        assert pending.token == "b"
        store.commit([], [], store.position())
        assert store.kept is None, "something else was written"
        with pytest.raises(PendingError):
            store.keep(Pending("c", [b"k"], [b"3"], Position(9)), Position(9))
    with open_store(tmp_path, is_ordered=is_ordered) as store:
        assert store.settle("b")
        assert store.scan() == [(b"l", b"1")]
