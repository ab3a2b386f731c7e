"""Finds tasks that must run without records because a processing-time timer in their state is due."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.stateful.changelogs import Changelogs


class Wakeups:
    """Each task's next processing-time timer, as of its last batch; for the pipeline's thread.

    Tasks report the seconds left, not a time of day, so that hosts' clocks need not agree.
    """

    def __init__(
        self, changelogs: Changelogs, *, timed: Collection[int], now: Callable[[], float] = time.monotonic
    ) -> None:
        """`timed`: the sub-topologies whose tasks run without records. `now` in seconds."""
        self._changelogs, self._timed, self._now = changelogs, frozenset(timed), now
        self._unknown: set[TaskId] = set()
        self._at: dict[TaskId, float] = {}

    def took(self, partitions: Collection[TopicPartition]) -> None:
        """Record tasks that run here from now on: each must run once to report its state's timers."""
        tasks = [task for task in self._changelogs.tasks_of(partitions) if task.subtopology in self._timed]
        self._unknown.update(tasks)
        for task in tasks:
            self._at.pop(task, None)

    def worked(self, timers: Mapping[TaskId, float | None]) -> None:
        """Record in how many seconds the next timer of each task is due, None without one."""
        now = self._now()
        self._unknown.difference_update(timers)
        for task, seconds in timers.items():
            self._at.pop(task, None)
            if seconds is not None and task.subtopology in self._timed:
                self._at[task] = now + seconds

    def due(self, partitions: Collection[TopicPartition], *, once: bool = False) -> frozenset[TopicPartition]:
        """Return the source partitions among these whose tasks must run now.

        once: only tasks that have not run since they were taken, so that a run ends.
        """
        if not (self._unknown or self._at):
            return frozenset()
        due, now = set(self._unknown), self._now()
        if not once:
            due.update(task for task, at in self._at.items() if at <= now)
        return frozenset(each for each in partitions if not due.isdisjoint(self._changelogs.tasks_of([each])))
