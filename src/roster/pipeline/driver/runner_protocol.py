"""What the driver's loop works with: what is committed, what runs batches, and stores between two batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Batch, BatchFigures, Restoring, Split
from roster.pipeline.batch_sink import BatchSink

SHORTEST_RESTORE = 0.05
"""Least `seconds` of `Runner.restore`: reading takes some time to begin."""


class TaskCommit(NamedTuple):
    """The last committed batch of a task, as long as only this application may have changed its stores since.

    token: of the attempt whose changes count. begins: offsets of its changelogs before the batch. ends: behind it,
    where the commit returned them. inputs: next offsets of its input partitions.
    """

    token: str
    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    inputs: Mapping[TopicPartition, int]


@dataclass(slots=True)
class Committed:
    """What is committed, for the loop and for stores; written on the pipeline's thread.

    positions: next offsets of owned partitions, behind the last committed batch or where reading starts. tasks: the
    last batch of each task with stores.
    """

    positions: dict[TopicPartition, int] = field(default_factory=dict)
    tasks: dict[TaskId, TaskCommit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome(BatchFigures):
    """Result of a batch that is not committed, with what the sink returned.

    tokens: the attempt of each task that has stores, if only one has ended.
    """

    written: Any
    tokens: Mapping[TaskId, str] = field(default_factory=dict)


class BetweenBatches:
    """Stores between two batches: which partitions wait for them or are due; as it is here, without stores."""

    until: Mapping[TopicPartition, int] = {}
    """Offsets up to which partitions may be read, of those that end before their logs."""

    def __init__(self) -> None:
        self.done = Committed()
        """What is committed."""

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Record newly assigned partitions, whose earlier owners have no transaction open. Raises ClientError."""

    def old_members(self) -> int:
        """Return how many members of an earlier release must leave before this one joins.

        Raises PipelineError, ClientError and ReadError.
        """
        return 0

    def held(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions whose state must be restored before they are read."""
        return frozenset()

    def due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> frozenset[TopicPartition]:
        """Return the owned partitions whose tasks must run now, even without records.

        behind: partitions with records to read. once: only those whose tasks have not run since they were assigned.
        """
        return frozenset()

    def held_and_due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
        """Return what `held` and `due` do, both before each batch."""
        return self.held(partitions), self.due(partitions, behind, once=once)

    def committed(self, batch: Batch, outcome: Outcome, log_ends: Mapping[TopicPartition, int]) -> None:
        """Record that a batch was committed. log_ends: of the logs that the commit wrote to, where they are known."""

    def aborted(self, batch: Batch) -> None:
        """Record that a batch is not committed: what its tasks left in their stores does not count."""

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the log ends, records of open transactions included. Raises ClientError."""
        return {}

    def restoring(self) -> Mapping[str, Restoring]:
        """Return the progress of stores that have not caught up, by task."""
        return {}


Refused: TypeAlias = Sequence[Mapping[int, Mapping[int, str]]]
"""`rows` of each RefusedRowsError of a batch, in their order; each numbers the rows that the ones before have left."""


class Probe(Protocol):
    """A job of one small task, which ends when it has had a task slot."""

    @property
    def running(self) -> bool:
        """True while an executor runs its task."""

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for its end; return False if it has not ended."""

    def check(self) -> None:
        """Raise PipelineError if the executors' Python cannot run a pipeline's tasks."""

    def cancel(self) -> None:
        """Cancel it."""


class Runner(Protocol):
    """Runs batches, one at a time."""

    @property
    def whole_partitions(self) -> bool:
        """True if one task must read a partition's whole range, as the one writer of its store."""

    @property
    def cores(self) -> int:
        """Number of tasks that run at once, by Spark's own count."""

    @property
    def takes_arrivals(self) -> bool:
        """True if records that brokers have sent to the driver need not be read again."""

    @property
    def most_offsets(self) -> int | None:
        """The most offsets that the next batch should have; None: any number."""

    def run(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: BatchSink, refused: Refused = ()) -> Outcome:
        """Read, transform and write. Raises the error that failed the batch; if cancelled, Spark's.

        refused: what the sink would not commit; these rows' records become dead letters.
        """

    def ask_for_slot(self) -> Probe:
        """Start a probe."""

    def warm_up(self, sink: BatchSink, *, is_small: bool = False) -> bool:
        """Run the plan on no rows. Raises as `run` does.

        `is_small`: as a small batch only; return False if such a batch needs Spark, too.
        """

    def find_stores(self) -> None:
        """Find the stores on this host, before the warm-up. Raises PipelineError if stores cannot be kept."""

    def restore(self, seconds: float) -> bool:
        """Restore stores and clean up for at most `seconds`; return False if there was nothing to do."""

    def settle(self) -> None:
        """Apply the last committed changes to the stores; at the end of a run, while partitions are still owned."""

    def cancel(self) -> None:
        """Cancel the jobs of the running batch; thread-safe."""

    def check(self) -> None:
        """Raise PipelineError if no batch can run any more."""

    def activity(self) -> object:
        """Return a value that changes whenever a job, stage or task of the batch ends; thread-safe."""
