"""Imports an export as the state of a new group, in one transaction.

Changelogs, records between sub-topologies and the group's offsets are one Kafka transaction, so an import is whole or
has not happened. A pipeline that starts meanwhile finds changelogs without offsets, and is refused. The transactional
id is the group's own, so a second import of the group fences the first one, and does it again from the beginning.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession

from roster.client import (
    Admin,
    ClaimedBy,
    ClientError,
    OffsetAndMetadata,
    ProducerFencedError,
    TransactionalProducer,
    UnknownTopicError,
)
from roster.client.live_group import members_of
from roster.model import TopicPartition, parse_addresses
from roster.model.topology import (
    CHANGELOG_SETTINGS,
    REPARTITION,
    REPARTITION_SETTINGS,
    TopologyError,
    changelog_topic,
    repartition_topic,
)
from roster.pipeline.batch import Split
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import as_columns
from roster.pipeline.pipeline_options import StartingOffsets
from roster.pipeline.tasks.reader import ReaderConfig, ReadError, read_splits
from roster.records.native import WRITE, compiled
from roster.records.produce import KafkaWriter
from roster.records.produce_decisions import ProducerIdentity
from roster.saved.export import Export
from roster.saved.job import SMALL_BYTES, Sessions, StateProgress, admin_of, reader_config, run_job, session_of
from roster.saved.moving import (
    KeyedBy,
    MisplacedError,
    check_unread,
    checked_offsets,
    common_marks,
    files_by_number,
    files_to_split,
    new_partition_counts,
    number_of,
    proven_placements,
)
from roster.saved.tasks.importing import ImportedLog, ImportTask, LogFiles
from roster.saved.tasks.moving import RECORDS, Source, SplitTask
from roster.security import Security
from roster.state.definition import STATE_KEY, Noted
from roster.state.saved.folder import FolderError, Written
from roster.state.saved.manifest import Manifest, SavedStore
from roster.stateful.tasks.placement import Placement

log = logging.getLogger("roster.pipeline")

TRANSACTION_TIMEOUT_MS = 900_000
"""Kafka's default of `transaction.max.timeout.ms`: an import may take so long."""
_MEMBER = "import"
_LONGEST_WAIT, _PAUSE = 30.0, 0.05


def import_state(
    spark: Sessions,
    bootstrap: str | Sequence[str],
    group: str,
    folder: str,
    *,
    offsets: StartingOffsets | None = None,
    keyed_by: str | Sequence[str] = (),
    partitioner: str | None = None,
    security: Security | Mapping[str, object] | None = None,
    on_progress: Callable[[StateProgress], None] | None = None,
) -> int:
    """Import an export as the state of a new group; return the number of records written.

    A pipeline of this group then goes on from the offsets of the export. The import is one transaction: it is whole, or
    has not happened. Where the input topics have another number of partitions than at the export, keys are placed anew;
    but if records behind the export's offsets were written before, the group keeps the number of the export, as any
    group whose topics have grown: its first run reads these records, and `repartition_state` comes then. The log says
    so.

    Args:
        spark: the session; a changelog partition is one task, which keeps the partition's entries in memory. Or a
            function that returns one: it is called for files of more than 64 MiB, smaller ones need no Spark.
        bootstrap: brokers to ask first, of the cluster that the export comes from or of another one with its topics.
        group: a group without members, offsets and state.
        folder: the export, by its path or URI.
        offsets: where the group goes on, as `starting_offsets` of `Pipeline`; None for the export's offsets, and the
            beginning of partitions that were added since.
        keyed_by: the key columns of the state that the records of the input topics have as key, of integers with a
            form, as in `"n:int64"`; needed if the keys do not prove how they were placed.
        partitioner: `murmur2`, `crc32` of librdkafka, `fnv1a` of Sarama (`fnv1a-masked` of its reference partitioner,
            `fnv1a-unsigned` of franz-go's first imitation); needed as `keyed_by`.
        security: as for `Pipeline`.
        on_progress: called with news, at most once a second.

    Raises:
        PipelineError: the folder has no whole export, the group is not new, the input topics do not have
            the offsets that the state belongs to, or it is not known where keys belong among another number of
            partitions.
        ClientError: the cluster does not answer.
    """
    try:
        export = Export.open(folder)
        config = reader_config(bootstrap, group, f"{group}-import", security)
        keyed = KeyedBy(as_columns(keyed_by), partitioner)
        importer = Importer(spark, config, export, offsets, keyed, on_progress)
        try:
            records = importer.run()
        except MisplacedError:  # such a record has come meanwhile
            records = importer.run()
    except FolderError as error:
        raise PipelineError(str(error), field="folder") from None
    if importer.misplaced is not None:
        log.warning(
            "%s. So the state of %s has as many partitions as at the export. Start its application, which reads these"
            " records and ends; then repartition the state",
            importer.misplaced.problem,
            group,
        )
    return records


