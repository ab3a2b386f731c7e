"""The task's side of a stateful pipeline: whole ranges of partitions become records of output and changelogs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Split
from roster.pipeline.errors import FunctionError, PipelineError, SinkFencedError
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.dead_letters import DeadLetterQueue, LetterRows
from roster.pipeline.tasks.missing_values import ColumnsSeen, merged_seen
from roster.pipeline.tasks.python_workers import SentOnce
from roster.pipeline.tasks.reader import (
    Counts,
    PartitionTask,
    ReaderConfig,
    ReadError,
    ReadTask,
    TaskAccumulator,
    are_held,
    held,
    leave_interrupts_to_driver,
    read_splits,
    read_together,
)
from roster.pipeline.tasks.writer import conformed
from roster.records.native import HASH, Compiled, kernel
from roster.sinks.tasks.encoded_values import AS_JSON, RecordEncoding
from roster.state import byte_slices, hash_snapshot
from roster.state.aggregate import Update
from roster.state.definition import Definition, OtherDefinitionError
from roster.state.source_times import NOTICE
from roster.state.source_times import labelled as with_labels
from roster.state.store import NoState, StoreDamagedError, ValueDamagedError
from roster.state.stream_join import in_columns
from roster.stateful.tasks.bad_records import Aside, Steps
from roster.stateful.tasks.catch_up import StoreTarget
from roster.stateful.tasks.host_stores import Restored, RestoreJob, found_here, process_id, restore_copy
from roster.stateful.tasks.outgoing import Backlog, Outgoing, Sent, by_split
from roster.stateful.tasks.processing import (
    Applies,
    Processing,
    Report,
    combined,
    new_token,
    process_batch,
    process_batches,
    processing,
)
from roster.stateful.tasks.repartition import RepartitionTopic
from roster.stateful.tasks.store_location import Place, on_sound
from roster.stateful.tasks.subtopology import OperatorNode, SubtopologyPlan
from roster.stateful.tasks.table_join import TableSide, fetch_table, through_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_TOGETHER, _MOST_BYTES, _MOST_AT_ONCE = 10_000, 64 << 20, 16
"""Most offsets of tasks that are processed together, bytes of their rows, and tasks: their stores are open at once."""
Numbers: TypeAlias = Sequence[int]
"""Numbers of the splits of a task."""
STORE = "store"
"""The field of errors about what a store has."""


def refused_state_error(store: str, group: str, partition: int, problem: object) -> PipelineError:
    """Return the exception for a group's store with state that the pipeline cannot use."""
    general = (
        "Go on with the pipeline that wrote it; take the state to another group by roster.spark.state.migrate_state;"
        f" or begin anew: `roster state reset {group}`"
    )
    fix = problem.fix if isinstance(problem, OtherDefinitionError) else ""
    return PipelineError(
        f"{store!r} of the group {group!r}, partition {partition}: {problem}", field=STORE, fix=fix or general
    )


@dataclass(frozen=True)
class StoreKind:
    """The place of the stores of one name, and the definition of their entries."""

    place: Place
    definition: Definition


@dataclass(frozen=True)
class TopologyPlan(SentOnce):
    """The plan of a pipeline's tasks; pickled to the executors.

    stores: by name, in the order of operators. output: topic of the results, None if they are rows. encoding: of them.
    tables: where the stores of joined tables are, by topic. loops: of stores without order, None if there are none.
    """

    plans: tuple[SubtopologyPlan, ...]
    stores: Mapping[str, StoreKind]
    output: str | None
    encoding: RecordEncoding = AS_JSON
    tables: Mapping[str, Place] = field(default_factory=dict)
    loops: Compiled | None = None

    @property
    def places(self) -> list[Place]:
        """Places of operators' stores; the first identifies the applications that share them."""
        return [kind.place for kind in self.stores.values()]

    @property
    def places_by_log(self) -> dict[str, Place]:
        """Places of all stores by the topics that they are made of, operators' stores first."""
        return {**{place.changelog: place for place in self.places}, **self.tables}

    def task_of(self, split: Split) -> TaskId:
        """Return the task that reads a split."""
        subtopology = next(plan.subtopology for plan in self.plans if split.topic in plan.subtopology.sources)
        return TaskId(subtopology.number, split.partition)

    def plan_of(self, task: TaskId) -> SubtopologyPlan:
        """Return the plan of a task."""
        return next(plan for plan in self.plans if plan.subtopology.number == task.subtopology)


