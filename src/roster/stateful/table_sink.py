"""The sink of a stateful pipeline whose results go to files or a table, and its state to Kafka.

Results and their positions are committed first, then changelog and input offsets as one Kafka transaction. If that
transaction fails, the sink's position is ahead of the state: the task's next owner replays the records in between into
the state, and drops their results, which are in the sink already. That is exactly once as long as the state depends
only on the records. Late rows are records in that transaction, so the replay sends them: they were not sent before.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from typing_extensions import override

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Batch, Owner
from roster.pipeline.batch_sink import BatchSink, Source
from roster.pipeline.driver.switching import Switching
from roster.pipeline.errors import PipelineError, SinkFencedError
from roster.pipeline.spark_types import StructType
from roster.pipeline.tasks.writer import TaskOutput, TaskWriter, Writer
from roster.sinks.kafka import KafkaSink
from roster.stateful.stores import Stores
from roster.stateful.tasks.outgoing import is_record

log = logging.getLogger("roster.spark")


class TwoSinks(BatchSink):
    """Results in one sink, and records of the state with the group's offsets in the transactions of a `KafkaSink`."""

    commits_offsets = True

    def __init__(self, results: BatchSink, kafka: KafkaSink) -> None:
        """Both are open, and closed by the caller."""
        self._results, self._kafka = results, kafka
        self._records: BatchSink = kafka

    @override
    def bind(self, source: Source) -> BatchSink:
        self._records = self._kafka.bind(source)
        return self

    @override
    def take_over(self, partitions: Collection[TopicPartition], owner: Owner) -> None:
        self._records.take_over(partitions, owner)

    @override
    def offset_metadata(self, owner: Owner) -> str:
        return self._records.offset_metadata(owner)

    @override
    def check_target(self) -> None:
        self._kafka.check_target()


class TableStateSink(TwoSinks):
    """Passes results to a sink with positions, and changelogs to a `KafkaSink`."""

    accepts_part = True

    def __init__(
        self, results: BatchSink, columns: StructType, kafka: KafkaSink, stores: Stores, switching: Switching | None
    ) -> None:
        """columns: of the results."""
        super().__init__(results, kafka)
        self.default_trigger_interval_ms = results.default_trigger_interval_ms
        self._columns, self._stores, self._switching = columns, stores, switching
        self._last = stores.plans[-1]
        self._handle: object = None
        self._gaps: dict[TopicPartition, int] = {}
        """End of the results of partitions whose state may be behind."""
        self._replayed: frozenset[TaskId] = frozenset()

    @override
    def bind(self, source: Source) -> BatchSink:
        self._results = self._results.bind(source)
        return super().bind(source)

    @override
    def claim(
        self, partitions: Collection[TopicPartition], owner: Owner, committed: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        partitions = self._with_results(partitions)
        known = {partition: at for partition, at in committed.items() if partition in partitions}
        result_ends = self._results.claim(partitions, owner, known)
        if self._last.repartition_source is not None:
            _check_goes_on(result_ends, committed)
        if not self._last.nodes:
            return result_ends  # nothing to replay into state
        for partition in partitions:
            self._gaps.pop(partition, None)
            result_end = result_ends.get(partition)
            if result_end is not None and partition not in committed and self._stores.options.start == "latest":
                raise PipelineError(
                    f"the results of {partition} end at {result_end}, and the group has no offset of it: records"
                    " from there to the log's end would be passed over, and those before are in no state",
                    field="starting_offsets",
                    fix="Use 'earliest', which reads the state up to there again without results, or another group",
                )
            if result_end is not None and result_end > committed.get(partition, -1):
                log.info("%s: the results end at %d, the state is read up to there without any", partition, result_end)
                self._gaps[partition] = result_end
        return {}

    def _with_results(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions among these that tasks of the last sub-topology read: others send no results."""
        return [partition for partition in partitions if partition.topic in self._last.subtopology.sources]

    def bounds(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return the end of the results of tasks whose state is behind, for all their input partitions."""
        behind = [p for p, at in positions.items() if at < self._gaps.get(p, 0)]
        self._replayed = frozenset(self._stores.changelogs.tasks_of(behind))
        return {p: max(self._gaps.get(p, at), at) for p, at in positions.items() if self._is_replayed(p)}

    def _is_replayed(self, partition: TopicPartition) -> bool:
        return self._stores.changelogs.readers.get(partition) in self._replayed

    def replayed(self) -> frozenset[TaskId]:
        """Return the tasks whose results in the next batch must not be sent: they are in the sink already."""
        return self._replayed

    def _new(self, batch: Batch) -> Batch:
        """Return the part of a batch whose results are to be written and not in the sink yet."""
        paused = () if self._switching is None else self._switching.paused(batch.ranges)
        new = (p for p in self._with_results(batch.ranges) if p not in paused and not self._is_replayed(p))
        ranges = {p: batch.ranges[p] for p in new}
        return replace(batch, ranges=ranges)

    @override
    def task_writer(self, batch: Batch | None, schema: StructType) -> TaskWriter:
        new = None if batch is None else self._new(batch)
        writer = self._results.task_writer(new if new is not None and new.ranges else None, self._columns)
        assert isinstance(writer, TaskWriter)  # of every sink with positions
        return _Both(writer, self._kafka.encoding())

    @override
    def collect(self, writer: Writer, results: Sequence[Any], batch: Batch) -> None:
        assert isinstance(writer, _Both)  # made by task_writer
        new = self._new(batch)
        self._handle = None
        if new.ranges:
            self._handle = self._results.collect(writer.results, [result for result, _ in results], new)
        self._records.collect(writer.records, [records for _, records in results], batch)

    @override
    def commit_batch(self, written: object, batch: Batch) -> Mapping[TopicPartition, int]:
        if self._handle is not None:
            try:
                self._results.commit(self._handle, self._new(batch))
            except SinkFencedError:
                self._handle = None  # dropped by the sink
                raise
            self._handle = None
        return self._records.commit_batch(None, batch)

    @override
    def abort(self, written: object, batch: Batch) -> None:
        if self._handle is not None:
            self._results.abort(self._handle, self._new(batch))
            self._handle = None
        self._records.abort(None, batch)


def _check_goes_on(found: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, int]) -> None:
    """Raise PipelineError if results come from a repartition topic that is new to the group."""
    if begun := sorted(partition for partition, at in found.items() if at > 0 and partition not in committed):
        raise PipelineError(
            f"the results of {begun[0]} end at {found[begun[0]]}, and the group has no offset of it: the topic was made"
            " anew, with other records there",
            field="write",
            fix="Use another output, or remove this one",
        )


@dataclass(frozen=True)
class _Both:
    """Writes results and records of one batch."""

    results: TaskWriter
    records: TaskWriter

    def open(self) -> _BothOutputs:
        """Start the outputs of one attempt of a task."""
        return _BothOutputs(self.results.open(), self.records.open())


class _BothOutputs:
    def __init__(self, results: TaskOutput, records: TaskOutput) -> None:
        self._results, self._records = results, records

    def write(self, rows: pa.RecordBatch) -> None:
        (self._records if is_record(rows) else self._results).write(rows)

    def close(self) -> tuple[object, object]:
        return self._results.close(), self._records.close()

    def abort(self) -> None:
        try:
            self._results.abort()
        finally:
            self._records.abort()
