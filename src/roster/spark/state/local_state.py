"""Reads of the stores on this host, for queries: entries as bytes, as of the last committed batch."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from roster._errors import one_line
from roster.model.tasks import TaskId
from roster.spark.state.turn import Place
from roster.spark.state.upkeep import Upkeep
from roster.state.store import Snapshot, StateError, StoreMissingError

_reading: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
"""Held while a store is read: LMDB opens a file once in a process."""


class Span(NamedTuple):
    """Keys from `start` up to before `stop`, the first `limit` of each task; with `is_key` the key `start` alone."""

    start: bytes = b""
    stop: bytes | None = None
    limit: int | None = None
    is_key: bool = False


@dataclass(slots=True)
class Found:
    """Entries of tasks.

    behind: of tasks that were read from a copy, the changelog offsets it lacked when it was looked at last. problems:
    why tasks could not be read.
    """

    entries: dict[bytes, bytes] = field(default_factory=dict)
    tasks: set[TaskId] = field(default_factory=set)
    behind: dict[TaskId, int] = field(default_factory=dict)
    problems: dict[TaskId, str] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        """Take in what another host has found."""
        self.entries |= other.entries
        self.tasks |= other.tasks
        self.behind |= other.behind
        self.problems |= other.problems


class LocalState:
    """The stores of one application; from any thread."""

    def __init__(self, place: Place, upkeep: Upkeep, token: Callable[[TaskId], str | None]) -> None:
        """`token` returns that of a task's last committed batch, None if it is not known."""
        self._place, self._upkeep, self._token = place, upkeep, token

    def read(self, span: Span, tasks: Collection[TaskId], *, stale: bool) -> Found:
        """Return the entries of those tasks that can be read here, with `stale` from copies too."""
        found, whole = Found(), self._upkeep.whole()
        copies = self._upkeep.behind() if stale else {}
        for task in sorted(tasks):
            if task not in whole and task not in copies:
                continue
            try:
                found.entries |= self._entries(span, task, self._upkeep.reached(task) if task in whole else 0)
            except StateError as error:
                found.problems[task] = one_line(error)
                continue
            found.tasks.add(task)
            if task not in whole:
                found.behind[task] = copies[task]
        return found

    def _entries(self, span: Span, task: TaskId, reached: int) -> Mapping[bytes, bytes]:
        """Return what is in the task's store, which is the copy that stands at a changelog offset, at least."""
        for path in self._place.copies(str(task)):
            try:
                with self._snapshot(path, task) as (snapshot, changed):
                    if snapshot.position.changelog >= reached:
                        return _of_span(span, snapshot, changed)
            except StoreMissingError:
                break
        if reached:
            raise StateError(f"its store on this host is behind offset {reached}")
        return {}  # it has had no batch yet

    @contextmanager
    def _snapshot(self, path: Path, task: TaskId) -> Iterator[tuple[Snapshot, Mapping[bytes, bytes | None]]]:
        """Yield a task's store, with the changes of its last committed batch that are not applied yet."""
        from roster.state.lmdb_store import LmdbStore  # noqa: PLC0415 - needs an extra that others do not

        with _reading[path], LmdbStore(path, read_only=True) as store, store.snapshot() as snapshot:
            pending = snapshot.pending()
            is_committed = pending is not None and pending.token == self._token(task)
            yield snapshot, dict(zip(pending.keys, pending.values, strict=True)) if pending and is_committed else {}


def _of_span(span: Span, snapshot: Snapshot, changed: Mapping[bytes, bytes | None]) -> Mapping[bytes, bytes]:
    if span.is_key:
        value = changed[span.start] if span.start in changed else snapshot.multi_get([span.start])[0]
        return {} if value is None else {span.start: value}
    found = dict(snapshot.scan(span.start, span.stop, None if span.limit is None else span.limit + len(changed)))
    for key, value in changed.items():
        if key >= span.start and (span.stop is None or key < span.stop):
            found.pop(key, None)
            found |= {} if value is None else {key: value}
    return dict(sorted(found.items())[: span.limit])
