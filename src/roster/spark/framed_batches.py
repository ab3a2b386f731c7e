"""Batches with state in which Spark makes the operators' rows, and what is written of their results.

    reading tasks → the program in front of an operator → tasks with state → records of topics, and results
                                                                 results → the program behind → the sink

Up to the tasks with state this is one stage: each split's rows stay in the Spark task of this split. What they yield is
kept by Spark, so that records and results can be written one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's convention
from pyspark.sql.types import StructType
from typing_extensions import override

from roster.model import TopicPartition
from roster.pipeline.batch import Batch, Owner
from roster.pipeline.batch_sink import BatchSink, Source
from roster.pipeline.driver.switching import Switching
from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import arrow_schema, as_struct
from roster.pipeline.spark_types import SparkSession
from roster.pipeline.tasks.reader import ReadTask
from roster.pipeline.tasks.writer import (
    RESULT,
    RowFunction,
    TaskWriter,
    Writer,
    WriteTask,
    conformed,
    result_row,
    results_of,
    written,
)
from roster.sinks.kafka import KafkaSink
from roster.sinks.parquet import ParquetSink
from roster.sinks.positions import PositionedSink
from roster.spark.jobs.runner import SparkRunner, Splits
from roster.spark.jobs.spark_jobs import SparkJobs
from roster.spark.stateful_batches import StatefulBatches
from roster.stateful.stores import Stores
from roster.stateful.table_sink import TableStateSink
from roster.stateful.tasks.outgoing import ROWS, is_record
from roster.stateful.tasks.task import StatefulTask

_RECORD = [column.split()[0] for column in ROWS.split(", ")]
_KAFKA = (("topic", "string"), ("partition", "int"), ("key", "binary"), ("value", "binary"))
_HEADERS = "array<struct<key:string,value:binary>>"

Framed = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Frames:
    """What Spark does with the rows of a pipeline.

    before: makes the rows of records; None: the tasks do. behind: makes the sink's rows of results; None: the tasks
    make records of them. results: columns of the results, with Spark's types.
    """

    before: Framed | None
    behind: Framed | None
    results: StructType

    @property
    def columns(self) -> StructType:
        """Columns of what the tasks yield: records, or with no topic results."""
        return as_struct(ROWS).add("result", self.results)

    def rows(self, made: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Return the records, and the sink's rows, of what the tasks have made."""
        results = made.where(F.col("topic").isNull()).select("result.*")
        assert self.behind is not None
        return made.where(F.col("topic").isNotNull()).select(_RECORD), self.behind(results)

    @staticmethod
    def kafka_sink(sink: BatchSink, own: KafkaSink) -> KafkaSink:
        """Return what writes the records of the state: the sink, or `own` beside another one."""
        return sink if isinstance(sink, KafkaSink) and sink.is_exactly_once is not False else own

    def state_sink(self, sink: BatchSink, kafka: KafkaSink, stores: Stores, switching: Switching | None) -> BatchSink:
        """Return the sink of a batch's results and records."""
        if isinstance(sink, ParquetSink | PositionedSink):
            return FramedTableSink(self, sink, kafka, stores, switching)
        return FramedSink(self, sink, kafka)


class FramedRunner(SparkRunner):
    """Runs the batches of a pipeline whose rows Spark makes."""

    def __init__(self, jobs: SparkJobs, work: StatefulBatches, frames: Frames) -> None:
        is_written = frames.behind is None
        columns = as_struct(ROWS) if is_written else frames.columns
        super().__init__(jobs, work, columns, transform=None if is_written else lambda df: df)
        self._batches, self._frames = work, frames
        self._kept: list[DataFrame] = []

    @override
    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        for frame in self._kept:
            frame._jdf.queryExecution().analyzed().rdd().unpersist(False)
        self._kept = []

    @override
    def _small_rows(self, tasks: Splits, *, quiet: bool) -> pa.Table | None:
        return None

    @override
    def _frame(self, tasks: Splits, *, quiet: bool = False) -> DataFrame:
        """Run the batch's tasks; return what they have made."""
        self._forget()
        columns = arrow_schema(self._columns)
        made = self._stages(tasks, lambda read: FramedTask(read, columns), self._columns)
        for frame in made:
            self._kept.append(frame.localCheckpoint(eager=True))
            if self._failed.value:
                raise self._function_error()
        return self._kept[0] if len(made) == 1 else self._kept[0].union(self._kept[1])

    @override
    def _results(self, writer: Writer, tasks: Splits) -> list[Any]:
        """Run the batch's tasks, which write what they make; return what their outputs returned."""
        self._is_ready = True
        frame, *others = self._stages(
            tasks,
            (lambda read: WrittenTask(read, writer)) if isinstance(writer, TaskWriter) else writer.task,
            RESULT if isinstance(writer, TaskWriter) else writer.rows,
        )
        for other in others:
            frame = frame.union(other)
        return results_of(frame.collect()) if isinstance(writer, TaskWriter) else writer.write(frame)

    def _stages(
        self, tasks: Splits, then: Callable[[RowFunction], RowFunction], columns: str | StructType
    ) -> list[DataFrame]:
        """Return what becomes of what the tasks make: of those that read by themselves, and of the others.

        then: makes of what runs a task what runs it and goes on. columns: of the rows then.
        """
        topology, spark, before = self._batches.topology, self._jobs.spark, self._frames.before
        inputs = [
            split for task in tasks for split in task if before is not None and topology.task_of(split).subtopology == 0
        ]
        # A task for each of them behind the others, which keep their numbers.
        rest = [[split for split in task if split not in inputs] for task in tasks]
        alone = [*rest, *([split] for split in inputs)]
        reading: Any = self._reading(alone)

        def task(first: int | None = None, *, is_empty: bool = False) -> Any:
            return then(StagedTask(reading, first, is_empty=is_empty))

        made = []
        if any(rest) or not inputs or self._batches.restores:
            made.append(spark.range(0, len(rest), 1, len(rest)).mapInArrow(task(), columns))
        if before is not None and inputs:
            config = self._batches.config
            read: Any = ReadTask(config, alone, None, self._counted)
            ids = spark.range(len(rest), len(alone), 1, len(inputs))
            staged = before(ids.mapInArrow(read, config.schema)).mapInArrow(task(len(rest)), columns)
            partitions = staged._jdf.queryExecution().toRdd().getNumPartitions()
            if partitions == 0:  # Spark sees that there is no row
                staged = ids.mapInArrow(task(is_empty=True), columns)
            elif partitions != len(inputs):
                count = f"{partitions} partitions of {len(inputs)}"
                problem = f"Spark makes {count}, so rows would leave the tasks with their state"
                raise PipelineError(problem, field="write_stream")
            made.append(staged)
        return made


