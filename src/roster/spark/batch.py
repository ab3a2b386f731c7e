"""A micro-batch: its offset ranges, owner and progress."""

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
        """Number of offsets in the range: at least its number of records."""
        return self.end - self.start


class Split(NamedTuple):
    """The part of a partition's range that one task reads."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def is_empty(self) -> bool:
        """True for a partition whose task runs without records."""
        return self.end <= self.start


@dataclass(frozen=True, slots=True)
class Owner:
    """The member that runs a batch, at its generation of the group."""

    group: str
    generation: int
    member_id: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch, as passed to `foreach_batch` and sinks.

    `number` counts from 0 in each run, so never use it as a token for idempotent writes such as Delta's `txnVersion`.
    Each partition's next offset only grows, across restarts and take-overs: use group, topic and partition as the
    application's id and `next_offsets[partition]` as the version. `after` helps to write an exactly-once
    `foreach_batch`.
    """

    number: int
    owner: Owner
    ranges: Mapping[TopicPartition, Range]
    rewrites_state: bool = False
    """True if tasks may write all entries of their stores, however few records they read."""

    @property
    def generation(self) -> int:
        """Generation of the group in which the batch was planned."""
        return self.owner.generation

    @property
    def offsets(self) -> int:
        """Number of offsets in all ranges."""
        return sum(span.size for span in self.ranges.values())

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """Next offset of each partition once the batch is committed."""
        return {partition: span.end for partition, span in self.ranges.items()}

    def after(
        self, df: DataFrame, positions: Mapping[TopicPartition, int]
    ) -> tuple[DataFrame, dict[TopicPartition, int]]:
        """Return the rows that are not stored yet, and the positions to store with them in one transaction.

        `positions` are those stored last, by any member of the group: the next offset of each partition. `df` must
        still have the columns `topic`, `partition` and `offset`. Storing rows and positions together is exactly once:

        >>> def store(df, batch):
        ...     with database.transaction() as transaction:
        ...         rows, positions = batch.after(df, transaction.positions(batch.ranges))
        ...         transaction.add(rows.toLocalIterator())
        ...         transaction.set_positions(positions)

        Raises PipelineError if a column is missing.
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
class Restoring:
    """Progress of a copy of a task's state that has not caught up with its changelog."""

    records: int
    """Changelog records applied since the restoring began here."""
    bytes: int
    """Their size in memory."""
    left: int
    """Changelog offsets that are missing."""
    seconds_left: float | None
    """Seconds that these will take at the rate so far; None while unknown."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Result of one batch. Times are milliseconds; `started_at` is wall-clock time since the epoch."""

    group: str
    member_id: str
    generation: int
    batch: int
    started_at: int
    duration_ms: int
    rows: int
    """Records read; fewer than offsets where there are gaps."""
    ranges: Mapping[TopicPartition, Range]
    lag: Mapping[TopicPartition, int]
    """Offsets left to read after this batch, by owned partition."""
    tasks: int
    phases: Mapping[str, int] = field(default_factory=dict)
    """Milliseconds by phase: plan, work (read, transform and write), sink (its commit), group (the offsets' commit).

    If both commits are one Kafka transaction: plan, work, transaction (its end)."""
    dead_letters: int = 0
    """Records among `rows` that went to the dead-letter topic."""
    restored: int = 0
    """Changelog records that tasks applied to their stores before they processed the batch."""
    restored_bytes: int = 0
    """Size of these records in memory."""
    late: int = 0
    """Rows left out because their window was closed or their time is null."""
    standby_records: int = 0
    """Changelog records applied to standby copies since the batch before."""
    restoring: Mapping[str, Restoring] = field(default_factory=dict)
    """Copies that have not caught up, by task: standby tasks, and own tasks that are restored before they are read."""

    @property
    def rows_per_second(self) -> float:
        """Records read per second of the batch's whole duration."""
        return self.rows * 1000 / max(self.duration_ms, 1)

    @property
    def total_lag(self) -> int:
        """Number of offsets left to read in all owned partitions."""
        return sum(self.lag.values())

    def __str__(self) -> str:
        return (
            f"batch {self.batch} generation {self.generation}: {self.rows} rows from {len(self.ranges)} partitions "
            f"in {self.duration_ms} ms ({self.rows_per_second:,.0f} rows/s), lag {self.total_lag} "
            f"over {len(self.lag)} owned"
        )

    def to_json(self) -> str:
        """Return one line of JSON, with partitions as `topic-partition`."""
        document: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        document["ranges"] = {str(partition): list(span) for partition, span in self.ranges.items()}
        document["lag"] = {str(partition): lag for partition, lag in self.lag.items()}
        document["phases"] = dict(self.phases)
        document["restoring"] = {task: dataclasses.asdict(each) for task, each in self.restoring.items()}
        document["rows_per_second"] = round(self.rows_per_second, 1)
        return json.dumps(document)
