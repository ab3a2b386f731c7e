"""A micro-batch: its offset ranges, owner and progress."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

from roster._json import JsonObject
from roster.model import OffsetAndMetadata, TopicPartition
from roster.model.offsets import Arrival
from roster.model.topics import offsets_by_topic
from roster.pipeline.errors import PipelineError


class Frame(Protocol):
    """What `Batch.after` asks of a DataFrame."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of its columns."""

    def __getitem__(self, name: Any, /) -> Any:
        """Return a column."""

    def where(self, condition: Any, /) -> Any:
        """Return the rows for which it is true."""


FrameT = TypeVar("FrameT", bound=Frame)


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


@dataclass(frozen=True)
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
    arrivals: Sequence[Arrival] = field(default=(), repr=False, compare=False)
    """Records of the ranges that the driver has received."""
    group_offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict, repr=False, compare=False)
    """The group's offsets once the batch is committed, for a sink that commits them."""

    @property
    def generation(self) -> int:
        """Generation of the group in which the batch was planned."""
        return self.owner.generation

    @cached_property
    def offsets(self) -> int:
        """Number of offsets in all ranges."""
        return sum(end - start for start, end in self.ranges.values())

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """Next offset of each partition once the batch is committed."""
        return {partition: span.end for partition, span in self.ranges.items()}

    def after(self, df: FrameT, positions: Mapping[TopicPartition, int]) -> tuple[FrameT, dict[TopicPartition, int]]:
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
            position = positions.get(partition, span.start)
            if position > span.start:
                done = (
                    (df["topic"] == partition.topic)
                    & (df["partition"] == partition.partition)
                    & (df["offset"] < position)
                )
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


