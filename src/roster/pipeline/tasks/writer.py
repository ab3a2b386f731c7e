"""The task's side of a sink that writes inside the tasks: the writer's protocols, and the functions that Spark runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import pyarrow as pa

from roster.pipeline.spark_types import DataFrame

RowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Function for `mapInArrow`."""

RESULT = "result binary"
"""Columns of the one row that a task returns, as Spark DDL."""


class TaskOutput(Protocol):
    """Output of one attempt of a task. Spark may run a task twice: nothing counts before the driver's commit."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows, or buffer them; bounded in memory."""

    def close(self) -> object:
        """Write buffered rows; return what the sink needs for its commit: small, can be pickled."""

    def abort(self) -> None:
        """Drop what was written, if possible; called once, instead of `close` or after its error."""


@runtime_checkable
class TaskWriter(Protocol):
    """How the tasks of one batch write; created on the driver and pickled to the executors."""

    def open(self) -> TaskOutput:
        """Start the output of one attempt of a task."""


class FrameWriter(Protocol):
    """Replaces a `TaskWriter`: the tasks make rows for another stage, which `write` runs."""

    @property
    def rows(self) -> str:
        """Columns of these rows, as Spark DDL."""

    def task(self, read: RowFunction | None) -> RowFunction:
        """Return the function for `mapInArrow`; `read` makes its input from Spark's rows, None: uses those."""

    def write(self, rows: DataFrame) -> list[object]:
        """Write the rows that the tasks make; return what the sink needs for its commit, never empty."""


Writer: TypeAlias = TaskWriter | FrameWriter


@dataclass(frozen=True)
class WriteTask:
    """Function given to `mapInArrow`: writes the rows of a task, and returns one row with the result.

    `read` makes them from Spark's rows; None: uses those.
    """

    writer: TaskWriter
    read: RowFunction | None = None

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all rows; yield one record batch of `RESULT`."""
        yield result_row(written(self.writer, rows if self.read is None else self.read(rows)))


@dataclass(frozen=True)
class ReadWriteTask:
    """Function given to `mapPartitions` of an RDD of task numbers: reads and writes the rows of each.

    `read` yields the rows of the tasks with these numbers, as `ReadTask.read` does.
    """

    writer: TaskWriter
    read: Callable[[Iterable[int]], Iterator[pa.RecordBatch]]

    def __call__(self, tasks: Iterable[int]) -> Iterator[object]:
        """Write the rows of the tasks; yield the result."""
        yield written(self.writer, self.read(tasks))


def written(writer: TaskWriter, rows: Iterator[pa.RecordBatch]) -> Any:
    """Write all rows to an output of their own, aborted on an error; return its result."""
    output = writer.open()
    try:
        for batch in rows:
            output.write(batch)
        return output.close()
    except BaseException:
        output.abort()
        raise


def written_frame(writer: Writer, rows: DataFrame) -> list[Any]:
    """Write Spark's rows in tasks; return what their outputs returned."""
    if not isinstance(writer, TaskWriter):
        return writer.write(rows.mapInArrow(cast("Any", writer.task(None)), writer.rows))
    work: Any = WriteTask(writer)
    # A plan that Spark sees to be empty has no tasks.
    return results_of(rows.mapInArrow(work, RESULT).collect()) or [writer.open().close()]


def result_row(result: object) -> pa.RecordBatch:
    """Return the row of `RESULT` that a task returns."""
    return pa.RecordBatch.from_pydict({"result": pa.array([pickle.dumps(result)], pa.binary())})


def results_of(rows: Sequence[Any]) -> list[Any]:
    """Return what the tasks' outputs returned, from the collected rows."""
    return [pickle.loads(row.result) for row in rows]  # noqa: S301 - written by this application's own tasks


def conformed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with exactly these columns, by position; large types and columns of nulls are cast."""
    if rows.schema.equals(schema):
        return rows
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
