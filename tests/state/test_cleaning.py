"""Removal of stores that no application keeps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from roster.state import Position
from roster.state.cleaning import clean, give_up, sizes, stores_below
from roster.state.lmdb_store import LmdbStore
from roster.state.store import StoreInUseError, StoreMissingError
from roster.state.store_files import remove_store

if TYPE_CHECKING:
    from pathlib import Path

MADE = 1_000_000.0
"""Wall-clock seconds at which stores were written."""


def make(root: Path, *tasks: str, entries: int = 1) -> None:
    for task in tasks:
        with LmdbStore(root / task) as store:
            keys = [str(number).encode() for number in range(entries)]
            store.commit(keys, [b"x" * 100] * entries, Position(entries))
        for file in [*(root / task).rglob("*"), root / task]:
            os.utime(file, (MADE, MADE))


def names(root: Path) -> list[str]:
    return [path.name for path in stores_below(root)]


def test_stores_are_found_while_another_process_removes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "0_0", "0_1", "0_2")
    scandir = os.scandir

    def scanned(path: str | Path) -> Any:
        if str(path).endswith("0_1"):
            remove_store(tmp_path / "0_1")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scanned)
    assert names(tmp_path) == ["0_0", "0_2"]


def test_a_store_goes_when_no_application_has_kept_or_written_it_for_the_delay(tmp_path: Path) -> None:
    make(tmp_path, "0_0", "0_1", "0_1.1", "0_2")
    assert clean(tmp_path, {"0_0"}, 600.0, MADE + 599) == []
    assert [path.name for path in clean(tmp_path, {"0_1"}, 600.0, MADE + 600)] == ["0_2"], "0_0 was kept a second ago"
    assert names(tmp_path) == ["0_0", "0_1", "0_1.1"]
    assert [path.name for path in clean(tmp_path, set(), 600.0, MADE + 1199)] == ["0_0"]
    assert not (tmp_path / "0_0").exists()
    assert clean(tmp_path / "nowhere", set(), 600.0, MADE) == []


def test_a_store_that_is_written_stays(tmp_path: Path) -> None:
    make(tmp_path, "0_0")
    with LmdbStore(tmp_path / "0_0") as store:
        for file in (tmp_path / "0_0").rglob("*"):
            os.utime(file, (MADE, MADE))
        assert clean(tmp_path, set(), 600.0, MADE + 9_999) == []
        with pytest.raises(StoreInUseError):
            remove_store(tmp_path / "0_0")
        assert store.position() == Position(1)


def test_who_opened_a_lock_before_its_store_was_removed_gets_a_new_store(tmp_path: Path, monkeypatch) -> None:
    make(tmp_path, "0_0")
    opened = os.open

    def open_then_lose(path, *arguments):
        """Let another process remove the store between opening and locking."""
        number = opened(path, *arguments)
        monkeypatch.setattr(os, "open", opened)
        remove_store(tmp_path / "0_0")
        return number

    monkeypatch.setattr(os, "open", open_then_lose)
    with LmdbStore(tmp_path / "0_0") as store:
        assert store.position() == Position()
        with pytest.raises(StoreInUseError):
            LmdbStore(tmp_path / "0_0")


def test_a_reader_of_a_store_that_was_removed_says_so(tmp_path: Path) -> None:
    make(tmp_path, "0_0")
    with LmdbStore(tmp_path / "0_0", read_only=True) as reader:
        remove_store(tmp_path / "0_0")
        with pytest.raises(StoreMissingError):
            reader.position()


def test_the_largest_copies_are_given_up_first_and_no_more_than_needed(tmp_path: Path) -> None:
    make(tmp_path, "0_0", "0_3", entries=5_000)
    make(tmp_path, "0_1", entries=3_000)
    make(tmp_path, "0_2")
    before = sizes(tmp_path)
    assert before["0_0"] > before["0_1"] > before["0_2"] > 0
    assert give_up([tmp_path], {"0_1", "0_2"}, before["0_1"]) == {"0_1": before["0_1"]}
    assert names(tmp_path) == ["0_0", "0_2", "0_3"]
    assert give_up([tmp_path], {"0_2"}, 10**9) == {"0_2": before["0_2"]}
    assert names(tmp_path) == ["0_0", "0_3"]
