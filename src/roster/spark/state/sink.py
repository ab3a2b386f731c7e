"""The sink of a stateful pipeline: outputs and changelog in the transactions of a `KafkaSink`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from typing_extensions import override

from roster.client import Admin, TaskMember, UnknownTopicError
from roster.model import Address, TopicPartition, parse_address
from roster.model.tasks import TaskId
from roster.spark.batch import Batch, Owner
from roster.spark.errors import PipelineError
from roster.spark.options import Options
from roster.spark.sinks.base import Sink, Source
from roster.spark.sinks.kafka import KafkaSink
from roster.spark.state.changelogs import Changelog, Changelogs, open_changelog
from roster.spark.state.copies.restoring import Copies
from roster.spark.state.definition_check import DefinitionCheck
from roster.spark.state.membership import task_member
from roster.spark.state.repartition_topic import Purge, check_all_are_read, open_repartition_topic
from roster.spark.state.store_targets import StoreTargets
from roster.spark.state.tasks.subtopology import SubtopologyPlan
from roster.spark.state.wakeups import Wakeups
from roster.spark.tasks.reader import ReaderConfig
from roster.spark.tasks.write.task import Writer

_OF_OTHERS = 90.0
"""Seconds to wait for transactions of others: longer than a producer's usual timeout."""


