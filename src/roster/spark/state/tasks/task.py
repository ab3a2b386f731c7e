"""The task's side of a stateful pipeline: whole ranges of partitions become records of output and changelogs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.spark.batch import Split
from roster.spark.errors import FunctionError, PipelineError, SinkFencedError
from roster.spark.state.tasks.processing import Place, Report, Turn, combined, new_token, on_sound, take_turn
from roster.spark.state.tasks.repartition import FIELD as REPARTITION
from roster.spark.state.tasks.result_records import as_records
from roster.spark.state.tasks.stores import Chore, Copy, process_id, stores_found, work_on_copy
from roster.spark.state.tasks.subtopology import Link, Stage
from roster.spark.state.tasks.table_join import TableSide, through_tables
from roster.spark.tasks.missing_values import Look
from roster.spark.tasks.reader import PartitionTask, ReaderConfig, ReadError, ReadTask, read_splits
from roster.spark.tasks.write.task import conformed
from roster.state.definition import Definition, OtherDefinitionError
from roster.state.store import NoState
from roster.state.stream_join import in_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark import Accumulator

    from roster.state.aggregate import Update

STORE = "store"
"""The field of errors about what a store has."""

ROWS = "topic string, partition int, key binary, value binary, timestamp timestamp"
"""Columns of the records that a task makes, as Spark DDL."""
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ],
    {"rows": "records"},
)


def is_record(rows: pa.RecordBatch) -> bool:
    """Return True for records of a task, False for results that are rows of their own columns."""
    return bool(rows.schema.metadata == _SCHEMA.metadata)


def refused(store: str, group: str, partition: int, problem: object) -> PipelineError:
    """Return the exception for a store of the group that has state which the pipeline cannot go on with."""
    return PipelineError(
        f"{store!r} of the group {group!r}, partition {partition}: {problem}",
        field=STORE,
        fix=f"Go on with the pipeline that wrote it, use another group, or begin anew: `roster state reset {group}`",
    )


@dataclass(frozen=True)
class StoreKind:
    """Where the stores of one name lie, and what their entries mean."""

    place: Place
    definition: Definition


@dataclass(frozen=True)
class Work:
    """What the tasks of a pipeline do; pickled to the executors.

    stores: by name, those of the first operator first. output: topic of the results, None if they are rows.
    """

    stages: tuple[Stage, ...]
    stores: Mapping[str, StoreKind]
    output: str | None

    @property
    def places(self) -> list[Place]:
        """Where stores lie; the first says which applications share them."""
        return [kind.place for kind in self.stores.values()]

    def task_of(self, split: Split) -> TaskId:
        """Return the task that reads a split."""
        of = next(stage.of for stage in self.stages if split.topic in stage.of.sources)
        return TaskId(of.number, split.partition)

    def stage_of(self, task: TaskId) -> Stage:
        """Return what a task does."""
        return next(stage for stage in self.stages if stage.of.number == task.subtopology)

    def kind_of(self, changelog: str) -> StoreKind:
        """Return the stores of a changelog topic."""
        return next(kind for kind in self.stores.values() if kind.place.changelog == changelog)


@dataclass(frozen=True)
class Chores:
    """Work on copies beside a batch's: the chores of each Spark task, the seconds for them, and where results go.

    done: collects {changelog partition: copy}. found: collects {id of a place: {changelog partition: offset}} in
    warm-ups.
    ran: collects {Spark task: id of a place}.
    """

    lanes: Sequence[Sequence[Chore]] = ()
    seconds: float = 0.0
    done: Accumulator[dict[TopicPartition, Copy]] | None = None
    found: Accumulator[dict[str, dict[TopicPartition, int]]] | None = None
    ran: Accumulator[dict[int, str]] | None = None


class StatefulTask(PartitionTask):
    """Reads each split and takes its task's turn.

    `reports` collects `{task: (report,)}`, one for each attempt that ended; the others are as for `ReadTask`.
    """

    def __init__(
        self,
        config: ReaderConfig,
        tasks: Sequence[Sequence[Split]],
        work: Work,
        turns: Mapping[TaskId, Sequence[Turn]],
        reports: Accumulator[dict[TaskId, tuple[Report, ...]]] | None = None,
        chores: Chores = Chores(),
        failed: Accumulator[dict[int, tuple[str, str]]] | None = None,
        tables: Mapping[int, Sequence[TableSide]] = MappingProxyType({}),
        **reading: Any,
    ) -> None:
        """tables: what rows are joined with, by sub-topology. `reading`: the further arguments of `ReadTask`."""
        super().__init__(config, tasks, failed=failed, **reading)
        self._tables = tables
        others = [link.other for stage in work.stages for link in stage.links if link.other is not None]
        self._others = {
            other.topic: ReadTask(config, self._alone, failed=failed, **{**reading, "function": other.function})
            for other in others
        }
        if any(stage.arriving is not None for stage in work.stages):
            committed = replace(config, isolation_level="read_committed", include_headers=False, dead_letters=None)
            self._arriving = ReadTask(committed, self._alone, None, reading.get("counted"))
        self._work, self._turns, self._reports = work, turns, reports
        self._chores = chores
        self._failed = failed

    @override
    def read(self, tasks: Iterable[int]) -> Iterator[pa.RecordBatch]:
        for task in tasks:
            self._note_place(task)
            chores = self._chores.lanes[task] if task < len(self._chores.lanes) else ()
            if not self._numbers[task] and not chores:
                self._warm_up()
            for numbers in self._turns_in(task):
                try:
                    look = Look(self._stage_at(numbers).own_sources)
                    yield from self._turn(numbers, look)
                    self._looked(numbers[0], look)
                except FunctionError as error:
                    if self._failed is None or error.passing:
                        raise
                    self._failed.add({numbers[0]: (str(error), error.details)})
                    return
            for copy in self.tend(chores):
                if self._chores.done is not None:
                    self._chores.done.add({copy.changelog: copy})

    def tend_lane(self, task: int) -> Iterator[Copy]:
        """Work on the copies of a Spark task that has nothing else to do."""
        self._note_place(task)
        yield from self.tend(self._chores.lanes[task])

    def _note_place(self, task: int) -> None:
        if self._chores.ran is not None and self._work.places:
            self._chores.ran.add({task: process_id(self._work.places[0])})

    def tend(self, chores: Iterable[Chore]) -> Iterator[Copy]:
        """Work on copies one after the other until the time is over; yield what became of them."""
        until = time.monotonic() + self._chores.seconds
        for chore in chores:
            if time.monotonic() < until:
                kind = self._work.kind_of(chore.changelog.topic)
                yield work_on_copy(kind.place, chore, self._fetch, until)

    def _warm_up(self) -> None:
        """Load what a turn needs, and look which stores are here."""
        import roster.state.lmdb_store  # noqa: F401, PLC0415 - needs an extra that the driver need not have loaded

        work = self._work
        for stage in work.stages:
            for link in stage.links:
                link.operator(link.columns.empty_table(), NoState())
            if stage.leaving is None:
                as_records(stage.columns.empty_table(), stage.result_keys)
            else:
                stage.leaving.leaving(stage.columns.empty_table())
        for _ in self._reading.read([len(self._splits)]):
            pass
        if self._chores.found is not None and work.places:
            found = {
                TopicPartition(place.changelog, task.partition): at
                for place in work.places
                for task, at in stores_found(place).items()
            }
            self._chores.found.add({process_id(work.places[0]): found})

    def _turns_in(self, task: int) -> list[list[int]]:
        """Return the places of the splits of each task in the group's sense, which are one turn."""
        turns: dict[TaskId, list[int]] = {}
        for number in self._numbers[task]:
            turns.setdefault(self._work.task_of(self._splits[number]), []).append(number)
        return list(turns.values())

    def _stage_at(self, numbers: Sequence[int]) -> Stage:
        return self._work.stage_of(self._work.task_of(self._splits[numbers[0]]))

    def _turn(self, numbers: Sequence[int], look: Look) -> Iterator[pa.RecordBatch]:
        """Take a task's turn: one operator after the other, of which each has what the one before makes."""
        splits, work = [self._splits[number] for number in numbers], self._work
        task, stage = work.task_of(splits[0]), self._stage_at(numbers)
        rows = self._own_rows(stage, numbers, look)
        if not stage.links:
            yield from self._going_on(rows, stage, look)
            return
        ends = {split.topic: split.end for split in splits}
        token, reports, parts = new_token(), list[Report](), list[pa.Table]()
        for link, turn in zip(stage.links, self._turns[task], strict=True):
            table = pa.Table.from_batches(self._given(link, rows, numbers, look), schema=link.columns)
            kind = work.stores[link.store]
            with kind.place.open(str(task)) as store:
                of_store = link.operator, kind.definition
                take = partial(take_turn, store, turn, *of_store, table, ends, self._fetch, token)
                try:
                    update, report = on_sound(store, take)
                except OtherDefinitionError as error:
                    what = refused(link.store, self._config.group, task.partition, error)
                    raise FunctionError.of(str(what)) from None
            reports.append(report)
            parts += [self._changes(update, turn), *self._late(update, link)]
            rows = iter(_ordered(update.results, link.in_order_of).to_batches())
        if self._reports is not None:
            self._reports.add({task: (combined(reports),)})
        for part in parts:
            yield from part.to_batches()
        if stage.leaving is not None:
            yield from self._going_on(rows, stage, look)
            return
        for part in self._retracted(update, link):
            yield from part.to_batches()
        if not turn.is_replay:
            yield from self._leaving(update.results, stage, look)

    def _own_rows(self, stage: Stage, numbers: Sequence[int], look: Look) -> Iterator[pa.RecordBatch]:
        """Yield the rows that come to the stage, without those that its operators join them with."""
        tables = self._tables.get(stage.of.number, ())
        for number in numbers:
            split = self._splits[number]
            if split.is_empty or split.topic not in stage.own_sources:
                continue
            rows = self._reading.read([number]) if stage.arriving is None else self._arrived(stage, number)
            yield from through_tables(tables, split.partition, rows, self._config, look)

    def _arrived(self, stage: Stage, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split that other tasks wrote."""
        assert stage.arriving is not None  # noqa: S101 - else they are read
        try:
            for records in self._arriving.read([number]):
                yield from stage.arriving.arriving(records)
        except ReadError as error:
            if not error.is_lost:
                raise
            # Records are deleted behind the committed offset: who finds none has it from before another owner's work.
            raise SinkFencedError(f"they have been processed and deleted: {error}") from error

    def _given(
        self, link: Link, rows: Iterator[pa.RecordBatch], numbers: Sequence[int], look: Look
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the columns that an operator gets: those that come to it, and of the other topic."""
        other, use = link.other, link.operator.kept["operator"]
        keys = [name for name in link.operator.key_columns(link.columns).names if name in link.columns.names]
        if other is None:
            yield from look.over((conformed(batch, link.columns) for batch in rows), keys, use)
            return
        own = look.over((conformed(batch, other.own) for batch in rows), keys, use)
        yield from (in_columns(batch, link.columns, is_other=False) for batch in own)
        for number in numbers:
            if self._splits[number].topic == other.topic and not self._splits[number].is_empty:
                read = (conformed(batch, other.other) for batch in self._others[other.topic].read([number]))
                for batch in look.over(read, keys, use, (other.topic,)):
                    yield in_columns(batch, link.columns, is_other=True)

    def _going_on(self, rows: Iterator[pa.RecordBatch], stage: Stage, look: Look) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            yield from self._leaving(pa.Table.from_batches([conformed(batch, stage.columns)]), stage, look)

    def _leaving(self, rows: pa.Table, stage: Stage, look: Look) -> Iterator[pa.RecordBatch]:
        """Yield what becomes of a stage's rows: records to the tasks that have their key, or results."""
        if stage.leaving is not None:
            look.at(rows, stage.leaving.keys, REPARTITION)
            records = stage.leaving.leaving(rows)
            columns = (records[name] for name in ("key", "value", "partition", "timestamp"))
            yield from _addressed(*columns, topic=stage.leaving.topic).to_batches()
        elif self._work.output is not None:
            yield from _addressed(*as_records(rows, stage.result_keys), topic=self._work.output).to_batches()
        else:
            yield from rows.replace_schema_metadata(None).to_batches()

    def _changes(self, update: Update, turn: Turn) -> pa.Table:
        """Return the records of the changelog."""
        topic, partition = turn.changelog
        keys, values = update.changes["key"], update.changes["value"]
        return _addressed(keys, values, pa.array([partition] * len(keys), pa.int32()), topic=topic)

    @staticmethod
    def _late(update: Update, link: Link) -> Iterator[pa.Table]:
        """Yield the records of rows that are late, if they have a topic."""
        if link.late is not None:
            for rows in update.late_rows:
                yield _addressed(*as_records(rows, link.late.keys), topic=link.late.topic)

    def _retracted(self, update: Update, link: Link) -> Iterator[pa.Table]:
        """Yield records without a value for the results that count no more, to be sent before those that do."""
        if update.retracted is not None and self._work.output is not None:
            keys, _ = as_records(update.retracted, link.operator.result_keys)
            yield _addressed(keys, pa.nulls(len(keys), pa.binary()), topic=self._work.output)

    def _fetch(self, partition: TopicPartition, start: int, end: int) -> Iterable[pa.RecordBatch]:
        committed = replace(
            self._config, isolation_level="read_committed", fail_on_data_loss=True, include_headers=False
        )
        return read_splits(committed, [Split(partition.topic, partition.partition, start, end)])


def _ordered(rows: pa.Table, column: str | None) -> pa.Table:
    """Return the rows in the order of a column, those of equal values as they are; None: all as they are."""
    return rows if column is None else rows.take(pc.sort_indices(rows, sort_keys=[(column, "ascending")]))


def _addressed(keys: Any, values: Any, partitions: Any = None, times: Any = None, *, topic: str) -> pa.Table:
    """Return records to a topic; without a partition the key says which, without a time it is that of writing."""
    rows = len(keys)
    columns = [
        pa.array([topic], pa.string()).take(pa.array([0] * rows, pa.int32())),
        pa.nulls(rows, pa.int32()) if partitions is None else partitions,
        keys.cast(pa.binary()),
        values.cast(pa.binary()),
        pa.nulls(rows, _SCHEMA.field("timestamp").type) if times is None else times,
    ]
    return pa.table(columns, schema=_SCHEMA)
