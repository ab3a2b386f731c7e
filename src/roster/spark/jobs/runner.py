"""Batches as Spark jobs: each task reads its own offset ranges, and writes what becomes of them."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from roster.records.produce import WriteError
from roster.spark.batch import Batch, Split
from roster.spark.driver.runner_protocol import Outcome
from roster.spark.errors import FunctionError, MissingSchemasError, PipelineError, SinkFencedError
from roster.spark.jobs.driver_rows import DriverRows
from roster.spark.jobs.slot_probe import SlotProbe
from roster.spark.jobs.small_batches import MOST_BYTES, SmallBatches
from roster.spark.jobs.spark_jobs import SparkJobs, check_session
from roster.spark.jobs.streaming_only import WAY_OUT, checked
from roster.spark.sinks.batch_sink import BatchSink
from roster.spark.tasks.accumulators import ByTask
from roster.spark.tasks.arrow_function import ArrowFunction, arrow_schema
from roster.spark.tasks.missing_values import MissingValues
from roster.spark.tasks.reader import Counts, ReaderConfig, ReadError, ReadTask
from roster.spark.tasks.schema_steps import fetch_missing
from roster.spark.tasks.write.task import ReadWriteTask, TaskWriter, Writer, conformed, written
from roster.state.store import StateError

log = logging.getLogger(__name__)

Splits: TypeAlias = Sequence[Sequence[Split]]
"""The splits of each task."""

Counted: TypeAlias = Accumulator[dict[object, Counts]]
Failed: TypeAlias = Accumulator[dict[int, tuple[str, str]]]


class Reading(Protocol):
    """Produces a task's rows, for an RDD (`read`) or for mapInArrow (`__call__`)."""

    def read(self, tasks: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks with these numbers."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks that the rows of `batches` name."""


class BatchWork(Protocol):
    """What the tasks of a pipeline's batches do."""

    @property
    def whole_partitions(self) -> bool:
        """True if one task must read a partition's whole range, as the one writer of its store."""

    def run(self, batch: Batch, tasks: Splits, write: Callable[[Batch, Splits], Outcome]) -> Outcome:
        """Prepare the batch, `write` it with these tasks or others of the same splits, and note what came of it."""

    def warm_up(self, run: Callable[[], None]) -> None:
        """Prepare what the first batch needs, and `run` tasks that read nothing. Raises PipelineError."""

    def reading(self, tasks: Splits, counted: Counted, failed: Failed | None) -> Reading:
        """Return what makes rows inside the tasks; the rest is as for `ReadTask`."""

    def collect(self, tasks: Splits, work: Callable[[Iterable[int]], Iterable[Any]]) -> list[Any]:
        """Run a job of these tasks, each of which is given its number; return what they yield."""


class ReadBatches:
    """Batches whose tasks read and map."""

    whole_partitions = False

    def __init__(self, jobs: SparkJobs, config: ReaderConfig, function: ArrowFunction | None) -> None:
        self._jobs, self._config, self._function = jobs, config, function

    def run(self, batch: Batch, tasks: Splits, write: Callable[[Batch, Splits], Outcome]) -> Outcome:
        """Write the batch."""
        return write(batch, tasks)

    def warm_up(self, run: Callable[[], None]) -> None:
        """Run the tasks that read nothing."""
        run()

    def reading(self, tasks: Splits, counted: Counted, failed: Failed | None) -> ReadTask:
        """Return what reads and maps."""
        return ReadTask(self._config, tasks, self._function, counted, failed)

    def collect(self, tasks: Splits, work: Callable[[Iterable[int]], Iterable[Any]]) -> list[Any]:
        """Run a job of these tasks."""
        return self._jobs.collect(len(tasks), work)


class SparkRunner:
    """Runs one pipeline's batches in a Spark session."""

    def __init__(
        self,
        jobs: SparkJobs,
        work: BatchWork,
        columns: StructType,
        transform: Callable[[DataFrame], DataFrame] | None = None,
        small: SmallBatches | None = None,
    ) -> None:
        """`columns` are those of the rows that the tasks of `work` make.

        `small` reads the batches that the driver does itself; None: tasks do all batches.
        """
        self._jobs, self._work, self._columns, self._transform = jobs, work, columns, transform
        self._small = small
        if small is not None:
            jobs.when_cancelled(small.cancel)
        self._driver_rows = DriverRows(jobs.spark, columns)
        self._counted: Counted = jobs.context.accumulator({}, ByTask())
        self._failed: Failed = jobs.context.accumulator({}, ByTask())
        self._missing = MissingValues(jobs.group)
        self._is_checked = False

    @property
    def whole_partitions(self) -> bool:
        """True if one task must read a partition's whole range."""
        return self._work.whole_partitions

    @property
    def cores(self) -> int:
        """Number of tasks that run at once."""
        return self._jobs.cores

    def check(self) -> None:
        """Raise PipelineError if the session was stopped."""
        check_session(self._jobs.spark)

    def ask_for_slot(self) -> SlotProbe:
        """Start a probe for a task slot."""
        probe = SlotProbe(self._jobs.context, self._jobs.group)
        probe.start()
        return probe

    def warm_up(self, sink: BatchSink) -> None:
        """Run the plan with tasks that read nothing. Raises as `run` does."""
        self._failed.value = {}
        self._work.warm_up(functools.partial(self._run_without_rows, sink))

    def _run_without_rows(self, sink: BatchSink) -> None:
        with self._jobs.under("warm-up", "warms up"):
            try:
                tasks: Splits = [()] * max(self.cores, 1)
                writer = self._task_writer(sink, None)
                if isinstance(writer, TaskWriter):
                    self._results(writer, tasks)
                else:
                    sink.warm_up(self._frame(tasks))
                self._warm_up_driver(sink, writer)
            except Exception as error:
                if isinstance(error, (PySparkException, Py4JError)) and (short := task_error(error)) is not None:
                    raise short from None
                raise

    def _warm_up_driver(self, sink: BatchSink, writer: Writer | None) -> None:
        """Load what the driver needs to do a small batch itself."""
        if self._small is None:
            return
        self._small.warm_up()
        if writer is None:
            self._driver_rows.frame(arrow_schema(self._columns).empty_table()).collect()
        elif sink.writes_in_driver and isinstance(writer, TaskWriter):
            written(writer, iter(()))

    def cancel(self) -> None:
        """Cancel the running batch; from any thread."""
        self._jobs.cancel()

    def activity(self) -> object:
        """Return a value that changes whenever a job, stage or task of the batch ends; from any thread."""
        return self._jobs.activity()

    def run(self, batch: Batch, tasks: Splits, sink: BatchSink) -> Outcome:
        """Read, transform and write in the calling thread.

        Raises FunctionError for the `map_arrow` function, ReadError for a range that could not be read, PipelineError
        for a frame or rows that do not fit, MissingSchemasError for a batch that is to be run again, and the errors of
        Spark, the transform and the sink.
        """
        self._counted.value, self._failed.value = {}, {}
        if self._small is not None:
            self._small.begin()
        try:
            return self._work.run(batch, tasks, functools.partial(self._write, sink))
        except MissingSchemasError as error:
            fetch_missing(error)
            raise

    def _write(self, sink: BatchSink, batch: Batch, tasks: Splits) -> Outcome:
        """Read, map, transform and write; return the outcome. Raises as `run` does."""
        try:
            written_batch = self._write_batch(batch, tasks, sink)
        except Exception as error:
            if self._failed.value:
                raise self._function_error() from None
            if isinstance(error, (PySparkException, Py4JError)) and (short := task_error(error)) is not None:
                log.debug("batch %d failed", batch.number, exc_info=True)
                if isinstance(short, WriteError):
                    short.add_note(f"The batch had {_ranges(batch)}; it is not committed.")
                raise short from None
            if not isinstance(error, PipelineError):
                error.add_note(f"The batch had {_ranges(batch)}; it is not committed.")
            raise
        if self._failed.value:
            sink.abort(written_batch, batch)
            raise self._function_error()
        counts = self._counted.value.values()
        self._missing.note(*(each.seen for each in counts))
        return Outcome(written_batch, sum(c.records for c in counts), sum(c.dead_letters for c in counts))

    def _write_batch(self, batch: Batch, tasks: Splits, sink: BatchSink) -> Any:
        """Read, map, transform and write; return the sink's handle."""
        if self._small is not None and self._transform is None and sink.writes_in_driver and self._small.takes(tasks):
            writer = self._task_writer(sink, batch)
            if isinstance(writer, TaskWriter):
                here = functools.partial(self._results_here, self._small, writer, batch, tasks)
                return self._collected(sink, writer, batch, here)
        with self._batch_jobs(batch):
            writer = self._task_writer(sink, batch)
            if writer is None:
                return sink.write(self._frame(tasks, quiet=sink.accepts_part), batch)
            return self._collected(sink, writer, batch, functools.partial(self._results, writer, tasks))

    def _collected(self, sink: BatchSink, writer: Writer, batch: Batch, results: Callable[[], list[Any]]) -> Any:
        try:
            return sink.collect(writer, results(), batch)
        except BaseException:
            sink.abort(sink.collect(writer, [], batch), batch)
            raise

    def _results_here(self, small: SmallBatches, writer: TaskWriter, batch: Batch, tasks: Splits) -> list[Any]:
        """Read, map and write in this process, or if that fails in the tasks; return what the outputs returned."""
        records = small.read(tasks)
        if records is not None:
            try:
                return [written(small.opening(writer), small.reading(records, self._counted, self._failed).read([0]))]
            except Exception as error:
                if isinstance(error, WriteError) and error.is_final:
                    raise
                small.leave(error)
        with self._batch_jobs(batch):
            return self._results(writer, tasks)

    def _task_writer(self, sink: BatchSink, batch: Batch | None) -> Writer | None:
        return None if self._transform is not None else sink.task_writer(batch, self._columns)

    def _results(self, writer: Writer, tasks: Splits) -> list[Any]:
        """Read, map and write in the tasks; return what their outputs returned.

        A `TaskWriter` needs an RDD job only: no rows go to the JVM, and planning a DataFrame would cost more than a
        small batch.
        """
        if not isinstance(writer, TaskWriter):
            work: Any = writer.task(self._reading(tasks))
            return writer.write(self._jobs.spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, writer.rows))
        return self._work.collect(tasks, ReadWriteTask(writer, self._reading(tasks).read))

    def _reading(self, tasks: Splits, *, quiet: bool = True) -> Reading:
        """Return what makes rows inside the tasks; with `quiet` an error of the function does not fail the task."""
        return self._work.reading(tasks, self._counted, self._failed if quiet else None)

    def _batch_jobs(self, batch: Batch) -> contextlib.AbstractContextManager[None]:
        return self._jobs.under(str(batch.number), f"batch {batch.number}")

    def _function_error(self) -> FunctionError:
        failures = [(FunctionError.of(*told), told) for _, told in sorted(self._failed.value.items())]
        error, told = next((each for each in failures if isinstance(each[0], MissingSchemasError)), failures[0])
        log.debug("%s\n%s", *told)
        return error

    def _frame(self, tasks: Splits, *, quiet: bool = False) -> DataFrame:
        rows = self._small_rows(tasks, quiet=quiet)
        if rows is not None:
            frame = self._driver_rows.frame(rows)
        else:
            read: Any = self._reading(tasks, quiet=quiet)
            count = len(tasks)
            frame = self._jobs.spark.range(0, count, 1, count).mapInArrow(read, self._columns)
        if self._transform is None:
            return frame
        result: Any = self._transformed(self._transform, frame)
        if not isinstance(result, DataFrame):
            raise PipelineError(
                f"the function returned {result!r}, not a DataFrame", field="transform", fix="End it with `return df`"
            )
        return result

    def _small_rows(self, tasks: Splits, *, quiet: bool) -> pa.Table | None:
        """Read and map a batch in this process; return None if tasks must do it."""
        small = self._small
        records = small.read(tasks) if small is not None and small.takes(tasks) else None
        if small is None or records is None:
            return None
        schema = arrow_schema(self._columns)
        try:
            reading = small.reading(records, self._counted, self._failed if quiet else None)
            rows = [conformed(batch, schema) for batch in reading.read([0])]
        except Exception as error:
            small.leave(error)
            return None
        table = pa.Table.from_batches(rows, schema) if rows else schema.empty_table()
        if table.nbytes <= MOST_BYTES:
            return table
        small.leave(f"{table.nbytes} bytes of rows")
        self._counted.value, self._failed.value = {}, {}
        return None

    def _transformed(self, transform: Callable[[DataFrame], DataFrame], frame: DataFrame) -> DataFrame:
        """Apply the transform; check the first batch's plan for operators that need a stream."""
        if self._is_checked:
            return transform(frame)
        result, warnings = checked(transform, frame)
        self._is_checked = True
        for warning in warnings:
            log.warning("transform: %s: a batch knows nothing of the others. %s", warning, WAY_OUT)
        return result


