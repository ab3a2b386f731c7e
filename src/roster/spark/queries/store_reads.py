"""Reads stores on their hosts: entries as bytes, as of the last committed batch of each task.

With a local master the driver reads them. On a cluster a Spark job does, on the hosts that have the stores.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from roster._errors import one_line
from roster.model.tasks import TaskId
from roster.pipeline.driver.runner_protocol import TaskCommit
from roster.spark.jobs.preferred_locations import Cluster
from roster.state.definition import Definition
from roster.state.entries import Entries, Read, Span
from roster.state.evolution import seen_as
from roster.state.pending import WithChanges
from roster.state.store import Snapshot, StateError, StoreMissingError
from roster.stateful.changelogs import Changelog
from roster.stateful.restore_schedule import Copies
from roster.stateful.tasks.store_location import Place, open_for_reading

_reading: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
"""Held while a store is read: a process may open an LMDB file only once."""


class Wanted(NamedTuple):
    """A task to read.

    reached: lower bound of its store's changelog offset. token: of the last committed attempt, whose changes the store
    has pending or applied; None if unknown. begin: the changelog offset where these begin.
    """

    task: TaskId
    reached: int
    token: str | None = None
    begin: int = -1


class Outcome(NamedTuple):
    """Entries read from a task, None with a `problem`."""

    task: TaskId
    read: Read | None
    problem: str = ""


Reads: TypeAlias = Callable[[Span, Sequence[Wanted]], Iterable[Outcome]]


@dataclass(frozen=True)
class ReadsHere:
    """Reads the stores of one changelog on this host, as the pipeline's definition has them; can be pickled."""

    place: Place
    definition: Definition

    @cached_property
    def _entries(self) -> Entries:
        return self.definition.entries()

    def __call__(self, span: Span, wanted: Iterable[Wanted]) -> Iterator[Outcome]:
        """Yield the entries of each task's store."""
        for copy in wanted:
            try:
                yield Outcome(copy.task, self._read(span, copy))
            except StateError as error:
                yield Outcome(copy.task, None, one_line(error))

    def _read(self, span: Span, wanted: Wanted) -> Read:
        """Return the entries of the copy of a task's store that has the last committed changes."""
        for path in self.place.copies(str(wanted.task)):
            try:
                with self._snapshot(path, wanted) as snapshot:
                    if snapshot is not None:
                        return self._entries.read(seen_as(self.definition, snapshot), span)
            except StoreMissingError:
                break
        if wanted.reached:
            raise StateError(f"its store on this host is behind offset {wanted.reached}")
        return Read()  # no batch yet

    @staticmethod
    @contextmanager
    def _snapshot(path: Path, wanted: Wanted) -> Iterator[Snapshot | None]:
        """Yield a store with the changes of the last committed batch, applied or not; None if it lacks them."""
        with _reading[path], open_for_reading(path) as store, store.snapshot() as snapshot:
            pending, offset = snapshot.pending(), snapshot.position.changelog
            is_pending = pending is not None and pending.token == wanted.token
            if offset < wanted.reached or (offset <= wanted.begin and not is_pending):
                yield None
            elif pending is not None and is_pending:
                yield WithChanges(snapshot, pending.changes())
            else:
                yield snapshot


class ReadsOnExecutors:
    """Reads stores by a Spark job of one task for each host; from any thread. It waits for a free core."""

    def __init__(self, context: SparkContext, cluster: Cluster, here: ReadsHere) -> None:
        self._context, self._cluster, self._here = context, cluster, here

    def __call__(self, span: Span, wanted: Sequence[Wanted]) -> Sequence[Outcome]:
        """Return the entries of each task's store. Raises StateError if the job fails."""
        by_host: dict[tuple[str, ...], list[Wanted]] = {}
        for copy in wanted:
            by_host.setdefault(self._cluster.hosts(copy.task), []).append(copy)
        if not by_host:
            return []
        here, groups = self._here, list(by_host.values())
        self._context.setLocalProperty("spark.job.description", "reads state")
        try:
            placed = self._cluster.placed(groups, [[copy.task for copy in group] for group in groups])
            return placed.flatMap(lambda group: list(here(span, group))).collect()
        except (PySparkException, Py4JError) as error:
            raise StateError(f"the stores cannot be read: {str(error).partition(chr(10))[0]}") from None
        finally:
            self._context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


@dataclass(slots=True)
class Found:
    """Entries read from tasks.

    behind: for tasks read from a copy, the changelog offsets that it lacked at the last look. problems: why tasks could
    not be read.
    """

    reads: dict[TaskId, Read] = field(default_factory=dict)
    behind: dict[TaskId, int] = field(default_factory=dict)
    problems: dict[TaskId, str] = field(default_factory=dict)

    @property
    def has_entries(self) -> bool:
        """True if a task has an entry."""
        return any(read.entries for read in self.reads.values())

    def by_task(self) -> list[Read]:
        """Return the entries in the order of tasks."""
        return [self.reads[task] for task in sorted(self.reads)]

    def add(self, other: Found) -> None:
        """Merge another host's result; of a task that both have read keep the copy with the smaller lag."""
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
        reads: Reads,
        changelog: Changelog,
        copies: Copies,
        commit_of: Callable[[TaskId], TaskCommit | None],
    ) -> None:
        """`reads` reads stores. `commit_of` returns the last commit of a task, None if unknown."""
        self._reads, self._copies, self._commit_of = reads, copies, commit_of
        self._changelog = changelog
        self.tasks = frozenset(changelog.tasks)
        """All tasks of the group that have such a store."""

    def whole(self) -> frozenset[TaskId]:
        """Return the tasks that run here and whose stores have all committed changes."""
        return self._copies.whole() & self.tasks

    def behind(self) -> dict[TaskId, int]:
        """Return the changelog offsets that stores lacked at the last look: of copies, and own tasks not whole."""
        return {task: self._copies.gap(self._changelog[task]) for task in sorted(self._copies.not_whole() & self.tasks)}

    def read(self, span: Span, tasks: Collection[TaskId], *, stale: bool) -> Found:
        """Return the entries of the tasks among these that can be read here, with `stale` from copies too."""
        found, whole = Found(), self.whole()
        lacking = self.behind() if stale else {}
        here = sorted(whole.union(lacking).intersection(tasks))
        wanted = [self._wanted(task, is_whole=task in whole) for task in here]
        for task, read, problem in self._reads(span, wanted):
            if read is None:
                found.problems[task] = problem
                continue
            found.reads[task] = read
            if task not in whole:
                found.behind[task] = lacking[task]
        return found

    def _wanted(self, task: TaskId, *, is_whole: bool) -> Wanted:
        log = self._changelog[task]
        reached = self._copies.reached(log)
        # A copy may be at any offset, but its store must exist.
        reached = reached if is_whole else min(reached, 1)
        commit = self._commit_of(task)
        return Wanted(task, reached) if commit is None else Wanted(task, reached, commit.token, commit.begins[log])
