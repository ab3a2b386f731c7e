"""Exports the state of a group that may be running: one Spark task for each changelog partition."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from roster.client import Admin
from roster.model import TopicPartition
from roster.model.topology import CHANGELOG, REPARTITION, own_topics
from roster.pipeline.batch import Split
from roster.pipeline.errors import PipelineError
from roster.pipeline.tasks.reader import ReaderConfig
from roster.saved.cut import Cut, take_cut
from roster.saved.job import SMALL_RECORDS, Sessions, StateProgress, admin_of, reader_config, run_job
from roster.saved.tasks.export import ExportedLog, ExportTask, LogSpan
from roster.security import Security
from roster.state.definition import STATE_KEY, Noted, OtherDefinitionError
from roster.state.saved.claim import CLAIM, claimed
from roster.state.saved.folder import Folder, FolderError, Written
from roster.state.saved.manifest import MANIFEST, Manifest, SavedStore, last_before
from roster.state.saved.variables import part_of
from roster.stateful.changelogs import Logs

log = logging.getLogger("roster.spark")

STORES, ON_THEIR_WAY = "stores", "repartition"
"""Folders of an export."""
_OWN = (f"{STORES}/", f"{ON_THEIR_WAY}/", CLAIM, f"{MANIFEST}.tmp")
"""What the names of files begin with that an export leaves if it is killed."""
_ATTEMPTS = 3


@dataclass(frozen=True)
class Export:
    """State that was exported: `Export.open` reads a folder."""

    folder: Folder
    manifest: Manifest

    @classmethod
    def open(cls, place: str, before: datetime | None = None) -> Export:
        """Return the export in a folder, or the last one of a folder with an export for each moment.

        Args:
            place: the folder, by its path or URI.
            before: the last export of an earlier moment, in UTC unless it has a zone; None: the last one.

        Raises:
            StateError: there is none.
        """
        if before is not None and before.tzinfo is None:
            before = before.replace(tzinfo=UTC)
        return cls(*last_before(Folder(place), before))

    def dataframe(self, spark: SparkSession, store: str, part: str | None = None) -> DataFrame:
        """Return the rows of a store as a DataFrame.

        Args:
            spark: the session.
            store: the store's name.
            part: of a processor the name of a variable, or `timers`; of a join `left` or `right`; None where the store
                has only one part.

        Raises:
            PipelineError: the store or part does not exist, or the part must be named.
        """
        if store not in self.manifest.stores:
            fix = f"Use {', '.join(self.manifest.stores)}"
            raise PipelineError(f"there is no store {store!r} in {self.folder.shown}", field="store", fix=fix)
        files = self.manifest.stores[store].files
        names = {name.removeprefix("variables/"): name for name in files}
        if part is None and len(files) == 1:
            (chosen,) = files
        elif part is not None and (part_of(part) in files or part in files):
            chosen = part_of(part) if part_of(part) in files else part
        else:
            what = "it has no rows" if not files else f"{part!r} is not possible"
            raise PipelineError(what, field="part", fix=f"Use {', '.join(names)}" if names else None)
        return self.rows(spark, files[chosen])

    def rows(self, spark: SparkSession, files: Iterable[Written]) -> DataFrame:
        """Return the rows of a part's files."""
        # Tasks may have written a variable with fields that others have not yet.
        reader = spark.read.option("mergeSchema", "true")
        return reader.parquet(*(f"{self.folder.uri}/{file.path}" for file in files))