class StateSink(Sink):
    """Passes rows to a `KafkaSink`, and tells `targets` which batches were committed. `staged`: the tasks' tokens."""

    accepts_part = True
    commits_offsets = True

    def __init__(
        self,
        inner: KafkaSink,
        options: Options,
        plans: Sequence[SubtopologyPlan],
    ) -> None:
        """`plans` are in order from source to sink."""
        self._inner, self.options, self.plans = inner, options, tuple(plans)
        self._repartition = [plan.repartition_source for plan in plans if plan.repartition_source is not None]
        self._admin = self._new_admin()  # connects with the first batch
        self.default_trigger_interval_ms = inner.default_trigger_interval_ms
        self.output: str | None = inner.topic or ""
        """Topic of the results; None if another sink gets them as rows."""
        self.changelogs: Changelogs
        self.targets: StoreTargets
        self.copies: Copies
        self.wakeups: Wakeups
        self.purge = Purge([repartition.topic for repartition in self._repartition], self._admin.delete_records)
        """Deletes processed records of repartition topics."""

    def _new_admin(self) -> Admin:
        options = self.options
        return Admin(
            options.bootstrap, request_timeout_ms=options.settings.request_timeout_ms, security=options.security
        )

    @override
    def open(self, spark: SparkSession, group: str) -> None:
        self._inner.open(spark, group)
        passed, late, changelogs = list[TopicPartition](), list[TopicPartition](), list[Changelog]()
        with self._new_admin() as admin:
            check_all_are_read(admin, group, [source for plan in self.plans for source in plan.subtopology.sources])
            for plan in self.plans:
                if plan.repartition_source is not None:
                    beside = [topic for topic in plan.subtopology.sources if topic != plan.repartition_source.topic]
                    beside += [table.topic for table in plan.tables]
                    passed += open_repartition_topic(admin, group, plan.repartition_source, beside)
                for node in plan.nodes:
                    changelogs.append(open_changelog(admin, group, plan.subtopology, node.store))
                    late += [] if node.late is None else self._late_partitions(admin, node.late.topic)
        self.changelogs = Changelogs(changelogs)
        self.targets = StoreTargets(self._admin, self.changelogs, _OF_OTHERS)
        self.copies = Copies(self._admin, self.changelogs, self.options.tuning.acceptable_lag)
        self.wakeups = Wakeups(self.changelogs, timed=self._timed)
        carried = [changelog[task] for changelog in changelogs for task in changelog.tasks]
        self._inner.carry([*carried, *dict.fromkeys(late), *passed], keep_timestamps=bool(passed))

    def definition_check(self, config: ReaderConfig) -> DefinitionCheck:
        """Check the definition of the group's state, and return the check. Raises PipelineError, ClientError,
        ReadError.

        Call it after `open`.
        """
        check = DefinitionCheck(config, self._admin, self.plans, self.changelogs)
        check.check()
        return check

    @property
    def _timed(self) -> list[int]:
        """Sub-topologies whose tasks may run without records."""
        return [plan.subtopology.number for plan in self.plans if any(node.has_timers for node in plan.nodes)]

    @staticmethod
    def _late_partitions(admin: Admin, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic for late rows. Raises PipelineError if it does not exist."""
        try:
            return [TopicPartition(topic, each.partition) for each in admin.describe_topic(topic).partitions]
        except UnknownTopicError:
            fix = f"Create it, for example with `roster topics create {topic}`"
            raise PipelineError(f"there is no topic {topic!r}", field="late_topic", fix=fix) from None

    @property
    def application_server(self) -> Address | None:
        """Address at which the application answers queries, None if it does not."""
        address = self.options.state.application_server
        return None if address is None else parse_address(address)

    def member(self, options: Options) -> TaskMember:
        """Make the group member of the pipeline; call it after `open`."""
        committed_only = [repartition.topic for repartition in self._repartition]
        return task_member(
            options, [plan.subtopology for plan in self.plans], self.copies, committed_only=committed_only
        )

    def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log ends, records of open transactions included. Raises ClientError."""
        return self._admin.end_offsets(partitions)

    @override
    def bind(self, source: Source) -> None:
        self._inner.bind(source)

    @override
    def take_over(self, partitions: Collection[TopicPartition], owner: Owner) -> None:
        self.targets.forget(partitions)
        self._inner.take_over(partitions, owner)
        self.copies.took(partitions)
        self.wakeups.took(partitions)

    @override
    def offset_metadata(self, owner: Owner) -> str:
        return self._inner.offset_metadata(owner)

    @override
    def claim(
        self, partitions: Collection[TopicPartition], owner: Owner, committed: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        return self._inner.claim(partitions, owner, committed)

    @override
    def task_writer(self, batch: Batch | None, schema: StructType) -> Writer | None:
        return self._inner.task_writer(batch, schema)

    def replayed(self, batch: Batch) -> frozenset[TaskId]:
        """Return the tasks of a batch whose results must not be sent: they are in the sink already."""
        return frozenset()

    @override
    def collect(self, writer: Writer, results: Sequence[Any], batch: Batch) -> Any:
        return self._inner.collect(writer, results, batch)

    @override
    def commit(self, staged: Mapping[TaskId, str], batch: Batch) -> None:
        self._inner.commit(None, batch)
        self.targets.committed(staged, batch)
        # If two attempts finished, only the changelog tells which changes were committed.
        self.copies.doubt([task for task in self.changelogs.tasks_of(batch.ranges) if task not in staged])
        self.purge.committed(batch.next_offsets)

    @override
    def abort(self, staged: Any, batch: Batch) -> None:
        self.targets.forget(batch.ranges)
        self.copies.doubt(self.changelogs.tasks_of(batch.ranges))
        self._inner.abort(None, batch)

    @override
    def look(self) -> None:
        self._inner.look()

    @override
    def close(self) -> None:
        self._inner.close()
        self._admin.close()


def check_sink(sink: Sink | None) -> KafkaSink:
    """Return the sink. Raise PipelineError if a stateful pipeline cannot write to it."""
    if not isinstance(sink, KafkaSink) or sink.topic is None or sink.is_exactly_once is False:
        raise PipelineError(
            "a stateful pipeline writes results and state in one Kafka transaction",
            field="write",
            fix="Use KafkaSink(bootstrap, topic) without exactly_once=False, ParquetSink, DeltaSink or IcebergSink",
        )
    if sink.keeps_timestamps:
        raise PipelineError(
            "a result of a stateful pipeline comes from many records, and has none of their times",
            field="keep_timestamps",
            fix="Leave it out: results have the time of writing",
        )
    return sink
