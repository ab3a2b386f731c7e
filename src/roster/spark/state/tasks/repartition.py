"""A repartition topic: the upstream task gives its rows another key, and the task that owns the key reads them.

A record's key is that of a result (text, or of several columns a JSON array), and Kafka's default partitioner, murmur2
of the key, says where it goes; rows whose key is null go to partition 0, so that they are one group. The value has
all columns of the row, types and nulls kept. The record's time is the row's column `timestamp`, if it has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.model.topology import Subtopology
from roster.spark.errors import PipelineError
from roster.spark.state.tasks.placement import NO_KEY, partitions_of
from roster.spark.tasks.arrow_function import ArrowFunction
from roster.spark.tasks.result_records import key_of_records
from roster.spark.tasks.steps import applied
from roster.state.keys import encode_keys
from roster.state.rows import RowLayout
from roster.state.store import OtherRowsError, StateError

FIELD = "repartition"
_TIME = "timestamp"
_MICROSECONDS = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class RepartitionTopic:
    """How rows are written to the topic and read back; pickled to the executors.

    before: the upstream sub-topology. keys: columns of the new key. columns: of the rows. then: function applied to
    rows that were read. partitions: of the topic, None: as many as the largest source has.
    """

    before: Subtopology
    topic: str
    keys: tuple[str, ...]
    columns: pa.Schema
    then: ArrowFunction | None = None
    partitions: int | None = None

    def __post_init__(self) -> None:
        if missing := [name for name in self.keys if name not in self.columns.names]:
            raise PipelineError(
                f"no column {missing[0]!r}", field=FIELD, fix=f"Name one of {', '.join(self.columns.names)}"
            )
        try:
            encode_keys(self.columns.empty_table(), self.keys)
            RowLayout.of(self.columns)
        except StateError as error:
            problem = str(error).partition(": ")[2]
            raise PipelineError(problem, field=FIELD, fix="Cast or leave it out in map_arrow before") from None

    @cached_property
    def layout(self) -> RowLayout:
        """The layout of records' values."""
        return RowLayout.of(self.columns)

    def to_records(self, rows: pa.Table) -> pa.Table:
        """Return the records of rows: columns key, value, partition (null: by the key) and timestamp (null: now).

        Producers know a topic's number of partitions for minutes, so its keys are placed here once it is known.
        """
        keys = key_of_records(rows, self.keys).cast(pa.binary())
        count = len(rows)
        values = self.layout.appended(pa.repeat(b"", count), rows, np.zeros(count, np.int64), np.arange(count))
        partitions: Any = pc.if_else(pc.is_null(keys), pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32()))
        if self.partitions is not None and count:
            whole = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
            places = partitions_of(whole, "murmur2", self.partitions)
            partitions = pa.array(np.where(places == NO_KEY, 0, places), pa.int32())
        return pa.table([keys, values, partitions, self._times(rows)], ["key", "value", "partition", "timestamp"])

    def _times(self, rows: pa.Table) -> pa.ChunkedArray | pa.Array:
        if _TIME in rows.column_names and pa.types.is_timestamp(rows.schema.field(_TIME).type):
            return rows[_TIME].cast(_MICROSECONDS, safe=False)
        return pa.nulls(len(rows), _MICROSECONDS)

    def to_rows(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of records. Raises StateError for others' records, FunctionError if `then` fails."""
        try:
            rows = self.layout.decode(records.column("value")).table
        except StateError:
            raise OtherRowsError(
                f"the records in {self.topic} have not the columns {', '.join(self.columns.names)} as they are now:"
                " bring the release that wrote them to its end of the input first, or use another group"
            ) from None
        for batch in rows.combine_chunks().to_batches():
            if self.then is None:
                yield batch
            else:
                yield from applied(self.then, batch, "rows behind repartition")
