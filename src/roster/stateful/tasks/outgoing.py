"""What a task of a stateful pipeline makes of results: records of topics, or rows of their own columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.model import TopicPartition
from roster.pipeline.tasks.dead_letters import HEADERS, LetterRows
from roster.pipeline.tasks.missing_values import ColumnsSeen
from roster.pipeline.tasks.result_records import as_records
from roster.pipeline.tasks.writer import conformed
from roster.sinks.tasks.encoded_values import RecordEncoding
from roster.sinks.tasks.upsert import retracted
from roster.state.byte_slices import Column
from roster.state.source_times import NOTICE, Notice, SourceClock, labelled, source_of
from roster.stateful.tasks.bad_records import Aside
from roster.stateful.tasks.catch_up import StoreTarget
from roster.stateful.tasks.repartition import FIELD as REPARTITION
from roster.stateful.tasks.repartition import RepartitionTopic, notice_row, with_source
from roster.stateful.tasks.subtopology import OperatorNode, SubtopologyPlan

if TYPE_CHECKING:
    from roster.state.aggregate import Update

ROWS = "topic string, partition int, key binary, value binary, timestamp timestamp"
"""Columns of the records that a task makes, as Spark DDL."""
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ],
    {"rows": "records"},
)
_LETTER = _SCHEMA.append(pa.field("headers", HEADERS))


@dataclass(frozen=True)
class Backlog:
    """What is left to read in the sources of a sub-topology when a batch is planned.

    batch: names the attempt. behind: sources outside of the batch with more to read. reading: {source in the batch:
    whether it has no more to read behind it}. is_for_all: whether partitions that get no rows hear of it. partitions:
    how many the input has. left: partitions of the input with more to read behind the batch. times: {source: largest
    time of its rows in earlier batches}, of sources in the batch, and of sources that some partitions have not heard
    of. until: a time up to which the backlog holds, None for any: it is of a while ago, and others may have got more
    to read. log_ends: of the repartition topic's partitions, before it was asked for.
    """

    batch: int
    behind: tuple[int, ...]
    reading: Mapping[int, bool]
    is_for_all: bool
    partitions: int
    left: frozenset[TopicPartition] = frozenset()
    times: Mapping[int, int] = field(default_factory=dict)
    until: int | None = None
    log_ends: Mapping[int, int] = field(default_factory=dict)


def by_split(
    plan: SubtopologyPlan,
    partition: int,
    rows_of: Iterable[tuple[str, Iterator[pa.RecordBatch]]],
    backlog: Backlog | None,
) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows with labels of the input partitions that they are from, and a notice behind them.

    rows_of: the rows of each topic. backlog: of the sub-topology; None: all has been read.
    """
    node, clocks = plan.nodes[0], list[SourceClock]()
    for topic, rows in rows_of:
        clocks.append(SourceClock(source_of(topic, partition), plan.time_of_splits))
        for batch in rows:
            if plan.time_of_splits is not None:
                clocks[-1].labels(pa.Table.from_batches([batch]))
            yield with_source(batch, clocks[-1].source, 0)
    batch_name, left = (1, frozenset[TopicPartition]()) if backlog is None else (backlog.batch, backlog.left)
    behind = {
        source_of(*input_partition)
        for input_partition in left
        if input_partition.topic in plan.own_sources and input_partition.partition == partition
    }
    times = {clock.source: clock.time for clock in clocks}
    ended = tuple(source for source in times if source not in behind)
    notice = Notice(batch_name, tuple(sorted(behind - times.keys())), tuple(times), times, ended)
    yield notice_row(notice.encode(), labelled(node.columns if node.other is None else node.other.own))


def is_record(rows: pa.RecordBatch) -> bool:
    """Return True for records of a task, False for results that are rows of their own columns."""
    return bool(rows.schema.metadata == _SCHEMA.metadata)


@dataclass
class Sent:
    """What a Spark task has sent to a repartition topic of a batch: times of its sources, and to which partitions.

    is_for_all: whether partitions that get no rows hear of it. tasks: the first source and their number, if they are.
    """

    topic: RepartitionTopic
    backlog: Backlog
    clocks: list[SourceClock] = field(default_factory=list)
    partitions: set[int] = field(default_factory=set)
    is_for_all: bool = False
    tasks: tuple[int, ...] = ()

    def clock(self, source: int) -> SourceClock:
        """Return the clock of a source whose rows follow."""
        self.clocks.append(SourceClock(source, self.topic.time, time=self.backlog.times.get(source)))
        return self.clocks[-1]

    def of_task(
        self, plan: SubtopologyPlan, partition: int, updates: Sequence[Update], now_ms: int | None = None
    ) -> SourceClock:
        """Return the clock of a task with operators, whose rows follow. updates: of each operator in the batch.

        now_ms: the time of the only operator after the batch.
        """
        clock = self.clock(plan.source_at(TopicPartition(self.topic.topic, partition)))
        is_in_order = plan.nodes[-1].is_final and not self.topic.lag
        if plan.is_relay:
            clock.time = updates[0].time_of_sources
        else:
            clock.is_untimed = not is_in_order and (plan.has_sources or self.topic.lag > 0)
        clock.hold, clock.held_by = updates[0].hold, updates[0].held_by or 0
        if self.topic.delay is not None and now_ms is not None:
            clock.passed = now_ms * 1000 - self.topic.delay + (self.topic.lag if clock.is_untimed else 0)
        clock.waits = clock.hold is not None or any(update.waits for update in updates)
        self.tasks = plan.source_at(TopicPartition(self.topic.topic, 0)), self.backlog.partitions
        # Others would not hear that it waits no longer, and what Spark makes of results is not known here.
        self.is_for_all |= plan.has_sources or self.topic.is_framed
        self.is_for_all |= any(node.waiting is not None for node in plan.nodes)
        return clock

    def notices(self) -> Iterator[pa.RecordBatch]:
        """Yield what those who read the rows have to know, for behind all of them."""
        if not self.clocks:
            return
        own = {clock.source: clock.noticed for clock in self.clocks}
        reading = self.backlog.reading
        waiting = {clock.source: clock.held_by for clock in self.clocks if clock.waits}
        ended = tuple(source for source in own if reading[source] and source not in waiting)
        others = {source: time for source, time in self.backlog.times.items() if source not in reading}
        others = {} if self.is_for_all else others
        holds = {clock.source: clock.hold for clock in self.clocks if clock.is_untimed}
        holds = {**dict.fromkeys(others), **holds} if holds else {}
        told = self.backlog.batch, self.backlog.behind, tuple(reading), own | others, ended
        notice = Notice(*told, waiting, holds, self.tasks, self.backlog.until)
        is_for_all = self.backlog.is_for_all or self.is_for_all
        partitions = range(self.topic.partitions or 0) if is_for_all else sorted(self.partitions)
        records = self.topic.notices(notice, partitions, self.backlog.log_ends)
        yield from _addressed(*records.columns, topic=self.topic.topic).to_batches()


