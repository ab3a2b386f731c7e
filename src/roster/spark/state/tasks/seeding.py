"""A task of a seed: rows of a table become entries of the partitions that their keys belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa
from pyspark import TaskContext

from roster.spark.state.tasks.moving import by_place, key_rows, packed, placing_keys
from roster.spark.state.tasks.placement import Placement
from roster.state.definition import STATE_KEY, Noted
from roster.state.saved.parts import StoreEntries, saved
from roster.state.saved.plain import ENTRIES

_ROWS = 1 << 32
"""More than the batches of a task."""
_BATCHES = 20
"""Spark's batches that are placed together: small pieces cost more than their rows."""


class SeedTask:
    """Makes entries of batches of rows, in Spark's `mapInArrow`. noted: the definition record. count: of partitions."""

    def __init__(self, noted: bytes, placement: Placement, count: int) -> None:
        self._noted, self._placement, self._count = noted, placement, count

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield for each batch and partition: its number, where the entries are in the table, and the entries."""
        context = TaskContext.get()
        first = 0 if context is None else context.partitionId() * _ROWS
        definition = Noted.decode(self._noted).definition
        keys, columns = placing_keys(definition), saved(definition).schemas()[ENTRIES]
        rest = iter(batches)
        for number, some in enumerate(iter(lambda: list(islice(rest, _BATCHES)), [])):
            table = pa.Table.from_batches(some).combine_chunks().cast(columns)
            for place, rows in by_place(table, self._placement.partitions(key_rows(table, keys), self._count)):
                entries = StoreEntries.join({STATE_KEY: self._noted}, {ENTRIES: rows}).plain
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([place], pa.int32()),
                        pa.array([first + number], pa.int64()),
                        pa.array([packed(entries)], pa.binary()),
                    ],
                    ["log", "part", "entries"],
                )
