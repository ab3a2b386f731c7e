"""Finds tasks that must run without records: for a processing-time timer, or as an input has had none for a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from typing_extensions import override

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Batch, StoreProgress
from roster.stateful.changelogs import Changelogs

Times: TypeAlias = list[int | None]
"""Stream time of each store of a task in ms, None for one without; empty before the first batch."""


class TaskRun(NamedTuple):
    """What a task has done in a batch.

    seconds_to_timer: until its next processing-time timer, None without one; not a time of day, so that hosts' clocks
    need not agree. is_notice: it has read notices alone, and so no records.
    """

    stores: Sequence[StoreProgress]
    seconds_to_timer: float | None = None
    is_notice: bool = False


class DueTasks:
    """A reason for tasks to run without records; as it is here, there is none. For the pipeline's thread."""

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Record tasks that run here from now on."""

    def due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> Collection[TopicPartition]:
        """Return the partitions among these, all that are owned, whose tasks must run now.

        behind: partitions with records to read. once: the run ends at the log ends, and waits for nothing. Raises
        ClientError.
        """
        return ()

    def ran(self, batch: Batch, tasks: Mapping[TaskId, TaskRun]) -> None:
        """Record what a batch's tasks did."""

    def committed(self, batch: Batch) -> None:
        """Record that a batch is committed."""

    def aborted(self, batch: Batch) -> None:
        """Record that a batch is not committed."""


class Timers(DueTasks):
    """Each task's next processing-time timer, as of its last batch."""

    def __init__(
        self, changelogs: Changelogs, subtopologies: Collection[int], now: Callable[[], float] = time.monotonic
    ) -> None:
        """`subtopologies`: those whose tasks run without records. now: in seconds."""
        self._changelogs, self._subtopologies, self._now = changelogs, frozenset(subtopologies), now
        self._unknown: set[TaskId] = set()
        """Tasks that must run once to report their state's timers."""
        self._due_times: dict[TaskId, float] = {}

    @override
    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        tasks = [task for task in self._changelogs.tasks_of(partitions) if task.subtopology in self._subtopologies]
        self._unknown.update(tasks)
        for task in tasks:
            self._due_times.pop(task, None)

    @override
    def ran(self, batch: Batch, tasks: Mapping[TaskId, TaskRun]) -> None:
        now = self._now()
        self._unknown.difference_update(tasks)
        for task, run in tasks.items():
            self._due_times.pop(task, None)
            if run.seconds_to_timer is not None and task.subtopology in self._subtopologies:
                self._due_times[task] = now + run.seconds_to_timer

    @override
    def due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> Collection[TopicPartition]:
        """Return the partitions whose tasks must run now; `once`: those that have not run since they were assigned."""
        due, now = set(self._unknown), self._now()
        if not once:
            due.update(task for task, due_time in self._due_times.items() if due_time <= now)
        return [p for p in partitions if self._changelogs.readers.get(p) in due]


class _Input(NamedTuple):
    """An input with a stream time of its own: a task's input topics, or the topic that it joins with them, `other`."""

    task: TaskId
    other: str | None = None


@dataclass(slots=True)
class _Quiet:
    """An input without records: seconds of its last ones and of its next turn; its stream times as of `noted`.

    is_held: a source behind a repartition holds its task back, so rows in front of it are still to come.
    """

    since: float
    turn: float
    noted: float
    times: Times = field(default_factory=list)
    is_held: bool = False


