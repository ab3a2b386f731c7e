"""Reads of the stores on this host, for queries: entries as bytes, as of the last committed batch."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from roster._errors import one_line
from roster.model.tasks import TaskId
from roster.spark.state.changelogs import Changelog
from roster.spark.state.turn import Place
from roster.spark.state.upkeep import Upkeep
from roster.state.entries import Entries, Read, Span
from roster.state.pending import WithChanges
from roster.state.store import Snapshot, StateError, StoreMissingError

_reading: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
"""Held while a store is read: LMDB opens a file once in a process."""


@dataclass(slots=True)
class Found:
    """What was read of tasks.

    behind: of tasks that were read from a copy, the changelog offsets it lacked when it was looked at last. problems:
    why tasks could not be read.
    """

    reads: dict[TaskId, Read] = field(default_factory=dict)
    behind: dict[TaskId, int] = field(default_factory=dict)
    problems: dict[TaskId, str] = field(default_factory=dict)

    @property
    def has_entries(self) -> bool:
        """True if a task has an entry."""
        return any(read.entries for read in self.reads.values())

    def by_task(self) -> list[Read]:
        """Return what was read, in the order of tasks."""
        return [self.reads[task] for task in sorted(self.reads)]

    def add(self, other: Found) -> None:
        """Take in what another host has found; of a task that both have read what is less behind."""
        for task, read in other.reads.items():
            behind = other.behind.get(task, 0)
            if task not in self.reads or behind < self.behind.get(task, 0):
                self.reads[task] = read
                self.behind.pop(task, None)
                if task in other.behind:
                    self.behind[task] = behind
        self.problems |= other.problems


class LocalState:
    """The stores of one changelog in one application; from any thread."""

    def __init__(
        self,
        place: Place,
        changelog: Changelog,
        upkeep: Upkeep,
        token: Callable[[TaskId], str | None],
        entries: Entries,
    ) -> None:
        """`token` returns that of a task's last committed batch, None if it is not known. `entries` reads stores."""
        self._place, self._upkeep, self._token, self._entries = place, upkeep, token, entries
        self._changelog = changelog
        self.tasks = frozenset(changelog.tasks)
        """All tasks of the group that have such a store."""

    def whole(self) -> frozenset[TaskId]:
        """Return the tasks that run here and whose stores have all that was committed."""
        return self._upkeep.whole() & self.tasks

    def behind(self) -> dict[TaskId, int]:
        """Return the changelog offsets that stores lack, as seen last: of standby tasks, and of own ones not whole."""
        return {task: self._upkeep.gap(self._changelog[task]) for task in sorted(self._upkeep.copies() & self.tasks)}

    def read(self, span: Span, tasks: Collection[TaskId], *, stale: bool) -> Found:
        """Return the entries of those tasks that can be read here, with `stale` from copies too."""
        found, whole = Found(), self.whole()
        copies = self.behind() if stale else {}
        for task in sorted(tasks):
            if task not in whole and task not in copies:
                continue
            try:
                reached = self._upkeep.reached(self._changelog[task]) if task in whole else 0
                found.reads[task] = self._read(span, task, reached)
            except StateError as error:
                found.problems[task] = one_line(error)
                continue
            if task not in whole:
                found.behind[task] = copies[task]
        return found

    def _read(self, span: Span, task: TaskId, reached: int) -> Read:
        """Return what is in the task's store, which is the copy that stands at a changelog offset, at least."""
        for path in self._place.copies(str(task)):
            try:
                with self._snapshot(path, task) as snapshot:
                    if snapshot.position.changelog >= reached:
                        return self._entries.read(snapshot, span)
            except StoreMissingError:
                break
        if reached:
            raise StateError(f"its store on this host is behind offset {reached}")
        return Read()  # it has had no batch yet

    @contextmanager
    def _snapshot(self, path: Path, task: TaskId) -> Iterator[Snapshot]:
        """Yield a task's store, with the changes of its last committed batch that are not applied yet."""
        from roster.state.lmdb_store import LmdbStore  # noqa: PLC0415 - needs an extra that others do not

        with _reading[path], LmdbStore(path, read_only=True) as store, store.snapshot() as snapshot:
            pending = snapshot.pending()
            if pending is None or pending.token != self._token(task):
                yield snapshot
            else:
                yield WithChanges(snapshot, dict(zip(pending.keys, pending.values, strict=True)))
