"""Where a host keeps the stores of a changelog topic, and how one is opened."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from roster.records.native import HASH, kernel
from roster.state import hash_snapshot
from roster.state.store import StoreDamagedError, StoreInUseError, ValueDamagedError
from roster.state.store_files import directory_name, state_directory

if TYPE_CHECKING:
    from roster.state.file_store import TaskStore

log = logging.getLogger("roster.spark")

T = TypeVar("T")

_PATIENCE = 2.0
"""Seconds to wait for a store that another process holds: cancelled tasks and work on copies release it sooner."""
_MOST_COPIES = 8
UNUSED = 60.0
"""Seconds after which an open store that no task has used is closed: its partition may be another application's."""
_MOST_OPEN = 50  # each maps a TiB of addresses

_open: dict[Path, tuple[TaskStore, float]] | None = None
"""Stores that stay open, not locked, and when each was used last; None: this process closes each behind its task."""


def keep_open() -> None:
    """Keep stores open in this process: opening one costs more than a small batch's work at it."""
    global _open  # noqa: PLW0603 - of the process
    _open = {}


def open_store(path: Path, *, is_ordered: bool, read_only: bool = False) -> TaskStore:
    """Open a store with the engine for entries in the order of keys, or with the one for others; see `FileStore`."""
    if is_ordered:
        from roster.state.lmdb_store import LmdbStore  # noqa: PLC0415 - needs an extra that others do not

        return LmdbStore(path, read_only=read_only)
    from roster.state.hash_store import HashStore  # noqa: PLC0415 - as above

    if not hash_snapshot.has_loops():
        hash_snapshot.use(kernel(None, HASH))
    return HashStore(path, read_only=read_only)


def open_for_reading(path: Path) -> TaskStore:
    """Open a store with the engine that has written it."""
    return open_store(path, is_ordered=not (path / "data" / "head").exists(), read_only=True)


@contextlib.contextmanager
def opened(path: Path, *, is_ordered: bool = True) -> Iterator[TaskStore]:
    """Open a store for writing, by one thread at a time; closed after an error, else it may stay open.

    Raises StoreInUseError, and the errors of opening a store.
    """
    store, _ = (_open or {}).pop(path, (None, 0.0))
    if store is None or not store.resume():
        store = open_store(path, is_ordered=is_ordered)
    try:
        yield store
    except BaseException:
        store.close()
        raise
    if _open is not None and len(_open) < _MOST_OPEN:
        store.pause()
        _open[path] = store, time.monotonic()
    else:
        store.close()


def close_unused(seconds: float = UNUSED) -> None:
    """Close the stores that no task has used for so long."""
    since, stores = time.monotonic() - seconds, _open or {}
    for path in [path for path, (_, used) in stores.items() if used <= since]:
        stores.pop(path)[0].close()


@lru_cache
def _root(directory: str | None, changelog: str, topic_id: str) -> Path:
    """Return the directory of a topic's stores, which each batch asks for."""
    return state_directory(directory) / directory_name(changelog) / topic_id


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host keeps the stores of one changelog topic.

    directory: None for `roster-state` in the host's directory of temporary files. topic_id: a topic recreated under the
    same name has other stores. is_ordered: whether the stores' entries lie in the order of keys.
    """

    directory: str | None
    changelog: str
    topic_id: str
    is_ordered: bool = True

    @property
    def root(self) -> Path:
        """The directory on this host with all stores of the topic."""
        return _root(self.directory, self.changelog, self.topic_id)

    def path(self, task: str) -> Path:
        """Return the directory of a task's store on this host."""
        return self.root / task

    def copies(self, task: str) -> list[Path]:
        """Return the directories that a task's store may be in on this host, the usual one first."""
        return [self.path(task), *(self._copy(task, number) for number in range(1, _MOST_COPIES))]

    def _copy(self, task: str, number: int) -> Path:
        return self.root / f"{task}.{number}"

    @contextlib.contextmanager
    def open(self, task: str) -> Iterator[TaskStore]:
        """Open the task's store for writing, or another copy if a hanging process holds it.

        Raises StoreInUseError if all copies are in use, and the errors of opening a store.
        """
        until, path, number = time.monotonic() + _PATIENCE, self.path(task), 0
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    store = stack.enter_context(opened(path, is_ordered=self.is_ordered))
                    break
                except StoreInUseError:
                    if time.monotonic() < until:
                        time.sleep(0.05)
                        continue
                    number += 1
                    if number == _MOST_COPIES:
                        raise
                    log.warning("store %s: another process has it; going on with another copy", path)
                    path = self._copy(task, number)
            yield store


def on_sound(store: TaskStore, work: Callable[[], T]) -> T:
    """Return the result of `work` on a store; a damaged store is recreated, and the work repeated."""
    try:
        return work()
    except (StoreDamagedError, ValueDamagedError) as error:
        store.discard(getattr(error, "reason", str(error)))
    return work()
