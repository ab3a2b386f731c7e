"""Sinks of frames: the console, and of a query Spark's batch writers, functions and a table in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter
from typing_extensions import override

from roster.pipeline.batch import Batch
from roster.pipeline.batch_sink import Sink
from roster.sinks.kafka import KafkaSink

_EPOCH = "streaming.sql.batchId"
"""Property of a job in which PySpark's function for `foreach` finds the batch's number."""


class BatchIds:
    """Numbers of batches that never fall back, over restarts too: milliseconds of the clock, each one only once.

    A number of a batch that failed is not used again, as the next batch may have other records.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now, self._last, self._lock = now, 0, threading.Lock()

    def next(self) -> int:
        """Return the next number."""
        with self._lock:
            self._last = max(self._last + 1, int(self._now() * 1000))
            return self._last


_ids = BatchIds()


class ConsoleSink(Sink):
    """Prints the first rows of each batch; at least once.

    `rows` is the number of rows, `truncate` as in `DataFrame.show`: True cuts values after 20 characters, a number
    after that many.
    """

    def __init__(self, rows: int = 20, *, truncate: bool | int = True) -> None:
        self._rows, self._truncate = rows, truncate

    @override
    def write(self, df: DataFrame, batch: Batch) -> None:
        print(f"batch {batch.number}, generation {batch.generation}")  # noqa: T201 - printing is this sink's work
        df.show(self._rows, truncate=self._truncate)


class FunctionSink(Sink):
    """Calls a function of `foreachBatch` with each batch and its number; at least once."""

    def __init__(self, function: Callable[[DataFrame, int], object]) -> None:
        self._function = function

    @override
    def write(self, df: DataFrame, batch: Batch) -> None:
        self._function(df, _ids.next())


class RowSink(Sink):
    """Calls what `foreach` takes with each row, in the executors; at least once."""

    def __init__(self, function: Any) -> None:
        self._function = DataStreamWriter._construct_foreach_function(function)

    @override
    def write(self, df: DataFrame, batch: Batch) -> None:
        context, function = df.sparkSession.sparkContext, cast("Any", self._function)
        context.setLocalProperty(_EPOCH, str(_ids.next()))
        try:
            df.rdd.mapPartitionsWithIndex(function).count()
        finally:
            context.setLocalProperty(_EPOCH, None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class FormatSink(Sink):
    """Appends each batch by `df.write`; at least once.

    Attributes:
        format: "" for that of the table.
        path: where `save` writes; None for a table, and for formats without a path.
        table: its name, None for files.
        options: of Spark's writer.
        partition_by: names of columns.

    """

    format: str
    path: str | None
    table: str | None
    options: Mapping[str, str]
    partition_by: Sequence[str] = ()

    @override
    def write(self, df: DataFrame, batch: Batch) -> None:
        writer = df.write.mode("overwrite" if self.format == "noop" else "append").options(**self.options)
        writer = writer.format(self.format) if self.format else writer
        writer = writer.partitionBy(*self.partition_by) if self.partition_by else writer
        if self.table is None:
            writer.save(self.path)
        else:
            writer.saveAsTable(self.table)


class MemorySink(Sink):
    """Keeps all rows in the driver, as a temporary view with the query's name; at least once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rows: pa.Table | None = None

    @override
    def write(self, df: DataFrame, batch: Batch) -> None:
        rows = df.toArrow()
        self._rows = rows if self._rows is None else pa.concat_tables([self._rows, rows]).combine_chunks()
        # PySpark cannot take a table of nested columns without rows.
        rows_or_none: Any = self._rows if len(self._rows) else []
        df.sparkSession.createDataFrame(rows_or_none, df.schema).createOrReplaceTempView(self._name)


def is_at_least_once(sink: Sink) -> bool:
    """Return True for a sink that may have records of a batch again after a failure."""
    if isinstance(sink, KafkaSink):
        return sink.is_exactly_once is False
    return type(sink).claim is Sink.claim


def takes_results(sink: Sink | None, columns: Collection[str]) -> bool:
    """Return True for a sink that takes results of state, with these columns, as the tasks make them."""
    if not isinstance(sink, KafkaSink) or sink.topic is None or sink.is_exactly_once is False:
        return False
    return set(columns).isdisjoint(("topic", "partition", "headers"))


def described(sink: Sink) -> str:
    """Return a sink's description for `explain`: what it is, and how often it has each record."""
    name = type(sink).__name__
    if isinstance(sink, FormatSink):
        name = f"format({sink.format!r})" if sink.table is None else f"table {sink.table!r}"
        name += " by Spark's batch writer"
    return f"{name}, {'at least' if is_at_least_once(sink) else 'exactly'} once"
