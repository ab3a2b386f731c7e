"""Sinks: the public class, what Roster's own sinks can do beyond it, and a custom one behind the same methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from roster.model import TopicPartition
from roster.pipeline.batch import Batch, Owner
from roster.pipeline.spark_types import DataFrame, SparkSession, StructType
from roster.pipeline.tasks.writer import Writer, written_frame
from roster.security import PLAINTEXT, Security


@dataclass(frozen=True, slots=True)
class Source:
    """Cluster and group that a pipeline reads from, by its options."""

    bootstrap: str
    group: str
    group_instance_id: str | None = None
    client_id: str = "roster"
    request_timeout_ms: int = 30_000
    security: Security = PLAINTEXT
    dead_letters: str | None = None
    """None: the pipeline has no such topic. "": a sink may leave out rows, by RefusedRowsError. Else why it may not."""


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


class BatchSink(Sink):
    """A sink that the driver's loop and the runner work with.

    Methods are called on the pipeline's thread, in the order open, bind and warm_up, then take_over, claim, write and
    commit or abort per batch, then close. A sink that can write inside the reading tasks has `task_writer` and
    `collect` too: where the pipeline has no transform they take the place of `write`, and no row crosses into the JVM.
    One in the source's own cluster may store the group's offsets with its results, in one transaction: then `bind`
    returns a sink with `commits_offsets`.
    """

    commits_offsets: bool = False
    """True if `commit` commits `batch.group_offsets` too, as the member and in the generation of `batch.owner`, the
    present one. A ClientError that is `retriable` makes the pipeline call it again while its partitions are
    owned. `take_over` is called for newly assigned partitions, before the group's offsets are read."""

    default_trigger_interval_ms: int | None = None
    """Milliseconds between the starts of two batches if the pipeline's `trigger_interval_ms` is None; a full batch, and
    the first one after partitions were assigned, do not wait. None: as many as let records be done within a second,
    100 to 900 by what batches take."""

    accepts_part: bool = False
    """True if `write` may receive part of a batch that is aborted afterwards: an error in a `map_arrow` function then
    ends the batch at once. False: Spark fails the task, and retries it, before `write` returns."""

    bounds: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]] | None = None
    """Returns offsets that ranges of the next batch must not exceed, by its positions; None: any range may be read."""

    most_offsets: int | None = None
    """The most offsets of a batch whose results go through the driver, by those before; None: any number."""

    def check(self, schema: StructType) -> None:
        """Raise PipelineError if rows with these columns cannot be written; before `open` where they are known."""

    @override
    def open(self, spark: SparkSession, group: str, timeout_ms: int = 60_000) -> None:
        """Check the sink before the pipeline joins `group`, within `timeout_ms`. Raise PipelineError if it cannot
        work.
        """

    def bind(self, source: Source) -> BatchSink:
        """Return the sink of batches from this source; the pipeline closes the one that it opened.

        Raise PipelineError if the sink cannot work with the source.
        """
        return self

    def take_over(self, partitions: Collection[TopicPartition], owner: Owner) -> None:
        """Decide what earlier owners of newly assigned partitions left open."""

    def offset_metadata(self, owner: Owner) -> str:
        """Return the text to commit with each of the group's offsets; "": none is needed."""
        return ""

    def warm_up(self, df: DataFrame) -> None:
        """Run what `write` would on a DataFrame without rows, before the pipeline joins, without effect.

        By default its plan is run and the result dropped.
        """
        self.check(df.schema)
        df.write.format("noop").mode("overwrite").save()

    @override
    def write(self, df: DataFrame, batch: Batch) -> Any:
        """As in `Sink`, by default in tasks of the rows with what `task_writer` returns."""
        df = self.written_columns(df)
        writer = self.task_writer(batch, df.schema)
        assert writer is not None  # of a sink without a `write` of its own
        try:
            results = written_frame(writer, df)
        except BaseException:
            self.abort(self.collect(writer, [], batch), batch)
            raise
        return self.collect(writer, results, batch)

    def written_columns(self, df: DataFrame) -> DataFrame:
        """Return the rows with the columns that are written."""
        return df

    def task_writer(self, batch: Batch | None, schema: StructType) -> Writer | None:
        """Return the writer, inside the tasks, of the batch's rows with these columns; None: `write` writes them.

        Without a batch its tasks get no rows and must have no effect: they only load what a batch will need.
        """
        return None

    def begin(self, batch: Batch) -> None:
        """Begin what need not wait for the results of a small batch, which `abort` drops; raises what `write` does."""

    def collect(self, writer: Writer, results: Sequence[Any], batch: Batch) -> Any:
        """Return what `commit` or `abort` needs, from what the tasks returned. Raises what `write` does.

        `results` has one item a task, or is what a `FrameWriter` returned; it is empty if the job failed.
        """
        raise NotImplementedError

    def commit_batch(self, written: Any, batch: Batch) -> Mapping[TopicPartition, int]:
        """Do what `commit` does; return the ends of the logs that it wrote to, where they are known."""
        self.commit(written, batch)
        return {}

    def abort(self, written: Any, batch: Batch) -> None:
        """Drop the results of a batch that is not committed; `written` is None if `write` raised."""

    def check_target(self) -> None:
        """Raise PipelineError if the target is gone; called every few seconds while no records come."""


class CustomSink(BatchSink):
    """A user's sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @override
    def open(self, spark: SparkSession, group: str, timeout_ms: int = 60_000) -> None:
        self._sink.open(spark, group)

    @override
    def claim(
        self, partitions: Collection[TopicPartition], owner: Owner, committed: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        return self._sink.claim(partitions, owner, committed)

    @override
    def write(self, df: DataFrame, batch: Batch) -> object:
        return self._sink.write(df, batch)

    @override
    def commit(self, written: Any, batch: Batch) -> None:
        self._sink.commit(written, batch)

    @override
    def close(self) -> None:
        self._sink.close()


def batch_sink(sink: Sink) -> BatchSink:
    """Return the sink as the driver works with it."""
    return sink if isinstance(sink, BatchSink) else CustomSink(sink)
