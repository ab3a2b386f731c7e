"""Gives the changelogs of a stopped group as many partitions as its input has now, and places the keys anew.

The state is exported, and imported as the state of the same group. The steps are such that a crash at any moment leaves
either the group as it was, or a group whose pipelines are refused until the command is run again with the same folder:

1. the export, and all checks: nothing has changed;
2. the group's offsets are committed as they are, with a note of the folder: pipelines are refused from here on;
3. the group's own topics are made anew;
4. one transaction writes state and offsets, which ends the note.

If a record has come meanwhile where only the earlier number of partitions places it, 3 and 4 put the state back.
"""

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence

from roster.client import Admin, OffsetAndMetadata
from roster.client.live_group import members_of
from roster.model import TopicPartition
from roster.model.offsets import repartition_folder, repartition_note
from roster.model.switch import Standing
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import as_columns
from roster.pipeline.tasks.reader import ReaderConfig
from roster.saved.export import Export, export
from roster.saved.importing import Importer
from roster.saved.job import Sessions, StateProgress, admin_of, reader_config
from roster.saved.moving import KeyedBy, MisplacedError
from roster.security import Security
from roster.state.saved.folder import Folder, FolderError
from roster.state.saved.manifest import MANIFEST

_OTHER = "Name another, empty folder"
_READ = "Start an application of the group, which reads such records and ends, then run this with an empty folder"


def repartition_state(
    spark: Sessions,
    bootstrap: str | Sequence[str],
    group: str,
    folder: str,
    *,
    partitions: Mapping[str, int] | None = None,
    dry_run: bool = False,
    keyed_by: str | Sequence[str] = (),
    partitioner: str | None = None,
    security: Security | Mapping[str, object] | None = None,
    on_progress: Callable[[StateProgress], None] | None = None,
) -> dict[str, tuple[int, int]]:
    """Place the state of a stopped group anew after its input topics got more partitions, or among others of its own.

    If it is cut off, pipelines of the group are refused until it is run again with the same folder.

    Args:
        spark: the session; a changelog partition is one task, which keeps the partition's entries in memory. Or a
            function that returns one, as for `export`.
        bootstrap: brokers to ask first.
        group: a group without members.
        folder: where the state is exported to first; an empty folder, or that of an earlier attempt.
        partitions: of its repartition topics, by their names; others keep their number.
        dry_run: export and check only.
        keyed_by: as for `import_state`.
        partitioner: as for `import_state`.
        security: as for `Pipeline`.
        on_progress: called with news, at most once a second.

    Returns:
        The changelogs and repartition topics, with the numbers of partitions before and after.

    Raises:
        PipelineError: the group has members, or nothing has grown; the folder has another export; the keys do not prove
            where they belong; or the group has not read records that were written before the topics grew.
        ClientError: the cluster does not answer.
    """
    # Workers keep topics' partition numbers for minutes, for each client: this one must see the new ones.
    config = reader_config(bootstrap, group, f"{group}-repartition-{uuid.uuid4().hex[:8]}", security)
    try:
        with admin_of(config) as admin:
            _check_stopped(admin, group)
        if MANIFEST in Folder(folder).names():
            exported = Export.open(folder)
        else:
            exported = export(spark, bootstrap, group, folder, security=security, on_progress=on_progress)
        if exported.manifest.group != group:
            raise PipelineError(f"{folder} has an export of {exported.manifest.group!r}", field="folder", fix=_OTHER)
        keyed = KeyedBy(as_columns(keyed_by), partitioner)
        repartition = _Repartition(spark, config, exported, keyed, on_progress, partitions or {}, dry_run=dry_run)
        with admin_of(config) as admin:
            repartition.check_export(admin)
        with contextlib.suppress(_DryRunEndedError):
            try:
                repartition.run()
            except MisplacedError:  # the work has begun, and is undone
                repartition.run()
    except FolderError as error:
        raise PipelineError(str(error), field="folder") from None
    if repartition.misplaced is not None:
        raise PipelineError(f"{repartition.misplaced.problem}. The state is as it was", field="offsets", fix=_READ)
    return repartition.numbers()