def export(
    spark: Sessions,
    bootstrap: str | Sequence[str],
    group: str,
    to: str,
    *,
    security: Security | Mapping[str, object] | None = None,
    on_progress: Callable[[StateProgress], None] | None = None,
) -> Export:
    """Export the state of a group, which may be running, as Parquet files.

    The files hold each task's state as of the committed offsets in `manifest.json`. Members of the group are not asked,
    and their stores are not read.

    Args:
        spark: the session; a changelog partition is one task, which keeps the partition's entries in memory. Or a
            function that returns one: it is called for logs of more than 500,000 records, fewer are read without Spark.
        bootstrap: brokers to ask first.
        group: the group.
        to: an empty folder: a path that driver and executors share, or a URI of a file system that pyarrow knows.
        security: as for `Pipeline`.
        on_progress: called with news, at most once a second.

    Raises:
        PipelineError: the group has no state, the folder is not empty, or no moment is found at which no transaction
            is open.
        ClientError: the cluster does not answer.
    """
    try:
        folder = Folder(to)
        config = reader_config(bootstrap, group, f"{group}-export", security)
        return _Exporter(spark, config, folder, on_progress).run()
    except FolderError as error:
        raise PipelineError(str(error), field="to") from None


class _MovedError(Exception):
    """The logs were not what they were at the cut."""


