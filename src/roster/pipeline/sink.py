"""The public class of sinks: what a sink of one's own has to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from roster.model import TopicPartition
from roster.pipeline.batch import Batch, Owner
from roster.pipeline.spark_types import DataFrame, SparkSession


class Sink(ABC):
    """Destination of batches. `write` writes a batch, `commit` makes it count.

    A sink that only has `write` is at least once. It is exactly once if `claim` returns the next offset of each
    partition as stored in the sink itself, and `commit` makes results and new positions visible in one atomic step,
    raising SinkFencedError if a partition's position is not the start of its range.

    A batch may end between `write` and `commit`: it is cancelled, its partitions are lost, or the process dies. So
    results that are not committed must not count, `write` and `open` may find some of an earlier batch, and no lock is
    held from `write` to `commit`.

    Methods are called on the pipeline's thread: `open`, `claim` whenever partitions are assigned, `write` and `commit`
    for each batch, then `close`. What they raise ends the run, except SinkFencedError from `write` and `commit`: the
    batch's partitions are then read again from the sink's positions.
    """

    def open(self, spark: SparkSession, group: str) -> None:  # noqa: B027 - most sinks need none, as below
        """Check the sink before the pipeline joins `group`. Raise PipelineError if it cannot work."""

    def claim(
        self, partitions: Collection[TopicPartition], owner: Owner, committed: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Return the next offset of each newly assigned partition that the sink has results of.

        `committed` are the group's offsets. An offset past the sink's position was committed by a member with another
        sink; the position moves up to it.
        """
        return {}

    @abstractmethod
    def write(self, df: DataFrame, batch: Batch) -> Any:
        """Write uncommitted results in Spark jobs of the calling thread; return what `commit` needs."""

    def commit(self, written: Any, batch: Batch) -> None:  # noqa: B027
        """Make the results count. Raise SinkFencedError if another writer has moved a partition's position."""

    def close(self) -> None:  # noqa: B027
        """Release resources at the end of the run."""
