"""Batches with state in which Spark makes the operators' rows, and what is written of their results.

    reading tasks → the program in front of an operator → tasks with state → records of topics, and results
                                 results → the program up to the next operator → records of its repartition topic
                                                                 results → the program behind → the sink

Up to the tasks with state this is one stage: each split's rows stay in the Spark task of this split. What they yield is
kept by Spark, so that records and results can be written one after the other. A union and a join of two streams have
several programs in front of the operator, each with its topics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's convention
from pyspark.sql.types import StructType
from typing_extensions import override

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Batch
from roster.pipeline.batch_sink import BatchSink
from roster.pipeline.driver.switching import Switching
from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import arrow_schema, as_struct
from roster.pipeline.tasks.missing_values import ColumnsSeen
from roster.pipeline.tasks.reader import ByTask, ReadTask
from roster.pipeline.tasks.writer import (
    RESULT,
    RowFunction,
    TaskWriter,
    Writer,
    WriteTask,
    conformed,
    results_of,
)
from roster.sinks.kafka import KafkaSink
from roster.sinks.parquet import ParquetSink
from roster.sinks.positions import PositionedSink
from roster.sinks.tasks.encoded_values import AS_JSON
from roster.spark.jobs.runner import SparkRunner, Splits
from roster.spark.jobs.spark_jobs import SparkJobs
from roster.spark.stateful_batches import StatefulBatches
from roster.stateful.stores import Stores
from roster.stateful.table_sink import TableStateSink, TwoSinks
from roster.stateful.tasks.outgoing import ROWS, Outgoing, Sent, is_record
from roster.stateful.tasks.subtopology import SubtopologyPlan
from roster.stateful.tasks.task import StatefulTask

_RECORD = [column.split()[0] for column in ROWS.split(", ")]
_KAFKA = (("topic", "string"), ("partition", "int"), ("key", "binary"), ("value", "binary"))
_HEADERS = "array<struct<key:string,value:binary>>"

Framed = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Branch:
    """A program that makes rows of the records of some topics."""

    topics: Sequence[str]
    make: Framed


@dataclass(frozen=True)
class Stage:
    """What Spark makes of the results of a sub-topology's operator. results: their columns, with Spark's types."""

    results: StructType
    make: Framed


@dataclass(frozen=True)
class Frames:
    """What Spark does with the rows of a pipeline.

    before: make the rows of records; none if the tasks do. between: by the number of each sub-topology with an operator
    but the last. last: makes the sink's rows; None: the tasks make records of the results.
    """

    before: Sequence[Branch]
    between: Mapping[int, Stage]
    last: Stage | None

    @property
    def columns(self) -> StructType:
        """Columns of what the tasks yield: records, or with no topic results."""
        columns = as_struct(ROWS)
        if self.last is not None:
            columns.add("result", self.last.results)
        for number, stage in self.between.items():
            columns.add(result_of(number), stage.results)
        return columns

    def rows(self, made: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Return the records, and the sink's rows, of what the tasks have made."""
        assert self.last is not None
        results = made.where(F.col("topic").isNull() & F.col("result").isNotNull()).select("result.*")
        return made.where(F.col("topic").isNotNull()).select(_RECORD), self.last.make(results)

    @staticmethod
    def kafka_sink(sink: BatchSink, own: KafkaSink) -> KafkaSink:
        """Return what writes the records of the state: the sink, or `own` beside another one."""
        return sink if isinstance(sink, KafkaSink) and sink.is_exactly_once is not False else own

    def state_sink(self, sink: BatchSink, kafka: KafkaSink, stores: Stores, switching: Switching | None) -> BatchSink:
        """Return the sink of a batch's results and records."""
        if isinstance(sink, ParquetSink | PositionedSink):
            return FramedTableSink(self, sink, kafka, stores, switching)
        return FramedSink(self, sink, kafka)


def result_of(number: int) -> str:
    """Return the column with the results of a sub-topology that is not the last one."""
    return f"result {number}"


