"""Batches whose tasks have stores: preparation, what the tasks do, what is recorded, and work between two batches."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark import Accumulator
from pyspark.errors import PySparkException
from typing_extensions import override

from roster.client import ClientError
from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Batch, StoreProgress
from roster.pipeline.driver.offset_ranges import regrouped_by_task, spread
from roster.pipeline.driver.runner_protocol import Outcome
from roster.pipeline.driver.switching import Unswitched
from roster.pipeline.errors import FunctionError, MissingSchemasError, PipelineError, SinkFencedError
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.reader import ByAttempt, ByTask, ReaderConfig
from roster.records.produce import WriteError
from roster.spark.jobs.preferred_locations import Cluster
from roster.spark.jobs.runner import Counted, Failed, ReadBatches, RunSmall, Splits
from roster.spark.jobs.small_batches import CancelledError
from roster.spark.jobs.spark_jobs import SparkJobs
from roster.spark.joined_batches import TableJoins
from roster.stateful.definition_check import DefinitionCheck
from roster.stateful.due_tasks import TaskRun
from roster.stateful.restore_schedule import CopiesNow, deal
from roster.stateful.store_cleaner import StoreCleaner
from roster.stateful.stores import Stores
from roster.stateful.tasks.catch_up import StoreTarget
from roster.stateful.tasks.host_stores import Restored, RestoreJob, check_state_dir, found_here
from roster.stateful.tasks.outgoing import Backlog
from roster.stateful.tasks.processing import Report
from roster.stateful.tasks.task import STORE, RestoreJobs, StatefulTask
from roster.wire.errors import ErrorCode

log = logging.getLogger(__name__)

_MOST_FENCED = 20
"""Consecutive batches that may begin elsewhere than where their state ends, before the run fails."""

_SETTLING = 10.0
"""Seconds to apply the last batch's changes at the end of a run, of the worker and then of Spark's tasks for what it
left; a store without them reads its changelog later."""

Reports = dict[TaskId, tuple[Report, ...]]
StoresOfTasks = dict[TaskId, tuple[StoreProgress, ...]]


class StatefulBatches(ReadBatches):
    """Batches whose tasks have stores."""

    whole_partitions = True

    def __init__(
        self,
        jobs: SparkJobs,
        cluster: Cluster | None,
        config: ReaderConfig,
        function: ArrowFunction | None,
        stores: Stores,
        joins: Sequence[TableJoins],
        cleaner: StoreCleaner,
        replayed: Callable[[], Collection[TaskId]],
        switching: Unswitched,
        task: type[StatefulTask] = StatefulTask,
    ) -> None:
        """`stores` are open. cluster: of a session that is not local. joins: of each sub-topology.

        replayed: tasks whose results in the next batch must not be sent. switching: says which tasks write none.
        task: what runs on the executors.

        Raises PipelineError if the group's state has another definition.
        """
        super().__init__(jobs, config, function)
        self._cluster, self._stores, self._joins, self._cleaner = cluster, stores, joins, cleaner
        self._replayed, self._switching, self._task = replayed, switching, task
        self._definition_check: DefinitionCheck | None = stores.definition_check(config)
        self.topology, self._copies = stores.topology, stores.copies
        self._names = {task: str(task) for task in stores.changelogs.tasks}
        self._plans = {plan.subtopology.number: plan for plan in stores.plans}
        self._has_pairs = any(len(plan.subtopology.sources) > 1 for plan in stores.plans)
        """True if a task may have several splits."""
        self._targets: dict[TaskId, list[StoreTarget]] = {}
        self._ends: dict[TopicPartition, int] = {}
        """The changelog offset that each store has to go to, in this batch."""
        self._seen: StoresOfTasks = {}
        self._fenced = 0
        self._backlogs: dict[tuple[int, str], Backlog] = {}
        self._to_change: set[TopicPartition] = set()
        self._reports: Accumulator[Reports] = jobs.context.accumulator({}, ByAttempt())
        self._restored: Accumulator[dict[TopicPartition, Restored]] = jobs.context.accumulator({}, ByTask())
        self._sent: Accumulator[dict[int, int]] = jobs.context.accumulator({}, ByTask())
        self._found: Accumulator[dict[str, dict[TopicPartition, int]]] = jobs.context.accumulator({}, ByTask())
        self._ran: Accumulator[dict[int, str]] = jobs.context.accumulator({}, ByTask())
        self._restore_jobs = RestoreJobs(done=self._restored, found=self._found)
        jobs.when_cancelled(stores.targets.cancel)

    @override
    def warm_up(self, run: Callable[[], None]) -> None:
        """Load what a batch needs, and find the stores on the executors' hosts."""
        found_stores = None if self._cluster is None else self._found
        self._found.value, self._restore_jobs = {}, RestoreJobs(found=found_stores, ran=self._noting())
        run()
        if found_stores is not None:
            self._copies.record_stores(found_stores.value)

    @override
    def find_stores(self) -> None:
        """Check the state directories, and find the stores if they are on this host; else the warm-up does."""
        check_state_dir(self._stores.options.state.dir, self._jobs.on_each_host)
        if self._cluster is None:
            self._copies.record_stores(found_here(self.topology.places_by_log))

    @override
    def run(self, batch: Batch, tasks: Splits, write: Callable[[Batch, Splits], Outcome]) -> Outcome:
        """Look up how far each store has to go, deal copies to the tasks, write, and record what the tasks did."""
        self._clean()
        self._check_once_more()
        self._look_up_targets(batch)
        batch, tasks = self._dealt(batch, tasks)
        lanes = self._deal_copies(batch, len(tasks))
        began = time.monotonic()
        outcome = self._written(batch, [*tasks, *[()] * (len(lanes) - len(tasks))], write)
        return self._recorded(batch, outcome, (lanes, time.monotonic() - began))

    def _clean(self) -> None:
        """Clean the stores if it is time. Raises PipelineError if active tasks' stores are beyond the limit."""
        if time.monotonic() >= self._cleaner.due_at:
            self._cleaner.clean()

    def _look_up_targets(self, batch: Batch) -> None:
        """Look up how far the stores of the batch's tasks have to go, and what is left to read behind it."""
        readers = self._copies.changelogs.readers
        replayed, switching = self._replayed(), self._switching
        paused = {readers.get(p) for p in switching.paused(batch.ranges)} if switching.is_on else set()
        idle_times = {} if self._stores.idleness is None else self._stores.idleness.times_to_give(batch)
        backlogs = {key: backlog.left_behind(batch) for key, backlog in self._stores.input_backlogs.items()}
        self._backlogs = {key: backlog for key, backlog in backlogs.items() if backlog is not None}
        self._targets = {
            task: [
                target._replace(is_replay=task in replayed, is_paused=task in paused, idle_until=times)
                for target, times in zip(targets, idle_times.get(task) or [()] * len(targets), strict=True)
            ]
            for task, targets in self._stores.targets.prepare(batch).items()
        }
        self._ends = {target.changelog: target.end for of_task in self._targets.values() for target in of_task}
        for joins in self._joins:
            joins.begin(batch)

    def _dealt(self, batch: Batch, tasks: Splits) -> tuple[Batch, Splits]:
        """Return the batch and its splits by Spark tasks: on all cores if it changes a definition, by host, by task."""
        if not self._to_change.isdisjoint(self._ends):
            batch = replace(batch, rewrites_state=True)
            logging.getLogger("roster.pipeline").info(
                "%s: this batch changes the entries of state, which takes longer", batch.owner.group
            )
            tasks = spread(tasks, self._jobs.cores)
        if self._cluster is not None:
            return batch, self._cluster.dealt(tasks, self.topology.task_of)
        return batch, regrouped_by_task(tasks, self.topology.task_of) if self._has_pairs else tasks

    def _deal_copies(self, batch: Batch, count: int) -> Sequence[Sequence[RestoreJob]]:
        """Choose the copies to restore beside the batch, and return those of each of its Spark tasks, or of more."""
        readers = self._copies.changelogs.readers
        jobs, seconds = self._copies.with_batch({readers[p] for p in batch.ranges if p in readers})
        lanes = deal(jobs, count, self._jobs.cores) if jobs else [[] for _ in range(count)]
        self._restore_jobs = RestoreJobs(lanes, seconds, self._restored if jobs else None, ran=self._noting())
        return lanes

    def _written(self, batch: Batch, tasks: Splits, write: Callable[[Batch, Splits], Outcome]) -> Outcome:
        """Write the batch; its errors name store, key or changelog."""
        self._reports.value, self._restored.value, self._sent.value = {}, {}, {}
        try:
            return write(batch, tasks)
        except SinkFencedError as error:
            raise self._moved(error) from None
        except MissingSchemasError:
            raise
        except FunctionError as error:
            raise with_batch(error, batch) from None
        except WriteError as error:
            raise explained_write_error(error, self._reports.value) from None

    def _recorded(
        self, batch: Batch, outcome: Outcome, beside: tuple[Sequence[Sequence[RestoreJob]], float]
    ) -> Outcome:
        """Record what the tasks did with their stores; return the outcome with the stores' progress."""
        self._fenced = 0
        self._to_change.difference_update(self._ends)
        copies = self._copies.after_batch(self._ends | self._tables_read(), self._restored.value.values(), beside)
        last_reports = {task: attempts[-1] for task, attempts in self._reports.value.items()}
        if self._stores.features:
            runs = {task: TaskRun(r.stores, r.timer, r.is_notice) for task, r in last_reports.items()}
            self._stores.ran(batch, runs, self._sent.value)
        last = {task: self._named(task, report.stores) for task, report in last_reports.items()}
        self._seen = {task: stores for task, stores in self._seen.items() if task in copies.active} | last
        stores, tokens = self._store_progress(last), tokens_of(self._reports.value)
        return replace(summed(outcome, last, copies), stores=stores, tokens=tokens)

    def _named(self, task: TaskId, stores: tuple[StoreProgress, ...]) -> tuple[StoreProgress, ...]:
        """Return what a task did, with the names of partitions."""
        if not any(store.late_sources or store.held_by is not None for store in stores):
            return stores
        plan, named = self._plans[task.subtopology], self._stores.source_names.named
        return tuple(named(store, plan, task, node) for store, node in zip(stores, plan.nodes, strict=True))

    def _tables_read(self) -> dict[TopicPartition, int]:
        """Return the offsets of tables that the batch has seen."""
        sides = [side for joins in self._joins for side in joins.sides() if side.rows.topic in self.topology.tables]
        return {target.changelog: target.end for side in sides for target in side.targets.values()}

    def _store_progress(self, last: StoresOfTasks) -> Mapping[str, Mapping[str, StoreProgress]]:
        """Return what is known of each store, by name and task; tasks not in `last` did nothing in this batch."""
        by_store: dict[str, dict[str, StoreProgress]] = {}
        for task, stores in self._seen.items():
            for node, seen in zip(self._plans[task.subtopology].nodes, stores, strict=True):
                idle = seen._replace(
                    changed=0, late=0, restored=0, restored_bytes=0, restore_ms=0, late_behind_ms={}, late_sources={}
                )
                by_store.setdefault(node.store, {})[self._names[task]] = seen if task in last else idle
        return by_store

    def _check_once_more(self) -> None:
        """Check the definition again before the first batch: it may have changed since. Raises PipelineError."""
        check, self._definition_check = self._definition_check, None
        if check is not None:
            check.check()
            self._to_change = check.to_change

    def _moved(self, error: SinkFencedError) -> PipelineError:
        """Return the exception for a batch that does not begin where its state ends: positions are looked up again."""
        self._fenced += 1
        if self._fenced < _MOST_FENCED:
            return error
        fix = "Use another group, or `roster state reset` to begin without state"
        return PipelineError(error.problem, field="group", fix=fix)

    @override
    def reading(self, tasks: Splits, counted: Counted, failed: Failed | None) -> StatefulTask:
        """Return what reads the tasks' splits and processes them with their stores."""
        jobs, tables = self._restore_jobs, {joins.number: joins.sides() for joins in self._joins}
        reading: dict[str, Any] = {"function": self._function, "counted": counted, "failed": failed, "tables": tables}
        reading |= {"backlogs": self._backlogs, "sent": self._sent if self._backlogs else None}
        return self._task(self.config, tasks, self.topology, self._targets, self._reports, jobs, **reading)

    @property
    def restores(self) -> bool:
        """True if copies are restored beside the batch."""
        return any(self._restore_jobs.lanes)

    @override
    def collect(self, tasks: Splits, work: Callable[[Iterable[int]], Iterable[Any]]) -> list[Any]:
        """Run a job of these tasks, on the hosts of their stores if possible."""
        if self._cluster is None:
            return self._jobs.collect(len(tasks), work)
        stores = self._stores_of(tasks)
        results = self._cluster.placed(range(len(tasks)), stores).mapPartitions(work).collect()
        if self._jobs.job_group is not None:
            self._cluster.ran(self._jobs.job_group, stores, self._ran.value)
        return results

    def _noting(self) -> Accumulator[dict[int, str]] | None:
        """Return the accumulator of the stores that tasks saw, None if locations do not matter."""
        self._ran.value = {}
        return None if self._cluster is None else self._ran

    def _stores_of(self, tasks: Splits) -> list[set[TaskId]]:
        """Return the tasks whose stores each Spark task uses: tasks of its splits, or of its copies."""
        lanes = self._restore_jobs.lanes
        return [
            {self.topology.task_of(split) for split in splits}
            or ({job.task for job in lanes[number]} if number < len(lanes) else set())
            for number, splits in enumerate(tasks)
        ]

    @override
    def settle(self, run_small: RunSmall) -> None:
        try:
            targets = self._stores.targets.last(self._copies.active())
            jobs = [RestoreJob(task, target) for task, of_task in targets.items() for target in of_task]
            if jobs and self._settled(jobs, run_small):
                self._clean()
        except (CancelledError, ClientError, PipelineError) as error:
            log.warning("%s", error)

    def _settled(self, jobs: Sequence[RestoreJob], run_small: RunSmall) -> bool:
        """Have the stores take the last batch's changes; return False if that failed."""
        self._restore_jobs = RestoreJobs([list(jobs)], _SETTLING)
        task = StatefulTask(self.config, [], self.topology, {}, jobs=self._restore_jobs)
        done = run_small(task.restore_lanes) or []
        self._copies.record_restored(done)
        settled = {restored.changelog for restored in done}
        left = [job for job in jobs if job.changelog not in settled]
        return not left or self._restored_by_spark(left, _SETTLING)

    @override
    def restore(self, seconds: float) -> bool:
        self._clean()
        jobs, seconds = self._copies.between_batches(seconds)
        return bool(jobs) and self._restored_by_spark(jobs, seconds)

    def _restored_by_spark(self, jobs: Sequence[RestoreJob], seconds: float) -> bool:
        """Restore copies in a Spark job without a batch; return False if that failed."""
        lanes = deal(jobs, 0, self._jobs.cores)
        self._restore_jobs = RestoreJobs(lanes, seconds, ran=self._noting())
        task = StatefulTask(self.config, [], self.topology, {}, jobs=self._restore_jobs)
        with self._jobs.under("copies", "keeps copies of state"):
            try:
                done = self.collect([()] * len(lanes), task.restore_lanes)
            except (PySparkException, Py4JError) as error:
                log.warning("copies of state cannot be worked on: %s", str(error).partition("\n")[0])
                return False
        self._copies.record_restored(done)
        return True


