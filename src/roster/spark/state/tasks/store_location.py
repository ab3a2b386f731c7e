"""Where a host keeps the stores of a changelog topic, and how one is opened."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from roster.state.store import StoreDamagedError, StoreInUseError, ValueDamagedError
from roster.state.store_files import directory_name, state_directory

if TYPE_CHECKING:
    from roster.state.lmdb_store import LmdbStore

log = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE = 2.0
"""Seconds to wait for a store that another process holds: cancelled tasks and work on copies release it sooner."""
_MOST_COPIES = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host keeps the stores of one changelog topic.

    directory: None for `roster-state` in the host's directory of temporary files. topic_id: a topic recreated under the
    same name has other stores.
    """

    directory: str | None
    changelog: str
    topic_id: str

    @property
    def root(self) -> Path:
        """The directory on this host with all stores of the topic."""
        return state_directory(self.directory) / directory_name(self.changelog) / self.topic_id

    def path(self, task: str) -> Path:
        """Return the directory of a task's store on this host."""
        return self.root / task

    def copies(self, task: str) -> list[Path]:
        """Return the directories that a task's store may be in on this host, the usual one first."""
        return [self.path(task), *(self._copy(task, number) for number in range(1, _MOST_COPIES))]

    def _copy(self, task: str, number: int) -> Path:
        return self.root / f"{task}.{number}"

    def open(self, task: str) -> LmdbStore:
        """Open the task's store for writing, or another copy if a hanging process holds it.

        Raises StoreInUseError if all copies are in use, and the errors of opening a store.
        """
        from roster.state.lmdb_store import LmdbStore  # noqa: PLC0415 - needs an extra that others do not

        until, path, number = time.monotonic() + _PATIENCE, self.path(task), 0
        while True:
            try:
                return LmdbStore(path)
            except StoreInUseError:
                if time.monotonic() < until:
                    time.sleep(0.05)
                    continue
                number += 1
                if number == _MOST_COPIES:
                    raise
                log.warning("store %s: another process has it; going on with another copy", path)
                path = self._copy(task, number)


def on_sound(store: LmdbStore, work: Callable[[], T]) -> T:
    """Return the result of `work` on a store; a damaged store is recreated, and the work repeated."""
    try:
        return work()
    except StoreDamagedError as error:
        store.discard(error.reason)
    except ValueDamagedError as error:
        store.discard(str(error))
    return work()