class FramedRunner(SparkRunner):
    """Runs the batches of a pipeline whose rows Spark makes."""

    def __init__(self, jobs: SparkJobs, work: StatefulBatches, frames: Frames) -> None:
        super().__init__(jobs, work, frames.columns, transform=None if frames.last is None else lambda df: df)
        self._batches, self._frames = work, frames
        self._kept: list[DataFrame] = []

    @override
    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        for frame in self._kept:
            rdd: Any = frame._jdf.queryExecution().analyzed().rdd()
            rdd.sparkContext().unpersistRDD(rdd.id(), False)  # its own method warns, with each batch
        self._kept = []

    @override
    def _small_rows(self, tasks: Splits, *, quiet: bool) -> pa.Table | None:
        return None

    @override
    def _frame(self, tasks: Splits, *, quiet: bool = False) -> DataFrame:
        """Run the batch's tasks; return what they have made."""
        self._forget()
        work = self._grouped(tasks)
        work.reading.framed = sent = self._jobs.context.accumulator({}, ByTask())
        columns, by_themselves = arrow_schema(self._columns), StagedTask(work.reading)
        for stage in self._stages(work, lambda read: FramedTask(read, columns), self._columns):
            self._keep(stage)
        if work.single:
            numbers = [self._batches.topology.task_of(split).subtopology for (split,) in work.single]
            single: Any = FramedTask(by_themselves, columns, numbers)
            self._keep(self._ids(len(work.packed), len(work.single)).mapInArrow(single, self._columns))
            results = self._kept[-1]
            for number in self._frames.between:
                self._keep(self._sent_on(results, number, numbers, work.single, sent.value))
        return functools.reduce(DataFrame.union, self._kept)

    @override
    def _results(self, writer: Writer, tasks: Splits) -> list[Any]:
        """Run the batch's tasks, which write what they make; return what their outputs returned."""
        self._is_ready = True
        stages = self._stages(
            self._grouped(tasks),
            (lambda read: WriteTask(writer, read)) if isinstance(writer, TaskWriter) else writer.task,
            RESULT if isinstance(writer, TaskWriter) else writer.rows,
        )
        frame = functools.reduce(DataFrame.union, stages)
        return results_of(frame.collect()) if isinstance(writer, TaskWriter) else writer.write(frame)

    def _grouped(self, tasks: Splits) -> _Work:
        """Return Spark's tasks of a batch. A split has a task for each branch that reads its topic."""
        topology, frames = self._batches.topology, self._frames
        splits = [split for task in tasks for split in task]
        inputs = [split for split in splits if frames.before and topology.task_of(split).subtopology == 0]
        singles = [split for split in splits if split not in inputs] if frames.between else []
        # Tasks keep their numbers: copies are restored beside them.
        packed = [[split for split in task if split not in (*inputs, *singles)] for task in tasks]
        branches = [[[split] for split in inputs if split.topic in branch.topics] for branch in frames.before]
        single = [[split] for split in singles]
        alone = [*packed, *single, *(task for branch in branches for task in branch)]
        return _Work(packed, single, branches, alone, cast("StatefulTask", self._reading(alone)))

    def _stages(
        self, work: _Work, then: Callable[[RowFunction], RowFunction], columns: str | StructType
    ) -> list[DataFrame]:
        """Return what becomes of what the tasks make: of those that read by themselves, and of each branch.

        then: makes of what runs a task what runs it and goes on. columns: of the rows then.
        """
        made, first = list[DataFrame](), len(work.packed) + len(work.single)
        if any(work.packed) or not (work.single or any(work.branches)) or self._batches.restores:
            reads: Any = then(StagedTask(work.reading))
            made.append(self._ids(0, len(work.packed)).mapInArrow(reads, columns))
        for number, (branch, splits) in enumerate(zip(self._frames.before, work.branches, strict=True)):
            if splits:
                work.reading.branch = number
                made.append(self._staged(work, branch, first, len(splits), then, columns))
            first += len(splits)
        return made

    def _staged(
        self,
        work: _Work,
        branch: Branch,
        first: int,
        count: int,
        then: Callable[[RowFunction], RowFunction],
        columns: str | StructType,
    ) -> DataFrame:
        """Return what the tasks from this number on make of the rows that Spark makes of their records."""
        config, ids = self._batches.config, self._ids(first, count)
        read: Any = ReadTask(config, work.alone, None, self._counted)
        rows = branch.make(ids.mapInArrow(read, config.schema))
        if not _has_partitions(rows, count):  # Spark sees that no row is left
            task: Any = then(StagedTask(work.reading, is_empty=True))
            return ids.mapInArrow(task, columns)
        task = then(StagedTask(work.reading, first))
        return rows.mapInArrow(task, columns)

    def _ids(self, first: int, count: int) -> DataFrame:
        """Return the numbers of tasks, one in each partition."""
        return self._jobs.spark.range(first, first + count, 1, count)

    def _keep(self, made: DataFrame) -> None:
        """Run tasks, and keep what they have made. Raises FunctionError if one failed."""
        self._kept.append(made.localCheckpoint(eager=True))
        if self._failed.value:
            raise self._function_error()

    def _sent_on(
        self, made: DataFrame, number: int, numbers: Sequence[int], single: Splits, sent: Mapping[TaskId, Sent]
    ) -> DataFrame:
        """Return the records that Spark makes of the results of a sub-topology for the next one's repartition topic.

        made: by tasks of one split. numbers: the sub-topology of each task. single: their splits.
        """
        topology, stage = self._batches.topology, self._frames.between[number]
        plan = next(plan for plan in topology.plans if plan.subtopology.number == number)
        by_partition = {
            place: (split.partition, sent.get(topology.task_of(split)))
            for place, (split,) in enumerate(single)
            if numbers[place] == number
        }
        column = result_of(number)
        rows = stage.make(made.where(F.col(column).isNotNull()).select(f"`{column}`.*"))
        is_empty = not _has_partitions(rows, len(single))
        sender: Any = FramedSender(plan, by_partition, arrow_schema(self._columns), is_empty=is_empty)
        return (made if is_empty else rows).mapInArrow(sender, self._columns)


