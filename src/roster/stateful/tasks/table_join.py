"""Rows joined with a compacted topic: each partition's task keeps the table's partition of that number in a store.

The store is a copy of the topic, which is its own changelog. Before a batch it catches up with the log's stable end, so
all rows of the batch see the table as of the batch's start, committed records only. The table is not part of the
batch's transaction: a retried batch may see a later table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Split
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.json_values import JsonReader
from roster.pipeline.tasks.missing_values import ColumnsSeen
from roster.pipeline.tasks.reader import ReaderConfig, read_splits
from roster.pipeline.tasks.result_records import record_keys
from roster.pipeline.tasks.steps import applied
from roster.state.source_times import LABELS, labelled
from roster.state.store import Value
from roster.stateful.tasks.catch_up import StoreTarget, catch_up
from roster.stateful.tasks.store_location import Place, on_sound

_PIECE_BYTES = 16 << 20
"""About how many bytes of the table's values the rows that are joined at once have."""
FIELD = "join_table"


def table_place(directory: str | None, group: str, topic: str, topic_id: str) -> Place:
    """Return where the stores of a table lie, which each group has of its own."""
    return Place(directory, f"{group}-{topic}-table", topic_id, is_ordered=False)


@dataclass(frozen=True)
class Lookup:
    """Joins rows with a table's values by the keys in a column."""

    on: str
    reader: JsonReader
    columns: pa.Schema
    keeps_all: bool

    def joined(self, rows: pa.RecordBatch, table: Callable[[Sequence[bytes]], list[Value]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the table's fields, in pieces as many rows may have the same large value.

        table: returns the value of each key. Labels of rows stay behind the fields.
        """
        names = [name for name in rows.schema.names if name in LABELS]
        columns = labelled(self.columns) if names else self.columns
        rows, labels = rows.drop_columns(names), rows.select(names)
        keys = record_keys(rows.column(self.on)).dictionary_encode()
        keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
        values = pa.array(table(keys.dictionary.to_pylist()), pa.binary())
        fields = self.reader.read(values)[0]
        sizes = pc.fill_null(pc.binary_length(values).take(keys.indices), 0).to_numpy(zero_copy_only=False)
        piece = np.cumsum(sizes, dtype=np.int64) // _PIECE_BYTES
        for begin, end in itertools.pairwise([0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(rows)]):
            indices = keys.indices.slice(begin, end - begin)
            arrays = [*rows.columns, *labels.columns]
            own = [array.slice(begin, end - begin) for array in arrays]
            own[rows.num_columns : rows.num_columns] = fields.take(indices).columns
            joined = pa.RecordBatch.from_arrays(own, schema=columns)
            yield joined if self.keeps_all else joined.filter(pc.is_valid(values.take(indices)))


class Rows(NamedTuple):
    """One table join: the table's topic, the lookup, a function for joined rows, and the result columns."""

    topic: str
    lookup: Lookup
    then: ArrowFunction | None
    columns: pa.Schema


class TableSide(NamedTuple):
    """The tasks' side of one table in a batch: the join, the places of stores, and how far to read.

    number: of the sub-topology.
    """

    number: int
    rows: Rows
    place: Place
    targets: Mapping[int, StoreTarget]

    def joined(
        self, partition: int, batches: Iterable[pa.RecordBatch], config: ReaderConfig, seen: ColumnsSeen
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition joined, after its part of the table has caught up."""
        target, (_, lookup, then, _) = self.targets[partition], self.rows
        with self.place.open(str(TaskId(self.number, partition))) as store:

            def table(keys: Sequence[bytes]) -> list[Value]:
                catch_up(store, target, partial(fetch_table, config))
                return list(store.multi_get(keys))

            on_sound(store, partial(table, []))
            for rows in seen.adding(batches, (lookup.on,), FIELD):
                for joined in lookup.joined(rows, lambda keys: on_sound(store, partial(table, keys))):
                    if then is None:
                        yield joined
                    else:
                        yield from applied(then, joined, "rows joined with a table")


def through_tables(
    tables: Sequence[TableSide], partition: int, config: ReaderConfig, seen: ColumnsSeen, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a partition joined with one table after the other."""
    for table in tables:
        rows = table.joined(partition, rows, config, seen)
    return rows


def fetch_table(config: ReaderConfig, partition: TopicPartition, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the committed records with a key: others do not affect the table."""
    committed = replace(config, isolation_level="read_committed", include_headers=False)
    for batch in read_splits(committed, [Split(partition.topic, partition.partition, start, end)]):
        yield batch.filter(pc.is_valid(batch.column("key")))
