"""The copies of state that an application keeps: their progress, and which to restore next and for how long.

A copy is the store of a standby task, of a warm-up, or of a task just taken over, which is restored before its first
batch. Copies are restored beside batches, for at most a fifth of their time, and between batches.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from roster.client import TaskMember
from roster.member.task_assignor import HeldTasks
from roster.model import Address, TopicPartition
from roster.model.tasks import StorePosition, TaskId, task_gap
from roster.pipeline.batch import Restoring
from roster.pipeline.driver.runner_protocol import SHORTEST_RESTORE
from roster.stateful.changelogs import Changelog, Changelogs, Logs
from roster.stateful.tasks.catch_up import StoreTarget
from roster.stateful.tasks.host_stores import Restored, RestoreJob

log = logging.getLogger("roster.spark")

SHARE = 0.2
"""Fraction of the batches' time that work on copies may add."""
_LEAST, _MOST = SHORTEST_RESTORE, 1.0
"""Seconds of one piece of work: a longer one holds up batches."""
_INTERVAL = 1.0
"""Seconds between two looks at the logs when all copies have caught up."""


class Allowance:
    """Time that work on copies may add to batches: a share of their time, saved up to a limit."""

    def __init__(self, share: float = SHARE) -> None:
        self._share, self._saved = share, 0.0

    def earn(self, seconds: float) -> None:
        """Add the time of batches without the work on copies."""
        self._saved = min(self._saved + self._share * seconds, _MOST)

    def spend(self, seconds: float) -> None:
        """Subtract the time that work on copies took; an overdraft must be earned before the next piece."""
        self._saved -= seconds

    @property
    def seconds(self) -> float:
        """Seconds that the next piece may take; 0 until they suffice for one."""
        return self._saved if self._saved >= _LEAST else 0.0


@dataclass(slots=True)
class _Restoration:
    """The progress of restoring one task. `start`: changelog offsets that its stores had passed at the start."""

    start: int
    began: float
    records: int = 0
    bytes: int = 0


class CopiesNow(NamedTuple):
    """The copies behind a batch.

    active: the tasks with state that run here. records: applied to copies since the batch before. restoring: progress
    of each copy that has not caught up, by task.
    """

    active: frozenset[TaskId]
    records: int
    restoring: Mapping[str, Restoring]


