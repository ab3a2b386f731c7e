"""Batches of a stateful pipeline as Spark jobs, and the pipeline's parts."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import RDD, Accumulator, AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from typing_extensions import override

from roster.assignors import as_tuple
from roster.client import DEFAULT_ASSIGNORS, ClientError
from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.records.produce import WriteError
from roster.spark.batch import Batch, Restoring, Split
from roster.spark.driver.runner_protocol import Outcome
from roster.spark.errors import FunctionError, PipelineError, SinkFencedError
from roster.spark.jobs.runner import ByTask, Reading, SparkRunner
from roster.spark.options import Options
from roster.spark.sinks.base import Sink
from roster.spark.state.copies.preferred_locations import Cluster
from roster.spark.state.copies.restoring import Copies, deal
from roster.spark.state.copies.store_cleaner import StoreCleaner, clean_host
from roster.spark.state.definition_check import DefinitionCheck
from roster.spark.state.join_runner import TableJoins
from roster.spark.state.queries.client import StateClient
from roster.spark.state.queries.local_state import LocalState
from roster.spark.state.queries.server import Served, StateServer
from roster.spark.state.queries.store_reads import Reads, ReadsHere, ReadsOnExecutors
from roster.spark.state.queries.view import StateView
from roster.spark.state.sink import StateSink
from roster.spark.state.tasks.other_stream import together
from roster.spark.state.tasks.processing import Operator, Place, Report, StoreTarget
from roster.spark.state.tasks.stores import Restored, RestoreJob, check_state_dir
from roster.spark.state.tasks.task import ROWS, STORE, RestoreJobs, StatefulTask, StoreKind, TopologyPlan
from roster.spark.tasks.arrow_function import ArrowFunction, as_struct
from roster.spark.tasks.reader import ReaderConfig
from roster.spark.tasks.write.task import TaskWriter, Writer
from roster.state.store import NoState, StateError
from roster.wire.errors import ErrorCode

log = logging.getLogger(__name__)

_MOST_FENCED = 20
"""Consecutive batches that may begin elsewhere than where their state ends, before the run fails."""

_SETTLING = 10.0
"""Seconds to apply the last batch's changes at the end of a run; a store without them reads its changelog later."""

Reports = dict[TaskId, tuple[Report, ...]]


class _ByAttempt(AccumulatorParam[Reports]):
    """Accumulates the reports of each task's attempts."""

    def zero(self, value: Reports) -> Reports:
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:  # noqa: N802 - PySpark's name
        return {task: value1.get(task, ()) + value2.get(task, ()) for task in value1.keys() | value2.keys()}


