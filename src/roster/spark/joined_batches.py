"""Batches whose tasks join rows with tables: how far each batch reads them, on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from roster.client import Admin, UnknownTopicError
from roster.model import TopicPartition
from roster.model.topology import Subtopology, TopologyError, partition_count
from roster.pipeline.batch import Batch
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import Options
from roster.stateful.tasks.catch_up import StoreTarget
from roster.stateful.tasks.store_location import Place
from roster.stateful.tasks.table_join import FIELD, Rows, TableSide, table_place


def joined_source(sources: object) -> tuple[str]:
    """Return the topic of the rows to join. Raises PipelineError unless it is one, by its name."""
    if not isinstance(sources, tuple) or len(sources) != 1:
        what = "a table is joined with one topic, by its name"
        raise PipelineError(what, field="topics", fix="Name one topic, or put repartition in front of join_table")
    return sources


class Tables:
    """The driver's side of one table: how far each batch reads it."""

    def __init__(self, admin: Admin, options: Options, source: str, topic: str, topic_id: str) -> None:
        """`source`: topic of the rows to join. `topic`: the table."""
        self._admin, self._source, self._topic = admin, source, topic
        self.place = table_place(options.state.dir, options.group, topic, topic_id)

    @classmethod
    def open(cls, options: Options, table: str, sources: Any) -> Tables:
        """Check that the table has as many partitions as the source. Raises PipelineError and ClientError.

        sources: topics of the rows to join; there must be exactly one.
        """
        joined_source(sources)
        settings: dict[str, Any] = {
            "request_timeout_ms": options.settings.request_timeout_ms,
            "security": options.security,
        }
        with ExitStack() as unless_checked:
            admin = unless_checked.enter_context(closing(Admin(options.bootstrap, **settings)))
            counts, topic_id = {}, b""
            for topic in (*sources, table):
                try:
                    description = admin.describe_topic(topic)
                except UnknownTopicError:
                    raise PipelineError(f"there is no topic {topic!r}", field=FIELD, fix="Create it first") from None
                counts[topic], topic_id = len(description.partitions), description.topic_id or b"\0"
            try:
                partition_count(Subtopology(0, [*counts]), counts)
            except TopologyError as error:
                raise PipelineError(str(error), field=FIELD) from None
            unless_checked.pop_all()
        return cls(admin, options, sources[0], table, topic_id.hex())

    def prepare(self, batch: Batch) -> dict[int, StoreTarget]:
        """Return the table offset up to which each partition of a batch reads. Raises ClientError."""
        sources = [partition for partition in batch.ranges if partition.topic == self._source]
        logs = [TopicPartition(self._topic, partition.partition) for partition in sources]
        begins, ends = self._admin.beginning_offsets(logs), self._admin.stable_offsets(logs)
        return {log.partition: StoreTarget(log, begins[log], max(begins[log], ends[log]), {}, None) for log in logs}

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()


class TableJoins:
    """Driver side of table joins: fixes the table offsets that a batch sees."""

    def __init__(self, number: int, joined: Sequence[tuple[Rows, Tables]]) -> None:
        """`number`: of the sub-topology."""
        self.number, self._joined = number, joined
        self._sides: tuple[TableSide, ...] = ()

    @classmethod
    def open(cls, options: Options, rows: Iterable[Rows], sources: object, number: int = 0) -> TableJoins:
        """Open the tables of these joins; see `Tables.open`. Raises PipelineError and ClientError.

        number: of the sub-topology.
        """
        joined: list[tuple[Rows, Tables]] = []
        with ExitStack() as unless_open:
            for of_table in rows:
                tables = Tables.open(options, of_table.topic, sources)
                unless_open.callback(tables.close)
                joined.append((of_table, tables))
            unless_open.pop_all()
        return cls(number, joined)

    @property
    def places(self) -> list[Place]:
        """Where the tables' stores lie."""
        return [tables.place for _, tables in self._joined]

    def begin(self, batch: Batch) -> None:
        """Look up how far a batch reads the tables. Raises ClientError."""
        self._sides = tuple(
            TableSide(self.number, rows, tables.place, tables.prepare(batch)) for rows, tables in self._joined
        )

    def sides(self) -> tuple[TableSide, ...]:
        """Return the tasks' side of the joins."""
        return self._sides

    def close(self) -> None:
        """Close the connections."""
        for _, tables in self._joined:
            tables.close()
