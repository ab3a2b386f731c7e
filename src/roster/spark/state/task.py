"""The task's side of a stateful pipeline: whole ranges of partitions become records of output and changelog."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from typing_extensions import override

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.spark.batch import Split
from roster.spark.errors import FunctionError, SinkFencedError
from roster.spark.reader import PartitionTask, ReaderConfig, ReadError, ReadTask, read_splits
from roster.spark.state.between import Between
from roster.spark.state.declare import LateRows
from roster.spark.state.other_stream import OtherSide
from roster.spark.state.results import as_records
from roster.spark.state.stores import Chore, Copy, process_id, stores_found, work_on_copy
from roster.spark.state.turn import Operator, Place, Report, Turn, take_turn
from roster.spark.write.task import conformed
from roster.state.definition import write_definition
from roster.state.store import NoState
from roster.state.stream_join import in_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark import Accumulator

    from roster.state.aggregate import Update

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


@dataclass(frozen=True)
class Work:
    """What all tasks of a sub-topology with state do; pickled to the executors. `columns`: of the rows they read."""

    of: Subtopology
    operator: Operator
    place: Place
    output: str | None
    definition: bytes
    columns: pa.Schema
    other: OtherSide | None = None
    late: LateRows | None = None
    between: Between | None = None
    """How rows come to these tasks from others, which have no state."""

    def task_of(self, split: Split) -> TaskId:
        """Return the task that reads a split."""
        between = self.between
        of = between.before if between is not None and split.topic in between.before.sources else self.of
        return TaskId(of.number, split.partition)


class First(Protocol):
    """What rows go through before the operator, with a store of its own; fit for pickle."""

    def task(self, config: ReaderConfig, tasks: Sequence[Sequence[Split]], **reading: Any) -> PartitionTask:
        """Return what reads the splits."""


@dataclass(frozen=True)
class Chores:
    """Work on copies beside a batch's: the chores of each Spark task, the seconds for them, and where results go.

    done: collects {task: copy}. found: collects {id of a place: {task: changelog offset}} in warm-ups.
    ran: collects {Spark task: id of a place}.
    """

    lanes: Sequence[Sequence[Chore]] = ()
    seconds: float = 0.0
    done: Accumulator[dict[TaskId, Copy]] | None = None
    found: Accumulator[dict[str, dict[TaskId, int]]] | None = None
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
        turns: Mapping[TaskId, Turn],
        reports: Accumulator[dict[TaskId, tuple[Report, ...]]] | None = None,
        chores: Chores = Chores(),
        failed: Accumulator[dict[int, tuple[str, str]]] | None = None,
        first: First | None = None,
        **reading: Any,
    ) -> None:
        """`first` reads in place of `ReadTask`; `reading` are the further arguments of that."""
        super().__init__(config, tasks, failed=failed, **reading)
        if first is not None:
            self._reading = first.task(config, self._alone, failed=failed, **reading)
        if work.other is not None:
            self._other = ReadTask(config, self._alone, failed=failed, **{**reading, "function": work.other.function})
        if work.between is not None:
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
                    yield from self._turn(numbers)
                except FunctionError as error:
                    if self._failed is None or error.passing:
                        raise
                    self._failed.add({numbers[0]: (str(error), error.details)})
                    return
            for copy in self.tend(chores):
                if self._chores.done is not None:
                    self._chores.done.add({copy.task: copy})

    def tend_lane(self, task: int) -> Iterator[Copy]:
        """Work on the copies of a Spark task that has nothing else to do."""
        self._note_place(task)
        yield from self.tend(self._chores.lanes[task])

    def _note_place(self, task: int) -> None:
        if self._chores.ran is not None:
            self._chores.ran.add({task: process_id(self._work.place)})

    def tend(self, chores: Iterable[Chore]) -> Iterator[Copy]:
        """Work on copies one after the other until the time is over; yield what became of them."""
        until = time.monotonic() + self._chores.seconds
        for chore in chores:
            if time.monotonic() < until:
                yield work_on_copy(self._work.place, chore, self._fetch, until, self._work.definition)

    def _warm_up(self) -> None:
        """Load what a turn needs, and look which stores are here."""
        import roster.state.lmdb_store  # noqa: F401, PLC0415 - needs an extra that the driver need not have loaded

        work = self._work
        as_records(work.operator(work.columns.empty_table(), NoState()).results, work.operator.result_keys)
        for _ in self._reading.read([len(self._splits)]):
            pass
        if self._chores.found is not None:
            self._chores.found.add({process_id(work.place): stores_found(work.place)})

    def _turns_in(self, task: int) -> list[list[int]]:
        """Return the places of the splits of each task in the group's sense, which are one turn."""
        turns: dict[TaskId, list[int]] = {}
        for number in self._numbers[task]:
            turns.setdefault(self._work.task_of(self._splits[number]), []).append(number)
        return list(turns.values())

    def _turn(self, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
        splits, work = [self._splits[number] for number in numbers], self._work
        task = work.task_of(splits[0])
        if work.between is not None and task.subtopology == work.between.before.number:
            yield from self._passed_on(numbers, work.between)
            return
        turn = self._turns[task]
        read = (batch for number in numbers if not self._splits[number].is_empty for batch in self._rows(number))
        rows = pa.Table.from_batches(read, schema=work.columns)
        ends = {split.topic: split.end for split in splits}
        with work.place.open(str(task)) as store:
            write_definition(store.path, work.definition)
            update, report = take_turn(store, turn, work.operator, rows, ends, self._fetch)
        if self._reports is not None:
            self._reports.add({task: (report,)})
        for part in (
            self._changes(update, turn),
            *self._late(update),
            *self._retracted(update),
            *self._results(update, turn),
        ):
            yield from part.to_batches()

    def _passed_on(self, numbers: Sequence[int], between: Between) -> Iterator[pa.RecordBatch]:
        """Yield the records by which rows go to the tasks that have their key."""
        for number in numbers:
            for batch in self._reading.read([number]):
                records = between.leaving(pa.Table.from_batches([conformed(batch, between.columns)]))
                columns = (records[name] for name in ("key", "value", "partition", "timestamp"))
                yield from _addressed(*columns, topic=between.topic).to_batches()

    def _rows(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split with the columns that the operator gets."""
        other, columns = self._work.other, self._work.columns
        if other is None:
            yield from (conformed(batch, columns) for batch in self._read(number))
            return
        is_other = self._splits[number].topic == other.topic
        own = other.other if is_other else other.own
        for batch in self._other.read([number]) if is_other else self._read(number):
            yield in_columns(conformed(batch, own), columns, is_other=is_other)

    def _read(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split of the own stream."""
        between = self._work.between
        if between is None:
            yield from self._reading.read([number])
            return
        try:
            for records in self._arriving.read([number]):
                yield from between.arriving(records)
        except ReadError as error:
            if not error.is_lost:
                raise
            # Records are deleted behind the committed offset: who finds none has it from before another owner's work.
            raise SinkFencedError(f"they have been processed and deleted: {error}") from error

    def _results(self, update: Update, turn: Turn) -> Iterator[pa.Table]:
        work = self._work
        if turn.is_replay:
            return
        if work.output is None:
            yield update.results.replace_schema_metadata(None)
        else:
            yield _addressed(*as_records(update.results, work.operator.result_keys), topic=work.output)

    def _changes(self, update: Update, turn: Turn) -> pa.Table:
        """Return the records of the changelog."""
        topic, partition = turn.changelog
        keys, values = update.changes["key"], update.changes["value"]
        return _addressed(keys, values, pa.array([partition] * len(keys), pa.int32()), topic=topic)

    def _late(self, update: Update) -> Iterator[pa.Table]:
        """Yield the records of rows that are late, if they have a topic."""
        if (late := self._work.late) is not None:
            for rows in update.late_rows:
                yield _addressed(*as_records(rows, late.keys), topic=late.topic)

    def _retracted(self, update: Update) -> Iterator[pa.Table]:
        """Yield records without a value for the results that count no more, to be sent before those that do."""
        if update.retracted is not None and self._work.output is not None:
            keys, _ = as_records(update.retracted, self._work.operator.result_keys)
            yield _addressed(keys, pa.nulls(len(keys), pa.binary()), topic=self._work.output)

    def _fetch(self, partition: TopicPartition, start: int, end: int) -> Iterable[pa.RecordBatch]:
        committed = replace(
            self._config, isolation_level="read_committed", fail_on_data_loss=True, include_headers=False
        )
        return read_splits(committed, [Split(partition.topic, partition.partition, start, end)])


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