class Copies:
    """The copies of one application; call all methods on the pipeline's thread.

    Changelog offsets are the last ones seen. Call `join` before the first batch.
    """

    def __init__(
        self,
        logs: Logs,
        changelogs: Changelogs,
        acceptable_lag: int,
        now: Callable[[], float] = time.monotonic,
        tables: Collection[Changelog] = (),
    ) -> None:
        """tables: topics that are joined; each is the changelog of its tasks' copies of it."""
        self._logs, self._acceptable, self._now = logs, acceptable_lag, now
        self.changelogs = Changelogs([*changelogs, *tables]) if tables else changelogs
        self._tables = frozenset(table.topic for table in tables)
        self.all_tasks = frozenset(self.changelogs.tasks)
        """All tasks of the group that have state or join a table."""
        self._member: TaskMember | None = None
        self._reached: dict[TopicPartition, int] = {}
        """The changelog offset of each store; below, the logs' starts and ends."""
        self._doubted: set[TopicPartition] = set()
        """Changelogs whose store is at `_reached` or beyond; it must be looked up."""
        self._begins: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self.cold: set[TaskId] = set()
        """Own tasks that are restored before they are read."""
        self._whole: set[TaskId] = set()
        """Own tasks whose store has the last committed changes: only these answer queries without `stale`."""
        self._given_up: set[TaskId] = set()
        self._restorations: dict[TaskId, _Restoration] = {}
        self._looked_up_at = self._rests_until = float("-inf")
        self._next = self._records = 0
        self.process_id = uuid.uuid4()
        """Process id of the stores found: applications that share stores are one process to the group."""
        self.allowance = Allowance()

    # What is here.

    def record_stores(self, stores: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """Record the stores on the executors' hosts: {process id: {changelog partition: offset}}."""
        if len(stores) == 1:
            self.process_id = uuid.UUID(next(iter(stores)))
        elif stores:
            self.process_id = uuid.uuid5(uuid.NAMESPACE_OID, " ".join(sorted(stores)))
        self._reached = {}
        self._doubted = set()
        for positions in stores.values():
            for changelog, at in positions.items():
                self._reached[changelog] = max(at, self._reached.get(changelog, 0))

    def join(self, member: TaskMember) -> None:
        """Attach the group member: source of tasks, receiver of gap reports."""
        self._member, self.cold, self._looked_up_at = member, set(), float("-inf")
        self._whole = set()
        self._restorations.clear()

    def gaps(self) -> dict[TaskId, int]:
        """Return how many offsets the stores of each task lack; without a store, the whole log.

        Raises ClientError.
        """
        self._look_up_ends(self.changelogs.tasks)
        return self._gaps()

    def _look_up_ends(self, tasks: Collection[TaskId]) -> None:
        """Look up the current ends of these tasks' changelogs."""
        logs = self._logs_of(tasks)
        if unknown := [changelog for changelog in logs if changelog not in self._begins]:
            self._begins |= self._logs.beginning_offsets(unknown)
        if logs:
            self._ends |= self._logs.stable_offsets(logs)

    def _logs_of(self, tasks: Iterable[TaskId]) -> list[TopicPartition]:
        return [changelog for task in tasks for changelog in self.changelogs.logs[task]]

    def _stores_of(self, tasks: Iterable[TaskId]) -> list[TopicPartition]:
        """Return the changelogs of these tasks' operators, which a batch changes."""
        return [log for log in self._logs_of(tasks) if log.topic not in self._tables]

    def gap(self, changelog: TopicPartition) -> int:
        """Return how many offsets the store of a changelog partition lacked at the last look."""
        return task_gap([self._position(changelog)])

    def _position(self, changelog: TopicPartition) -> StorePosition:
        return StorePosition(self._begins[changelog], self._ends[changelog], self._reached.get(changelog))

    def _gap(self, task: TaskId) -> int:
        return task_gap(map(self._position, self.changelogs.logs[task]))

    def _gaps(self) -> dict[TaskId, int]:
        known = dict.fromkeys(self.changelogs.task_by_log[log] for log in self._ends)
        return {task: self._gap(task) for task in known}

    def _held(self) -> HeldTasks:
        """Return the tasks of the member that have state."""
        if self._member is None:
            return HeldTasks()
        held, every = self._member.tasks(), self.all_tasks
        sets = (held.active, held.revoking, held.standby, held.restoring)
        active, revoking, standby, restoring = (tasks & every for tasks in sets)
        return HeldTasks(active, revoking, standby, restoring, held.by_host)

    # Work to do.

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Record tasks that this application runs from now on; tasks far behind are restored first.

        Raises ClientError.
        """
        tasks = self.changelogs.tasks_of(partitions)
        self._look_up_ends(tasks)
        self.cold.update(task for task in tasks if self._gap(task) > self._acceptable)
        self._whole.difference_update(tasks)
        self._given_up.difference_update(tasks)
        self._mark_whole(tasks)

    def mark_unknown(self, tasks: Collection[TaskId]) -> None:
        """Record that a batch of these tasks was not committed, so that their stores' content is unknown."""
        self._whole.difference_update(tasks)
        self._doubted.update(self._stores_of(tasks))

    def _mark_whole(self, tasks: Collection[TaskId]) -> None:
        """Mark fully restored stores as readable."""
        doubted = set(tasks) - self.cold
        if not doubted:
            return
        logs = self._stores_of(doubted)
        ends = self._logs.end_offsets(logs) if logs else {}
        self._look_up_ends(doubted)
        self._whole |= {task for task in doubted if self._is_whole(task, ends)}

    def _is_whole(self, task: TaskId, ends: Mapping[TopicPartition, int]) -> bool:
        logs = self._stores_of([task])
        is_stable = all(self._ends[changelog] >= ends[changelog] for changelog in logs)
        return is_stable and self._doubted.isdisjoint(logs) and not any(map(self.gap, logs))

    def _is_known(self, changelog: TopicPartition) -> bool:
        return changelog in self._reached and changelog not in self._doubted

    def record_batch(self, ends: Mapping[TopicPartition, int]) -> None:
        """Record that tasks ran a batch: their stores are at these changelog offsets."""
        self._reached |= ends
        self._doubted.difference_update(ends)
        self._ends |= {changelog: max(end, self._ends.get(changelog, end)) for changelog, end in ends.items()}
        self._whole.update(self.changelogs.task_by_log[log] for log in ends)

    def after_batch(
        self,
        ends: Mapping[TopicPartition, int],
        restored: Iterable[Restored],
        beside: tuple[Sequence[Sequence[RestoreJob]], float],
    ) -> CopiesNow:
        """Record a batch as `record_batch` and `record_restored` do, and return how the copies are."""
        self.record_batch(ends)
        self.record_restored(restored, beside=beside)
        records, self._records = self._records, 0
        return CopiesNow(self.active(), records, self.restoring())

    def held(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the source partitions among these whose tasks must be restored before they are read."""
        return frozenset(p for p in partitions if self.changelogs.readers.get(p) in self.cold)

    def with_batch(self, batch: Collection[TaskId] = ()) -> tuple[list[RestoreJob], float]:
        """Return the restore jobs to run beside a batch of these tasks, and the seconds for them."""
        own_tasks = self._held_now()
        if self.cold:
            return self._restore_jobs(own_tasks, batch), _MOST
        seconds = self.allowance.seconds
        if not seconds and (own_tasks.active - self._whole).difference(batch):
            seconds = _LEAST
        return (self._restore_jobs(own_tasks, batch), seconds) if seconds else ([], 0.0)

    def between_batches(self, seconds: float) -> tuple[list[RestoreJob], float]:
        """Return the restore jobs for a pause of so many seconds, and the seconds for them."""
        own_tasks, seconds = self._held_now(), min(seconds, _MOST)
        return (self._restore_jobs(own_tasks), seconds) if seconds >= _LEAST else ([], 0.0)

    def _held_now(self) -> HeldTasks:
        """Return the tasks of the member that have state, and forget what is known of others."""
        own_tasks = self._held()
        self.cold &= own_tasks.active
        self._whole &= own_tasks.active
        return own_tasks

    def _restore_jobs(self, own_tasks: HeldTasks, batch: Collection[TaskId] = ()) -> list[RestoreJob]:
        """Return the copies that lag, starting with another one each time; tasks that batches wait for come first."""
        now = self._now()
        unproven = own_tasks.active - self._whole
        pause = 0.0 if self.is_restoring or unproven else _INTERVAL
        if self._member is None or now < max(self._looked_up_at + pause, self._rests_until):
            return []
        running = (own_tasks.active | own_tasks.revoking) - self.cold - unproven
        self._look_up_ends([task for task in self.changelogs.tasks if task not in running])
        self._looked_up_at = now
        standby = own_tasks.standby - self._given_up
        self._mark_whole(unproven.difference(batch))
        wanted = sorted((self.cold or unproven - self._whole | standby).difference(batch))
        behind = [
            changelog for changelog in self._logs_of(wanted) if self.gap(changelog) > 0 or not self._is_known(changelog)
        ]
        self._update_restorations(self.cold | standby)
        self._member.report_gaps(self._gaps())
        self._next += 1
        first = self._next % len(behind) if behind else 0
        return [
            RestoreJob(
                self.changelogs.task_by_log[changelog],
                StoreTarget(changelog, self._begins[changelog], self._ends[changelog], {}, None),
            )
            for changelog in behind[first:] + behind[:first]
        ]

    def _update_restorations(self, tasks: Collection[TaskId]) -> None:
        for task in self._restorations.keys() - tasks:
            del self._restorations[task]
        for task in tasks:
            if task not in self._restorations and self._gap(task) > self._acceptable:
                self._restorations[task] = _Restoration(self._passed(task), self._now())

    def _passed(self, task: TaskId) -> int:
        """Return how many changelog offsets the task's stores have passed."""
        logs = self.changelogs.logs[task]
        return sum(max(self._reached.get(changelog, 0), self._begins[changelog]) for changelog in logs)

    def record_restored(
        self, done: Iterable[Restored], *, beside: tuple[Sequence[Sequence[RestoreJob]], float] | None = None
    ) -> None:
        """Record finished jobs, and report the gaps to the group.

        beside: the jobs of each task of a batch, and the seconds that all took; None between batches.
        """
        done = list(done)
        if beside is not None:
            lanes, seconds = beside
            seconds_of = {copy.changelog: copy.seconds for copy in done}
            spent = max((sum(seconds_of.get(job.changelog, 0.0) for job in lane) for lane in lanes), default=0.0)
            self.allowance.earn(max(seconds - spent, 0.0))
            self.allowance.spend(spent)
        for copy in done:
            self._records += copy.records
            task = self.changelogs.task_by_log[copy.changelog]
            if copy.position is None:
                log.warning("the copy of task %s cannot be worked on: %s", task, copy.problem)
                self.cold.discard(task)  # its next batch retries, and fails with the whole error
                self._rests_until = self._now() + _INTERVAL
                continue
            self._reached[copy.changelog] = copy.position
            self._doubted.discard(copy.changelog)
            if (restoration := self._restorations.get(task)) is not None:
                restoration.records += copy.records
                restoration.bytes += copy.bytes
            if self._gap(task) <= self._acceptable:
                self.cold.discard(task)
                self._restorations.pop(task, None)
        if done and self._member is not None:
            self._member.report_gaps(self._gaps())

    # Views, for any thread.

    def whole(self) -> frozenset[TaskId]:
        """Return the tasks that run here and whose stores have all committed changes."""
        return self.active() & self._whole

    def hosts(self) -> Mapping[Address, frozenset[TaskId]]:
        """Return the active tasks of every application that answers queries, as of the last rebalance."""
        return self._member.tasks().by_host if self._member is not None else {}

    def not_whole(self) -> frozenset[TaskId]:
        """Return the standby tasks, and own tasks that are not in `whole`."""
        own_tasks = self._held()
        return (own_tasks.active | own_tasks.standby) - self.whole()

    def kept(self) -> tuple[frozenset[TaskId], frozenset[TaskId]]:
        """Return the tasks whose stores are kept here: those that run or are handed over, and copies.

        Includes tasks without state, for their tables.
        """
        own_tasks = HeldTasks() if self._member is None else self._member.tasks()
        return own_tasks.active | own_tasks.revoking, own_tasks.standby

    def record_lost(self, tasks: Collection[TaskId]) -> None:
        """Record that stores of these tasks are gone."""
        for changelog in self._logs_of(self.all_tasks.intersection(tasks)):
            self._reached.pop(changelog, None)

    def record_given_up(self, tasks: Collection[TaskId]) -> None:
        """Record that copies of these tasks are gone and not wanted until the task runs here."""
        self.record_lost(tasks)
        self._given_up.update(tasks)

    def reached(self, changelog: TopicPartition) -> int:
        """Return a lower bound of the offset of a changelog partition's store."""
        return self._reached.get(changelog, 0)

    def active(self) -> frozenset[TaskId]:
        """Return the tasks with state that run here."""
        return self._held().active

    @property
    def is_restoring(self) -> bool:
        """True while a copy is known to be more than the acceptable lag behind."""
        return bool(self._restorations or self.cold)

    def restoring(self) -> dict[str, Restoring]:
        """Return the progress of each copy that has not caught up, by task."""
        return {str(task): self._progress(task) for task in sorted(self._restorations)}

    def _progress(self, task: TaskId) -> Restoring:
        restoration, left = self._restorations[task], self._gap(task)
        passed, spent = self._passed(task) - restoration.start, self._now() - restoration.began
        seconds_left = left * spent / passed if passed > 0 else None
        return Restoring(restoration.records, restoration.bytes, left, seconds_left)


def deal(jobs: Sequence[RestoreJob], tasks: int, cores: int) -> list[list[RestoreJob]]:
    """Deal the jobs to Spark tasks: to cores that a batch of `tasks` leaves free, else after its own work."""
    free = min(cores - tasks, len(jobs))
    lanes: list[list[RestoreJob]] = [[] for _ in range(max(tasks, tasks + free))]
    used = lanes[tasks:] if free > 0 else lanes
    for number, job in enumerate(jobs):
        used[number % len(used)].append(job)
    return lanes
