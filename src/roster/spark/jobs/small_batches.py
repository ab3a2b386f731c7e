"""Batches of a local session that workers which stay do, as starting a Spark job costs more than their few records.

A small one is one task, one of up to fifty times as many offsets a task for each core.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from roster.model.offsets import Arrival
from roster.pipeline.batch import Batch, Split
from roster.pipeline.driver.batch_size import GROWTH, BatchCost
from roster.pipeline.tasks.writer import conformed
from roster.spark.jobs.spark_jobs import SparkJobs, task_error
from roster.spark.jobs.workers import LocalWorkers, WorkerError

log = logging.getLogger(__name__)

MOST_BYTES = 512 << 10
"""Largest size of the Arrow columns that become a DataFrame: they become part of Spark's plan and task."""
_LEFT_TO_SPARK = 100
"""Batches left to Spark after one that could not be done here."""
_MOST_WORKERS = 8
"""Each takes some 90 MB, and eight are done with such a batch within the time that its transaction takes."""

_LONG = 2.0
"""Seconds of a batch's records after which larger ones are Spark's, which has more than one core."""
_MANY = 10
"""Batches in a row as large as workers take after which Spark should do larger ones."""
_TOGETHER, _LEAST_TOGETHER = 50, 10
"""Several workers have at most so many times the offsets of a small batch; the least of that, if it was too much."""

Tasks: TypeAlias = Sequence[Sequence[Split]]


class CancelledError(Exception):
    """The batch was cancelled while a worker had it."""


