"""What the loop on the driver asks of what runs its batches, and of what keeps copies of state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from roster.model import TopicPartition
from roster.spark.batch import Batch, Restoring, Split
from roster.spark.sinks.base import Sink


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a batch that is not committed.

    What `Sink.write` returned, the number of records read, of those in the dead-letter topic, of changelog records
    restored, and of rows that were late; bytes restored, records applied to standby copies, and what is to be restored.
    """

    staged: Any
    rows: int
    dead_letters: int = 0
    restored: int = 0
    late: int = 0
    restored_bytes: int = 0
    standby_records: int = 0
    restoring: Mapping[str, Restoring] = field(default_factory=dict)


class BetweenBatches(Protocol):
    """Work between batches on stores, and which partitions wait for it; None for pipelines without stores."""

    def held(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return those whose state is restored before they are read."""

    def due(self, partitions: Collection[TopicPartition], *, once: bool) -> frozenset[TopicPartition]:
        """Return partitions whose tasks must run now, even without records.

        once: only those whose tasks have not run since they were assigned.
        """

    def restore(self, seconds: float) -> bool:
        """Restore stores and clean up for at most `seconds`; return False if there was nothing to do."""

    def settle(self) -> None:
        """Apply to the stores what was committed last; for the end of a run, while it has its partitions."""

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the log ends, records of open transactions included. Raises ClientError."""

    def restoring(self) -> Mapping[str, Restoring]:
        """Return the progress of stores that have not caught up, by task."""


class Runner(Protocol):
    """Runs batches, one at a time."""

    @property
    def whole_partitions(self) -> bool:
        """True if one task must read a partition's whole range, as the one writer of its store."""

    @property
    def cores(self) -> int:
        """Number of tasks that run at once, as far as Spark knows."""

    def run(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: Sink) -> Outcome:
        """Read, transform and write. Raises what failed, and Spark's error if cancelled."""

    def cancel(self) -> None:
        """Cancel the jobs of the running batch; thread-safe."""

    def check(self) -> None:
        """Raise PipelineError if no batch can run any more."""

    def activity(self) -> object:
        """Return a value that changes with each job, stage and task of the batch that ends; thread-safe."""
