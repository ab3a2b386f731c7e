"""A Spark shuffle brings record batches to their partition's writer: the functions of its two stages.

Stage 1 encodes rows without a producer, so Spark may run its tasks as often as it likes. Stage 2 sorts the batches by
partition, task and number, and writes each partition from one task. Sequence numbers do not make a second attempt safe
there, as it may have other content: a failure or another attempt is returned as a result, and the driver aborts the
transaction. Rows of stage 1 hold batches of about a megabyte, so that a shuffle costs by the byte, not by the record.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from roster._json import JsonObject
from roster.pipeline.spark_types import DataFrame, SparkContext
from roster.pipeline.tasks.writer import RESULT, RowFunction, result_row, results_of
from roster.records.encoding import EncodedBatch, EncodingWriter
from roster.records.produce import KafkaWriter, TransactionLostError, WriteError
from roster.records.produce_decisions import ProducerIdentity
from roster.wire.columns.writer import Body
from roster.wire.compression import Compression

ENCODED = (
    "topic string, partition int, task int, number int, "
    "records int, compression int, base_timestamp long, max_timestamp long, data binary"
)
"""Columns of a record batch between the two stages, as Spark DDL."""
_TYPES = [pa.string(), *[pa.int32()] * 5, pa.int64(), pa.int64(), pa.binary()]
_NAMES = [column.split()[0] for column in ENCODED.split(", ")]
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ORDER = ("topic", "partition", "task", "number")


class Written(NamedTuple):
    """Result of a task of stage 2: bytes written, or the problem and whether it loses the transaction."""

    stage: int
    written_bytes: int = 0
    problem: str = ""
    is_lost: bool = False


@dataclass(frozen=True)
class ExchangeWriter:
    """Makes record batches as `writer` does, for writers of whole partitions; `begin` begins their transaction."""

    writer: KafkaWriter
    begin: Callable[[], ProducerIdentity]
    rows: str = ENCODED

    def task(self, read: RowFunction | None) -> RowFunction:
        """Return stage 1."""
        return EncodeBatches(EncodingWriter(self.writer), read)

    def write(self, rows: DataFrame) -> list[object]:
        """Write the rows of `ENCODED`, each partition from one task; return one list of `Written`."""
        return [_write_exchanged(rows, replace(self.writer, identity=self.begin()))]


@dataclass(frozen=True)
class EncodeBatches:
    """Stage 1: encodes rows into rows of `ENCODED`; `read` makes its input from Spark's rows, None: uses those."""

    writer: EncodingWriter
    read: RowFunction | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Encode all rows, and yield record batches as they become full."""
        from pyspark import TaskContext

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        output, number = self.writer.open(), 0
        try:
            for rows in batches if self.read is None else self.read(batches):
                output.write(rows)
                for batch in output.take():
                    yield _row(batch, task, number)
                    number += 1
            for batch in output.close() or ():
                yield _row(batch, task, number)
                number += 1
        except BaseException:
            output.abort()
            raise


@dataclass(frozen=True)
class WriteBatches:
    """Stage 2: writes the record batches of the partitions that belong to the task, and yields one `Written`."""

    writer: KafkaWriter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all batches in their order."""
        from pyspark import TaskContext

        context = TaskContext.get()
        stage, attempt = (0, 0) if context is None else (context.stageId(), context.attemptNumber())
        if attempt > 0:
            yield result_row(Written(stage, problem=f"attempt {attempt} of a writing task", is_lost=True))
            return
        output, size = self.writer.open(), 0
        try:
            for rows in batches:
                for row in rows.to_pylist():
                    body = _body(row)
                    size += body.size
                    output.write_encoded([(row["topic"], row["partition"], body)])
            output.close()
            written = Written(stage, size)
        except WriteError as error:
            output.abort()
            written = Written(stage, problem=str(error), is_lost=isinstance(error, TransactionLostError))
        except BaseException:
            output.abort()
            raise
        yield result_row(written)


def _write_exchanged(rows: DataFrame, writer: KafkaWriter) -> list[Written]:
    """Write the rows of `ENCODED`, each partition from one task, in the order of its rows."""
    spark = rows.sparkSession
    before = spark.conf.get(_BATCH_BYTES, None)
    spark.conf.set(_BATCH_BYTES, str(writer.memory_bytes))  # else one batch would have 10,000 rows of a megabyte
    try:
        tasks = spark.sparkContext.defaultParallelism
        sorted_rows = rows.repartition(tasks, "topic", "partition").sortWithinPartitions(*_ORDER)
        work: Any = WriteBatches(writer)
        written: list[Written] = results_of(sorted_rows.mapInArrow(work, RESULT).collect())
    finally:
        if before is None:
            spark.conf.unset(_BATCH_BYTES)
        else:
            spark.conf.set(_BATCH_BYTES, before)
    return [*written, *_again(spark.sparkContext, {result.stage for result in written})]


def _again(context: SparkContext, stages: set[int]) -> list[Written]:
    """Return a result for each stage that Spark ran again: its tasks may have written twice."""
    infos = [(stage, context.statusTracker().getStageInfo(stage)) for stage in stages]
    return [
        Written(stage, problem="the writing stage ran again", is_lost=True)
        for stage, info in infos
        if info is not None and info.currentAttemptId > 0
    ]


def _row(batch: EncodedBatch, task: int, number: int) -> pa.RecordBatch:
    body = batch.body
    values = (batch.topic, batch.partition, task, number, body.records, int(body.compression))
    values_and_data: tuple[object, ...] = (*values, body.base_timestamp, body.max_timestamp, body.data)
    arrays = [pa.array([value], kind) for value, kind in zip(values_and_data, _TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, _NAMES)


def _body(row: JsonObject) -> Body:
    times = row["base_timestamp"], row["max_timestamp"]
    return Body.of(row["records"], row["data"], Compression(row["compression"]), *times)