class _DryRunEndedError(Exception):
    """All checks of a dry run have passed."""


class _Repartition(Importer):
    """An import into the group that the export is of; what it replaces is in the folder."""

    def __init__(
        self,
        spark: Sessions,
        config: ReaderConfig,
        export: Export,
        keyed_by: KeyedBy,
        on_progress: Callable[[StateProgress], None] | None,
        repartitions: Mapping[str, int],
        *,
        dry_run: bool,
    ) -> None:
        super().__init__(spark, config, export, None, keyed_by, on_progress, repartitions)
        self._dry_run = dry_run

    def check_export(self, admin: Admin) -> None:
        """Raise PipelineError unless the export is the group's present state, or the work with it has begun."""
        committed = admin.group_offsets(self._group)
        begun = _begun_with(committed)
        if begun == self._folder.named:
            return
        if begun is not None:
            fix = f"Name that folder, {begun}"
            raise PipelineError("it has begun with the export in another folder", field="folder", fix=fix)
        stores = self.manifest.stores.values()
        ends = {TopicPartition(store.changelog, n): end for store in stores for n, end in store.ends.items()}
        offsets = {partition: position.offset for partition, position in committed.items()}
        if offsets != self.manifest.offsets or admin.end_offsets(ends) != ends:
            raise PipelineError(
                f"{self._group!r} has worked since it was exported to {self._folder.shown}", field="folder", fix=_OTHER
            )
        if any(Standing.of(position.metadata) is not None for position in committed.values()):
            raise PipelineError(
                f"{self._group!r} has taken part in a switch", field="group", fix="Import the folder as a new group"
            )

    def _check_new(self, admin: Admin) -> None:
        _check_stopped(admin, self._group)

    def _check_kept(self, admin: Admin, error: MisplacedError) -> None:
        """Raise PipelineError unless the work has begun: then the state is put back as it was."""
        if self._dry_run or _begun_with(admin.group_offsets(self._group)) is None:
            raise PipelineError(error.problem, field=error.field, fix=_READ) from None

    def _make_topics(self, admin: Admin) -> list[TopicPartition]:
        """Note in the group's offsets what begins, then make its topics anew."""
        committed = admin.group_offsets(self._group)
        begun = _begun_with(committed)
        if begun is None:
            self._check_grown(admin)
            self.check_export(admin)
        if self._dry_run:
            raise _DryRunEndedError
        if begun is None:
            note = repartition_note(self._folder.named)
            positions = {
                partition: OffsetAndMetadata(position.offset, metadata=note)
                for partition, position in committed.items()
            }
            admin.commit_group_offsets(self._group, positions)
        return super()._make_topics(admin)

    def _check_grown(self, admin: Admin) -> None:
        """Raise PipelineError if all topics have as many partitions as they shall have."""
        there = admin.list_topics(internal=True)
        if all(there.get(topic) == after for topic, (_, after) in self.numbers().items()):
            raise PipelineError(
                f"the state of {self._group!r} has as many partitions already", field="group", fix="Leave it"
            )

    def _check_empty(self, admin: Admin, partitions: Sequence[TopicPartition]) -> None:
        """Let topics go that have records: the folder has them."""

    def _remove_topics(self, admin: Admin) -> None:
        """Leave the topics: the note refuses pipelines until the command is run again."""


def _check_stopped(admin: Admin, group: str) -> None:
    """Raise PipelineError if the group has members."""
    if members := members_of(admin, group):
        raise PipelineError(
            f"{group!r} has {len(members)} members", field="group", fix="Stop all applications of the group"
        )


def _begun_with(committed: Mapping[TopicPartition, OffsetAndMetadata]) -> str | None:
    """Return the folder with which the work has begun, None before."""
    return next(filter(None, (repartition_folder(position.metadata) for position in committed.values())), None)
