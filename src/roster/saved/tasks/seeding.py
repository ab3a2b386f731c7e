"""A task of a seed: rows of a table go to the partitions that their keys belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from roster.saved.tasks.moving import by_place, key_rows, packed
from roster.stateful.tasks.placement import Placement

_ROWS = 1 << 32
"""More than the batches of a task."""
_BATCHES = 20
"""Spark's batches that are placed together: small pieces cost more than their rows."""


class SeedTask(NamedTuple):
    """Places batches of rows of a part of a store, in Spark's `mapInArrow`.

    columns: of the rows. keys: of them, those that the placement is by. among: so many partitions.
    """

    part: str
    columns: pa.Schema
    keys: pa.Schema
    placement: Placement
    among: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield for some batches and each partition: its number, and the fields of a `Chunk`."""
        context = TaskContext.get()
        first = 0 if context is None else context.partitionId() * _ROWS
        rest = iter(batches)
        for number, some in enumerate(iter(lambda: list(islice(rest, _BATCHES)), [])):
            table = pa.Table.from_batches(some).combine_chunks().cast(self.columns)
            for place, rows in by_place(table, self.placement.partitions(key_rows(table, self.keys), self.among)):
                yield pa.RecordBatch.from_pydict(
                    {
                        "log": pa.array([place], pa.int32()),
                        "part": [self.part],
                        "number": pa.array([first + number], pa.int64()),
                        "rows": pa.array([packed(rows)], pa.binary()),
                    }
                )