class _Exporter:
    def __init__(
        self, spark: Sessions, config: ReaderConfig, folder: Folder, on_progress: Callable[[StateProgress], None] | None
    ) -> None:
        self._spark, self._config, self._folder, self._on_progress = spark, config, folder, on_progress
        self._group, self._claim = config.group, CLAIM
        self._doubtful = set[str]()
        """Topics that may be another group's."""

    def run(self) -> Export:
        """Export into an empty folder, until the state that was read is that of the cut."""
        names = self._folder.names()
        self._check_empty(names, is_left=any(name.startswith(CLAIM) for name in names))
        with admin_of(self._config) as admin:
            self._topics(admin)
            with claimed(self._folder) as (self._claim, is_left):
                self._check_empty(self._folder.names(), is_left=is_left)
                self._clear()
                return self._run_alone(admin)

    def _check_empty(self, names: Sequence[str], *, is_left: bool) -> None:
        """Raise PipelineError if there is more than this export's claim. is_left: and what a killed one has left."""
        if not all(name.startswith(_OWN) if is_left else name == self._claim for name in names):
            fix = "Name an empty folder, or one that does not exist"
            raise PipelineError(f"{self._folder.shown} is not empty", field="to", fix=fix)

    def _run_alone(self, admin: Admin) -> Export:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                manifest = self._exported(admin)
            except _MovedError as error:
                self._clear()
                if attempt == _ATTEMPTS:
                    raise PipelineError(str(error), fix="Export again") from None
                log.info("%s; exporting again", error)
            except BaseException:
                self._clear()
                raise
            else:
                self._folder.write(MANIFEST, manifest.encode())
                return Export(self._folder, manifest)
        raise AssertionError("unreachable")

    def _clear(self) -> None:
        with contextlib.suppress(FolderError):
            self._folder.remove([name for name in self._folder.names() if name != self._claim])

    def _topics(self, admin: Admin) -> tuple[Mapping[str, int], list[str], list[str]]:
        """Return all topics, and the group's changelogs and repartition topics. Raises PipelineError without any."""
        topics = admin.list_topics(internal=True)
        changelogs, repartitions = (self._own(admin, topics, end) for end in (CHANGELOG, REPARTITION))
        if not changelogs and not repartitions:
            raise PipelineError(
                f"the group {self._group!r} has no changelogs", field="group", fix="Name a group that keeps state"
            )
        return topics, changelogs, repartitions

    def _exported(self, admin: Admin) -> Manifest:
        topics, changelogs, repartitions = self._topics(admin)
        logs, passing = (
            [TopicPartition(topic, number) for topic in own for number in range(topics[topic])]
            for own in (changelogs, repartitions)
        )
        cut = take_cut(admin, self._group, logs, passing)
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        begins = admin.beginning_offsets([*logs, *passing])
        # Records on their way first: the group deletes them once it has read them.
        spans = [
            self._passing(partition, max(begins[partition], cut.offsets.get(partition, 0)), cut.ends[partition])
            for partition in passing
        ]
        spans += [self._state(partition, begins[partition], cut.ends[partition]) for partition in logs]
        exported = self._run([span for span in spans if not span.split.is_empty])
        _check_silent(admin, exported, cut)
        partitions = {topic: topics[topic] for topic in [*changelogs, *repartitions]}
        manifest = self._with_stores(
            Manifest(self._group, admin.cluster_id(), moment, {}, cut.offsets), cut, exported, partitions
        )
        self._check_files(manifest)
        return manifest

    def _own(self, admin: Admin, topics: Mapping[str, int], end: str) -> list[str]:
        others = [other.group_id for other in admin.list_groups() if other.group_id != self._group]
        own, doubtful = own_topics(self._group, topics, others, end)
        self._doubtful |= doubtful.keys()
        return sorted([*own, *doubtful])

    def _store(self, topic: str) -> str:
        return topic.removeprefix(f"{self._group}-").removesuffix(CHANGELOG)

    def _passing(self, partition: TopicPartition, start: int, end: int) -> LogSpan:
        return LogSpan(
            Split(*partition, start, end), None, f"{ON_THEIR_WAY}/{partition.topic}", str(partition.partition)
        )

    def _state(self, partition: TopicPartition, start: int, end: int) -> LogSpan:
        store = self._store(partition.topic)
        return LogSpan(Split(*partition, start, end), store, f"{STORES}/{store}", str(partition.partition))

    def _run(self, spans: Sequence[LogSpan]) -> list[ExportedLog]:
        """Run the Spark job."""
        config, folder = self._config, self._folder
        what = f"the export of the state of {self._group}"
        return run_job(
            self._spark,
            what,
            len(spans),
            lambda done: ExportTask(config, spans, folder, done),
            self._on_progress,
            is_small=sum(span.split.end - span.split.start for span in spans) <= SMALL_RECORDS,
        )

    def _with_stores(
        self, manifest: Manifest, cut: Cut, exported: Iterable[ExportedLog], partitions: Mapping[str, int]
    ) -> Manifest:
        """Return it with what was exported.

        Raises _MovedError if a log has lost records since the cut, and PipelineError.
        """
        by_store: dict[str, dict[int, ExportedLog]] = {}
        passing: dict[str, list[Written]] = {}
        for exported_log in map(_checked, exported):
            if exported_log.span.store is None:
                passing.setdefault(exported_log.span.split.topic, []).extend(exported_log.files.values())
            else:
                by_store.setdefault(exported_log.span.store, {})[exported_log.span.split.partition] = exported_log
        notes = _notes(by_store)
        live = _stores_in_use(notes, cut)
        stores = {}
        for topic in (topic for topic in partitions if topic.endswith(CHANGELOG)):
            store = self._store(topic)
            if store not in live and (store in notes or topic in self._doubtful):
                log.info("%s is left out: it is of another group, or of an operator that the group has no more", topic)
                gone = by_store.get(store, {}).values()
                self._folder.remove([file.path for exported_log in gone for file in exported_log.files.values()])
                continue
            ends = {number: cut.ends[TopicPartition(topic, number)] for number in range(partitions[topic])}
            stores[store] = _saved_store(topic, partitions[topic], by_store.get(store, {}), notes.get(store, {}), ends)
        on_their_way = {
            topic: (count, tuple(passing.get(topic, ())))
            for topic, count in partitions.items()
            if topic.endswith(REPARTITION)
        }
        return replace(manifest, stores=stores, on_their_way=on_their_way)

    def _check_files(self, manifest: Manifest) -> None:
        """Raise PipelineError if the driver does not see what the executors have written."""
        for file in manifest.written:
            if (size := self._folder.size(file.path)) != file.bytes:
                what = "is not there" if size is None else f"has {size} bytes here"
                fix = "Name a folder that driver and executors share, or a URI such as s3://bucket/folder"
                raise PipelineError(f"{file.path} {what}, and a task has written {file.bytes}", field="to", fix=fix)


