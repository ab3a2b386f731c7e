"""Batches as Spark jobs: each task reads its own offset ranges, and writes what becomes of them."""

from __future__ import annotations

import functools
import logging
import platform
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from roster.pipeline.batch import Batch, Split
from roster.pipeline.batch_sink import BatchSink
from roster.pipeline.driver.runner_protocol import Outcome, Refused
from roster.pipeline.errors import FunctionError, MissingSchemasError, PipelineError
from roster.pipeline.registry_schemas import fetch_missing
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.missing_values import MissingValues
from roster.pipeline.tasks.reader import ByTask, Counts, PartitionTask, ReaderConfig, ReadTask
from roster.pipeline.tasks.writer import ReadWriteTask, TaskWriter, Writer
from roster.records.produce import WriteError
from roster.spark.jobs.driver_rows import WAY_OUT, DriverRows, notes
from roster.spark.jobs.small_batches import SmallBatches
from roster.spark.jobs.spark_jobs import SlotProbe, SparkJobs, check_worker, task_error, worker_report

log = logging.getLogger(__name__)

Splits: TypeAlias = Sequence[Sequence[Split]]
"""The splits of each task."""

Counted: TypeAlias = Accumulator[dict[object, Counts]]
Failed: TypeAlias = Accumulator[dict[int, tuple[str, str]]]


Reading: TypeAlias = ReadTask | PartitionTask
"""Produces a task's rows, for an RDD (`read`) or for mapInArrow (called)."""

RunSmall: TypeAlias = Callable[[Callable[[Iterable[int]], Iterable[Any]]], list[Any] | None]
"""Runs a task without a Spark job; returns None if Spark has to run it."""


class ReadBatches:
    """What the tasks of a pipeline's batches do: as it is here, they read and map."""

    whole_partitions = False
    """True if one task must read a partition's whole range, as the one writer of its store."""

    def __init__(self, jobs: SparkJobs, config: ReaderConfig, function: ArrowFunction | None) -> None:
        self._jobs, self.config, self._function = jobs, config, function

    def run(self, batch: Batch, tasks: Splits, write: Callable[[Batch, Splits], Outcome]) -> Outcome:
        """Prepare the batch, `write` it with these tasks or others of the same splits, and record the outcome."""
        return write(batch, tasks)

    def warm_up(self, run: Callable[[], None]) -> None:
        """Prepare what the first batch needs, and `run` tasks that read nothing. Raises PipelineError."""
        run()

    def reading(self, tasks: Splits, counted: Counted, failed: Failed | None) -> Reading:
        """Return what makes rows inside the tasks; the rest is as for `ReadTask`."""
        return ReadTask(self.config, tasks, self._function, counted, failed)

    def collect(self, tasks: Splits, work: Callable[[Iterable[int]], Iterable[Any]]) -> list[Any]:
        """Run a job of these tasks, each with its number; return what they yield."""
        return self._jobs.collect(len(tasks), work)

    def find_stores(self) -> None:
        """Find the stores, as `Runner` does."""

    def restore(self, seconds: float) -> bool:
        """Restore stores, as `Runner` does."""
        return False

    def settle(self, run_small: RunSmall) -> None:
        """Apply the last committed changes, as `Runner` does."""


