"""Batches whose tasks join rows with tables: how far each batch reads them, on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing

from roster.client import Admin, UnknownTopicError
from roster.model import TopicPartition
from roster.model.topology import Subtopology, TopologyError, partition_count
from roster.pipeline.batch import Batch
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import Options
from roster.stateful.stores import admin_of
from roster.stateful.tasks.catch_up import StoreTarget
from roster.stateful.tasks.store_location import Place
from roster.stateful.tasks.table_join import FIELD, Rows, TableSide, table_place


def only_source(sources: object) -> tuple[str]:
    """Return the topic of the rows to join. Raises PipelineError unless it is one, by its name."""
    if not isinstance(sources, tuple) or len(sources) != 1:
        what = "a table is joined with one topic, by its name"
        raise PipelineError(what, field="topics", fix="Name one topic, or put repartition in front of join_table")
    return sources


class TableJoins:
    """Driver side of table joins: fixes the table offsets that a batch sees."""

    def __init__(self, admin: Admin, source: str, joined: Sequence[tuple[Rows, Place]], number: int) -> None:
        """`source`: topic of the rows to join. joined: each join, and where the stores of its table lie.

        number: of the sub-topology.
        """
        self._admin, self._source, self._joined, self.number = admin, source, joined, number
        self._sides: tuple[TableSide, ...] = ()

    @classmethod
    def open(cls, options: Options, rows: Iterable[Rows], sources: object, number: int = 0) -> TableJoins:
        """Check that the tables have as many partitions as the source. Raises PipelineError and ClientError.

        sources: topics of the rows to join; there must be exactly one. number: of the sub-topology.
        """
        (source,) = only_source(sources)
        with ExitStack() as unless_checked:
            admin = unless_checked.enter_context(closing(admin_of(options)))
            joined = [(of_table, _co_partitioned_place(admin, options, source, of_table.topic)) for of_table in rows]
            unless_checked.pop_all()
        return cls(admin, source, joined, number)

    @property
    def places(self) -> list[Place]:
        """Where the tables' stores lie."""
        return [place for _, place in self._joined]

    def begin(self, batch: Batch) -> None:
        """Look up how far a batch reads the tables. Raises ClientError."""
        partitions = [partition.partition for partition in batch.ranges if partition.topic == self._source]
        logs = [TopicPartition(rows.topic, partition) for rows, _ in self._joined for partition in partitions]
        begins, ends = self._admin.beginning_offsets(logs), self._admin.stable_offsets(logs)
        targets = {log: StoreTarget(log, begins[log], max(begins[log], ends[log]), {}, None) for log in logs}
        self._sides = tuple(
            TableSide(self.number, rows, place, {p: targets[TopicPartition(rows.topic, p)] for p in partitions})
            for rows, place in self._joined
        )

    def sides(self) -> tuple[TableSide, ...]:
        """Return the tasks' side of the joins."""
        return self._sides

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()


def _co_partitioned_place(admin: Admin, options: Options, source: str, table: str) -> Place:
    """Return where the stores of a table lie. Raises PipelineError unless it has as many partitions as the source."""
    counts, topic_id = {}, b""
    for topic in (source, table):
        try:
            description = admin.describe_topic(topic)
        except UnknownTopicError:
            raise PipelineError(f"there is no topic {topic!r}", field=FIELD, fix="Create it first") from None
        counts[topic], topic_id = len(description.partitions), description.topic_id or b"\0"
    try:
        partition_count(Subtopology(0, [*counts]), counts)
    except TopologyError as error:
        raise PipelineError(str(error), field=FIELD) from None
    return table_place(options.state.dir, options.group, table, topic_id.hex())