def _check_silent(logs: Logs, exported: Iterable[ExportedLog], cut: Cut) -> None:
    """Raise _MovedError if compaction may have taken all that a changelog had; if its end stays, it had nothing."""
    spans = [
        exported_log.span
        for exported_log in exported
        if exported_log.span.store is not None and not exported_log.records and not exported_log.problem
    ]
    silent = [TopicPartition(span.split.topic, span.split.partition) for span in spans]
    for partition, end in logs.end_offsets(silent).items() if silent else ():
        if end != cut.ends[partition]:
            raise _MovedError(f"{partition} has no record up to offset {cut.ends[partition]}, and goes on up to {end}")


def _checked(exported: ExportedLog) -> ExportedLog:
    """Return what was exported. Raises _MovedError or PipelineError if a log could not be."""
    if exported.is_lost:
        raise _MovedError(exported.problem)
    if exported.problem:
        partition = TopicPartition(exported.span.split.topic, exported.span.split.partition)
        raise PipelineError(f"{partition}: {exported.problem}", field="group")
    return exported


def _notes(by_store: Mapping[str, Mapping[int, ExportedLog]]) -> dict[str, dict[int, Noted]]:
    """Return what each partition of each store says of itself. Raises PipelineError for other formats."""
    notes: dict[str, dict[int, Noted]] = {}
    for store, partitions in by_store.items():
        for number, exported in partitions.items():
            if STATE_KEY in exported.marks:
                try:
                    notes.setdefault(store, {})[number] = Noted.decode(exported.marks[STATE_KEY])
                except OtherDefinitionError as error:
                    raise PipelineError(f"{store!r}, partition {number}: {error}", field="store") from None
    return notes


def _stores_in_use(notes: Mapping[str, Mapping[int, Noted]], cut: Cut) -> set[str]:
    """Return the stores that the group keeps. Raises _MovedError if one has not the state of the cut.

    A task's stores all say the offsets of its last batch. A store whose operator was taken out says earlier ones, and
    the others' definitions do not name it.
    """
    named: dict[int, set[str]] = {}
    is_of_cut: dict[tuple[str, int], bool] = {}
    for store, partitions in notes.items():
        for number, noted in partitions.items():
            read = {TopicPartition(topic, number): offset for topic, offset in noted.inputs.items()}
            is_of_cut[store, number] = all(cut.offsets.get(partition) == offset for partition, offset in read.items())
            if is_of_cut[store, number]:
                document = noted.definition.document
                names = set(document.get("stores", [store]))
                subtopology = int(document.get("subtopology", 0))
                named[subtopology] = named.get(subtopology, names) & names
    live = set().union(*named.values()) if named else set()
    for (store, number), holds in is_of_cut.items():
        if not holds and (store in live or not named):
            inputs = dict(notes[store][number].inputs)
            raise _MovedError(
                f"the state of {store!r}, partition {number}, is that of {inputs}, and the group has committed"
                f" { ({str(p): offset for p, offset in cut.offsets.items() if p.partition == number}) }"
            )
    return live


def _saved_store(
    topic: str, count: int, exported: Mapping[int, ExportedLog], notes: Mapping[int, Noted], ends: Mapping[int, int]
) -> SavedStore:
    """Return a store of the manifest."""
    files: dict[str, list[Written]] = {}
    columns: dict[str, Mapping[str, str]] = {}
    for _, exported_log in sorted(exported.items()):
        for part, file in exported_log.files.items():
            files.setdefault(part, []).append(file)
            columns[part] = exported_log.columns[part]
    return SavedStore(
        topic,
        count,
        notes,
        columns,
        {part: tuple(written) for part, written in files.items()},
        {
            number: {key: value for key, value in exported[number].marks.items() if key != STATE_KEY}
            for number in exported
        },
        ends,
    )
