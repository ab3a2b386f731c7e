"""A process that appends numbers to a table through a sink, as a pipeline's driver does, until it is killed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from roster.model import TopicPartition
from roster.spark.batch import Batch, Owner, Range
from roster.spark.errors import SinkFencedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.spark.sinks.table import TableSink

GROUP = "g"
SCHEMA = StructType(
    [StructField("partition", IntegerType()), StructField("offset", LongType()), StructField("shop", IntegerType())]
)


def rows(partition: int, start: int, end: int) -> pa.RecordBatch:
    offsets = range(start, end)
    columns = {
        "partition": pa.array([partition] * (end - start), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "shop": pa.array([offset % 3 for offset in offsets], pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


def staged(sink: TableSink, batch: Batch) -> Any:
    """Write a batch with one task for each partition."""
    writer = sink.task_writer(batch, SCHEMA)
    results = []
    for partition, span in batch.ranges.items():
        output = writer.open()
        output.write(rows(partition.partition, *span))
        results.append(output.close())
    return sink.collect(writer, results, batch)


def work(make: Callable[[], TableSink], member: str, partitions: int, end: Callable[[], int], size: int) -> None:
    """Read up to `end()` in batches of `size` offsets a partition; say so on stdout after each."""
    sink = make()
    sink.open(None, GROUP)  # type: ignore[arg-type]
    owner = Owner(GROUP, 1, member)
    keys = [TopicPartition("t", number) for number in range(partitions)]
    at = {**dict.fromkeys(keys, 0), **sink.claim(keys, owner, {})}
    number = 0
    while ranges := _next(at, size, end()):
        batch = Batch(number, owner, ranges)
        try:
            sink.commit(staged(sink, batch), batch)
            at.update(batch.next_offsets)
        except SinkFencedError:
            at.update(sink.claim(keys, owner, {}))
        number += 1
        sys.stdout.write(f"{sum(at.values())}\n")
        sys.stdout.flush()


def _next(at: dict[TopicPartition, int], size: int, end: int) -> dict[TopicPartition, Range]:
    return {key: Range(start, min(start + size, end)) for key, start in at.items() if start < end}
