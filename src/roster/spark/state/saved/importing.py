"""Imports an export as the state of a new group, in one transaction.

Changelogs, records between sub-topologies and the group's offsets are one Kafka transaction, so an import is whole or
has not happened. A pipeline that starts meanwhile finds changelogs without offsets, and is refused. The transactional
id is the group's own, so a second import of the group fences the first one, and does it again from the beginning.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from roster.client import (
    Admin,
    ClaimedBy,
    ClientError,
    OffsetAndMetadata,
    TransactionalProducer,
    UnknownGroupError,
    UnknownTopicError,
)
from roster.model import TopicPartition, parse_addresses
from roster.model.topology import (
    CHANGELOG_SETTINGS,
    REPARTITION,
    REPARTITION_SETTINGS,
    TopologyError,
    changelog_topic,
    repartition_topic,
)
from roster.records.native import WRITE, compiled
from roster.records.produce import KafkaWriter
from roster.records.produce_decisions import ProducerIdentity
from roster.security import Security
from roster.spark.batch import Split
from roster.spark.errors import PipelineError
from roster.spark.options import check_security, parse_bootstrap
from roster.spark.state.saved.export import Export
from roster.spark.state.saved.job import StateProgress, run_job
from roster.spark.state.tasks.importing import ImportedLog, ImportTask, LogFiles
from roster.spark.tasks.reader import ReaderConfig, ReadError, read_splits
from roster.state.definition import STATE_KEY
from roster.state.saved.folder import FolderError, Written
from roster.state.saved.manifest import Manifest, SavedStore

TRANSACTION_TIMEOUT_MS = 900_000
"""Kafka's default of `transaction.max.timeout.ms`: an import may take so long."""
_MEMBER = "import"
_LONGEST_WAIT, _PAUSE = 30.0, 0.05


def import_state(
    spark: SparkSession,
    bootstrap: str | Sequence[str],
    group: str,
    folder: str,
    *,
    security: Security | Mapping[str, object] | None = None,
    on_progress: Callable[[StateProgress], None] | None = None,
) -> int:
    """Import an export as the state of a new group; return the number of records written.

    A pipeline of this group then goes on from the offsets of the export. The import is one transaction: it is whole, or
    has not happened.

    Args:
        spark: the session; a changelog partition is one task, which keeps the partition's entries in memory.
        bootstrap: brokers to ask first, of the cluster that the export comes from or of another one with its topics.
        group: a group without members, offsets and state.
        folder: the export, by its path or URI.
        security: as for `Pipeline`.
        on_progress: called about once a second.

    Raises:
        PipelineError: there is no whole export in the folder, the group is not new, or the input topics do not have
            the offsets or the number of partitions that the state belongs to.
        ClientError: the cluster does not answer.

    """
    try:
        export = Export.open(folder)
        config = ReaderConfig(
            bootstrap=parse_bootstrap(bootstrap),
            group=group,
            isolation_level="read_committed",
            client_id=f"{group}-import",
            security=check_security(security),
        )
        return _Importer(spark, config, export, on_progress).run()
    except FolderError as error:
        raise PipelineError(str(error), field="folder") from None


