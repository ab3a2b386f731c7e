"""The ordered commit log that makes files exactly once: who wrote which offsets, as one file per commit.

Layout below a sink's root:

    _roster/log/00000000000000000007.json          one entry: ranges and files of a batch, or a claim of partitions
    _roster/checkpoints/00000000000000000032.json  state at a version, so that opening reads only the entries after it
    _roster/checkpoint.json                        a mark that keeps versions of Roster from before checkpoints/ away
    part-….parquet                                 files that count

and beside it, where readers of the whole tree do not look (in `_roster/staging`, where nothing can be made beside):

    .<name>.staging/<stage>.json            what a stage will commit, written before the stage's folder
    .<name>.staging/<stage>/…               files that do not count yet

A commit is one entry, created only if its version is free; it names all partitions of the batch, so the batch counts
whole or not at all. Its files are renamed out of the staging folder afterwards, and whoever opens the log completes the
renames a dead writer left undone. A writer is fenced if its partitions no longer stand where it began or another has
claimed them.

Entries up to the second newest checkpoint may be removed. The two newest checkpoints stay, none is ever overwritten,
and files of an entry are published before a checkpoint covers it. So a writer that was asleep and creates an entry
whose version is free only because it was removed finds a second newest checkpoint at or past that version, and reads
anew.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roster.model import TopicPartition
from roster.spark.batch import Owner, Range
from roster.spark.errors import PipelineError, SinkFencedError
from roster.spark.sinks.storage import Storage

FOLDER = "_roster"
LOG = f"{FOLDER}/log"
STAGING = f"{FOLDER}/staging"
CHECKPOINTS = f"{FOLDER}/checkpoints"
OLD_CHECKPOINT = f"{FOLDER}/checkpoint.json"
FORMAT = 1
_MARK = b'{"format":2,"see":"checkpoints/"}'
_SIGN = "_roster.txt"


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of the log: a commit has `ranges`, and `files` unless it has no rows.

    A claim has `claims`, and `ranges` of what was done outside this log.
    """

    version: int
    owner: Owner
    claims: frozenset[TopicPartition] = frozenset()
    ranges: Mapping[TopicPartition, Range] = field(default_factory=dict)
    stage: str = ""
    files: Sequence[tuple[str, str]] = ()
    """Pairs of staged and published name, relative to the root."""
    rows: int = 0
    time: int = 0
    """Wall-clock milliseconds, for people."""

    def encode(self) -> bytes:
        """As JSON, one entry a file."""
        document = {
            "format": FORMAT,
            "version": self.version,
            "group": self.owner.group,
            "generation": self.owner.generation,
            "member": self.owner.member_id,
            "claims": _nest(dict.fromkeys(self.claims)),
            "ranges": _nest({partition: list(span) for partition, span in self.ranges.items()}),
            "stage": self.stage,
            "files": [list(pair) for pair in self.files],
            "rows": self.rows,
            "time": self.time,
        }
        return _compact(document)

    @classmethod
    def decode(cls, data: bytes, name: str) -> Entry:
        """Reads what `encode` wrote; PipelineError for anything else."""
        try:
            document = json.loads(data)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']} is newer than this Roster")
            return cls(
                version=document["version"],
                owner=Owner(document["group"], document["generation"], document["member"]),
                claims=frozenset(_flatten(document["claims"])),
                ranges={partition: Range(*span) for partition, span in _flatten(document["ranges"]).items()},
                stage=document["stage"],
                files=[(staged, published) for staged, published in document["files"]],
                rows=document["rows"],
                time=document["time"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PipelineError(f"{name} is not an entry of a commit log: {error}", field="path") from None


class CommitLog:
    """One writer's view of the log; safe against any number of other writers, not for several threads of one."""

    def __init__(self, storage: Storage, *, checkpoint_every: int = 32) -> None:
        self._storage = storage
        self._checkpoint_every = checkpoint_every
        self.version = 0
        """The last entry seen; versions count from 1."""
        self.positions: dict[TopicPartition, int] = {}
        self.claimants: dict[TopicPartition, str] = {}
        self.group: str | None = None
        self.rows = 0
        self.files = 0
        """Files that count; at least 1 for outputs of versions that did not count them."""
        self._checkpointed = 0
        self._unpublished: list[Entry] = []
        self._touched: set[str] = set()
        self._staging = STAGING

    def prepare(self) -> None:
        """Make the folders a writer needs, the one for staged files beside the root if files can be renamed from there.

        Raises OSError where nothing can be written.
        """
        self._storage.prepare(FOLDER)
        self._storage.prepare(LOG)
        if self._storage.beside and self._storage.can_publish_from(self._storage.beside):
            self._staging = self._storage.beside
            self._storage.create(f"{self._staging}/{_SIGN}", f"Not committed yet to {self._storage.uri}\n".encode())
        else:
            self._storage.prepare(STAGING)

    def open(self) -> None:
        """Read the log, complete what dead writers left unpublished, and sweep stages that can never count."""
        self._restore()
        self.refresh()
        self.complete()
        self._sweep()

    def refresh(self) -> None:
        """Read the entries other writers have added."""
        while True:
            base = self.version
            while (data := self._storage.read(_name(self.version + 1))) is not None:
                self._apply(Entry.decode(data, _name(self.version + 1)))
            # Entries that may have been removed cannot be trusted: one there may be by a writer that was asleep.
            if self._removable(self._checkpoints()) <= base:
                return
            self._restore()

    def complete(self) -> None:
        """Publish the files of every entry seen that may not be published yet."""
        for entry in self._unpublished:
            self._publish(entry)
        self._unpublished.clear()

    def claim(
        self,
        partitions: Collection[TopicPartition],
        owner: Owner,
        committed: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, int]:
        """Take partitions over, so that writers of before are fenced; returns the positions of those that have one.

        A position behind the group's committed offset moves on to it: writers of this log commit here first, so another
        kind of member has done what lies between.
        """
        self.refresh()
        self.check_group(owner.group)
        while True:
            claims = frozenset(p for p in partitions if self.claimants.get(p) != owner.member_id)
            elsewhere = {
                p: Range(self.positions[p], end) for p, end in (committed or {}).items() if p in self.positions
            }
            elsewhere = {p: span for p, span in elsewhere.items() if p in partitions and span.size > 0}
            if not claims and not elsewhere:
                break
            self._append(Entry(self.version + 1, owner, claims=claims, ranges=elsewhere, time=_now()))
        # What the owner of before committed but did not live to publish becomes visible with the take-over.
        self.complete()
        self._sweep()
        return {p: self.positions[p] for p in partitions if p in self.positions}

    def stage(self, ranges: Mapping[TopicPartition, Range]) -> str:
        """The name of a new stage; its files belong below `folder(stage)`."""
        stage = f"{self._staging}/{uuid.uuid4().hex}"
        intent = _nest({partition: list(span) for partition, span in ranges.items()})
        self._storage.create(f"{folder(stage)}.json", json.dumps(intent).encode())
        return stage

    def discard(self, stage: str) -> None:
        """Remove a stage that is not wanted any more."""
        self._storage.remove(folder(stage))
        self._storage.remove(f"{folder(stage)}.json")

    def commit(
        self,
        owner: Owner,
        ranges: Mapping[TopicPartition, Range],
        stage: str,
        files: Sequence[str],
        rows: int,
    ) -> Entry:
        """Make a stage count and publish it; SinkFencedError, and the stage is gone, if another writer came first.

        `files` are the stage's files that hold rows, relative to `folder(stage)`; they are made durable first.
        """
        base = folder(stage)
        for name in files:
            self._storage.sync(f"{base}/{name}")
        self.check_group(owner.group)
        while True:
            self._fence(owner, ranges, stage)
            version = self.version + 1
            pairs = [(f"{base}/{name}", _published(name, version, index)) for index, name in enumerate(files)]
            entry = Entry(version, owner, ranges=ranges, stage=stage, files=pairs, rows=rows, time=_now())
            if self._append(entry):
                break
        self.complete()
        if self.version - self._checkpointed >= self._checkpoint_every:
            self._checkpoint()
        return entry

    def _fence(self, owner: Owner, ranges: Mapping[TopicPartition, Range], stage: str) -> None:
        for partition, span in ranges.items():
            claimant = self.claimants.get(partition)
            position = self.positions.get(partition, span.start)
            if claimant == owner.member_id and position == span.start:
                continue
            self.discard(stage)
            why = (
                f"stands at {position}, not at {span.start}"
                if position != span.start
                else f"was taken over by {claimant or 'nobody'}"
            )
            raise SinkFencedError(f"{partition} {why}; the batch's files were dropped", field=self._storage.uri)

    def _append(self, entry: Entry) -> bool:
        """Create the entry; False if its version was taken, and then the log has been read up to its new end."""
        name = _name(entry.version)
        if self._storage.create(name, entry.encode()):
            if self._removable(self._checkpoints()) < entry.version:
                self._apply(entry)
                return True
            self._storage.remove(name)
            self._restore()
        self.refresh()
        return False

    def _apply(self, entry: Entry) -> None:
        self.version = entry.version
        self.group = entry.owner.group
        self.claimants.update(dict.fromkeys(entry.claims, entry.owner.member_id))
        self.positions.update({partition: span.end for partition, span in entry.ranges.items()})
        self.rows += entry.rows
        self.files += len(entry.files)
        if entry.files:
            self._unpublished.append(entry)

    def _publish(self, entry: Entry) -> None:
        # A file that is in neither place was published before and removed by its reader's owner.
        for staged, published in entry.files:
            self._storage.publish(staged, published)
            self._touched.update(_parents(published))
        if "/" in entry.stage and self._storage.read(f"{entry.stage.rpartition('/')[0]}/{_SIGN}") is None:
            self._check_published(entry)
        self.discard(entry.stage)

    def _check_published(self, entry: Entry) -> None:
        """The folder of an entry's staged files is not there: all of them must be published."""
        for _, published in entry.files:
            parent, _, name = published.rpartition("/")
            if name not in self._storage.children(parent or "."):
                place = entry.stage.rpartition("/")[0]
                raise PipelineError(
                    f"{self._storage.uri}/{published} is committed, but neither there nor in {place}, which is missing",
                    field="path",
                    fix=f"Bring {place} (relative to the path) back, or make it with a file {_SIGN} to go on without",
                )

    def check_group(self, group: str) -> None:
        """PipelineError if the log is another group's."""
        if self.group is not None and self.group != group:
            raise PipelineError(
                f"{self._storage.uri} holds the results of group {self.group!r}, not of {group!r}",
                field="path",
                fix="Use one path per group, or the same group name as before",
            )

    def _checkpoint(self) -> None:
        """Every entry up to here is published: the renames are made durable before the checkpoint may say so."""
        for parent in sorted(self._touched | {"."}):
            with contextlib.suppress(FileNotFoundError):
                self._storage.sync(parent)
        self._touched.clear()
        document = {
            "format": FORMAT,
            "version": self.version,
            "group": self.group,
            "positions": _nest(self.positions),
            "claimants": _nest(self.claimants),
            "rows": self.rows,
            "files": self.files,
        }
        self._storage.create(f"{CHECKPOINTS}/{_numbered(self.version)}", _compact(document))
        self._storage.replace(OLD_CHECKPOINT, _MARK)
        self._checkpointed = self.version
        self._trim()

    def _trim(self) -> None:
        """Remove the entries that the second newest checkpoint covers, and the checkpoints before that one."""
        versions = self._checkpoints()
        for version in versions[:-2]:
            self._storage.remove(f"{CHECKPOINTS}/{_numbered(version)}")
        last = self._removable(versions)
        for name in self._storage.children(LOG):
            if 0 <= _version(name) <= last:
                self._storage.remove(f"{LOG}/{name}")

    def _checkpoints(self) -> list[int]:
        return sorted(version for version in map(_version, self._storage.children(CHECKPOINTS)) if version >= 0)

    @staticmethod
    def _removable(checkpoints: Sequence[int]) -> int:
        """The last version whose entry may have been removed."""
        return checkpoints[-2] if len(checkpoints) > 1 else 0

    def _restore(self) -> None:
        """The state of the newest checkpoint, if there is one; what it covers is published."""
        while True:
            versions = self._checkpoints()
            name = f"{CHECKPOINTS}/{_numbered(versions[-1])}" if versions else OLD_CHECKPOINT
            data = self._storage.read(name)
            # Newer ones may have been made since the look, and this one removed.
            if self._checkpoints()[-1:] == versions[-1:]:
                break
        if data is None:
            return
        try:
            document = json.loads(data)
            self.version, self.group, self.rows = document["version"], document["group"], document["rows"]
            self.files = document.get("files", 1)
            self._checkpointed = self.version
            self.positions = _flatten(document["positions"])
            self.claimants = _flatten(document["claimants"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PipelineError(f"{name} is damaged: {error!r}", field="path") from None
        self._unpublished.clear()

    def _sweep(self) -> None:
        """Remove stages that can never count: some partition has moved past the stage's start."""
        for place in {self._staging, self._storage.beside, STAGING} - {""}:
            names = self._storage.children(place)
            for name in {name.removesuffix(".json") for name in names if name[0] not in "._"}:
                data = self._storage.read(f"{place}/{name}.json")
                # A folder is made after its intent: without one it was discarded while a task was still writing.
                if data is None or self._is_dead(data):
                    self.discard(f"{place}/{name}")

    def _is_dead(self, intent: bytes) -> bool:
        try:
            ranges = _flatten(json.loads(intent))
        except ValueError:
            return False
        return any(self.positions.get(partition, start) > start for partition, (start, _) in ranges.items())


def folder(stage: str) -> str:
    """Where a stage's files are, relative to the root; entries of old versions name the stage without its folder."""
    return stage if "/" in stage else f"{STAGING}/{stage}"


def _name(version: int) -> str:
    return f"{LOG}/{_numbered(version)}"


def _numbered(version: int) -> str:
    return f"{version:020}.json"


def _version(name: str) -> int:
    """The version in a file's name; -1 for other files, as one that is being written."""
    number = name.removesuffix(".json")
    return int(number) if number != name and number.isdecimal() else -1


def _parents(name: str) -> set[str]:
    parts = name.split("/")[:-1]
    return {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}


def _compact(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _published(name: str, version: int, index: int) -> str:
    """`<partition folders>/part-<version>-<index><suffixes>`: unique, and in commit order when sorted."""
    parent, slash, last = name.rpartition("/")
    suffix = last[last.index(".") :] if "." in last else ""
    return f"{parent}{slash}part-{version:010}-{index:05}{suffix}"


def _nest(flat: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for (topic, partition), value in sorted(flat.items(), key=lambda item: item[0]):
        nested.setdefault(topic, {})[str(partition)] = value
    return nested


def _flatten(nested: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic, int(number)): value for topic, by in nested.items() for number, value in by.items()}


def _now() -> int:
    return time.time_ns() // 1_000_000