def summed(outcome: Outcome, tasks: StoresOfTasks, copies: CopiesNow) -> Outcome:
    """Return the outcome of a batch with the progress of its tasks' stores and of copies."""
    stores = [store for of_task in tasks.values() for store in of_task]
    return replace(
        outcome,
        restored=sum(store.restored for store in stores),
        restored_bytes=sum(store.restored_bytes for store in stores),
        late=sum(store.late for store in stores),
        standby_records=copies.records,
        restoring=copies.restoring,
    )


def with_batch(error: FunctionError, batch: Batch) -> PipelineError:
    """Return the error of a stateful function with its batch added; other errors are returned unchanged."""
    if error.field == STORE:
        return PipelineError(error.problem, field=STORE)
    if error.field == "map_arrow":
        return error
    read = sorted((p, span) for p, span in batch.ranges.items() if span.size)
    spans = ", ".join(f"{p} offsets {span.start} to {span.end - 1}" for p, span in read)
    problem = f"{error.problem}, batch {batch.number} ({spans or 'no records'})"
    return FunctionError(problem, field=error.field or "", details=error.details)


def explained_write_error(error: WriteError, reports: Reports) -> WriteError | PipelineError:
    """Return a PipelineError if a change is too large for its changelog, else the error as it is."""
    refused = re.search(rf"(\S+)-\d+: {ErrorCode.MESSAGE_TOO_LARGE.name}", str(error))
    changes = [report.large for attempts in reports.values() for report in attempts]
    large = [change for change in changes if refused is not None and change.endswith(repr(refused[1]))]
    if not large:
        return error
    return PipelineError(
        f"{large[0]}, which takes fewer ({error.reason})",
        field="max.message.bytes",
        fix="Raise it for that topic, or keep less: approx_count_distinct and a smaller bound or accuracy do, and each"
        " entry of a processor's map is a record of its own, a list is one",
    )


def tokens_of(reports: Reports) -> dict[TaskId, str]:
    """Return the token of each task that only one attempt reported: of two, either may have written the records."""
    return {task: attempts[0].token for task, attempts in reports.items() if len(attempts) == 1}