class _Importer:
    def __init__(
        self,
        spark: SparkSession,
        config: ReaderConfig,
        export: Export,
        on_progress: Callable[[StateProgress], None] | None,
    ) -> None:
        self._spark, self._config, self._on_progress = spark, config, on_progress
        self._folder, self._manifest, self._group = export.folder, export.manifest, config.group
        self._names = _names(export.manifest, config.group)

    def run(self) -> int:
        """Write everything in one transaction."""
        common = {"client_id": self._config.client_id, "security": self._config.security}
        with Admin(self._config.bootstrap, **common) as admin, self._producer() as producer:  # type: ignore[arg-type]
            self._check_new(admin)
            offsets = self._checked_offsets(admin)
            partitions = self._make_topics(admin)
            try:
                identity = ProducerIdentity(*producer.begin(), producer.transactional_id)
                producer.add_partitions(partitions)
                records = self._write(identity)
                self._check_new(admin)
                metadata = ClaimedBy(producer.transactional_id, _MEMBER).to_metadata()
                positions = {at: OffsetAndMetadata(offset, metadata=metadata) for at, offset in offsets.items()}
                producer.commit(positions, -1, "")
            except BaseException:
                producer.abort()
                self._remove_topics(admin)
                raise
            self._wait_until_seen(admin, offsets, partitions)
        return records

    def _wait_until_seen(
        self, admin: Admin, offsets: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition]
    ) -> None:
        """Wait for the transaction's markers: before, a pipeline that starts may find state without offsets."""
        until = time.monotonic() + _LONGEST_WAIT
        admin.group_offsets(self._group, offsets)
        while admin.stable_offsets(partitions) != admin.end_offsets(partitions) and time.monotonic() < until:
            time.sleep(_PAUSE)

    def _remove_topics(self, admin: Admin) -> None:
        """Delete the topics that were made, unless a pipeline of the group works with them."""
        with contextlib.suppress(ClientError, PipelineError):
            self._check_new(admin)
            for topic in self._names.values():
                admin.delete_topic(topic)

    @contextlib.contextmanager
    def _producer(self) -> Iterator[TransactionalProducer]:
        """Open the producer, which aborts what an earlier import of the group has left open."""
        producer = TransactionalProducer(
            self._config.bootstrap,
            f"{self._group}-import",
            self._group,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            client_id=self._config.client_id,
            security=self._config.security,
        )
        try:
            producer.start()
            yield producer
        finally:
            producer.close()

    def _check_new(self, admin: Admin) -> None:
        """Raise PipelineError if the group has members or offsets."""
        with contextlib.suppress(UnknownGroupError):
            if members := admin.describe_group(self._group).members:
                raise PipelineError(
                    f"{self._group!r} has {len(members)} members, and an import makes a new group",
                    field="group",
                    fix="Stop the applications, or name another group",
                )
        if offsets := admin.group_offsets(self._group, stable=False):
            raise PipelineError(
                f"{self._group!r} has an offset of {min(offsets)}, and an import makes a new group",
                field="group",
                fix="Name another group, or delete this one (`roster state reset`)",
            )

    def _checked_offsets(self, admin: Admin) -> dict[TopicPartition, int]:
        """Return the group's offsets. Raises PipelineError for those that the cluster's topics do not have."""
        offsets = {at: offset for at, offset in self._manifest.offsets.items() if at.topic not in self._names}
        counts = admin.list_topics()
        if missing := sorted(at for at in offsets if at.partition >= counts.get(at.topic, 0)):
            raise PipelineError(
                f"the state belongs to offsets of {missing[0]}, which this cluster does not have",
                field="bootstrap",
                fix="Import where the input is",
            )
        self._check_counts(counts)
        begins, ends = admin.beginning_offsets(offsets), admin.end_offsets(offsets)
        for at, offset in sorted(offsets.items()):
            if not begins[at] <= offset <= ends[at]:
                raise PipelineError(
                    f"the state goes on at offset {offset} of {at}, which has {begins[at]} to {ends[at]}",
                    field="bootstrap",
                    fix="Import where the input is, as long as it has these records",
                )
        passing = self._manifest.on_their_way
        own = {TopicPartition(self._names[topic], n): 0 for topic, (count, _) in passing.items() for n in range(count)}
        return offsets | own

    def _check_counts(self, counts: Mapping[str, int]) -> None:
        for name, store in self._manifest.stores.items():
            for topic in {topic for noted in store.notes.values() for topic in noted.inputs}:
                if topic not in self._names and counts.get(topic) != store.partitions:
                    raise PipelineError(
                        f"{topic!r} has {counts.get(topic, 0)} partitions, and the state of {name!r} is of"
                        f" {store.partitions}: keys would not be where their state is",
                        field="folder",
                        fix="Import where it has as many",
                    )

    def _make_topics(self, admin: Admin) -> list[TopicPartition]:
        """Create the group's topics anew; return their partitions. Raises PipelineError if one has records."""
        wanted = {self._names[each.changelog]: (each.partitions, CHANGELOG_SETTINGS) for each in self._stores}
        for topic, (count, _) in self._manifest.on_their_way.items():
            wanted[self._names[topic]] = count, REPARTITION_SETTINGS
        there = admin.list_topics(internal=True)
        left = {topic: there[topic] for topic in wanted if topic in there}
        self._check_empty(admin, [TopicPartition(topic, n) for topic, count in left.items() for n in range(count)])
        for topic in left:
            with contextlib.suppress(UnknownTopicError):
                admin.delete_topic(topic)
        for topic, (count, settings) in wanted.items():
            admin.create_topic(topic, count, configs=settings)
        return [TopicPartition(topic, n) for topic, (count, _) in wanted.items() for n in range(count)]

    def _check_empty(self, admin: Admin, partitions: Sequence[TopicPartition]) -> None:
        """Raise PipelineError for a topic with committed records: an import that did not end leaves none."""
        begins, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
        splits = [Split(*at, begins[at], ends[at]) for at in partitions if ends[at] > begins[at]]
        try:
            found = (
                next((each for each in read_splits(self._config, splits) if each.num_rows), None) if splits else None
            )
        except ReadError as error:
            raise PipelineError(str(error), field="group") from None
        if found is not None:
            raise PipelineError(
                f"{found['topic'][0].as_py()!r} has records already, and an import makes a new group",
                field="group",
                fix="Name another group, or delete the state of this one (`roster state reset`)",
            )

    @property
    def _stores(self) -> list[SavedStore]:
        return list(self._manifest.stores.values())

    def _write(self, identity: ProducerIdentity) -> int:
        """Write the records of all partitions; return how many. Raises PipelineError if not all are written."""
        addresses = tuple(parse_addresses(self._config.bootstrap))
        writer = KafkaWriter(
            addresses,
            None,
            client_id=self._config.client_id,
            keep_timestamps=True,
            security=self._config.security,
            identity=identity,
            compiled=compiled(WRITE),
        )
        logs, folder = self._logs(), self._folder
        what = f"the import of the state of {self._group}"
        imported: list[ImportedLog] = run_job(
            self._spark, what, len(logs), lambda done: ImportTask(writer, logs, folder, done), self._on_progress
        )
        if problem := next((each.problem for each in imported if each.problem), ""):
            raise PipelineError(f"{what} failed, nothing is imported: {problem}")
        return sum(each.records for each in imported)

    def _logs(self) -> list[LogFiles]:
        """Return the partitions that get records. Offsets of repartition topics begin at 0, as they are new."""
        logs = []
        for store in self._stores:
            files: dict[int, dict[str, Written]] = {}
            for part, of in store.files.items():
                for file in of:
                    files.setdefault(_number(file), {})[part] = file
            for number, noted in store.notes.items():
                inputs = {
                    self._names.get(topic, topic): 0 if topic in self._names else at
                    for topic, at in noted.inputs.items()
                }
                marks = {**store.marks.get(number, {}), STATE_KEY: replace(noted, inputs=inputs).encode()}
                logs.append(LogFiles(self._names[store.changelog], number, marks, files.get(number, {})))
        for topic, (_, passing) in self._manifest.on_their_way.items():
            logs += [LogFiles(self._names[topic], _number(file), records=file) for file in passing]
        return logs


def _number(file: Written) -> int:
    """Return the partition that a file is of."""
    return int(file.path.rpartition("/")[2].removesuffix(".parquet"))


def _names(manifest: Manifest, group: str) -> dict[str, str]:
    """Return the names of the group's own topics by those of the exported group. Raises PipelineError."""
    try:
        names = {each.changelog: changelog_topic(group, store) for store, each in manifest.stores.items()}
        for topic in manifest.on_their_way:
            own = topic.removeprefix(f"{manifest.group}-").removesuffix(REPARTITION)
            names[topic] = repartition_topic(group, own)
    except TopologyError as error:
        raise PipelineError(str(error), field="group") from None
    return names
