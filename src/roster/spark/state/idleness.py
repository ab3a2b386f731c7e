"""Finds tasks that have had no records for a time, and the stream time that their stores then get."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.spark.batch import Batch, StoreProgress
from roster.spark.state.changelogs import Changelogs

Times = list[int | None]
"""Stream time of each store of a task in ms, None for one without; empty if no batch has told them yet."""


@dataclass(slots=True)
class _Quiet:
    """A task without records: seconds of its last ones and of its next turn; its stream times as of `noted`."""

    since: float
    turn: float
    noted: float
    times: Times = field(default_factory=list)


class Idleness:
    """The tasks of one application that have no records; for the pipeline's thread.

    A task without records for `after` seconds has a turn, and another each time these have passed again, until one
    changes nothing. It gives each store the least stream time of that store among tasks with records, or without such
    tasks its own plus the seconds since it was noted.
    """

    def __init__(
        self, changelogs: Changelogs, closing: Collection[int], after: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`closing`: sub-topologies of which some store goes by stream time. `now` in seconds."""
        self._changelogs, self._closing, self._after, self._now = changelogs, closing, after, now
        self._of: dict[TaskId, _Quiet] = {}
        self._given: dict[TaskId, Times] = {}
        self._asked = 0.0

    def took(self, partitions: Collection[TopicPartition]) -> None:
        """Record tasks that run here from now on, or whose last batch is not committed."""
        for task in self._changelogs.tasks_of(partitions):
            self._note(task, [])

    def due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> frozenset[TopicPartition]:
        """Return the partitions among these, all that are owned, whose tasks must run now.

        behind: partitions with records to read. once: return none, as a run up to the log ends waits for nothing.
        """
        if not self._of:
            return frozenset()
        tasks_of, now = self._changelogs.tasks_of, self._now()
        owned, busy = set(tasks_of(partitions)), set(tasks_of(behind))
        self._of = {task: quiet for task, quiet in self._of.items() if task in owned}
        self._given, self._asked = {}, now
        least: dict[tuple[int, int], int] = {}
        for task, quiet in self._of.items():
            if task in busy or quiet.since + self._after > now:
                for place, at in enumerate(quiet.times):
                    if at is not None:
                        store = task.subtopology, place
                        least[store] = min(at, least.get(store, at))
        for task, quiet in self._of.items():
            if quiet.turn <= now and task not in busy and not once:
                passed, number = int((now - quiet.noted) * 1000), task.subtopology
                times = enumerate(quiet.times)
                given = [None if at is None else max(at, least.get((number, n), at + passed)) for n, at in times]
                if not given or given != quiet.times:
                    self._given[task] = given
        return frozenset(each for each in partitions if not self._given.keys().isdisjoint(tasks_of([each])))

    def until(self, batch: Batch) -> Mapping[TaskId, Times]:
        """Return the stream time that each store of a batch's tasks without records gets."""
        return {task: given for task, given in self._given.items() if given and task not in self._read_in(batch)}

    def worked(self, batch: Batch, stores: Mapping[TaskId, Sequence[StoreProgress]]) -> None:
        """Record what a batch's tasks did."""
        read = self._read_in(batch)
        for task, of in stores.items():
            times, given = [store.stream_time_ms for store in of], self._given.get(task)
            if task in read:
                self._note(task, times)
            elif given is not None:
                quiet = self._of[task]
                # A turn that changes nothing has found nothing open, unless a store waits for others.
                waits = any(at is not None and at == own for at, own in zip(given, quiet.times, strict=True))
                if given:
                    goes_on = waits or any(store.changed for store in of)
                    quiet.turn, quiet.noted = self._asked + self._after if goes_on else float("inf"), self._asked
                quiet.times = times
        self._given = {}

    def _note(self, task: TaskId, times: Times) -> None:
        if task.subtopology in self._closing:
            now = self._now()
            self._of[task] = _Quiet(now, now + self._after, now, times)

    def _read_in(self, batch: Batch) -> set[TaskId]:
        return set(self._changelogs.tasks_of(source for source, span in batch.ranges.items() if span.size))
