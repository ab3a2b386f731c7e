"""Batches as Spark jobs: each task reads its own offset ranges."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import RDD, Accumulator, AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from typing_extensions import override

from roster.records.produce import WriteError
from roster.spark.batch import Batch, Split
from roster.spark.driver.runner_protocol import Outcome
from roster.spark.errors import FunctionError, PipelineError, SinkFencedError
from roster.spark.jobs.driver_rows import DriverRows
from roster.spark.jobs.slot_probe import SlotProbe, task_counts
from roster.spark.jobs.small_batches import MOST_BYTES, SmallBatches, copied
from roster.spark.jobs.streaming_only import WAY_OUT, checked
from roster.spark.sinks.base import Sink
from roster.spark.tasks.arrow_function import ArrowFunction, arrow_schema
from roster.spark.tasks.missing_values import MissingValues
from roster.spark.tasks.reader import Counts, ReaderConfig, ReadError, ReadTask
from roster.spark.tasks.write.task import ReadWriteTask, TaskWriter, Writer, conformed, written
from roster.state.store import StateError

log = logging.getLogger(__name__)

T = TypeVar("T")

_JOB_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class Reading(Protocol):
    """Produces a task's rows, for an RDD (`read`) or for mapInArrow (`__call__`)."""

    def read(self, tasks: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks with these numbers."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks that the rows of `batches` name."""


class ByTask(AccumulatorParam[Any]):
    """Accumulates a value per task: a task that runs twice counts once."""

    @override
    def zero(self, value: dict[Any, Any]) -> dict[Any, Any]:
        return {}

    @override
    def addInPlace(self, value1: dict[Any, Any], value2: dict[Any, Any]) -> dict[Any, Any]:
        return {**value1, **value2}


class SparkRunner:
    """Runs one pipeline's batches in a Spark session, each in a job group of its own."""

    whole_partitions = False

    def __init__(
        self,
        spark: SparkSession,
        config: ReaderConfig,
        function: ArrowFunction | None,
        columns: StructType,
        transform: Callable[[DataFrame], DataFrame] | None,
        small: SmallBatches | None = None,
    ) -> None:
        """`columns` are those of the rows that `function` returns, or without one of the records read.

        `small` reads the batches that the driver does itself; None: tasks do all batches.
        """
        self._spark, self._config, self._transform = spark, config, transform
        self._function, self._columns = function, columns
        self._small = small
        self._driver_rows = DriverRows(spark, columns)
        self._context = spark.sparkContext
        self._counted: Accumulator[dict[object, Counts]] = self._context.accumulator({}, ByTask())
        self._failed: Accumulator[dict[int, tuple[str, str]]] = self._context.accumulator({}, ByTask())
        self._missing = MissingValues(config.group)
        self._prefix = f"roster-{config.group}-{uuid.uuid4().hex[:8]}"
        self._job_group: str | None = None
        self._is_checked = False

    @property
    def cores(self) -> int:
        """Number of tasks that run at once: Spark's default parallelism."""
        return self._context.defaultParallelism

    def run(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: Sink) -> Outcome:
        """Read, transform and write in the calling thread.

        Raises FunctionError for the `map_arrow` function, ReadError for a range that could not be read, PipelineError
        for a frame or rows that do not fit, and the errors of Spark, the transform and the sink.
        """
        self._counted.value, self._failed.value = {}, {}
        if self._small is not None:
            self._small.begin()
        return self._write(batch, tasks, sink)

    def _batch_jobs(self, batch: Batch) -> contextlib.AbstractContextManager[None]:
        return self._jobs(str(batch.number), f"batch {batch.number}")

    def warm_up(self, sink: Sink) -> None:
        """Run the plan with tasks that read nothing. Raises as `run` does."""
        self._failed.value = {}
        with self._jobs("warm-up", "warms up"):
            try:
                tasks: list[Sequence[Split]] = [()] * max(self.cores, 1)
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

    def _warm_up_driver(self, sink: Sink, writer: Writer | None) -> None:
        """Load what the driver needs to do a small batch itself."""
        if self._small is None:
            return
        self._small.warm_up()
        if writer is None:
            self._driver_rows.frame(arrow_schema(self._columns).empty_table()).collect()
        elif sink.writes_in_driver and isinstance(writer, TaskWriter):
            written(writer, iter(()))

    @property
    def is_local(self) -> bool:
        """True if executors, and so stores, are on the driver's host."""
        return (self._context.master or "").startswith("local")

    def on_each_host(self, work: Callable[[], T]) -> list[T]:
        """Run `work` at least once on every executor host; return the results, [] if the job fails."""
        if self.is_local:
            return [work()]
        with self._jobs("stores", "cleans stores"):
            try:
                return self._context.parallelize(range(self.cores), self.cores).map(lambda _: work()).collect()
            except (PySparkException, Py4JError) as error:
                log.warning("stores cannot be looked after: %s", str(error).partition("\n")[0])
                return []

    @contextlib.contextmanager
    def _jobs(self, suffix: str, description: str) -> Iterator[None]:
        """Run the calling thread's jobs in a job group of their own, which `cancel` cancels."""
        context = self._context
        before = {name: context.getLocalProperty(name) for name in _JOB_PROPERTIES}
        job_group = f"{self._prefix}-{suffix}"
        context.setJobGroup(job_group, f"{self._config.group}: {description}", interruptOnCancel=True)
        self._job_group = job_group
        try:
            yield
        finally:
            self._job_group = None
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                for name, value in before.items():
                    context.setLocalProperty(name, value)  # type: ignore[arg-type]

    def _write(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: Sink) -> Outcome:
        try:
            staged = self._stage(batch, tasks, sink)
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
            sink.abort(staged, batch)
            raise self._function_error()
        counts = self._counted.value.values()
        self._missing.note(*(each.seen for each in counts))
        return Outcome(staged, sum(c.records for c in counts), sum(c.dead_letters for c in counts))

    def _stage(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: Sink) -> Any:
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

    def _collected(self, sink: Sink, writer: Writer, batch: Batch, results: Callable[[], list[Any]]) -> Any:
        try:
            return sink.collect(writer, results(), batch)
        except BaseException:
            sink.abort(sink.collect(writer, [], batch), batch)
            raise

    def _results_here(
        self, small: SmallBatches, writer: TaskWriter, batch: Batch, tasks: Sequence[Sequence[Split]]
    ) -> list[Any]:
        """Read, map and write in this process, or if that fails in the tasks; return what the outputs returned."""
        records = small.read(tasks)
        if records is not None:
            try:
                return [written(small.opening(writer), self._reading_here(records).read([0]))]
            except Exception as error:
                if isinstance(error, WriteError) and error.is_final:
                    raise
                small.leave(error)
        with self._batch_jobs(batch):
            return self._results(writer, tasks)

    def _task_writer(self, sink: Sink, batch: Batch | None) -> Writer | None:
        return None if self._transform is not None else sink.task_writer(batch, self._columns)

    def _results(self, writer: Writer, tasks: Sequence[Sequence[Split]]) -> list[Any]:
        """Read, map and write in the tasks; return what their outputs returned.

        A `TaskWriter` needs an RDD job only: no rows go to the JVM, and planning a DataFrame would cost more than a
        small batch.
        """
        if not isinstance(writer, TaskWriter):
            work: Any = writer.task(self._reading(tasks))
            return writer.write(self._spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, writer.rows))
        read = self._reading(tasks).read
        return self._numbers(tasks).mapPartitions(ReadWriteTask(writer, read)).collect()

    def _numbers(self, tasks: Sequence[Sequence[Split]]) -> RDD[int]:
        """Return the task numbers as an RDD, one in each partition."""
        return self._context.parallelize(range(len(tasks)), len(tasks))

    def _reading(self, tasks: Sequence[Sequence[Split]], *, quiet: bool = True) -> Reading:
        """Return what makes rows inside the tasks; with `quiet` an error of the function does not fail the task."""
        return ReadTask(self._config, tasks, self._function, self._counted, self._failed if quiet else None)

    def _reading_here(self, records: Sequence[pa.RecordBatch], *, quiet: bool = True) -> ReadTask:
        """Return what makes rows from records read in this process."""
        failed = self._failed if quiet else None
        return ReadTask(self._config, [()], copied(self._function), self._counted, failed, records)

    def _function_error(self) -> FunctionError:
        text, details = min(self._failed.value.items())[1]
        log.debug("%s\n%s", text, details)
        return FunctionError.of(text, details)

    def cancel(self) -> None:
        """Cancel the jobs of the running batch, and with them its Python workers."""
        if self._small is not None:
            self._small.cancel()
        job_group = self._job_group
        if job_group is not None:
            self._context.cancelJobGroup(job_group)

    def check(self) -> None:
        """Raise PipelineError if the session was stopped."""
        check_session(self._spark)

    def activity(self) -> object:
        """Return the number of jobs, stages and tasks of the running batch that ended; None between two batches."""
        job_group = self._job_group
        return None if job_group is None else task_counts(self._context, job_group)[0]

    def close(self) -> None:
        """Release the run's resources."""

    def ask_for_slot(self) -> SlotProbe:
        """Start a probe for a task slot."""
        probe = SlotProbe(self._context, self._config.group)
        probe.start()
        return probe

    def _frame(self, tasks: Sequence[Sequence[Split]], *, quiet: bool = False) -> DataFrame:
        rows = self._small_rows(tasks, quiet=quiet)
        if rows is not None:
            frame = self._driver_rows.frame(rows)
        else:
            read: Any = self._reading(tasks, quiet=quiet)
            count = len(tasks)
            frame = self._spark.range(0, count, 1, count).mapInArrow(read, self._columns)
        if self._transform is None:
            return frame
        result: Any = self._transformed(self._transform, frame)
        if not isinstance(result, DataFrame):
            raise PipelineError(
                f"the function returned {result!r}, not a DataFrame", field="transform", fix="End it with `return df`"
            )
        return result

    def _small_rows(self, tasks: Sequence[Sequence[Split]], *, quiet: bool) -> pa.Table | None:
        """Read and map a batch in this process; return None if tasks must do it."""
        small = self._small
        records = small.read(tasks) if small is not None and small.takes(tasks) else None
        if small is None or records is None:
            return None
        schema = arrow_schema(self._columns)
        try:
            rows = [conformed(batch, schema) for batch in self._reading_here(records, quiet=quiet).read([0])]
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
    kinds = r"spark\.errors\.(?:FunctionError|SinkFencedError)|spark\.tasks\.reader\.ReadError|state\.store\.\w+"
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
    "SinkFencedError": SinkFencedError,
    "ReadError": ReadError,
    "WriteError": WriteError,
}


def _ranges(batch: Batch) -> str:
    texts = [f"{p} offsets {span.start} to {span.end - 1}" for p, span in sorted(batch.ranges.items())]
    return ", ".join(texts[:5]) + (f" and {len(texts) - 5} other partitions" if len(texts) > 5 else "")


def check_session(spark: SparkSession) -> None:
    """Raise PipelineError unless the session is a running classic one."""
    context: Any = getattr(spark, "_sc", None)
    if context is None:
        raise PipelineError(
            f"{type(spark).__module__}.{type(spark).__name__} is not a classic Spark session",
            field="spark",
            fix="Use roster.spark.session(...) or SparkSession.builder with a master, not Spark Connect",
        )
    if is_stopped(spark):
        raise PipelineError(
            "the Spark session is stopped", field="spark", fix="Start one with roster.spark.session(...)"
        )


def is_stopped(spark: SparkSession) -> bool:
    """Return True if a classic session was stopped, or its JVM is gone."""
    context: Any = getattr(spark, "_sc", None)
    if context is None:
        return False
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError, AttributeError):  # AttributeError: it is being stopped right now
        return True
