"""Stores on this host: their sizes, the ones applications keep, and removal of the rest."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from roster.state.store import StoreInUseError
from roster.state.store_files import remove_store

log = logging.getLogger(__name__)

_MARKER = "store.json"
_WRITTEN = (Path("data", "data.mdb"), Path("data", "head"))
"""A file that each write of an engine changes."""
_KEPT = "kept"
"""File whose modification time says when an application last kept the store."""


def stores_below(root: Path) -> list[Path]:
    """Return the directories of the stores below a directory, in the order of their paths."""
    # Unlike Path.rglob, os.walk passes over a directory that another process has just removed.
    return sorted(Path(directory) for directory, _, files in os.walk(root) if _MARKER in files)


def store_bytes(path: Path) -> int:
    """Return the bytes that a store's data take on the disk."""
    size = 0
    for directory, _, files in os.walk(path / "data"):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                size += Path(directory, name).stat().st_blocks * 512
    return size


def task_name(path: Path) -> str:
    """Return the task of a store's directory; further copies have a number after the task's name."""
    return path.name.partition(".")[0]


def keep(root: Path, tasks: Collection[str], now: float) -> None:
    """Record that an application keeps the stores of these tasks. `now`: wall-clock seconds."""
    for path in stores_below(root):
        if task_name(path) in tasks:
            with contextlib.suppress(FileNotFoundError):
                (path / _KEPT).touch()
                os.utime(path / _KEPT, (now, now))


def unkept_for(path: Path, now: float) -> float:
    """Return for how many seconds a store was neither written nor kept."""
    times = []
    for name in (_KEPT, *_WRITTEN, _MARKER):
        with contextlib.suppress(FileNotFoundError):
            times.append((path / name).stat().st_mtime)
    return now - max(times, default=now)


def clean(root: Path, kept: Collection[str], delay: float, now: float) -> list[Path]:
    """Keep the stores of these tasks, and remove stores that no application has kept or written for `delay` seconds.

    Stores in use stay. Returns the removed ones.
    """
    keep(root, kept, now)
    removed = []
    for path in stores_below(root):
        if task_name(path) not in kept and (unkept := unkept_for(path, now)) >= delay and _removed(path):
            log.info("store %s: removed, no application has kept it for %.0f s", path, unkept)
            removed.append(path)
    return removed


def _removed(path: Path) -> bool:
    try:
        remove_store(path)
    except (StoreInUseError, OSError) as error:
        log.debug("store %s stays: %s", path, error)
        return False
    return True


def sizes(root: Path) -> Mapping[str, int]:
    """Return the bytes of each task's stores."""
    by_task: dict[str, int] = {}
    for path in stores_below(root):
        by_task[task_name(path)] = by_task.get(task_name(path), 0) + store_bytes(path)
    return by_task


def give_up(roots: Iterable[Path], tasks: Collection[str], excess: int) -> dict[str, int]:
    """Remove the stores of these tasks, the largest first, until enough bytes are free; return the bytes of each."""
    stores: dict[str, list[tuple[Path, int]]] = {}
    for path in (path for root in roots for path in stores_below(root)):
        if task_name(path) in tasks:
            stores.setdefault(task_name(path), []).append((path, store_bytes(path)))
    gone: dict[str, int] = {}
    for task in sorted(stores, key=lambda name: sum(size for _, size in stores[name]), reverse=True):
        if sum(gone.values()) >= excess:
            break
        if freed := sum(size for path, size in stores[task] if _removed(path)):
            gone[task] = freed
    return gone
