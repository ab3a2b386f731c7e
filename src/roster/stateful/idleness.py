"""Finds tasks that have had no records for a time, and the stream time that their stores then get."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Batch, StoreProgress
from roster.stateful.changelogs import Changelogs

Times: TypeAlias = list[int | None]
"""Stream time of each store of a task in ms, None for one without; empty if no batch has told them yet."""


class _Input(NamedTuple):
    """What goes by a stream time of its own: a task's input topics, or the topic that it joins with them, `other`."""

    task: TaskId
    other: str | None = None


@dataclass(slots=True)
class _Quiet:
    """An input without records: seconds of its last ones and of its next turn; its stream times as of `noted`."""

    since: float
    turn: float
    noted: float
    times: Times = field(default_factory=list)


class Idleness:
    """The inputs of one application's tasks that have no records; for the pipeline's thread.

    An input without records for `after` seconds has a turn, and another each time these have passed again, until one
    changes nothing. It gives each store the least stream time of that store's operator among inputs with records, or
    without such inputs its own plus the seconds since it was noted. Of a join the later side's counts.
    """

    def __init__(
        self,
        changelogs: Changelogs,
        joined: Mapping[int, Sequence[str | None]],
        after: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`joined`: the topic that each store joins, None for none, of each sub-topology that goes by stream time.

        now: in seconds.
        """
        self._changelogs, self._joined, self._after, self._now = changelogs, joined, after, now
        self._of: dict[_Input, _Quiet] = {}
        self._given: dict[_Input, Times] = {}
        self._asked = 0.0

    def took(self, partitions: Collection[TopicPartition]) -> None:
        """Record tasks that run here from now on, or whose last batch is not committed."""
        for task in self._changelogs.tasks_of(partitions):
            for each in self._inputs(task):
                self._note(each, [])

    def due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> frozenset[TopicPartition]:
        """Return the partitions among these, all that are owned, whose tasks must run now.

        behind: partitions with records to read. once: return none, as a run up to the log ends waits for nothing.
        """
        if not self._of:
            return frozenset()
        now, by_partition, busy = self._now(), self._by_partition(partitions), {*self._by_partition(behind).values()}
        owned = {*by_partition.values()}
        self._of = {each: quiet for each, quiet in self._of.items() if each in owned}
        self._given, self._asked = {}, now
        least = self._least(busy, now)
        for each, quiet in self._of.items():
            if quiet.turn <= now and each not in busy and not once:
                given = [self._goes_to(each, place, at, least, now) for place, at in enumerate(quiet.times)]
                if not given or given != quiet.times:
                    self._given[each] = given
        return frozenset(partition for partition, each in by_partition.items() if each in self._given)

    def _least(self, busy: Collection[_Input], now: float) -> dict[tuple[int, int], int]:
        """Return the least stream time among inputs with records, by sub-topology and place of the store."""
        least = dict[tuple[int, int], int]()
        for each, quiet in self._of.items():
            if each in busy or quiet.since + self._after > now:
                for place, at in enumerate(quiet.times):
                    if at is not None:
                        operator = each.task.subtopology, place
                        least[operator] = min(at, least.get(operator, at))
        return least

    def _goes_to(
        self, each: _Input, place: int, at: int | None, least: Mapping[tuple[int, int], int], now: float
    ) -> int | None:
        """Return the stream time that a store goes on to from `at`."""
        sides = self._sides(each.task, place)
        if each not in sides or (at is None and len(sides) == 1):
            return None  # a side of a join goes by the other one though it has never had a record
        to = least.get((each.task.subtopology, place))
        found = [quiet for side in sides if (quiet := self._of.get(side)) is not None and quiet.times]
        known = [time for quiet in found if (time := quiet.times[place]) is not None]
        if to is None and known:
            to = max(known) + int((now - max(quiet.noted for quiet in found)) * 1000)
        return max((time for time in (at, to) if time is not None), default=None)

    def until(self, batch: Batch) -> Mapping[TaskId, list[tuple[int | None, ...]]]:
        """Return the stream times that each store of a batch's tasks gets: of a join both sides', None: as it was."""
        read = self._read_in(batch)
        given = {each: times for each, times in self._given.items() if times and each not in read}
        return {
            task: [
                tuple(given[each][place] if each in given else None for each in self._sides(task, place))
                for place in range(len(self._joined[task.subtopology]))
            ]
            for task in {each.task for each in given}
        }

    def worked(
        self, batch: Batch, stores: Mapping[TaskId, Sequence[StoreProgress]], told: Collection[TaskId] = ()
    ) -> None:
        """Record what a batch's tasks did. told: those that have read notices alone, and so no records."""
        read = self._read_in(batch) - {_Input(task) for task in told}
        for task, of in stores.items():
            inputs = self._inputs(task)
            for each in inputs:
                times = self._told(each, of)
                quiet, given = self._of.get(each), self._given.get(each)
                if each in read:
                    self._note(each, times)
                elif quiet is not None:
                    if given:
                        # A turn that changes nothing has found nothing open, unless a store waits for others.
                        waits = any(at is not None and at == own for at, own in zip(given, quiet.times, strict=True))
                        goes_on = waits or any(store.changed for store in of)
                        quiet.turn, quiet.noted = self._asked + self._after if goes_on else float("inf"), self._asked
                    elif quiet.times and times != quiet.times:
                        quiet.noted = self._now()
                    if quiet.turn == float("inf") and not read.isdisjoint(inputs):
                        quiet.turn = self._now() + self._after
                    quiet.times = times
        self._given = {}

    def _note(self, each: _Input, times: Times) -> None:
        now = self._now()
        self._of[each] = _Quiet(now, now + self._after, now, times)

    def _told(self, each: _Input, stores: Sequence[StoreProgress]) -> Times:
        """Return an input's stream time of each store."""
        if each.other is None:
            return [store.stream_time_ms for store in stores]
        others = self._joined[each.task.subtopology]
        return [
            store.other_time_ms if other == each.other else None for store, other in zip(stores, others, strict=True)
        ]

    def _inputs(self, task: TaskId) -> list[_Input]:
        """Return a task's inputs, none if it does not go by stream time."""
        places = range(len(self._joined.get(task.subtopology, ())))
        return list(dict.fromkeys(each for place in places for each in self._sides(task, place)))

    def _sides(self, task: TaskId, place: int) -> list[_Input]:
        other = self._joined[task.subtopology][place]
        return [_Input(task)] if other is None else [_Input(task), _Input(task, other)]

    def _by_partition(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, _Input]:
        """Return the input that each partition belongs to; others are skipped."""
        found = {}
        for partition in self._changelogs.sources_in(partitions):
            task = self._changelogs.reader_of(partition)
            if task is not None and task.subtopology in self._joined:
                is_other = partition.topic in self._joined[task.subtopology]
                found[partition] = _Input(task, partition.topic if is_other else None)
        return found

    def _read_in(self, batch: Batch) -> set[_Input]:
        return {*self._by_partition(source for source, span in batch.ranges.items() if span.size).values()}
