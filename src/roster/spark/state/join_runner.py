"""The driver's side of table joins: how far each batch reads them; the runner of pipelines with table joins only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from typing_extensions import override

from roster.client import Admin, UnknownTopicError
from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology, TopologyError, partition_count
from roster.spark.batch import Batch, Restoring, Split
from roster.spark.driver.runner_protocol import Outcome
from roster.spark.errors import PipelineError
from roster.spark.jobs.runner import Reading, SparkRunner
from roster.spark.options import Options
from roster.spark.sinks.base import Sink
from roster.spark.state.copies.store_cleaner import StoreCleaner, clean_host
from roster.spark.state.tasks.processing import Place, StoreTarget
from roster.spark.state.tasks.stores import check_state_dir
from roster.spark.state.tasks.table_join import FIELD, JoinTask, Rows, TableSide
from roster.spark.tasks.arrow_function import ArrowFunction
from roster.spark.tasks.reader import ReaderConfig


class Tables:
    """The driver's side of one table: how far each batch reads it."""

    def __init__(self, admin: Admin, options: Options, source: str, topic: str, topic_id: str) -> None:
        """`source`: topic of the rows to join. `topic`: the table."""
        self._admin, self._source, self._topic = admin, source, topic
        self.place = Place(options.state.dir, f"{options.group}-{topic}-table", topic_id)

    @classmethod
    def open(cls, options: Options, table: str, sources: Any) -> Tables:
        """Check that the table's partitions are those of the source. Raises PipelineError and ClientError.

        sources: topics of the rows to join; there must be exactly one.
        """
        if not isinstance(sources, tuple) or len(sources) != 1:
            what = "a table is joined with one topic, by its name"
            raise PipelineError(what, field="topics", fix="Name one topic, or put repartition in front of join_table")
        settings: dict[str, Any] = {
            "request_timeout_ms": options.settings.request_timeout_ms,
            "security": options.security,
        }
        with ExitStack() as unless_checked:
            admin = unless_checked.enter_context(closing(Admin(options.bootstrap, **settings)))
            counts, topic_id = {}, b""
            for topic in (*sources, table):
                try:
                    found = admin.describe_topic(topic)
                except UnknownTopicError:
                    raise PipelineError(f"there is no topic {topic!r}", field=FIELD, fix="Create it first") from None
                counts[topic], topic_id = len(found.partitions), found.topic_id or b"\0"
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
    def open(cls, options: Options, rows: Iterable[Rows], sources: Any, number: int = 0) -> TableJoins:
        """Open the tables of these joins; see `Tables.open`. Raises PipelineError and ClientError.

        number: of the sub-topology.
        """
        joined: list[tuple[Rows, Tables]] = []
        with ExitStack() as unless_open:
            for each in rows:
                tables = Tables.open(options, each.topic, sources)
                unless_open.callback(tables.close)
                joined.append((each, tables))
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


class _Owned:
    """The tasks of an application without state: its tables are only copies of topics."""

    def __init__(self) -> None:
        self.tasks: frozenset[TaskId] = frozenset()

    def kept(self) -> tuple[frozenset[TaskId], frozenset[TaskId]]:
        return self.tasks, frozenset()

    def lost(self, tasks: Collection[TaskId]) -> None:
        """Do nothing: the next batch makes a missing store again."""

    def gave_up(self, tasks: Collection[TaskId]) -> None:
        """Do nothing: there are no copies."""


class JoiningRunner(SparkRunner):
    """Runs batches whose tasks join their rows with tables."""

    whole_partitions = True

    def __init__(
        self,
        spark: SparkSession,
        config: ReaderConfig,
        function: ArrowFunction | None,
        columns: StructType,
        joins: TableJoins,
        transform: Callable[[DataFrame], DataFrame] | None,
        options: Options,
    ) -> None:
        """`function` maps records before the joins. columns: of joined rows."""
        super().__init__(spark, config, function, columns, transform)
        self._joins, self._owned, self._state_dir = joins, _Owned(), options.state.dir
        delay = options.state.cleanup_delay_ms / 1000
        self._cleaner = StoreCleaner(self._owned, delay, options.state.max_bytes, is_local=self.is_local)

    @override
    def warm_up(self, sink: Sink) -> None:
        check_state_dir(self._state_dir, self.on_each_host)
        super().warm_up(sink)

    @override
    def run(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: Sink) -> Outcome:
        self._clean_stores()
        self._joins.begin(batch)
        return super().run(batch, tasks, sink)

    def _clean_stores(self) -> None:
        self._cleaner.take(lambda wanted: self.on_each_host(partial(clean_host, self._joins.places, wanted)))

    def held(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return none, and record which partitions this application owns."""
        self._owned.tasks = frozenset(TaskId(0, partition.partition) for partition in partitions)
        return frozenset()

    def due(self, partitions: Collection[TopicPartition], *, once: bool) -> frozenset[TopicPartition]:
        """Return none: a table has no timers."""
        return frozenset()

    def restore(self, seconds: float) -> bool:
        """Clean the stores; there is nothing to restore between batches."""
        self._clean_stores()
        return False

    def settle(self) -> None:
        """Do nothing: a table has no pending changes."""

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return none: the pipeline reads no topic that it writes."""
        return {}

    def restoring(self) -> Mapping[str, Restoring]:
        """Return none: a table catches up in the batch."""
        return {}

    @override
    def _reading(self, tasks: Sequence[Sequence[Split]], *, quiet: bool = True) -> Reading:
        reading: dict[str, Any] = {"function": self._function, "counted": self._counted}
        reading["failed"] = self._failed if quiet else None
        return JoinTask(self._config, tasks, self._joins.sides(), **reading)

    @override
    def close(self) -> None:
        self._joins.close()