@dataclass(frozen=True)
class RestoreJobs:
    """Restore jobs beside a batch: each Spark task's jobs, the seconds for them, and collectors of results.

    done: collects {changelog partition: result}. found: collects {process id: {changelog partition: offset}} in
    warm-ups. ran: collects {Spark task: process id}.
    """

    lanes: Sequence[Sequence[RestoreJob]] = ()
    seconds: float = 0.0
    done: TaskAccumulator[dict[TopicPartition, Restored]] | None = None
    found: TaskAccumulator[dict[str, dict[TopicPartition, int]]] | None = None
    ran: TaskAccumulator[dict[int, str]] | None = None


class StatefulTask(PartitionTask):
    """Reads each split and processes it with its task's stores.

    `reports` collects `{task: (report,)}`, one for each attempt that ended; the others are as for `ReadTask`.
    """

    def __init__(
        self,
        config: ReaderConfig,
        tasks: Sequence[Sequence[Split]],
        work: TopologyPlan,
        targets: Mapping[TaskId, Sequence[StoreTarget]],
        reports: TaskAccumulator[dict[TaskId, tuple[Report, ...]]] | None = None,
        jobs: RestoreJobs = RestoreJobs(),
        failed: TaskAccumulator[dict[int, tuple[str, str]]] | None = None,
        tables: Mapping[int, Sequence[TableSide]] = MappingProxyType({}),
        backlogs: Mapping[tuple[int, str], Backlog] = MappingProxyType({}),
        sent: TaskAccumulator[dict[int, int]] | None = None,
        **reading: Any,
    ) -> None:
        """tables: by sub-topology: joined with rows. backlogs: of the input, by sub-topology and the topic of its rows.
        sent: collects {source: largest time of its rows}.

        `reading`: the other arguments of `ReadTask`.
        """
        super().__init__(config, tasks, failed=failed, **reading)
        self._tables, self._backlogs, self._sent = tables, backlogs, sent
        others = [node.other for plan in work.plans for node in plan.nodes if node.other is not None]
        self._others = {
            other.topic: ReadTask(config, self._alone, failed=failed, **{**reading, "function": other.function})
            for other in others
        }
        self._function: ArrowFunction | None = reading.get("function")
        self._work, self._targets, self._reports = work, targets, reports
        self._restore_jobs = jobs
        self._failed = failed
        self.made: Iterator[pa.RecordBatch] | None = None
        """The input rows, where they are not read here: of the only split."""
        self.branch = 0
        """The number of the program that has made them."""
        self.framed: TaskAccumulator[dict[TaskId, Sent]] | None = None
        """Collects what tasks would have sent, where Spark makes the rows to be sent of their results."""

    @cached_property
    def _committed(self) -> ReaderConfig:
        """How repartition topics are read."""
        headers = self._config.dead_letters is not None
        return replace(self._config, isolation_level="read_committed", include_headers=headers, dead_letters=None)

    @cached_property
    def _outgoing(self) -> Outgoing:
        return Outgoing(self._work.output, self._work.encoding)

    @cached_property
    def _arriving(self) -> ReadTask:
        return ReadTask(self._committed, self._alone, None, self._counted)

    @override
    def read(self, tasks: Iterable[int]) -> Iterator[pa.RecordBatch]:
        leave_interrupts_to_driver()
        for task in tasks:
            self._begin(task)
            jobs = self._restore_jobs.lanes[task] if task < len(self._restore_jobs.lanes) else ()
            if not self._numbers[task] and not jobs:
                self._warm_up()
            try:
                yield from self._processed(self._numbers[task])
            except FunctionError as error:
                if self._failed is None or error.passing:
                    raise
                self._failed.add({self._numbers[task][0]: (str(error), error.details)})
                return
            for copy in self.restore(jobs):
                if self._restore_jobs.done is not None:
                    self._restore_jobs.done.add({copy.changelog: copy})

    def _processed(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Process these splits; small ones are read at once, as are those of repartition topics."""
        by_task: dict[TaskId, list[int]] = {}
        together_by: dict[bool, list[Split]] = {True: [], False: []}
        sources = {plan.repartition_source.topic for plan in self._work.plans if plan.repartition_source is not None}
        for number in numbers:
            split = self._splits[number]
            by_task.setdefault(self._work.task_of(split), []).append(number)
            together_by[split.topic in sources].append(split)
        own = replace(self._config, include_headers=self._config.include_headers or self._committed.include_headers)
        sinks = {plan.subtopology.number: plan.at_branch(self.branch).repartition_sink for plan in self._work.plans}
        sent = {
            number: Sent(sink, self._backlogs[number, sink.topic])
            for number, sink in sinks.items()
            if sink is not None and (number, sink.topic) in self._backlogs and sink.is_labelled
        }
        with read_together(own, together_by[False]), read_together(self._committed, together_by[True]):
            for number, of_plan in groupby(by_task, lambda task: task.subtopology):
                names = list(of_plan)
                for begin in range(0, len(names), _MOST_AT_ONCE):
                    tasks = [by_task[name] for name in names[begin : begin + _MOST_AT_ONCE]]
                    are_few = self._are_few(tasks, sent.get(number))
                    for at_once in [tasks] if are_few else [[of_task] for of_task in tasks]:
                        yield from self._of_plan(at_once, sent.get(number))
            for outgoing in sent.values():
                if not outgoing.topic.is_framed:
                    yield from outgoing.notices()
                if self._sent is not None:
                    self._sent.add({clock.source: clock.time for clock in outgoing.clocks if clock.time is not None})

    def restore_lanes(self, tasks: Iterable[int]) -> Iterator[Restored]:
        """Restore the copies assigned to otherwise idle Spark tasks."""
        for task in tasks:
            self._begin(task)
            yield from self.restore(self._restore_jobs.lanes[task])

    def _begin(self, task: int) -> None:
        """Load the loops of stores, and note where the task runs."""
        byte_slices.use(kernel(self._config.compiled))
        if self._work.loops is not None:
            hash_snapshot.use(kernel(self._work.loops, HASH))
        if self._restore_jobs.ran is not None and (places := self._work.places_by_log):
            self._restore_jobs.ran.add({task: process_id(next(iter(places.values())))})

    def restore(self, jobs: Iterable[RestoreJob]) -> Iterator[Restored]:
        """Restore copies one after the other until the time is over; yield the results."""
        until = time.monotonic() + self._restore_jobs.seconds
        for job in jobs:
            if time.monotonic() < until:
                topic = job.changelog.topic
                fetch = partial(fetch_table, self._config) if topic in self._work.tables else self._fetch
                yield restore_copy(self._work.places_by_log[topic], job, fetch, until)

    def _warm_up(self) -> None:
        """Load what a batch needs, and find the stores on this host."""
        import roster.state.lmdb_store  # noqa: F401, PLC0415 - needs an extra that the driver need not have loaded

        self._load()
        for _ in self._reading.read([len(self._splits)]):
            pass
        if self._restore_jobs.found is not None:
            self._restore_jobs.found.add(found_here(self._work.places_by_log))

    def _load(self) -> None:
        """Load what the operators and the encoding of results need."""
        work = self._work
        for plan in work.plans:
            for node in plan.nodes:
                node.operator(node.columns.empty_table(), NoState())
            for sink in plan.sinks:
                sink.to_records(sink.columns.empty_table())
            if not plan.sinks:
                work.encoding.as_records(plan.columns.empty_table(), plan.result_keys)

    def _plan_at(self, numbers: Numbers) -> SubtopologyPlan:
        return self._work.plan_of(self._work.task_of(self._splits[numbers[0]])).at_branch(self.branch)

    def _aside(self, numbers: Numbers) -> Aside | None:
        """Return what takes a task's bad records, None if these end the run."""
        writer, task = self._config.dead_letters, self._work.task_of(self._splits[numbers[0]])
        if writer is None:
            return None
        # Positions of rows that no state follows are the table's, and the batch's transaction may fail behind them.
        is_apart = self._work.output is None and self._work.plan_of(task) is self._work.plans[-1]
        is_apart = is_apart and not self._work.plans[-1].nodes
        letters = (DeadLetterQueue if is_apart else LetterRows)(writer, self._config.group, task)
        return Aside(letters, self._splits[numbers[0]])

    def _of_plan(self, tasks: Sequence[Numbers], sent: Sent | None) -> Iterator[pa.RecordBatch]:
        """Process tasks of one plan; several only if they are few."""
        plan, aside = self._plan_at(tasks[0]), self._aside(tasks[0])
        seen = ColumnsSeen(plan.own_sources)
        if plan.nodes:
            yield from self._process(plan, tasks, seen, aside, sent)
        else:
            yield from self._pass_on(plan, tasks[0], seen, aside, sent)
        if aside is not None:
            seen.columns = merged_seen(seen.columns, aside.seen)
        letters = (0, 0) if aside is None else (aside.records, aside.letters.sent)
        self._report_seen(tasks[0][0], Counts(*letters, seen.columns, "" if aside is None else aside.letters.first))

    def _pass_on(
        self, plan: SubtopologyPlan, numbers: Numbers, seen: ColumnsSeen, aside: Aside | None, sent: Sent | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task without operators; those that are labelled, split by split."""
        home = self._splits[numbers[0]].partition
        if sent is None:
            yield from self._outgoing.rows(self._own_rows(plan, numbers, seen, aside), plan, seen, home=home)
        else:
            for number in numbers:
                rows, split = self._own_rows(plan, [number], seen, aside), self._splits[number]
                clock = sent.clock(plan.source_at(TopicPartition(split.topic, split.partition), self.branch))
                yield from self._outgoing.rows(rows, plan, seen, sent, clock, home)
        yield from self._outgoing.letters(aside)

    def _process(
        self,
        plan: SubtopologyPlan,
        tasks: Sequence[Numbers],
        seen: ColumnsSeen,
        aside: Aside | None,
        sent: Sent | None,
    ) -> Iterator[pa.RecordBatch]:
        """Process the splits of tasks: each operator takes the results of the one before. Several have one operator."""
        names = [self._work.task_of(self._splits[of_task[0]]) for of_task in tasks]
        rows = [self._arriving_rows(plan, of_task, seen, aside) for of_task in tasks]
        ends = [{self._splits[number].topic: self._splits[number].end for number in of_task} for of_task in tasks]
        tokens, done, parts = [new_token() for _ in tasks], list[list[tuple[Update, Report]]](), list[pa.Table]()
        for number, node in enumerate(plan.nodes):
            own, columns = plan.at(number, [update for (update, _), *_ in done])
            operator: Applies = own if aside is None else aside.operator(own, node.store, is_first=not number)
            given = [held(self._operator_rows(node, columns, *of, seen, aside)) for of in zip(rows, tasks, strict=True)]
            tables = [pa.Table.from_batches(batches, schema=columns) for batches in given]
            targets = [self._targets[name][number] for name in names]
            waiting = node.waiting if sent is not None or plan.asks_what_waits(number) else None
            batches = list(zip(names, targets, tables, ends, tokens, strict=True))
            done.append(self._applied(node, operator, batches, waiting))
            updates = [update for update, _ in done[-1]]
            if aside is not None:
                aside.note(tables[0])
            parts.append(self._outgoing.changes(updates, targets))
            for update, target in zip(updates, targets, strict=True):
                parts += () if target.is_paused else self._outgoing.late(update, node)
            rows = [iter(_ordered(update.results, node.in_order_of).to_batches()) for update in updates]
        reports = [[report for _, report in of_task] for of_task in zip(*done, strict=True)]
        if self._reports is not None:
            self._reports.add({name: (combined(of_task),) for name, of_task in zip(names, reports, strict=True)})
        for part in parts:
            yield from part.to_batches()
        if not targets[0].is_paused:
            yield from self._outgoing.letters(aside)
        if plan.repartition_sink is not None:
            now_ms, of_task = reports[0][-1].time_ms(has_sides=bool(node.sides)), [update for (update, _), *_ in done]
            clock = None if sent is None else sent.of_task(plan, names[0].partition, of_task, now_ms)
            self._note_framed(names[0], plan.repartition_sink, sent)
            is_framed = plan.repartition_sink.is_framed
            yield from rows[0] if is_framed else self._outgoing.rows(rows[0], plan, seen, sent, clock)
            return
        told = [u for u, target in zip(updates, targets, strict=True) if not (target.is_replay or target.is_paused)]
        for part in (part for update in told for part in self._outgoing.retracted(update, node)):
            yield from part.to_batches()
        if told:
            results = pa.concat_tables([update.results for update in told])
            yield from self._outgoing.table(results.combine_chunks() if len(told) > 1 else results, plan, seen)

    def _are_few(self, tasks: Sequence[Numbers], sent: Sent | None) -> bool:
        """Return whether these tasks, of one plan, have so few rows for so simple a plan that one call is for all."""
        plan, splits = self._plan_at(tasks[0]), [self._splits[number] for of_task in tasks for number in of_task]
        is_simple = len(plan.nodes) == 1 and plan.nodes[0].other is None and plan.repartition_sink is None
        is_alone = len(tasks) == 1 or self.made is not None or self._config.dead_letters is not None
        if not is_simple or is_alone or plan.has_sources or sent is not None:
            return False
        return sum(split.end - split.start for split in splits) <= _MOST_TOGETHER and are_held(splits)

    def _note_framed(self, task: TaskId, topic: RepartitionTopic, sent: Sent | None) -> None:
        """Note what the task would send, if Spark makes the rows."""
        if topic.is_framed and self.framed is not None and sent is not None:
            self.framed.add({task: sent})

    def _applied(
        self,
        node: OperatorNode,
        operator: Applies,
        batches: Sequence[tuple[TaskId, StoreTarget, pa.Table, dict[str, int], str]],
        waiting: tuple[bytes, bytes] | None,
    ) -> list[tuple[Update, Report]]:
        """Apply an operator to rows of tasks at their stores; if several fail together, each alone tells why."""
        kind = self._work.stores[node.store]
        if len(batches) > 1:
            errors = StoreDamagedError, ValueDamagedError, OtherDefinitionError
            with contextlib.suppress(*errors), contextlib.ExitStack() as stack:
                # A function may make many rows of few records.
                if sum(rows.nbytes for _, _, rows, *_ in batches) <= _MOST_BYTES:
                    under_way = list[Processing]()
                    for task, target, rows, ends, token in batches:
                        store = stack.enter_context(kind.place.open(str(task)))
                        given = store, node.target(target), kind.definition, rows, ends, self._fetch, token, waiting
                        under_way.append(stack.enter_context(contextlib.closing(processing(*given))))
                    return process_batches(under_way, operator, [rows for _, _, rows, *_ in batches])
            return [done for batch in batches for done in self._applied(node, operator, [batch], waiting)]
        ((task, target, rows, ends, token),) = batches
        of_task = node.target(target), operator, kind.definition, rows, ends, self._fetch, token, waiting
        with kind.place.open(str(task)) as store:
            try:
                return [on_sound(store, partial(process_batch, store, *of_task))]
            except OtherDefinitionError as error:
                what = refused_state_error(node.store, self._config.group, task.partition, error)
                raise FunctionError.of(str(what)) from None

    def _arriving_rows(
        self, plan: SubtopologyPlan, numbers: Numbers, seen: ColumnsSeen, aside: Aside | None
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows of a task's first operator, with labels if each of its input partitions is a source."""
        if not plan.is_by_split:
            return self._own_rows(plan, numbers, seen, aside)
        splits = [(number, self._splits[number].topic) for number in numbers]
        rows = ((at, self._own_rows(plan, [number], seen, aside)) for number, at in splits if at in plan.own_sources)
        sink = "" if plan.repartition_sink is None else plan.repartition_sink.topic
        backlog = self._backlogs.get((plan.subtopology.number, sink))
        return by_split(plan, self._splits[numbers[0]].partition, rows, backlog)

    def _own_rows(
        self, plan: SubtopologyPlan, numbers: Numbers, seen: ColumnsSeen, aside: Aside | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the sub-topology's input rows, without the other side of joins."""
        tables, arriving = self._tables.get(plan.subtopology.number, ()), plan.repartition_source
        for number in numbers:
            split = self._splits[number]
            if split.is_empty or split.topic not in plan.own_sources:
                continue
            joined = plan.joining(partial(through_tables, tables, split.partition, self._config, seen))
            if self.made is not None:
                rows = joined(self.made)
            elif aside is not None:
                rows = self._rows_that_pass(arriving, number, joined, aside)
            elif arriving is None:
                rows = joined(self._reading.read([number]))
            else:
                read = self._arriving.read([number])
                rows = joined(row for records in read for row in arriving.to_rows(records))
            yield from rows if arriving is None else _not_deleted(rows)

    def _rows_that_pass(
        self,
        arriving: RepartitionTopic | None,
        number: int,
        joined: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        aside: Aside,
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows of a split's records that do not fail before the first operator."""
        config, function = self._config, self._function
        mapped: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]] = lambda batch: iter((batch,))  # noqa: E731
        if arriving is not None:
            config, function, mapped = self._committed, None, arriving.to_rows
        elif function is not None:
            mapped = function.results
        return aside.rows(config, self._splits[number], Steps(lambda batch: joined(mapped(batch)), "records", function))

    def _operator_rows(
        self,
        node: OperatorNode,
        columns: pa.Schema,
        rows: Iterator[pa.RecordBatch],
        numbers: Numbers,
        seen: ColumnsSeen,
        aside: Aside | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield an operator's input with these columns: upstream rows, and rows of the other topic."""
        other, use = node.other, node.operator.kept["operator"]
        keys = [name for name in node.operator.key_columns(node.columns).names if name in node.columns.names]
        if other is None:
            yield from seen.adding((conformed(batch, columns) for batch in rows), keys, use)
            return
        left = with_labels(other.own) if NOTICE in columns.names else other.own
        own = seen.adding((conformed(batch, left) for batch in rows), keys, use)
        yield from (in_columns(batch, columns, is_other=False) for batch in own)
        for number in numbers:
            if self._splits[number].topic == other.topic and not self._splits[number].is_empty:
                if aside is None:
                    rows = self._others[other.topic].read([number])
                else:
                    steps = Steps(other.function.results, "records", other.function)
                    rows = aside.rows(self._config, self._splits[number], steps)
                read = (conformed(batch, other.other) for batch in rows)
                for batch in seen.adding(read, keys, use, (other.topic,)):
                    yield in_columns(batch, columns, is_other=True)

    def _fetch(self, partition: TopicPartition, start: int, end: int) -> Iterable[pa.RecordBatch]:
        committed = replace(
            self._config, isolation_level="read_committed", fail_on_data_loss=True, include_headers=False
        )
        return read_splits(committed, [Split(partition.topic, partition.partition, start, end)])


class JoinTask(StatefulTask):
    """Joins the rows of each split with tables, and yields them as they are, where nothing else has state."""

    @override
    def _load(self) -> None:
        """Load nothing: there are no operators, and the sink encodes the rows."""

    @override
    def _processed(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        (plan,) = self._work.plans
        for number in numbers:
            seen = ColumnsSeen([self._splits[number].topic])
            yield from self._own_rows(plan, [number], seen, None)
            self._report_seen(number, Counts(0, 0, seen.columns))


def _not_deleted(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what is read of a repartition topic."""
    try:
        yield from rows
    except ReadError as error:
        if not error.is_lost:
            raise
        # Records below the committed offset are purged; if ours are gone, our offset is stale.
        raise SinkFencedError(f"they have been processed and deleted: {error}") from error


def _ordered(rows: pa.Table, column: str | None) -> pa.Table:
    """Return the rows stably sorted by a column; None: unchanged."""
    return rows if column is None else rows.take(pc.sort_indices(rows, sort_keys=[(column, "ascending")]))