class SparkRunner:
    """Runs one pipeline's batches in a Spark session."""

    def __init__(
        self,
        jobs: SparkJobs,
        work: ReadBatches,
        columns: StructType,
        transform: Callable[[DataFrame], DataFrame] | None = None,
        small: int = 0,
    ) -> None:
        """`columns`: of the rows that the tasks of `work` make.

        small: most offsets of a batch that is done without a Spark job.
        """
        self._jobs, self._work, self._columns, self._transform = jobs, work, columns, transform
        # What the jobs and the work of the tasks do for `Runner`, without a step between.
        self.cancel, self.activity, self.cores = jobs.cancel, jobs.activity, jobs.cores
        self.whole_partitions, self.find_stores, self.restore = work.whole_partitions, work.find_stores, work.restore
        self._small = SmallBatches(jobs, small)
        self._driver_rows = DriverRows(jobs.spark, columns)
        self._counted: Counted = jobs.context.accumulator({}, ByTask())
        self._failed: Failed = jobs.context.accumulator({}, ByTask())
        self._missing = MissingValues(jobs.group)
        self._is_checked = False
        self._is_ready = True
        """Spark's workers have run a task."""
        self._late: SlotProbe | None = None
        """Makes them ready beside batches of the other worker."""
        self._tasks: Splits = ()
        self._refused: Refused = ()
        self.on_warm: Callable[[], None] = lambda: None
        """Called after each warm-up."""

    def check(self) -> None:
        """Raise PipelineError if the session was stopped; look how many tasks run at once."""
        self._jobs.check()
        self.cores = self._jobs.cores

    @property
    def takes_arrivals(self) -> bool:
        """True if records that brokers have sent to the driver need not be read again."""
        return self._small.takes_arrivals

    @property
    def most_offsets(self) -> int | None:
        """The most offsets of the next batch; None: any number, as Spark's workers are ready."""
        if self._late is not None and self._late.wait(0):
            self._is_ready = True
        return None if self._is_ready else self._small.most_offsets

    def ask_for_slot(self) -> SlotProbe:
        """Start a probe for a task slot, and the worker of small batches."""
        self._small.start()
        probe = SlotProbe(self._jobs.context, self._jobs.group)
        probe.start()
        return probe

    def warm_up(self, sink: BatchSink, *, is_small: bool = False) -> bool:
        """Run the plan with tasks that read nothing. Raises as `run` does.

        `is_small`: as a small batch only; return False if such a batch needs Spark, too.
        """
        self.cores, self._failed.value = self._jobs.cores, {}
        done: list[bool] = []
        self._work.warm_up(lambda: done.append(self._run_without_rows(sink, is_small=is_small)))
        self.on_warm()
        return done[0]

    def _run_without_rows(self, sink: BatchSink, *, is_small: bool) -> bool:
        with self._jobs.under("warm-up", "warms up"):
            try:
                if is_small and not self._is_small_worker_right():
                    return False
                writer, tasks = self._task_writer(sink, None), [()] * max(self.cores, 2)
                if isinstance(writer, TaskWriter):
                    is_done = self.run_small(ReadWriteTask(writer, self._reading([()]).read)) is not None
                    if not is_small:
                        self._results(writer, tasks)
                    self._is_ready = not is_small
                    return is_done or not is_small
                if not is_small:
                    self._small.begin(None, [()])
                    if (rows := self._small_rows([()], quiet=True)) is not None:
                        self._driver_rows.frame(rows).collect()
                    sink.warm_up(self._frame(tasks))
                return not is_small
            except Exception as error:
                if isinstance(error, (PySparkException, Py4JError)) and (short := task_error(error)) is not None:
                    raise short from None
                raise

    def _is_small_worker_right(self) -> bool:
        """Return False if the worker of small batches needs Spark's look at it. Raises PipelineError as a probe."""
        reports = self.run_small(worker_report())
        if reports is None or reports[0]["python_version"].split(".")[:2] != platform.python_version().split(".")[:2]:
            return False
        check_worker(reports[0])
        return True

    def run_small(self, work: Callable[[Iterable[int]], Iterable[Any]]) -> list[Any] | None:
        """Run a task as a small batch's, between two batches; return None if Spark has to. Raises its error."""
        tasks = self._small.begin(None, [()])
        return self._small.results(work) if self._small.takes(tasks) else None

    def settle(self) -> None:
        """Apply the last committed changes to the stores, by the worker that stays if possible."""
        self._work.settle(self.run_small)

    def close(self) -> None:
        """Give up the workers that stay."""
        self._small.close()

    def run(self, batch: Batch, tasks: Splits, sink: BatchSink, refused: Refused = ()) -> Outcome:
        """Read, transform and write in the calling thread; with `refused` in the same tasks as the time before.

        Raises FunctionError for the `map_arrow` function, ReadError for a range that could not be read, PipelineError
        for a frame or rows that do not fit, MissingSchemasError for a batch that is to be run again, and the errors of
        Spark, the transform and the sink.
        """
        self._counted.value, self._failed.value = {}, {}
        self._refused, self._tasks = refused, self._tasks if refused else self._small.begin(batch, tasks)
        if self._small.limits.is_too_slow and not self._is_ready and self._late is None:
            self._late = SlotProbe(self._jobs.context, self._jobs.group, self.cores)
            self._late.start()
        try:
            return self._work.run(batch, self._tasks, functools.partial(self._write, sink))
        except MissingSchemasError as error:
            fetch_missing(error)
            raise
        finally:
            self._small.limits.fits = sink.most_offsets

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
        if not all(count.seen.keys() <= self._missing.valued for count in counts):
            try:
                self._missing.note(*(count.seen for count in counts), ranges=batch.ranges)
            except PipelineError:
                sink.abort(written_batch, batch)
                raise
        letters = sum(c.dead_letters for c in counts)
        first = next((c.first_letter for c in counts if c.first_letter), "")
        rows = sum(c.records for c in counts)
        return Outcome(written_batch, rows=rows, dead_letters=letters, first_dead_letter=first)

    def _write_batch(self, batch: Batch, tasks: Splits, sink: BatchSink) -> Any:
        """Read, map, transform and write; return the sink's handle."""
        writer = self._task_writer(sink, batch)
        if isinstance(writer, TaskWriter) and self._small.takes(tasks):
            # Telling Spark of a batch costs more than a small one.
            sink.begin(batch)
            results = self._small.results(ReadWriteTask(writer, self._reading(tasks).read))
            if results is not None:
                return self._collected(sink, writer, batch, lambda: results)
        with self._jobs.under(str(batch.number), f"batch {batch.number}"):
            if writer is None:
                return sink.write(self._frame(tasks, quiet=sink.accepts_part), batch)
            return self._collected(sink, writer, batch, functools.partial(self._results, writer, tasks))

    def _collected(self, sink: BatchSink, writer: Writer, batch: Batch, results: Callable[[], list[Any]]) -> Any:
        try:
            return sink.collect(writer, results(), batch)
        except BaseException:
            sink.abort(sink.collect(writer, [], batch), batch)
            raise

    def _task_writer(self, sink: BatchSink, batch: Batch | None) -> Writer | None:
        return None if self._transform is not None else sink.task_writer(batch, self._columns)

    def _results(self, writer: Writer, tasks: Splits) -> list[Any]:
        """Read, map and write in the tasks; return what their outputs returned.

        A `TaskWriter` needs an RDD job only: no rows go to the JVM, and planning a DataFrame would cost more than a
        small batch.
        """
        self._is_ready = True
        if not isinstance(writer, TaskWriter):
            work: Any = writer.task(self._reading(tasks))
            return writer.write(self._jobs.spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, writer.rows))
        return self._work.collect(tasks, ReadWriteTask(writer, self._reading(tasks).read))

    def _reading(self, tasks: Splits, *, quiet: bool = True) -> Reading:
        """Return what makes rows inside the tasks; with `quiet` an error of the function does not fail the task."""
        reading = self._work.reading(tasks, self._counted, self._failed if quiet else None)
        if isinstance(reading, ReadTask):
            reading.refused = self._refused
        return reading

    def _function_error(self) -> FunctionError:
        failures = [(FunctionError.of(*message), message) for _, message in sorted(self._failed.value.items())]
        schemas_first = sorted(failures, key=lambda failure: not isinstance(failure[0], MissingSchemasError))
        error, message = schemas_first[0]
        log.debug("%s\n%s", *message)
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
        """Return the rows of a small batch; None if Spark's tasks must make them."""
        if not self._small.takes(tasks, are_rows=True):
            return None
        return self._small.rows(self._reading(tasks, quiet=quiet).read, arrow_schema(self._columns))

    def _transformed(self, transform: Callable[[DataFrame], DataFrame], frame: DataFrame) -> DataFrame:
        """Apply the transform; look in the first batch's plan for operators that need a stream."""
        result = transform(frame)
        for note in () if self._is_checked else notes(result, frame):
            log.warning("transform: %s: a batch knows nothing of the others. %s", note, WAY_OUT)
        self._is_checked = True
        return result


def _ranges(batch: Batch) -> str:
    texts = [f"{p} offsets {span.start} to {span.end - 1}" for p, span in sorted(batch.ranges.items())]
    return ", ".join(texts[:5]) + (f" and {len(texts) - 5} other partitions" if len(texts) > 5 else "")