class Idleness(DueTasks):
    """The inputs of one application's tasks that have no records.

    After `after` seconds without records a task runs once without input, and again every `after` seconds until its
    state stops changing. Each store then gets the least stream time of its operator among inputs with records, or
    without such inputs its own plus the seconds since it was noted. The later side of a join counts.

    An input has no turn while rows of it are still to come: a source holds its task back, or `behind` says so.
    """

    def __init__(
        self,
        changelogs: Changelogs,
        joined: Mapping[int, Sequence[str | None]],
        after: float,
        behind: Callable[[Collection[int]], Collection[int]] = lambda _: (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`joined`: the topic that each store joins, None for none, of each sub-topology that goes by stream time.

        behind: returns those of some sub-topologies in front of whose repartition anything is left to read; may raise
        ClientError. now: in seconds.
        """
        self._changelogs, self._joined, self._after, self._now = changelogs, joined, after, now
        self._behind = behind
        self._quiet: dict[_Input, _Quiet] = {}
        self._given: dict[_Input, Times] = {}
        self._asked = 0.0

    @override
    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        for task in self._changelogs.tasks_of(partitions):
            for source in self._inputs(task):
                self._wait_anew(source, [])

    @override
    def aborted(self, batch: Batch) -> None:
        """Wait anew for the inputs of its tasks."""
        self.assigned(batch.ranges)

    @override
    def due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> Collection[TopicPartition]:
        """Return the partitions whose tasks must run now; none if `once`."""
        now, by_partition, busy = self._now(), self._by_partition(partitions), {*self._by_partition(behind).values()}
        owned = {*by_partition.values()}
        self._quiet = {source: quiet for source, quiet in self._quiet.items() if source in owned}
        self._given, self._asked = {}, now
        least = self._least(busy, now)
        for source, quiet in self._quiet.items():
            if quiet.turn <= now and source not in busy and not once:
                new_times = [self._goes_to(source, place, own, least, now) for place, own in enumerate(quiet.times)]
                if not new_times or new_times != quiet.times:
                    self._given[source] = new_times
        numbers = self._behind({source.task.subtopology for source in self._given})
        for source in [*self._given]:
            if (quiet := self._quiet[source]).is_held or source.task.subtopology in numbers:
                self._wait_anew(source, quiet.times, is_held=quiet.is_held)
                del self._given[source]
        return [partition for partition, source in by_partition.items() if source in self._given]

    def _least(self, busy: Collection[_Input], now: float) -> dict[tuple[int, int], int]:
        """Return the least stream time among inputs that are not idle, by sub-topology and place of the store."""
        least = dict[tuple[int, int], int]()
        for source, quiet in self._quiet.items():
            if source in busy or quiet.is_held or quiet.since + self._after > now:
                for place, stream_time in enumerate(quiet.times):
                    if stream_time is not None:
                        operator = source.task.subtopology, place
                        least[operator] = min(stream_time, least.get(operator, stream_time))
        return least

    def _goes_to(
        self, source: _Input, place: int, own: int | None, least: Mapping[tuple[int, int], int], now: float
    ) -> int | None:
        """Return the stream time that a store goes on to from its `own`."""
        sides = self._sides(source.task, place)
        if source not in sides or (own is None and len(sides) == 1):
            return None  # a side of a join goes by the other one though it has never had a record
        target = least.get((source.task.subtopology, place))
        known_sides = [quiet for side in sides if (quiet := self._quiet.get(side)) is not None and quiet.times]
        times = [stream_time for quiet in known_sides if (stream_time := quiet.times[place]) is not None]
        if target is None and times:
            target = max(times) + int((now - max(quiet.noted for quiet in known_sides)) * 1000)
        return max((stream_time for stream_time in (own, target) if stream_time is not None), default=None)

    def times_to_give(self, batch: Batch) -> Mapping[TaskId, list[tuple[int | None, ...]]]:
        """Return the stream times that each store of a batch's tasks gets: of a join both sides', None: as it was."""
        read = self._read_in(batch)
        times_of = {source: times for source, times in self._given.items() if times and source not in read}
        return {
            task: [
                tuple(times_of[side][place] if side in times_of else None for side in self._sides(task, place))
                for place in range(len(self._joined[task.subtopology]))
            ]
            for task in {source.task for source in times_of}
        }

    @override
    def ran(self, batch: Batch, tasks: Mapping[TaskId, TaskRun]) -> None:
        read = self._read_in(batch) - {_Input(task) for task, run in tasks.items() if run.is_notice}
        for task, run in tasks.items():
            inputs = self._inputs(task)
            is_held = any(store.held_by for store in run.stores)
            for source in inputs:
                times = self._stream_times(source, run.stores)
                quiet, given = self._quiet.get(source), self._given.get(source)
                if source in read:
                    self._wait_anew(source, times, is_held=is_held)
                elif quiet is not None:
                    if given:
                        # A turn that changes nothing has found nothing open, unless a store waits for others.
                        waits = any(to is not None and to == own for to, own in zip(given, quiet.times, strict=True))
                        goes_on = waits or any(store.changed for store in run.stores)
                        quiet.turn, quiet.noted = self._asked + self._after if goes_on else float("inf"), self._asked
                    elif quiet.times and times != quiet.times:
                        quiet.noted = self._now()
                    if quiet.turn == float("inf") and not read.isdisjoint(inputs):
                        quiet.turn = self._now() + self._after
                    quiet.times, quiet.is_held = times, is_held
        self._given = {}

    def _wait_anew(self, source: _Input, times: Times, *, is_held: bool = False) -> None:
        now = self._now()
        self._quiet[source] = _Quiet(now, now + self._after, now, times, is_held)

    def _stream_times(self, source: _Input, stores: Sequence[StoreProgress]) -> Times:
        """Return an input's stream time of each store."""
        if source.other is None:
            return [store.stream_time_ms for store in stores]
        others = self._joined[source.task.subtopology]
        return [
            store.other_time_ms if other == source.other else None for store, other in zip(stores, others, strict=True)
        ]

    def _inputs(self, task: TaskId) -> list[_Input]:
        """Return a task's inputs, none if it does not go by stream time."""
        places = range(len(self._joined.get(task.subtopology, ())))
        return list(dict.fromkeys(side for place in places for side in self._sides(task, place)))

    def _sides(self, task: TaskId, place: int) -> list[_Input]:
        other = self._joined[task.subtopology][place]
        return [_Input(task)] if other is None else [_Input(task), _Input(task, other)]

    def _by_partition(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, _Input]:
        """Return the input that each partition belongs to; others are skipped."""
        inputs = {}
        for partition in partitions:
            task = self._changelogs.readers.get(partition)
            if task is not None and task.subtopology in self._joined:
                is_other = partition.topic in self._joined[task.subtopology]
                inputs[partition] = _Input(task, partition.topic if is_other else None)
        return inputs

    def _read_in(self, batch: Batch) -> set[_Input]:
        return {*self._by_partition(source for source, span in batch.ranges.items() if span.size).values()}
