"""What one micro-batch is: the ranges it reads, who reads them, and what became of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from roster.model import TopicPartition
from roster.spark.errors import PipelineError


class Range(NamedTuple):
    """Offsets of one partition, `start` inclusive, `end` exclusive; gaps (compaction, control records) count."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """Offsets in the range, an upper bound of its records."""
        return self.end - self.start


class Split(NamedTuple):
    """The part of one partition's range that one task reads."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Owner:
    """Who works: one member of a group at one generation."""

    group: str
    generation: int
    member_id: str


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch, as `foreach_batch` and sinks see it.

    `number` counts from 0 in each run and says nothing about the records: it is no token for idempotent writes (Delta's
    `txnVersion`, for one). What only grows, over restarts and take-overs, is each partition's next offset: group, topic
    and partition may serve as the application's id and `next_offsets[partition]` as the version. `after` does with
    them what an exactly-once `foreach_batch` needs.
    """

    number: int
    owner: Owner
    ranges: Mapping[TopicPartition, Range]

    @property
    def generation(self) -> int:
        """The group's generation in which the batch was planned."""
        return self.owner.generation

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """Where each partition stands once the batch counts."""
        return {partition: span.end for partition, span in self.ranges.items()}

    def after(
        self, df: DataFrame, positions: Mapping[TopicPartition, int]
    ) -> tuple[DataFrame, dict[TopicPartition, int]]:
        """The rows that do not count yet, and the positions to store in the transaction that makes them count.

        `positions` is what was stored last, by any member of the group: the next offset of each partition. `df` must
        still have the columns `topic`, `partition` and `offset`. Stored together, rows and positions are exactly once:

        >>> def store(df, batch):
        ...     with database.transaction() as transaction:
        ...         rows, positions = batch.after(df, transaction.positions(batch.ranges))
        ...         transaction.add(rows.toLocalIterator())
        ...         transaction.set_positions(positions)

        Raises PipelineError when a column is missing.
        """
        missing = [name for name in ("topic", "partition", "offset") if name not in df.columns]
        if missing:
            raise PipelineError(
                f"the rows have no column {' and no '.join(missing)}", field="after", fix="Keep them up to here"
            )
        rows = df
        for partition, span in sorted(self.ranges.items()):
            at = positions.get(partition, span.start)
            if at > span.start:
                done = (df["topic"] == partition.topic) & (df["partition"] == partition.partition) & (df["offset"] < at)
                rows = rows.where(~done)
        return rows, {p: max(end, positions.get(p, 0)) for p, end in self.next_offsets.items()}


@dataclass(frozen=True, slots=True)
class Progress:
    """What one batch did. Times are milliseconds; `started_at` is wall-clock time since the epoch."""

    group: str
    member_id: str
    generation: int
    batch: int
    started_at: int
    duration_ms: int
    rows: int
    """Records read (not offsets: gaps are not counted)."""
    ranges: Mapping[TopicPartition, Range]
    lag: Mapping[TopicPartition, int]
    """Offsets still to read after this batch, for every partition owned."""
    tasks: int
    phases: Mapping[str, int] = field(default_factory=dict)
    """Milliseconds by phase: plan, work (read, transform and write), sink (its commit), group (the offsets' commit)."""

    @property
    def rows_per_second(self) -> float:
        """Records over the batch's whole duration."""
        return self.rows * 1000 / max(self.duration_ms, 1)

    @property
    def total_lag(self) -> int:
        """Offsets still to read over all partitions owned."""
        return sum(self.lag.values())

    def __str__(self) -> str:
        return (
            f"batch {self.batch} generation {self.generation}: {self.rows} rows from {len(self.ranges)} partitions "
            f"in {self.duration_ms} ms ({self.rows_per_second:,.0f} rows/s), lag {self.total_lag} "
            f"over {len(self.lag)} owned"
        )

    def to_json(self) -> str:
        """One line of JSON; partitions are written `topic-partition`."""
        document: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        document["ranges"] = {str(partition): list(span) for partition, span in self.ranges.items()}
        document["lag"] = {str(partition): lag for partition, lag in self.lag.items()}
        document["phases"] = dict(self.phases)
        document["rows_per_second"] = round(self.rows_per_second, 1)
        return json.dumps(document)
