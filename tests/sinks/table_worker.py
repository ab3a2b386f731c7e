"""A process that appends numbers to a table through a sink, as a pipeline's driver does, until it is killed."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from roster.model import TopicPartition
from roster.pipeline.batch import Batch, Owner, Range
from roster.pipeline.errors import SinkFencedError
from roster.pipeline.spark_schemas import arrow_schema
from roster.sinks.tasks.upsert import retracted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.context import ForkServerContext

    from roster.sinks.positions import PositionedSink

GROUP = "g"
SCHEMA = StructType(
    [StructField("partition", IntegerType()), StructField("offset", LongType()), StructField("shop", IntegerType())]
)

_IMPORTED = ["deltalake", "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow"]
_IMPORTED += ["sqlalchemy.dialects.postgresql.psycopg", "pytest", "tests.sinks.table_places", __name__]


def forking() -> ForkServerContext:
    """Makes processes that are forks of one that has imported what they need, which takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def rows(partition: int, start: int, end: int) -> pa.RecordBatch:
    offsets = range(start, end)
    columns = {
        "partition": pa.array([partition] * (end - start), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "shop": pa.array([offset % 3 for offset in offsets], pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


def uncommitted(sink: PositionedSink, batch: Batch) -> Any:
    """Write a batch with one task for each partition."""
    writer = sink.task_writer(batch, SCHEMA)
    results = []
    for partition, span in batch.ranges.items():
        output = writer.open()
        output.write(rows(partition.partition, *span))
        results.append(output.close())
    return sink.collect(writer, results, batch)


KEYS = ["partition", "name"]
NAMES = 61
UPDATED = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("name", StringType()),
        StructField("n", LongType()),
        StructField("text", StringType()),
    ]
)
"""Rows of which a later one replaces an earlier one of its partition and name."""


def name_of(offset: int) -> str | None:
    """A few names again and again, in no order; one is null."""
    number = offset * 2654435761 % 2**32 >> 16
    return None if number % NAMES == 0 else f"name {number % NAMES}"


def text_of(offset: int) -> str:
    return hashlib.sha256(b"%d" % offset).hexdigest()


def deletes(offset: int) -> bool:
    return offset % 7 == 3


def upserted(sink: PositionedSink, batch: Batch) -> Any:
    """Write a batch of updates with a task for each half of a partition's range; deletes are retractions."""
    writer = sink.task_writer(batch, UPDATED)
    results = []
    for partition, span in batch.ranges.items():
        middle = (span.start + span.end) // 2
        for start, end in ((span.start, middle), (middle, span.end)):
            output = writer.open()
            for offset in range(start, end):
                row = {"partition": partition.partition, "name": name_of(offset), "n": offset, "text": text_of(offset)}
                table = pa.Table.from_pylist([row], arrow_schema(UPDATED))
                if deletes(offset):
                    table = retracted(table.select(KEYS), table.schema)
                for each in table.to_batches():
                    output.write(each)
            results.append(output.close())
    return sink.collect(writer, results, batch)


def latest(ends: dict[int, int]) -> list[tuple[Any, ...]]:
    """The rows of `UPDATED` after the offsets before each partition's end, worked out one by one."""
    rows: dict[tuple[int, str | None], int] = {}
    for partition, end in ends.items():
        for offset in range(end):
            if deletes(offset):
                rows.pop((partition, name_of(offset)), None)
            else:
                rows[partition, name_of(offset)] = offset
    return sorted(((*key, n, text_of(n)) for key, n in rows.items()), key=repr)


def work(
    make: Callable[[], PositionedSink],
    member: str,
    partitions: Sequence[int],
    end: Callable[[], int],
    size: int,
    write: Callable[[PositionedSink, Batch], Any] = uncommitted,
) -> None:
    """Read up to `end()` in batches of `size` offsets a partition; say so on stdout after each."""
    sink = make()
    sink.open(None, GROUP)  # type: ignore[arg-type]
    owner = Owner(GROUP, 1, member)
    keys = [TopicPartition("t", number) for number in partitions]
    at = {**dict.fromkeys(keys, 0), **sink.claim(keys, owner, {})}
    number = 0
    while ranges := _next(at, size, end()):
        batch = Batch(number, owner, ranges)
        try:
            sink.commit(write(sink, batch), batch)
            at.update(batch.next_offsets)
        except SinkFencedError:
            at.update(sink.claim(keys, owner, {}))
        number += 1
        sys.stdout.write(f"{sum(at.values())}\n")
        sys.stdout.flush()


def _next(at: dict[TopicPartition, int], size: int, end: int) -> dict[TopicPartition, Range]:
    return {key: Range(start, min(start + size, end)) for key, start in at.items() if start < end}