class StagedTask:
    """Runs tasks with state, on rows of Spark's or on those that they read: a function for `mapInArrow`."""

    def __init__(self, task: StatefulTask, first: int | None, *, is_empty: bool) -> None:
        """first: the number of the first partition's task, if the rows are those given; None: they name tasks."""
        self._task, self._first, self._is_empty = task, first, is_empty

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the tasks make."""
        if self._first is None:
            self._task.made = iter(()) if self._is_empty else None
            return self._task(batches)
        context = TaskContext.get()
        assert context is not None
        self._task.made = batches
        return self._task.read([self._first + context.partitionId()])


class WrittenTask:
    """Writes what tasks make, and returns a row with the result."""

    def __init__(self, read: RowFunction, writer: TaskWriter) -> None:
        self._read, self._writer = read, writer

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all; yield one record batch of `RESULT`."""
        yield result_row(written(self._writer, self._read(batches)))


class FramedTask:
    """Makes records, and results in a struct, of what tasks make."""

    def __init__(self, read: RowFunction, columns: pa.Schema) -> None:
        """`columns` are those of `Frames`."""
        self._read, self._columns = read, columns
        self._results = pa.schema(list(columns.field("result").type))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        for batch in self._read(batches):
            yield self._record(batch) if is_record(batch) else self._result(batch)

    def _record(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        nothing = pa.nulls(batch.num_rows, pa.struct(list(self._results)))
        return batch.replace_schema_metadata(None).select(_RECORD).append_column("result", nothing)

    def _result(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = conformed(batch, self._results)
        columns = [pa.nulls(rows.num_rows, self._columns.field(name).type) for name in _RECORD]
        result = pa.StructArray.from_arrays(rows.columns, fields=list(self._results))
        return pa.RecordBatch.from_arrays([*columns, result], [*_RECORD, "result"])


def _sent(sink: BatchSink, rows: DataFrame, batch: Batch) -> None:
    """Write records by a sink that is bound, in a task for each core: each has connections of its own."""
    rows = rows.coalesce(rows.sparkSession.sparkContext.defaultParallelism)
    writer = sink.task_writer(batch, rows.schema)
    if isinstance(writer, TaskWriter):
        work: Any = WriteTask(writer)
        results = results_of(rows.mapInArrow(work, RESULT).collect()) or [[]]
    else:
        assert writer is not None
        task: Any = writer.task(None)
        results = writer.write(rows.mapInArrow(task, writer.rows))
    sink.collect(writer, results, batch)


def _warmed_up(frames: Frames, made: DataFrame) -> None:
    """Run the program behind the operators on no rows."""
    for rows in frames.rows(made):
        rows.write.format("noop").mode("overwrite").save()


class FramedTableSink(TableStateSink):
    """Results of Spark's into a sink with positions, and records to Kafka."""

    def __init__(
        self, frames: Frames, results: BatchSink, kafka: KafkaSink, stores: Stores, switching: Switching | None
    ) -> None:
        super().__init__(results, frames.results, kafka, stores, switching)
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


class FramedSink(BatchSink):
    """Results of Spark's to Kafka, in one transaction with the records, or at least once to any sink."""

    commits_offsets = True

    def __init__(self, frames: Frames, results: BatchSink, kafka: KafkaSink) -> None:
        self._frames, self._results, self._kafka = frames, results, kafka
        self._topic = kafka.topic
        self._is_one = results is kafka
        self._records: BatchSink = kafka
        self._written: Any = None

    @override
    def open(self, spark: SparkSession, group: str, timeout_ms: int = 60_000) -> None:
        self._kafka.open(spark, group, timeout_ms)
        if not self._is_one:
            self._results.open(spark, group, timeout_ms)

    @override
    def bind(self, source: Source) -> BatchSink:
        self._records = self._kafka.bind(source)
        return self

    @property
    @override
    def log_ends(self) -> Mapping[TopicPartition, int]:
        return self._records.log_ends

    @override
    def take_over(self, partitions: Sequence[TopicPartition], owner: Owner) -> None:  # type: ignore[override]
        self._records.take_over(partitions, owner)

    @override
    def offset_metadata(self, owner: Owner) -> str:
        return self._records.offset_metadata(owner)

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
    def commit(self, written: Any, batch: Batch) -> None:
        if not self._is_one:
            self._results.commit(self._written, batch)
        self._records.commit(None, batch)

    @override
    def abort(self, written: Any, batch: Batch) -> None:
        if not self._is_one:
            self._results.abort(self._written, batch)
        self._records.abort(None, batch)

    @override
    def check_target(self) -> None:
        self._kafka.check_target()

    @override
    def close(self) -> None:
        self._kafka.close()
        if not self._is_one:
            self._results.close()