@dataclass(frozen=True)
class _Work:
    """Spark's tasks of a batch: those that stay as they are, those of one split whose results Spark gets, and those of
    one split for each branch; all of them in this order, and what runs them.
    """

    packed: Splits
    single: Splits
    branches: Sequence[Splits]
    alone: Splits
    reading: StatefulTask


def _has_partitions(rows: DataFrame, count: int) -> bool:
    """Return True if a frame has so many partitions, False if it has none. Raises PipelineError for others."""
    partitions = rows._jdf.queryExecution().toRdd().getNumPartitions()
    if partitions not in (0, count):
        problem = f"Spark makes {partitions} partitions of {count}, so rows would leave the tasks with their state"
        raise PipelineError(problem, field="write_stream")
    return bool(partitions)


class StagedTask:
    """Runs tasks with state, on rows of Spark's or on those that they read: a function for `mapInArrow`."""

    def __init__(self, task: StatefulTask, first: int | None = None, *, is_empty: bool = False) -> None:
        """first: the number of the first partition's task, if the rows are those given; None: they name tasks."""
        self._task, self._first, self._is_empty, self._branch = task, first, is_empty, task.branch

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the tasks make."""
        self._task.branch = self._branch
        if self._first is None:
            self._task.made = iter(()) if self._is_empty else None
            return self._task(batches)
        self._task.made = batches
        return self._task.read([self._first + _partition()])


class FramedTask:
    """Makes records, and results in a struct, of what tasks make."""

    def __init__(self, read: RowFunction, columns: pa.Schema, numbers: Sequence[int] = ()) -> None:
        """`columns` are those of `Frames`. numbers: the sub-topology of each partition's task, if it has one split."""
        self._read, self._columns, self._numbers = read, columns, numbers

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        column = "result"
        if self._numbers and (own := result_of(self._numbers[_partition()])) in self._columns.names:
            column = own
        for batch in self._read(batches):
            yield _record(batch, self._columns) if is_record(batch) else _result(batch, self._columns, column)


def _partition() -> int:
    """Return the number of the partition that this Spark task makes."""
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