@dataclass(frozen=True)
class Plan:
    """Partitions to write; files whose rows get other partitions, and how the keys of each such store are placed."""

    logs: list[LogFiles] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    placed: dict[str, Placement] = field(default_factory=dict)
    split: Any = None
    """An RDD of rows for these partitions, as `SplitTask` yields them; None: the files have the rows."""


class Importer:
    """Imports an export; see `import_state` and the module's text."""

    def __init__(
        self,
        spark: Sessions,
        config: ReaderConfig,
        export: Export,
        offsets: StartingOffsets | None,
        keyed_by: KeyedBy,
        on_progress: Callable[[StateProgress], None] | None,
        repartitions: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """repartitions: partitions of repartition topics that get another number."""
        self._repartitions = repartitions
        self.counts: dict[str, int] = {}
        """Partitions that each of the group's topics gets, by its name in the export; known once `run` has begun."""
        self.misplaced: MisplacedError | None = None
        """Why the state keeps the numbers of partitions of the export."""
        self._given, self._keyed_by, self._export = offsets, keyed_by, export
        self._spark, self._config, self._on_progress = spark, config, on_progress
        self._folder, self.manifest, self._group = export.folder, export.manifest, config.group
        self._names = _names(export.manifest, config.group)
        self._seen: Mapping[TopicPartition, int] = {}
        self._is_small = sum(file.bytes for file in export.manifest.written) <= SMALL_BYTES

    def check(self) -> None:
        """Raise PipelineError if the group is not new."""
        with admin_of(self._config) as admin:
            self._check_new(admin)

    def run(self) -> int:
        """Write everything in one transaction."""
        with admin_of(self._config) as admin, self._producer() as producer:
            self._check_new(admin)
            counts = admin.list_topics()
            self.counts = new_partition_counts(self.manifest, counts, self._repartitions)
            plan, inputs = self._checked(admin, checked_offsets(admin, self.manifest, counts, self._given), counts)
            own = self._partitions(self.manifest.on_their_way)
            offsets = inputs | dict.fromkeys(own, 0)
            partitions: list[TopicPartition] = []
            try:
                # Before topics are made anew: another import of the group must not go on with them.
                identity = ProducerIdentity(*producer.begin(), producer.transactional_id)
                partitions = self._make_topics(admin)
                producer.add_partitions(partitions)
                records = self._write(identity, plan)
                self._check_new(admin)
                self._check_unread(admin, plan, inputs, counts)
                metadata = ClaimedBy(producer.transactional_id, _MEMBER).to_metadata()
                positions = {
                    partition: OffsetAndMetadata(offset, metadata=metadata) for partition, offset in offsets.items()
                }
                producer.commit(positions, -1, "")
            except BaseException as error:
                if _is_fenced(error, producer):  # to abort would fence the other one
                    problem = f"another import of {self._group!r} has begun, and has ended this one"
                    raise PipelineError(problem, field="group", fix="Wait for the other one") from None
                producer.abort()
                if partitions:
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
        if members := members_of(admin, self._group):
            problem = f"{self._group!r} has {len(members)} members, and an import makes a new group"
            raise PipelineError(problem, field="group", fix="Stop the applications, or name another group")
        if offsets := admin.group_offsets(self._group, stable=False):
            problem = f"{self._group!r} has an offset of {min(offsets)}, and an import makes a new group"
            fix = "Name another group, or delete this one (`roster state reset`)"
            raise PipelineError(problem, field="group", fix=fix)

    def _partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Return all partitions of the group's own topics, by their names in the export."""
        return [TopicPartition(self._names[topic], n) for topic in topics for n in range(self.counts[topic])]

    def _checked(
        self, admin: Admin, inputs: dict[TopicPartition, int], counts: Mapping[str, int]
    ) -> tuple[Plan, dict[TopicPartition, int]]:
        """Return the plan of the import, and where the group goes on in its input. Raises PipelineError."""
        plan = self.planned(inputs)
        try:
            self._check_unread(admin, plan, inputs, counts)
        except MisplacedError as error:
            self._check_kept(admin, error)
            self.misplaced = error
        else:
            return plan, inputs
        self.counts = {topic: before for topic, (before, _) in self.numbers().items()}
        inputs = {partition: offset for partition, offset in inputs.items() if partition in self.manifest.offsets}
        return self.planned(inputs), inputs

    def _check_kept(self, admin: Admin, error: MisplacedError) -> None:
        """Raise PipelineError if the state may not keep the numbers of partitions of the export."""

    def numbers(self) -> dict[str, tuple[int, int]]:
        """Return how many partitions each topic of the group had, and has to have."""
        before = {store.changelog: store.partitions for store in self.manifest.stores.values()}
        before |= {topic: count for topic, (count, _) in self.manifest.on_their_way.items()}
        return {topic: (count, self.counts[topic]) for topic, count in sorted(before.items())}

    def _check_unread(
        self, admin: Admin, plan: Plan, inputs: Mapping[TopicPartition, int], counts: Mapping[str, int]
    ) -> None:
        """Raise MisplacedError if records from the export's offsets on were written before the topics grew.

        A second call looks at those that have come since the first one.
        """
        partitioners = {
            topic: placement.partitioner
            for name, placement in plan.placed.items()
            for record in self.manifest.stores[name].notes.values()
            for topic in record.inputs
            if topic not in self._names
        }
        if self._given is None and partitioners:
            ends = admin.stable_offsets([partition for partition in inputs if partition.topic in partitioners])
            unread = [
                Split(*partition, self._seen.get(partition, inputs[partition]), end) for partition, end in ends.items()
            ]
            check_unread(self._spark, self._config, unread, counts, partitioners)
            self._seen = ends

    def _make_topics(self, admin: Admin) -> list[TopicPartition]:
        """Create the group's topics anew; return their partitions. Raises PipelineError if one has records."""
        wanted = {
            self._names[topic]: (count, REPARTITION_SETTINGS if topic.endswith(REPARTITION) else CHANGELOG_SETTINGS)
            for topic, count in self.counts.items()
        }
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
        splits = [
            Split(*partition, begins[partition], ends[partition])
            for partition in partitions
            if ends[partition] > begins[partition]
        ]
        try:
            batches = read_splits(self._config, splits) if splits else ()
            records = next((batch for batch in batches if batch.num_rows), None)
        except ReadError as error:
            raise PipelineError(str(error), field="group") from None
        if records is not None:
            problem = f"{records['topic'][0].as_py()!r} has records already, and an import makes a new group"
            fix = "Name another group, or delete the state of this one (`roster state reset`)"
            raise PipelineError(problem, field="group", fix=fix)

    def _write(self, identity: ProducerIdentity, plan: Plan) -> int:
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
        folder = self._folder
        what = f"the import of the state of {self._group}"
        split = plan.split
        is_here = self._is_small and not isinstance(self._spark, SparkSession) and split is None
        if plan.sources:
            task, count = SplitTask(plan.sources, folder, plan.placed), len(plan.sources)
            numbers = range(count)
            if is_here:
                split = task(numbers)
            else:
                split = session_of(self._spark).sparkContext.parallelize(numbers, count).mapPartitions(task)
        imported: list[ImportedLog] = run_job(
            self._spark,
            what,
            len(plan.logs),
            lambda done: ImportTask(writer, plan.logs, folder, done),
            self._on_progress,
            split,
            is_small=is_here,
        )
        if problem := next((result.problem for result in imported if result.problem), ""):
            raise PipelineError(f"{what} failed, nothing is imported: {problem}")
        return sum(result.records for result in imported)

    def planned(self, offsets: Mapping[TopicPartition, int]) -> Plan:
        """Return the plan of the import. Offsets of repartition topics begin at 0, as they are new.

        Raises PipelineError if keys get other partitions and do not prove which.
        """
        plan = Plan()
        for name, store in self.manifest.stores.items():
            count = self.counts[store.changelog]
            numbers = range(len(plan.logs), len(plan.logs) + count)
            if count == store.partitions or not store.notes:
                files = files_by_number(store)
                marks = {n: {**store.marks.get(n, {}), STATE_KEY: noted.encode()} for n, noted in store.notes.items()}
                plan.logs.extend(self.log(store, n, offsets, entries, files.get(n, {})) for n, entries in marks.items())
            else:
                common = common_marks(name, store, count)
                plan.logs.extend(self.log(store, n, offsets, common, {}) for n in range(count))
                plan.sources.extend(files_to_split(name, store, numbers))
        if plan.sources:
            plan.placed.update(
                proven_placements(self._spark, self._export, plan.sources, self._keyed_by, is_small=self._is_small)
            )
        for topic, (before, passing) in self.manifest.on_their_way.items():
            count = self.counts[topic]
            if count == before:
                plan.logs.extend(
                    LogFiles(self._names[topic], number_of(file), files={RECORDS: file}) for file in passing
                )
            else:
                numbers = range(len(plan.logs), len(plan.logs) + count)
                plan.logs.extend(LogFiles(self._names[topic], n) for n in range(count))
                plan.sources.extend(
                    Source(topic, number_of(file), before, numbers, {RECORDS: file}) for file in passing
                )
        return plan

    def log(
        self,
        store: SavedStore,
        number: int,
        offsets: Mapping[TopicPartition, int],
        marks: Mapping[bytes, bytes],
        files: Mapping[str, Written],
    ) -> LogFiles:
        """Return a changelog partition, whose definition record names the offsets that the group goes on from."""
        record = Noted.decode(marks[STATE_KEY])
        inputs = {
            self._names.get(topic, topic): 0 if topic in self._names else offsets[TopicPartition(topic, number)]
            for topic in record.inputs
        }
        marks = {**marks, STATE_KEY: replace(record, inputs=inputs).encode()}
        return LogFiles(self._names[store.changelog], number, marks, files)


def _is_fenced(error: BaseException, producer: TransactionalProducer) -> bool:
    """Return True if another producer with the transactional id has begun, which other errors do not say."""
    if isinstance(error, PipelineError):
        try:
            producer.check_unfenced()
        except ClientError as found:
            error = found
    return isinstance(error, ProducerFencedError)


def _names(manifest: Manifest, group: str) -> dict[str, str]:
    """Return the names of the group's own topics by their names in the exported group. Raises PipelineError."""
    try:
        names = {saved.changelog: changelog_topic(group, store) for store, saved in manifest.stores.items()}
        for topic in manifest.on_their_way:
            own = topic.removeprefix(f"{manifest.group}-").removesuffix(REPARTITION)
            names[topic] = repartition_topic(group, own)
    except TopologyError as error:
        raise PipelineError(str(error), field="group") from None
    return names