class Outgoing:
    """Makes what leaves a task."""

    def __init__(self, output: str | None, encoding: RecordEncoding) -> None:
        """`output`: topic of the results, None if they are rows. encoding: of results."""
        self._output, self._encoding = output, encoding

    def rows(
        self,
        rows: Iterator[pa.RecordBatch],
        plan: SubtopologyPlan,
        seen: ColumnsSeen,
        sent: Sent | None = None,
        clock: SourceClock | None = None,
        home: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Yield a sub-topology's output, as `table`, of rows as they come. clock: of `sent`."""
        for batch in rows:
            columns = labelled(plan.columns) if NOTICE in batch.schema.names else plan.columns
            table = pa.Table.from_batches([conformed(batch, columns)])
            for records in self.table(table, plan, seen, clock, home):
                if sent is not None:
                    sent.partitions.update(pc.unique(records["partition"]).to_pylist())
                yield records

    def table(
        self, rows: pa.Table, plan: SubtopologyPlan, seen: ColumnsSeen, clock: SourceClock | None = None, home: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield a sub-topology's output: records for the repartition topic, or results.

        clock: of the rows' source. home: the task's partition.
        """
        if plan.repartition_sink is not None:
            seen.add(rows, plan.repartition_sink.keys, REPARTITION)
            records = plan.repartition_sink.to_records(rows, clock, home)
            yield from _addressed(*records.columns, topic=plan.repartition_sink.topic).to_batches()
        elif self._output is not None:
            records = self._encoding.as_records(rows, plan.result_keys)
            yield from _addressed(*records, topic=self._output).to_batches()
        else:
            yield from rows.replace_schema_metadata(None).to_batches()

    def changes(self, updates: Sequence[Update], targets: Sequence[StoreTarget]) -> pa.Table:
        """Return the records of a changelog, of one task or several."""
        changes = [update.changes for update in updates]
        numbers = np.array([target.changelog.partition for target in targets], np.int32)
        whole = pa.concat_tables(changes).combine_chunks()
        partitions = pa.array(np.repeat(numbers, list(map(len, changes))))
        return _addressed(whole["key"], whole["value"], partitions, topic=targets[0].changelog.topic)

    @staticmethod
    def late(update: Update, node: OperatorNode) -> Iterator[pa.Table]:
        """Yield the records of late rows, if there is a topic for them."""
        if node.late is not None:
            for rows in update.late_rows:
                yield _addressed(*as_records(rows, node.late.keys), topic=node.late.topic)

    def retracted(self, update: Update, node: OperatorNode) -> Iterator[pa.Table]:
        """Yield what deletes retracted results, to be sent before the results: tombstones, or rows of keys."""
        if update.retracted is None:
            return
        if self._output is None:
            yield retracted(update.retracted, update.results.schema)
        else:
            keys = self._encoding.keys(update.retracted, node.operator.result_keys)
            yield _addressed(keys, pa.nulls(len(keys), pa.binary()), topic=self._output)

    @staticmethod
    def letters(aside: Aside | None) -> Iterator[pa.RecordBatch]:
        """Yield the records of dead letters."""
        if aside is None:
            return
        aside.letters.close()
        for letter in aside.letters.rows if isinstance(aside.letters, LetterRows) else ():
            yield letter.append_column("partition", pa.nulls(1, pa.int32())).select(_LETTER.names).cast(_LETTER)


def _addressed(
    keys: Column, values: Column, partitions: Column | None = None, times: Column | None = None, *, topic: str
) -> pa.Table:
    """Return records for a topic; a null partition is derived from the key, a null timestamp is the time of writing."""
    rows = len(keys)
    columns = [
        pa.repeat(pa.scalar(topic, pa.string()), rows),
        pa.nulls(rows, pa.int32()) if partitions is None else partitions,
        keys.cast(pa.binary()),
        values.cast(pa.binary()),
        pa.nulls(rows, _SCHEMA.field("timestamp").type) if times is None else times,
    ]
    return pa.table(columns, schema=_SCHEMA)