class StatefulRunner(SparkRunner):
    """Runs batches whose tasks have stores; an outcome's `staged` is {task: token}."""

    whole_partitions = True

    def __init__(
        self,
        spark: SparkSession,
        config: ReaderConfig,
        function: ArrowFunction | None,
        sink: StateSink,
        joins: Sequence[TableJoins] = (),
    ) -> None:
        """Call it after `sink.open`. joins: table joins of each sub-topology.

        Raises PipelineError if the group's state has another definition.
        """
        super().__init__(spark, config, function, as_struct(ROWS), None)
        self._definition_check: DefinitionCheck | None = sink.definition_check(config)
        self._joins, self._sink = joins, sink
        options = sink.options
        self._cluster = None if self.is_local else Cluster(self._context)
        definitions = {name: each for plan in sink.plans for name, each in plan.definitions.items()}
        kinds: dict[str, StoreKind] = {}
        self._served: list[Served] = []
        for (store, definition), changelog in zip(definitions.items(), sink.changelogs, strict=True):
            place = Place(options.state.dir, changelog.topic, changelog.topic_id)
            kinds[store] = StoreKind(place, definition)
            here, cluster = ReadsHere(place, definition.entries()), self._cluster
            reads: Reads = here if cluster is None else ReadsOnExecutors(self._context, cluster, here)
            local = LocalState(reads, changelog, sink.copies, sink.targets.committed_attempt)
            client = StateClient(store, definition.fingerprint)
            view = StateView(local, definition, sink.copies, client, sink.application_server)
            self._served.append(Served(store, definition.fingerprint, view, local))
        self._work = TopologyPlan(sink.plans, kinds, sink.output)
        self._places = [*self._work.places, *(place for each in joins for place in each.places)]
        """Locations of stores and copies of tables."""
        self.views = {served.name: served.view for served in self._served}
        """The view of each store, by name."""
        self._cleaner = StoreCleaner(
            sink.copies,
            options.state.cleanup_delay_ms / 1000,
            options.state.max_bytes,
            is_local=self.is_local,
        )
        self._address = sink.application_server
        self._server: StateServer | None = None
        self._store_targets = sink.targets
        self._targets: Mapping[TaskId, Sequence[StoreTarget]] = {}
        self._fenced = 0
        self._reports: Accumulator[Reports] = self._context.accumulator({}, _ByAttempt())
        self._copies = sink.copies
        self._restored: Accumulator[dict[TopicPartition, Restored]] = self._context.accumulator({}, ByTask())
        self._found: Accumulator[dict[str, dict[TopicPartition, int]]] = self._context.accumulator({}, ByTask())
        self._ran: Accumulator[dict[int, str]] = self._context.accumulator({}, ByTask())
        self._restore_jobs = RestoreJobs(done=self._restored, found=self._found)

    @override
    def run(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: Sink) -> Outcome:
        self._clean_stores()
        self._check_once_more()
        replayed = self._sink.replayed(batch)
        self._targets = {
            task: [target._replace(is_replay=task in replayed) for target in targets]
            for task, targets in self._store_targets.prepare(batch).items()
        }
        for joins in self._joins:
            joins.begin(batch)
        task_of = self._work.task_of
        tasks = together(tasks, task_of) if self._cluster is None else self._cluster.dealt(tasks, task_of)
        self._reports.value, self._restored.value = {}, {}
        jobs, seconds = self._copies.with_batch(self._targets.keys())
        lanes = deal(jobs, len(tasks), self.cores)
        self._restore_jobs = RestoreJobs(lanes, seconds, self._restored, ran=self._noting())
        began = time.monotonic()
        try:
            outcome = super().run(batch, [*tasks, *[()] * (len(lanes) - len(tasks))], sink)
        except SinkFencedError as error:
            raise self._moved(error) from None
        except FunctionError as error:
            raise with_batch(error, batch) from None
        except WriteError as error:
            raise named_change(error, self._reports.value) from None
        self._fenced = 0
        self._copies.worked({target.changelog: target.end for targets in self._targets.values() for target in targets})
        self._sink.wakeups.worked({task: each[-1].timer for task, each in self._reports.value.items()})
        self._copies.done(self._restored.value.values(), beside=(lanes, time.monotonic() - began))
        return summed(outcome, self._reports.value, self._copies)

    def _check_once_more(self) -> None:
        """Check the definition again before the first batch: it may have changed since. Raises PipelineError."""
        check, self._definition_check = self._definition_check, None
        if check is not None:
            check.check()

    @override
    def warm_up(self, sink: Sink) -> None:
        check_state_dir(self._sink.options.state.dir, self.on_each_host)
        self._serve()
        self._found.value, self._restore_jobs = {}, RestoreJobs(found=self._found, ran=self._noting())
        super().warm_up(sink)
        self._copies.found(self._found.value)

    def _serve(self) -> None:
        """Serve queries over HTTP if an address is set. Raises PipelineError if the address cannot be used."""
        if self._address is None or self._server is not None:
            return
        self._server = StateServer(self._address, self._served)
        log.info("queries of state are answered at http://%s/stores", self._address)

    @override
    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for joins in self._joins:
            joins.close()
        super().close()

    def held(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions whose state must be restored before they are read."""
        return self._copies.held(partitions)

    def due(self, partitions: Collection[TopicPartition], *, once: bool) -> frozenset[TopicPartition]:
        """Return partitions whose tasks must run now, even without records; see `Wakeups.due`."""
        return self._sink.wakeups.due(partitions, once=once)

    def restore(self, seconds: float) -> bool:
        """Restore copies for at most `seconds`; return False if there was nothing to do."""
        self._clean_stores()
        jobs, seconds = self._copies.between_batches(seconds)
        return bool(jobs) and self._restore(jobs, seconds)

    def settle(self) -> None:
        """Apply the last committed changes to the stores, so that they can be read and reused as they are."""
        try:
            targets = self._store_targets.last(self._copies.active())
            jobs = [RestoreJob(task, target) for task, each in targets.items() for target in each]
            if jobs and self._restore(jobs, _SETTLING):
                self._clean_stores()
        except (ClientError, PipelineError) as error:
            log.warning("%s", error)

    def _restore(self, jobs: Sequence[RestoreJob], seconds: float) -> bool:
        """Restore copies in a Spark job; return False if that failed."""
        lanes = deal(jobs, 0, self.cores)
        self._restore_jobs = RestoreJobs(lanes, seconds, ran=self._noting())
        task = StatefulTask(self._config, [], self._work, {}, jobs=self._restore_jobs)
        empty: list[Sequence[Split]] = [()] * len(lanes)
        with self._jobs("copies", "keeps copies of state"):
            try:
                done = self._numbers(empty).flatMap(task.restore_lane).collect()
                self._note_places(empty)
            except (PySparkException, Py4JError) as error:
                log.warning("copies of state cannot be worked on: %s", str(error).partition("\n")[0])
                return False
        self._copies.done(done)
        return True

    def _clean_stores(self) -> None:
        self._cleaner.take(lambda wanted: self.on_each_host(partial(clean_host, self._places, wanted)))

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the log ends, records of open transactions included. Raises ClientError."""
        return self._sink.log_ends(partitions)

    def restoring(self) -> Mapping[str, Restoring]:
        """Return the progress of copies that have not caught up, by task."""
        return self._copies.restoring()

    def _moved(self, error: SinkFencedError) -> PipelineError:
        """Return the exception for a batch that does not begin where its state ends: positions are looked up again."""
        self._fenced += 1
        if self._fenced < _MOST_FENCED:
            return error
        fix = "Use another group, or `roster state reset` to begin without state"
        return PipelineError(error.problem, field="group", fix=fix)

    @override
    def _reading(self, tasks: Sequence[Sequence[Split]], *, quiet: bool = True) -> Reading:
        jobs = self._restore_jobs
        reading: dict[str, Any] = {"function": self._function, "counted": self._counted, "failed": self._failed}
        reading["tables"] = {joins.number: joins.sides() for joins in self._joins}
        return StatefulTask(self._config, tasks, self._work, self._targets, self._reports, jobs, **reading)

    @override
    def _results(self, writer: Writer, tasks: Sequence[Sequence[Split]]) -> list[Any]:
        results = super()._results(writer, tasks)
        if isinstance(writer, TaskWriter):
            self._note_places(tasks)
        return results

    @override
    def _numbers(self, tasks: Sequence[Sequence[Split]]) -> RDD[int]:
        if self._cluster is None:
            return super()._numbers(tasks)
        return self._cluster.placed(range(len(tasks)), self._stores_of(tasks))

    def _noting(self) -> Accumulator[dict[int, str]] | None:
        """Return the accumulator of the stores that tasks saw, None if locations do not matter."""
        self._ran.value = {}
        return None if self._cluster is None else self._ran

    def _note_places(self, tasks: Sequence[Sequence[Split]]) -> None:
        if self._cluster is not None and self._job_group is not None:
            self._cluster.ran(self._job_group, self._stores_of(tasks), self._ran.value)

    def _stores_of(self, tasks: Sequence[Sequence[Split]]) -> list[set[TaskId]]:
        """Return the tasks whose stores each Spark task uses: tasks of its splits, or of its copies."""
        lanes = self._restore_jobs.lanes
        return [
            {self._work.task_of(split) for split in splits}
            or ({job.task for job in lanes[number]} if number < len(lanes) else set())
            for number, splits in enumerate(tasks)
        ]

    @override
    def cancel(self) -> None:
        self._store_targets.cancel()
        super().cancel()


def summed(outcome: Outcome, reports: Reports, copies: Copies) -> Outcome:
    """Return the outcome of a batch with its tasks' reports and the progress of copies."""
    last = [attempts[-1] for attempts in reports.values()]
    return replace(
        outcome,
        staged=tokens_of(reports),
        restored=sum(report.restored for report in last),
        restored_bytes=sum(report.restored_bytes for report in last),
        late=sum(report.late for report in last),
        standby_records=copies.take_records(),
        restoring=copies.restoring(),
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


def named_change(error: WriteError, reports: Reports) -> WriteError | PipelineError:
    """Return a PipelineError if a change is too large for its changelog, else the error as it is."""
    refused = re.search(rf"(\S+)-\d+: {ErrorCode.MESSAGE_TOO_LARGE.name}", str(error))
    changes = [report.large for attempts in reports.values() for report in attempts]
    large = [each for each in changes if refused is not None and each.endswith(repr(refused[1]))]
    if not large:
        return error
    return PipelineError(
        f"{large[0]}, which takes fewer ({error.reason})",
        field="max.message.bytes",
        fix="Raise it for that topic, or keep less: each entry of a map is a record of its own, a list is one",
    )


def tokens_of(reports: Reports) -> dict[TaskId, str]:
    """Return the token of each task that only one attempt reported: of two, either may have written the records."""
    return {task: attempts[0].token for task, attempts in reports.items() if len(attempts) == 1}


def check_operator(operator: Operator, columns: pa.Schema) -> None:
    """Raise PipelineError if the operator cannot work with rows of these columns."""
    try:
        operator(columns.empty_table(), NoState())
    except StateError as error:
        part, _, problem = str(error).partition(": ")
        raise PipelineError(problem or part, field=part if problem else "aggregate") from None


def check_options(options: Options, *, has_transform: bool, first_has_state: bool = True) -> None:
    """Raise PipelineError for options that a stateful pipeline with these topics cannot have."""
    if not isinstance(options.topics, tuple) or (len(options.topics) > 1 and first_has_state):
        raise PipelineError(
            "a stateful pipeline reads one topic, by its name: with several, an assignor may give partitions of one"
            " number to different members",
            field="topics",
            fix="Name one topic, or put repartition in front of what has state: it takes the rows of several",
        )
    if options.assignors != as_tuple(DEFAULT_ASSIGNORS):
        raise PipelineError(
            "a stateful pipeline places its tasks by their state",
            field="assignors",
            fix="Leave it out: State(standbys=...) says how many copies there are",
        )
    if has_transform:
        raise PipelineError(
            "a transform's rows leave the task that has their state",
            field="transform",
            fix="Use map_arrow before, or another pipeline behind",
        )