def task_error(error: Exception) -> PipelineError | ReadError | StateError | WriteError | None:
    """Find the task's own error in Spark's, which wraps it in a hundred lines."""
    own = "FunctionError|MissingSchemasError|SinkFencedError"
    kinds = rf"spark\.errors\.(?:{own})|spark\.tasks\.reader\.ReadError|state\.store\.\w+"
    found = re.search(rf"roster\.({kinds}|records\.produce\.WriteError): (.*)", str(error))
    if found is None:
        return None
    kind, text = found[1], found[2].strip()
    if kind.endswith(".StoreFullError"):
        return PipelineError(text, field="State.dir", fix="Free some, or name another disk")
    if kind.startswith("state."):
        return StateError(text)
    return _TASK_ERRORS[kind.rpartition(".")[2]](text)


_TASK_ERRORS: Mapping[str, Callable[[str], PipelineError | ReadError | WriteError]] = {
    "FunctionError": FunctionError.of,
    "MissingSchemasError": FunctionError.of,
    "SinkFencedError": SinkFencedError,
    "ReadError": ReadError,
    "WriteError": WriteError,
}


def _ranges(batch: Batch) -> str:
    texts = [f"{p} offsets {span.start} to {span.end - 1}" for p, span in sorted(batch.ranges.items())]
    return ", ".join(texts[:5]) + (f" and {len(texts) - 5} other partitions" if len(texts) > 5 else "")
