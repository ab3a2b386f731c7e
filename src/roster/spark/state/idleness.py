"""Finds tasks that have had no records for a time, and the stream time that their stores then get."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import and_

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.spark.batch import Batch, StoreProgress
from roster.spark.state.changelogs import Changelogs


@dataclass(slots=True)
class _Quiet:
    """A task since its last records: seconds of when these were and of its next turn.

    times: stream time of each store in ms as of `noted`; None if no batch has told them yet.
    """

    since: float
    turn: float
    noted: float
    times: Sequence[int | None] | None = None


class Idleness:
    """The tasks of one application that have no records; for the pipeline's thread.

    A task without records for `after` seconds has a turn, and another each time these have passed again, until one
    changes nothing. It gives each store the least stream time of that store among tasks with records, or without such
    tasks its own plus the seconds since it was noted.
    """

    def __init__(
        self,
        changelogs: Changelogs,
        closing: Mapping[int, Sequence[bool]],
        after: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """closing: which stores go by stream time, by sub-topology. `now` in seconds."""
        self._changelogs, self._closing, self._after, self._now = changelogs, closing, after, now
        self._of: dict[TaskId, _Quiet] = {}
        self._busy: set[TaskId] = set()
        self._due: set[TaskId] = set()
        self._given: dict[TaskId, list[int | None]] = {}
        self._asked = 0.0

    def took(self, partitions: Collection[TopicPartition]) -> None:
        """Record tasks that run here from now on, or whose last batch is not committed."""
        self._records_at(self._now(), dict.fromkeys(self._changelogs.tasks_of(partitions)))

    def due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> frozenset[TopicPartition]:
        """Return the partitions among these, all that are owned, whose tasks must run now.

        behind: partitions with records to read. once: return none, as a run up to the log ends waits for nothing.
        """
        if not self._closing:
            return frozenset()
        owned, now = set(self._changelogs.tasks_of(partitions)), self._now()
        self._of = {task: quiet for task, quiet in self._of.items() if task in owned}
        self._busy = set(self._changelogs.tasks_of(behind))
        until = self._until_at(now)
        waiting = {task for task, quiet in self._of.items() if quiet.turn <= now and not once}
        is_told = {task for task in waiting if self._of[task].times is not None}
        self._due = {task for task in waiting - self._busy if task not in is_told or {*until(task)} != {None}}
        return frozenset(each for each in partitions if not self._due.isdisjoint(self._changelogs.tasks_of([each])))

    def until(self, batch: Batch) -> Mapping[TaskId, Sequence[int | None]]:
        """Return the stream time in ms that each store of a batch's tasks without records gets, None if none."""
        self._asked = self._now()
        until = self._until_at(self._asked)
        self._given = {task: found for task in self._due & self._idle_in(batch) if (found := until(task))}
        return self._given

    def worked(self, batch: Batch, stores: Mapping[TaskId, Sequence[StoreProgress]]) -> None:
        """Record what a batch's tasks did."""
        times = {task: [store.stream_time_ms for store in of] for task, of in stores.items()}
        idle = self._idle_in(batch)
        self._records_at(self._now(), {task: of for task, of in times.items() if task not in idle})
        for task in idle & self._due & times.keys():
            quiet, closing = self._of[task], self._closing[task.subtopology]
            if (given := self._given.get(task)) is not None:
                stays = [at is None and own is not None for at, own in zip(given, quiet.times or (), strict=True)]
                # A turn that changes nothing has found nothing open.
                is_over = not any(store.changed for store in stores[task]) and not any(map(and_, stays, closing))
                quiet.turn = float("inf") if is_over else self._asked + self._after
                quiet.noted = self._asked
            quiet.times = times[task]
        self._due, self._given = set(), {}

    def _records_at(self, now: float, tasks: Mapping[TaskId, Sequence[int | None] | None]) -> None:
        quiet = {task: _Quiet(now, now + self._after, now, times) for task, times in tasks.items()}
        self._of |= {task: each for task, each in quiet.items() if task.subtopology in self._closing}

    def _idle_in(self, batch: Batch) -> set[TaskId]:
        read = self._changelogs.tasks_of(source for source, span in batch.ranges.items() if span.size)
        return set(self._changelogs.tasks_of(batch.ranges)).difference(read) & self._of.keys()

    def _until_at(self, now: float) -> Callable[[TaskId], list[int | None]]:
        """Return what tells the stream time that each store of a task without records gets; None: none."""
        least: dict[tuple[int, int], int] = {}
        for task, quiet in self._of.items():
            for place, at in enumerate(quiet.times or ()):
                if at is not None and (task in self._busy or quiet.since + self._after > now):
                    store = task.subtopology, place
                    least[store] = min(at, least.get(store, at))

        def until(task: TaskId) -> list[int | None]:
            quiet, found = self._of[task], list[int | None]()
            for place, (own, closes) in enumerate(
                zip(quiet.times or (), self._closing[task.subtopology], strict=False)
            ):
                if own is None or not closes:
                    found.append(None)
                    continue
                at = least.get((task.subtopology, place), own + int((now - quiet.noted) * 1000))
                found.append(at if at > own else None)
            return found

        return until