class FramedSender:
    """The function for `mapInArrow`: makes the records of a repartition topic of the rows that Spark has made."""

    def __init__(
        self, plan: SubtopologyPlan, sent: Mapping[int, tuple[int, Sent | None]], columns: pa.Schema, *, is_empty: bool
    ) -> None:
        """sent: by partition, that of the task that made the results, and what it would have sent, None if no times."""
        self._plan, self._sent, self._columns, self._is_empty = plan, sent, columns, is_empty

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records, and notices behind them."""
        if (number := _partition()) not in self._sent:
            return
        (home, sent), rows = self._sent[number], iter(()) if self._is_empty else batches
        clock = None if sent is None else sent.clocks[-1]
        outgoing = Outgoing(None, AS_JSON)
        for batch in outgoing.rows(rows, self._plan, ColumnsSeen(()), sent, clock, home):
            yield _record(batch, self._columns)
        for batch in () if sent is None else sent.notices():
            yield _record(batch, self._columns)


def _record(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return records with these columns."""
    rows = batch.replace_schema_metadata(None).select(_RECORD)
    for result in columns:
        if result.name not in _RECORD:
            rows = rows.append_column(result.name, pa.nulls(rows.num_rows, result.type))
    return rows


def _result(batch: pa.RecordBatch, columns: pa.Schema, column: str) -> pa.RecordBatch:
    """Return results with these columns, in one of them."""
    fields = list(columns.field(column).type)
    rows = conformed(batch, pa.schema(fields))
    results = pa.StructArray.from_arrays(rows.columns, fields=fields)
    arrays = [results if field.name == column else pa.nulls(rows.num_rows, field.type) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, columns.names)


def _sent(sink: BatchSink, rows: DataFrame, batch: Batch) -> None:
    """Write records by a sink that is bound, in a task for each core: each has connections of its own."""
    sink.write(rows.coalesce(rows.sparkSession.sparkContext.defaultParallelism), batch)


def _warmed_up(frames: Frames, made: DataFrame) -> None:
    """Run the program behind the operators on no rows."""
    for rows in frames.rows(made):
        rows.write.format("noop").mode("overwrite").save()


class FramedTableSink(TableStateSink):
    """Results of Spark's into a sink with positions, and records to Kafka."""

    def __init__(
        self, frames: Frames, results: BatchSink, kafka: KafkaSink, stores: Stores, switching: Switching | None
    ) -> None:
        assert frames.last is not None
        super().__init__(results, frames.last.results, kafka, stores, switching)
        self._frames = frames

    @override
    def warm_up(self, df: DataFrame) -> None:
        _warmed_up(self._frames, df)

    @override
    def task_writer(self, batch: Batch | None, schema: StructType) -> None:  # type: ignore[override]
        return None

    @override
    def write(self, df: DataFrame, batch: Batch) -> None:
        records, results = self._frames.rows(df)
        new = self._new(batch)
        self._handle = self._results.write(results, new) if new.ranges else None
        _sent(self._records, records, batch)


class FramedSink(TwoSinks):
    """Results of Spark's to Kafka, in one transaction with the records, or at least once to any sink."""

    def __init__(self, frames: Frames, results: BatchSink, kafka: KafkaSink) -> None:
        super().__init__(results, kafka)
        self._frames, self._topic, self._is_one = frames, kafka.topic, results is kafka
        self._written: object = None

    @override
    def warm_up(self, df: DataFrame) -> None:
        _warmed_up(self._frames, df)

    @override
    def write(self, df: DataFrame, batch: Batch) -> None:
        records, results = self._frames.rows(df)
        if self._is_one:
            records = records.unionByName(self._as_records(results), allowMissingColumns=True)
        else:
            self._written = self._results.write(results, batch)
        _sent(self._records, records, batch)

    def _as_records(self, rows: DataFrame) -> DataFrame:
        columns = [
            (F.col(name) if name in rows.columns else F.lit(None)).cast(kind).alias(name) for name, kind in _KAFKA
        ]
        if self._topic is not None:
            columns[0] = F.lit(self._topic).alias("topic")
        if "headers" in rows.columns:
            columns.append(F.col("headers").cast(_HEADERS).alias("headers"))
        return rows.select(columns)

    @override
    def commit_batch(self, written: object, batch: Batch) -> Mapping[TopicPartition, int]:
        if not self._is_one:
            self._results.commit(self._written, batch)
        return self._records.commit_batch(None, batch)

    @override
    def abort(self, written: object, batch: Batch) -> None:
        if not self._is_one:
            self._results.abort(self._written, batch)
        self._records.abort(None, batch)
