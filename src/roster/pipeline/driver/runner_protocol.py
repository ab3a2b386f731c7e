"""Protocols of the driver's loop: what runs batches, and what works on copies of state between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Batch, BatchFigures, Restoring, Split
from roster.pipeline.batch_sink import BatchSink

SHORTEST_RESTORE = 0.05
"""Least `seconds` of `BetweenBatches.restore`: reading takes some time to begin."""


@dataclass(frozen=True, slots=True)
class Outcome(BatchFigures):
    """Result of a batch that is not committed, with what the sink returned.

    tokens: the attempt of each task that has stores, if only one has ended.
    """

    written: Any
    tokens: Mapping[TaskId, str] = field(default_factory=dict)


class BetweenBatches:
    """Stores between two batches: which partitions wait for them, and work on them; as it is here, without stores."""

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

    def readable(self, ends: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return up to where partitions with these log ends may be read."""
        return ends

    def find_stores(self) -> None:
        """Find the stores on this host, before the warm-up. Raises PipelineError if stores cannot be kept."""

    def due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> frozenset[TopicPartition]:
        """Return the owned partitions whose tasks must run now, even without records.

        behind: partitions with records to read. once: only those whose tasks have not run since they were assigned.
        """
        return frozenset()

    def committed(self, batch: Batch, outcome: Outcome, log_ends: Mapping[TopicPartition, int]) -> None:
        """Record that a batch was committed. log_ends: of the logs that the commit wrote to, where they are known."""

    def aborted(self, batch: Batch) -> None:
        """Record that a batch is not committed: what its tasks left in their stores does not count."""

    def restore(self, seconds: float) -> bool:
        """Restore stores and clean up for at most `seconds`; return False if there was nothing to do."""
        return False

    def settle(self) -> None:
        """Apply the last committed changes to the stores; at the end of a run, while partitions are still owned."""

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the log ends, records of open transactions included. Raises ClientError."""
        return {}

    def restoring(self) -> Mapping[str, Restoring]:
        """Return the progress of stores that have not caught up, by task."""
        return {}


Refused: TypeAlias = Sequence[Mapping[int, Mapping[int, str]]]
"""`rows` of each RefusedRowsError of a batch, in their order; each numbers the rows that the ones before have left."""


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

    def cancel(self) -> None:
        """Cancel the jobs of the running batch; thread-safe."""

    def check(self) -> None:
        """Raise PipelineError if no batch can run any more."""

    def activity(self) -> object:
        """Return a value that changes whenever a job, stage or task of the batch ends; thread-safe."""