class StoreProgress(NamedTuple):
    """A task's store in the last batch that it took part in."""

    entries: int
    """Entries when the batch began, with up to three of Roster's own."""
    bytes: int
    """Their size on the disk then."""
    changed: int = 0
    """Entries that the batch wrote or removed; 0 if the task took no part in it."""
    late: int = 0
    """Rows left out because their time was over or null; likewise."""
    stream_time_ms: int | None = None
    """Largest event time of all rows so far, or later with `idle_after`, in ms since 1970; None without event time."""
    restored: int = 0
    """Changelog records applied before the batch; likewise."""
    restored_bytes: int = 0
    """Their size in memory."""
    restore_ms: int = 0
    """Milliseconds that this took."""
    other_time_ms: int | None = None
    """For a join, the `stream_time_ms` of the other topic's rows."""
    late_behind_ms: Mapping[int, int] = {}
    """Of late rows {milliseconds that their times are behind the stream time, up to two digits: rows}."""
    late_sources: Mapping[str, int] = {}
    """{`topic-partition` that they were produced to: rows}, up to eight."""
    held_by: str | None = None
    """`topic-partition` of the input that holds stream time back behind `repartition`: it has more to read, and of all
    such the least time. "" if none does, None if that is not known yet."""
    held_ms: int = 0
    """Milliseconds that stream time is behind that of the partition that is furthest."""
    file_bytes: int = 0
    """Size of the store's files, which are mapped into the memory of the process that works on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFigures:
    """What the tasks of a batch have done."""

    rows: int
    """Records read; fewer than offsets where there are gaps."""
    dead_letters: int = 0
    """Records among `rows` that went to the dead-letter topic."""
    first_dead_letter: str = ""
    """Which record the first of `dead_letters` is, and what it failed at; "" if there are none."""
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
    stores: Mapping[str, Mapping[str, StoreProgress]] = field(default_factory=dict)
    """Stores by name and task, of the tasks that run here and have taken part in a batch."""

    def figures(self) -> JsonObject:
        """Return these figures by name."""
        return {figure.name: getattr(self, figure.name) for figure in dataclasses.fields(BatchFigures)}


@dataclass(frozen=True, slots=True)
class Progress(BatchFigures):
    """Result of one batch. Times are milliseconds; `started_at` is wall-clock time since the epoch."""

    group: str
    member_id: str
    generation: int
    batch: int
    started_at: int
    duration_ms: int
    ranges: Mapping[TopicPartition, Range]
    lag: Mapping[TopicPartition, int]
    """Offsets left to read after this batch, by owned partition."""
    tasks: int
    phases: Mapping[str, int] = field(default_factory=dict)
    """Milliseconds by phase: plan, work (read, transform and write), sink (its commit), group (the offsets' commit).

    If both commits are one Kafka transaction: plan, work, transaction (its end)."""
    since_ms: int | None = None
    """Milliseconds from the start of the batch before to the start of this one; None for the first."""

    @property
    def input_rows_per_second(self) -> float:
        """Records read per second since the batch before began."""
        return self.rows * 1000 / max(self.duration_ms if self.since_ms is None else self.since_ms, 1)

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
        """Return one line of JSON: these names, with partitions as `topic-partition`, and those of `spark_names`."""
        document: dict[str, object] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        document["ranges"] = {str(partition): list(span) for partition, span in self.ranges.items()}
        document["lag"] = {str(partition): lag for partition, lag in self.lag.items()}
        document["phases"] = dict(self.phases)
        document["restoring"] = {task: dataclasses.asdict(copy) for task, copy in self.restoring.items()}
        document["stores"] = {
            name: {task: store._asdict() for task, store in tasks.items()} for name, tasks in self.stores.items()
        }
        document["rows_per_second"] = round(self.rows_per_second, 1)
        return json.dumps(document | spark_names(self))


def spark_names(progress: Progress) -> dict[str, object]:
    """Return a batch as Spark's `StreamingQueryProgress` has it in JSON, but for its ids and the sink.

    The watermark is the least stream time of all tasks with event time.
    """
    phases = progress.phases
    rates = {"inputRowsPerSecond": progress.input_rows_per_second, "processedRowsPerSecond": progress.rows_per_second}
    behind = [progress.lag.get(partition, 0) for partition in progress.ranges]
    ends = {partition: span.end for partition, span in progress.ranges.items()}
    source = {
        "description": f"Roster[{','.join(sorted({p.topic for p in progress.ranges}))}]",
        "startOffset": json.dumps(offsets_by_topic({p: span.start for p, span in progress.ranges.items()})),
        "endOffset": json.dumps(offsets_by_topic(ends)),
        "latestOffset": json.dumps(offsets_by_topic({p: end + progress.lag.get(p, 0) for p, end in ends.items()})),
        "numInputRows": progress.rows,
        **rates,
        "metrics": {
            "minOffsetsBehindLatest": str(min(behind, default=0)),
            "maxOffsetsBehindLatest": str(max(behind, default=0)),
            "avgOffsetsBehindLatest": str(sum(behind) / max(len(behind), 1)),
        },
    }
    times = [
        s.stream_time_ms for tasks in progress.stores.values() for s in tasks.values() if s.stream_time_ms is not None
    ]
    return {
        "name": progress.group,
        "timestamp": utc(progress.started_at),
        "batchId": progress.batch,
        "batchDuration": progress.duration_ms,
        "numInputRows": progress.rows,
        **rates,
        "durationMs": {
            "queryPlanning": phases.get("plan", 0),
            "addBatch": phases.get("work", 0) + phases.get("sink", 0) + phases.get("transaction", 0),
            "commitOffsets": phases.get("group", 0),
            "triggerExecution": progress.duration_ms,
        },
        "eventTime": {"watermark": utc(min(times))} if times else {},
        "stateOperators": [_state_operator(name, list(tasks.values())) for name, tasks in progress.stores.items()],
        "observedMetrics": {},
        "sources": [source],
    }


def _state_operator(name: str, stores: Sequence[StoreProgress]) -> dict[str, object]:
    """Return the stores of one name as Spark's `StateOperatorProgress` in JSON."""
    unknown = ("numRowsRemoved", "allUpdatesTimeMs", "allRemovalsTimeMs", "commitTimeMs", "numShufflePartitions")
    return dict.fromkeys(unknown, 0) | {
        "operatorName": name,
        "numRowsTotal": sum(store.entries for store in stores),
        "numRowsUpdated": sum(store.changed for store in stores),
        "memoryUsedBytes": sum(store.bytes for store in stores),
        "numRowsDroppedByWatermark": sum(store.late for store in stores),
        "numStateStoreInstances": len(stores),
        "customMetrics": {},
    }


def utc(ms: float) -> str:
    """Format wall-clock milliseconds as Spark's events have them."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
