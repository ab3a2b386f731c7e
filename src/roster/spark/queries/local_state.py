"""The stores of one changelog in one application, for queries: which tasks can be read, and how far behind they are."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from roster.model.tasks import TaskId
from roster.pipeline.driver.runner_protocol import TaskCommit
from roster.spark.queries.store_reads import CommittedAttempt, Reads, Wanted
from roster.state.entries import Read, Span
from roster.stateful.changelogs import Changelog
from roster.stateful.restore_schedule import Copies


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
        commit = self._commit_of(task)
        attempt = None if commit is None else CommittedAttempt(commit.token, commit.begins[log])
        return Wanted(task, reached if is_whole else min(reached, 1), attempt)
