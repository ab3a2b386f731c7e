"""Small batches, read by the driver: starting a task costs more than reading a few records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from roster.records.encoding import EncodingWriter
from roster.records.native import kernel
from roster.records.produce import KafkaWriter
from roster.spark.batch import Split
from roster.spark.options import AUTO, TASKS
from roster.spark.tasks.arrow_function import ArrowFunction
from roster.spark.tasks.reader import ReaderConfig, ReadError, ReadTask, read_splits
from roster.spark.tasks.steps import Mapped, Step
from roster.spark.tasks.write.task import TaskOutput, TaskWriter

log = logging.getLogger(__name__)

MOST_OFFSETS = 1_000
MOST_BYTES = 512 << 10
"""Largest size of the Arrow columns: rows of a DataFrame become part of Spark's plan and task."""
_MOST_SECONDS = 2.0
"""Spark cannot cancel what the driver reads, and the group waits for the batch."""
_LEFT_TO_SPARK = 100
"""Batches left to Spark after one that could not be done here."""


class CancelledError(Exception):
    """The batch was cancelled while the driver worked on it."""


class SmallBatches:
    """Decides which batches of one small task the driver does itself, and reads their records.

    On any obstacle (no answer, missing records, large records) Spark's tasks take over: they read the same ranges,
    retry, and name the problem.
    """

    def __init__(self, config: ReaderConfig, function: ArrowFunction | None = None) -> None:
        """`config` is the tasks' reader configuration, `function` what they map records with."""
        wait = min(config.read_timeout_ms, round(_MOST_SECONDS * 1000))
        # A dead letter keeps its headers, even if the function does not see them.
        headers = config.include_headers or (function is not None and config.dead_letters is not None)
        self._task_config, self._function = config, function
        self._config = replace(config, read_timeout_ms=wait, include_headers=headers)
        self._left_to_spark = 0
        self._is_cancelled = False

    @classmethod
    def of(
        cls, mode: str, config: ReaderConfig, steps: Iterable[Step], function: ArrowFunction | None
    ) -> SmallBatches | None:
        """Return the reader of small batches for a pipeline with these steps, which `function` applies.

        None if tasks read all batches.
        """
        is_mapped = any(isinstance(step, Mapped) for step in steps)
        return None if mode == TASKS or (mode == AUTO and is_mapped) else cls(config, function)

    def begin(self) -> None:
        """Begin a batch, and clear the cancellation of the one before."""
        self._is_cancelled = False

    def cancel(self) -> None:
        """Make `check` raise, from any thread."""
        self._is_cancelled = True

    def check(self) -> None:
        """Raise CancelledError if the batch was cancelled."""
        if self._is_cancelled:
            raise CancelledError("the batch was cancelled")

    def leave(self, why: object) -> None:
        """Leave this batch and some of the next ones to tasks. Raises CancelledError if it was cancelled."""
        self.check()
        log.debug("small batches are left to tasks for a while: %s", why)
        self._left_to_spark = _LEFT_TO_SPARK

    def takes(self, tasks: Sequence[Sequence[Split]]) -> bool:
        """Return True if the driver should try this batch."""
        if len(tasks) != 1 or not 0 < sum(split.end - split.start for split in tasks[0]) <= MOST_OFFSETS:
            return False
        if self._left_to_spark > 0:
            self._left_to_spark -= 1
            return False
        return True

    def read(self, tasks: Sequence[Sequence[Split]]) -> list[pa.RecordBatch] | None:
        """Return the records, in order within a partition; None if tasks must read them.

        Raises CancelledError.
        """
        until, size, read = time.monotonic() + _MOST_SECONDS, 0, []
        try:
            for batch in read_splits(self._config, tasks[0]):
                self.check()
                size += batch.nbytes
                if size > MOST_BYTES or time.monotonic() > until:
                    self.leave(f"{size} bytes read so far")
                    return None
                read.append(batch)
        except ReadError as error:
            self.leave(error)
            return None
        return read

    def reading(self, records: Sequence[pa.RecordBatch], counted: Any, failed: Any) -> ReadTask:
        """Return what maps these records in this process; the rest is as for `ReadTask`."""
        return ReadTask(self._task_config, [()], copied(self._function), counted, failed, records)

    def opening(self, writer: TaskWriter) -> TaskWriter:
        """Return the batch's writer; it stops waiting for brokers when the batch is cancelled."""
        return _Checking(writer, self.check) if isinstance(writer, (KafkaWriter, EncodingWriter)) else writer

    def warm_up(self) -> None:
        """Load what the first batch needs."""
        kernel(self._config.compiled)


class _Checking:
    def __init__(self, writer: KafkaWriter | EncodingWriter, check: Callable[[], None]) -> None:
        self._writer, self._check = writer, check

    def open(self) -> TaskOutput:
        return self._writer.open(self._check)


def copied(function: ArrowFunction | None) -> ArrowFunction | None:
    """Return a copy, as tasks get one, so that a function's own state does not last from batch to batch."""
    return None if function is None else cloudpickle.loads(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