class WorkerLimit:
    """The most offsets of a batch for workers that stay, so that Spark, which has more cores, gets slow records.

    A batch is long after so many seconds that its records take. One whose time is mostly fixed is not done sooner by
    others, and no smaller.
    """

    def __init__(self, most: int, long: float) -> None:
        """`most` at any time; `long` is in seconds."""
        self._most, self._long, self._cost = most, long, BatchCost()
        self.offsets = most

    def done(self, offsets: int, seconds: float) -> bool:
        """Record a batch that ended; return True if it was long."""
        is_long = seconds > self._long and offsets > 1
        if offsets > 0:
            self._cost.done(offsets, seconds)
        if is_long:
            fitting = offsets // 2 if self._cost.is_doubtful else self._cost.offsets(self._long, math.inf)
            self.offsets = min(max(fitting, offsets // 2), GROWTH * offsets, self._most)
        elif 2 * offsets >= self.offsets:
            self.offsets = min(GROWTH * self.offsets, self._most)
        return is_long

    def at_most(self, offsets: int) -> None:
        """Lower the limit to this, if it is higher."""
        self.offsets = min(self.offsets, offsets)

    def at_least(self, offsets: int) -> None:
        """Raise the limit to this as far as any batch may have it, if it is lower."""
        self.offsets = max(self.offsets, min(offsets, self._most))


class WorkerLimits:
    """The most offsets of the next batch for workers that stay: for one of them, and for several at the same time.

    fits: the most offsets of a batch whose results go through the driver; None: any number.
    """

    def __init__(self, most: int) -> None:
        """most: offsets of a batch for one worker at any time; 0: Spark does all batches."""
        self._most, self._most_together = most, _TOGETHER * most
        self._alone, self._together = WorkerLimit(most, _LONG), WorkerLimit(self._most_together, _LONG)
        self._tried_together = 2 * most
        """The most that several are given for now: it grows with each batch that they do."""
        self._full = 0
        """Batches in a row as large as they take."""
        self.is_too_slow = False
        """True if Spark should do part of the records, as batches last long or many are full."""
        self.fits: int | None = None

    def failed(self, offsets: int) -> None:
        """Record a batch that workers could not do, perhaps for want of memory: several never get as many again."""
        if self.is_large(offsets):
            self._most_together = max(min(offsets // 2, self._most_together), _LEAST_TOGETHER * self._most)

    @property
    def largest(self) -> int:
        """The most offsets of a batch that workers do at all."""
        return max(self._alone.offsets, min(self._together.offsets, self._most_together))

    def next(self, *, are_several: bool) -> int:
        """Return the most offsets that the next batch should have. are_several: several workers are ready."""
        most = self._alone.offsets
        if are_several and self._most_together:
            most = max(most, min(self._together.offsets, self._tried_together, self._most_together))
        return most if self.fits is None else min(most, self.fits)

    def is_large(self, offsets: int) -> bool:
        """Return True for a batch that is too large for one worker."""
        return offsets > self._alone.offsets

    @property
    def may_grow(self) -> bool:
        """True if the present batch is the first that is as large as they take: the next one may be larger."""
        return self._full == 1

    def begin(self, offsets: int, most: int | None) -> None:
        """Record a batch that begins. most: what workers take now, None if they take none."""
        self._full = self._full + 1 if most and most <= offsets else 0
        self._note_speed()

    def done(self, offsets: int, seconds: float) -> None:
        """Record a batch that ended."""
        if self.is_large(offsets):
            self._together.done(offsets, seconds)
            self._tried_together = min(2 * self._tried_together, self._most_together)
        elif self._alone.done(offsets, seconds):
            self._together.at_most(2 * self._alone.offsets)
        else:
            self._together.at_least(2 * self._alone.offsets)
        self._note_speed()

    def _note_speed(self) -> None:
        self.is_too_slow = self._full >= _MANY or self._alone.offsets < self._most


class SmallBatches:
    """Decides which batches the workers that stay do, and gives them to these.

    On any obstacle (an error that is not one of Roster's, a worker that ended, a task that needs Spark's own worker)
    Spark's tasks take over: they read the same ranges, retry, and name the problem.
    """

    def __init__(self, jobs: SparkJobs, most_offsets: int) -> None:
        """`most_offsets` of a batch; 0: Spark does all batches, as on a cluster."""
        self._jobs, self._most = jobs, most_offsets if jobs.is_local else 0
        # With retries (local[N, F]) Spark has a failure's last word, else the first one fails the batch.
        self._is_final = "," not in (jobs.context.master or "")
        self._workers = LocalWorkers.of(jobs.context)
        self._count = 1
        """Tasks that were taken last."""
        self._left_to_spark = 0
        self._is_cancelled = False
        self.limits, self._offsets = WorkerLimits(self._most), 0
        """The most offsets of a batch, and how many the present one has."""
        self._at_once = 1
        """Tasks of a batch for several workers."""
        self._is_here = self._is_large = False
        self._arrivals: Sequence[Arrival] = ()
        if self._most:
            jobs.when_cancelled(self._cancel)

    def start(self) -> None:
        """Have workers started, which load modules meanwhile."""
        if self._most:
            self._workers.start()

    def close(self) -> None:
        """Leave the workers to the session's next pipeline."""
        self._workers.leave()

    def begin(self, batch: Batch | None, tasks: Tasks) -> Tasks:
        """Begin a batch: return its tasks, one if it is small. None: a warm-up, or work between batches."""
        self._is_cancelled, self._is_here = False, batch is None and self._most > 0
        self._offsets = 0 if batch is None else batch.offsets
        self._arrivals = () if batch is None else batch.arrivals
        self._is_large = self.limits.is_large(self._offsets)
        self.limits.begin(self._offsets, self.most_offsets)
        if batch is None or not self._most or batch.offsets > self.limits.largest:
            return tasks
        if self._left_to_spark > 0:
            self._left_to_spark -= 1
            return tasks
        self._at_once = 1 if len(tasks) < 2 else min(len(tasks), self._jobs.cores, _MOST_WORKERS)
        self._workers.start()
        self._is_here = True
        if self._is_large:
            return merged_tasks(tasks, self._at_once)
        # From the batch's ranges: two tasks may have parts of one partition, which one task reads as one.
        return [[Split(*partition, span.start, span.end) for partition, span in sorted(batch.ranges.items())]]

    @property
    def takes_arrivals(self) -> bool:
        """True unless Spark does even the smallest batches."""
        return self._most > 0 and self._left_to_spark == 0

    @property
    def most_offsets(self) -> int | None:
        """The most offsets of a batch that workers take; None if they take none."""
        if not self.takes_arrivals:
            return None
        are_several = self._at_once > 1 and self._workers.are_ready(self._at_once)
        return self.limits.next(are_several=are_several)

    def takes(self, tasks: Tasks, *, are_rows: bool = False) -> bool:
        """Return True if workers should try these tasks of the batch: one, or several at the same time.

        are_rows: what they yield is for the driver, which has few rows only.
        """
        if not self._is_here or (self._is_large and (are_rows or len(tasks) == 1)):
            return False
        if self._is_large or (self.limits.may_grow and not are_rows):
            self._workers.start(self._at_once)
        self._count = len(tasks)
        return self._count == 1 or self._workers.are_ready(self._count)

    def results(self, work: Callable[[Iterable[int]], Iterable[Any]]) -> list[Any] | None:
        """Return what the tasks yield; None if Spark's must do them. Only after `takes`.

        Raises CancelledError, and the task's error if it is one of Roster's own.
        """
        began = time.monotonic()
        try:
            if self._is_cancelled:
                raise CancelledError("the batch was cancelled")
            results = self._workers.run(work, self._arrivals, self._count)
        except WorkerError as error:
            if self._is_cancelled:
                raise CancelledError("the batch was cancelled") from None
            own = task_error(error) if self._is_final else None
            if own is not None:
                raise own from None
            self.limits.failed(self._offsets)
            self._leave_to_spark(error)
            return None
        self.limits.done(self._offsets, time.monotonic() - began)
        return results

    def rows(self, read: Callable[[Iterable[int]], Iterator[pa.RecordBatch]], schema: pa.Schema) -> pa.Table | None:
        """Return the rows of the tasks with these columns; None if Spark's tasks must make them; as `results`."""
        streams = self.results(RowsTask(read, schema, MOST_BYTES))
        if streams is None:
            return None
        if len(streams) < self._count:
            self._leave_to_spark(f"more than {MOST_BYTES} bytes of rows")
            return None
        return pa.concat_tables(pa.ipc.open_stream(stream).read_all() for stream in streams)

    def _leave_to_spark(self, why: object) -> None:
        log.debug("this batch and %d others are left to Spark: %s", _LEFT_TO_SPARK, why)
        self._is_here, self._left_to_spark = False, _LEFT_TO_SPARK

    def _cancel(self) -> None:
        self._is_cancelled = True
        self._workers.cancel()


def merged_tasks(tasks: Tasks, most: int) -> Tasks:
    """Return at most so many tasks: each has the splits of neighbours, and no part of a partition beside another."""
    if len(tasks) <= most:
        return tasks
    ends = [len(tasks) * number // most for number in range(most + 1)]
    plan: list[list[Split]] = []
    for begin, end in itertools.pairwise(ends):
        plan.append([])
        for split in itertools.chain(*tasks[begin:end]):
            last = plan[-1][-1] if plan[-1] else None
            if last is not None and (*last[:2], last.end) == split[:3]:
                plan[-1][-1] = last._replace(end=split.end)
            else:
                plan[-1].append(split)
    return plan


class RowsTask:
    """Yields a task's rows as one stream of Arrow's; nothing if they are too many bytes."""

    def __init__(
        self, read: Callable[[Iterable[int]], Iterator[pa.RecordBatch]], schema: pa.Schema, most_bytes: int
    ) -> None:
        self._read, self._schema, self._most = read, schema, most_bytes

    def __call__(self, tasks: Iterable[int]) -> Iterator[bytes]:
        """Yield the rows of the tasks with these numbers; end as soon as they are too many, as the process stays."""
        held, size = list[pa.RecordBatch](), 0
        for rows in self._read(tasks):
            held.append(conformed(rows, self._schema))
            size += held[-1].nbytes
            if size > self._most:
                return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as stream:
            stream.write_table(pa.Table.from_batches(held, self._schema))
        yield sink.getvalue().to_pybytes()
