"""Ordered commit log that makes files exactly once: one entry per commit, with offset ranges and files.

Layout below a sink's root:

    _roster/log/00000000000000000007.json          one entry: ranges and files of a batch, or a claim of partitions
    _roster/checkpoints/00000000000000000032.json  state at a version, so that opening reads only the entries after it
    _roster/staging/<folder>.json                  ranges that a folder will commit, written before the folder
    _roster/staging/<folder>/….uncommitted         files that are not committed, which no reader takes by their names
    part-….parquet                                 published files

A commit is one entry, created only if its version is free; it names all partitions of the batch, so that the batch
counts whole or not at all. Its files are renamed out of the staging folder afterwards; opening the log completes the
renames of a writer that died. A writer is fenced if a partition's position is not where its range begins, or another
member has claimed the partition.

Entries up to the second newest checkpoint may be removed. The two newest checkpoints stay, none is ever overwritten,
and files of an entry are published before a checkpoint covers it. So a writer that was paused and creates an entry
whose version is free only because it was removed finds a second newest checkpoint at or past that version, and reads
the log again.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roster._clock import wall_ms
from roster._json import JsonObject, loads
from roster.model import TopicPartition
from roster.pipeline.batch import Owner, Range
from roster.pipeline.errors import PipelineError, SinkFencedError
from roster.sinks.storage import Storage

FOLDER = "_roster"
LOG = f"{FOLDER}/log"
STAGING = f"{FOLDER}/staging"
CHECKPOINTS = f"{FOLDER}/checkpoints"
FORMAT = 1
UNCOMMITTED = ".uncommitted"
"""End of the names of files that are not committed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of the log: a commit has `ranges`, and `files` unless it has no rows.

    A claim has `claims`, and `ranges` of what was done outside this log.
    """

    version: int
    owner: Owner
    claims: frozenset[TopicPartition] = frozenset()
    ranges: Mapping[TopicPartition, Range] = field(default_factory=dict)
    folder: str = ""
    files: Sequence[tuple[str, str]] = ()
    """Pairs of uncommitted and published name, relative to the root."""
    rows: int = 0
    time: int = 0
    """Wall-clock milliseconds since the epoch, for information."""

    def encode(self) -> bytes:
        """Return the entry as JSON."""
        document = {
            "format": FORMAT,
            "version": self.version,
            "group": self.owner.group,
            "generation": self.owner.generation,
            "member": self.owner.member_id,
            "claims": _nest(dict.fromkeys(self.claims)),
            "ranges": _nest({partition: list(span) for partition, span in self.ranges.items()}),
            "stage": self.folder,
            "files": [list(pair) for pair in self.files],
            "rows": self.rows,
            "time": self.time,
        }
        return _compact(document)

    @classmethod
    def decode(cls, data: bytes, name: str) -> Entry:
        """Parse what `encode` wrote. Raise PipelineError for anything else."""
        try:
            document = loads(data)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']} is newer than this Roster")
            return cls(
                version=document["version"],
                owner=Owner(document["group"], document["generation"], document["member"]),
                claims=frozenset(_flatten(document["claims"])),
                ranges={partition: Range(*span) for partition, span in _flatten(document["ranges"]).items()},
                folder=document["stage"],
                files=[(uncommitted, published) for uncommitted, published in document["files"]],
                rows=document["rows"],
                time=document["time"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PipelineError(f"{name} is not an entry of a commit log: {error}", field="path") from None


class CommitLog:
    """One writer's view of the log; safe beside other writers, not for several threads.

    Methods raise OSError if the storage fails, and PipelineError if the log is damaged.
    """

    def __init__(self, storage: Storage, *, checkpoint_every: int = 32) -> None:
        self._storage = storage
        self._checkpoint_every = checkpoint_every
        self.version = 0
        """Version of the last entry read; versions count from 1."""
        self.positions: dict[TopicPartition, int] = {}
        self.claimants: dict[TopicPartition, str] = {}
        self.group: str | None = None
        self.rows = 0
        self.files = 0
        """Number of committed files."""
        self._checkpointed = 0
        self._unpublished: list[Entry] = []
        self._touched: set[str] = set()

    def prepare(self) -> None:
        """Create a writer's folders."""
        for folder in (FOLDER, LOG, STAGING):
            self._storage.prepare(folder)

    def open(self) -> None:
        """Read the log, publish what writers that died had committed, remove folders that can never be committed."""
        self._restore()
        self.refresh()
        self.complete()
        self._sweep()

    def refresh(self) -> None:
        """Read the entries that other writers have added."""
        while True:
            base = self.version
            while (data := self._storage.read(_name(self.version + 1))) is not None:
                self._apply(Entry.decode(data, _name(self.version + 1)))
            # An entry at a version that was removed may be by a writer that was paused.
            if self._removable(self._checkpoints()) <= base:
                return
            self._restore()

    def complete(self) -> None:
        """Publish the files of the entries read that may not be published yet."""
        for entry in self._unpublished:
            self._publish(entry)
        self._unpublished.clear()

    def claim(
        self,
        partitions: Collection[TopicPartition],
        owner: Owner,
        committed: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, int]:
        """Claim partitions, so that their previous writers are fenced; return the positions of those that have one.

        A position behind the group's committed offset moves up to it: writers of this log commit here first, so a
        member with another sink has done the work in between.
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
            self._append(Entry(self.version + 1, owner, claims=claims, ranges=elsewhere, time=wall_ms()))
        # Publishes what the previous owner committed if it died before that.
        self.complete()
        self._sweep()
        return {p: self.positions[p] for p in partitions if p in self.positions}

    def new_folder(self, ranges: Mapping[TopicPartition, Range]) -> str:
        """Name a new folder for files that are not committed, relative to the root."""
        folder = f"{STAGING}/{uuid.uuid4().hex}"
        intent = _nest({partition: list(span) for partition, span in ranges.items()})
        self._storage.create(f"{folder}.json", json.dumps(intent).encode())
        return folder

    def discard(self, folder: str) -> None:
        """Remove a folder that is not committed."""
        self._storage.remove(folder)
        self._storage.remove(f"{folder}.json")

    def commit(
        self, owner: Owner, ranges: Mapping[TopicPartition, Range], folder: str, files: Sequence[str], rows: int
    ) -> Entry:
        """Commit a folder and publish its files. If another writer came first, remove it and raise SinkFencedError.

        files: paths in the folder that hold rows, relative to it. They are made durable first.
        """
        for name in files:
            self._storage.sync(f"{folder}/{name}")
        self.check_group(owner.group)
        while True:
            self._fence(owner, ranges, folder)
            version = self.version + 1
            pairs = [(f"{folder}/{name}", _published(name, version, index)) for index, name in enumerate(files)]
            entry = Entry(version, owner, ranges=ranges, folder=folder, files=pairs, rows=rows, time=wall_ms())
            if self._append(entry):
                break
        self.complete()
        if self.version - self._checkpointed >= self._checkpoint_every:
            self._checkpoint()
        return entry

    def _fence(self, owner: Owner, ranges: Mapping[TopicPartition, Range], folder: str) -> None:
        for partition, span in ranges.items():
            claimant = self.claimants.get(partition)
            position = self.positions.get(partition, span.start)
            if claimant == owner.member_id and position == span.start:
                continue
            self.discard(folder)
            why = (
                f"stands at {position}, not at {span.start}"
                if position != span.start
                else f"was claimed by {claimant or 'no member'}"
            )
            raise SinkFencedError(f"{partition} {why}; the batch's files were dropped", field=self._storage.uri)

    def _append(self, entry: Entry) -> bool:
        """Create the entry; if its version is taken, read the log to its end and return False."""
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
        # A file in neither place was published before and removed by the user.
        for uncommitted, published in entry.files:
            self._storage.publish(uncommitted, published)
            self._touched.update(_parents(published))
        self.discard(entry.folder)

    def check_group(self, group: str) -> None:
        """Raise PipelineError if the log is another group's."""
        if self.group is not None and self.group != group:
            problem = f"{self._storage.uri} holds the results of group {self.group!r}, not of {group!r}"
            raise PipelineError(problem, field="path", fix="Use one path per group, or the same group name as before")

    def _checkpoint(self) -> None:
        """Write a checkpoint of the entries so far, all published, once their renames are durable."""
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
        self._checkpointed = self.version
        self._trim()

    def _trim(self) -> None:
        """Remove the entries that the second newest checkpoint covers, and the checkpoints before it."""
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
        """Return the last version whose entry may have been removed."""
        return checkpoints[-2] if len(checkpoints) > 1 else 0

    def _restore(self) -> None:
        """Load the newest checkpoint, if there is one; what it covers is published."""
        data = None
        while data is None:  # another writer may have written newer ones meanwhile, and removed this one
            versions = self._checkpoints()
            if not versions:
                self._check_beginning()
                return
            name = f"{CHECKPOINTS}/{_numbered(versions[-1])}"
            data = self._storage.read(name)
        try:
            document = loads(data)
            self.version, self.group, self.rows = document["version"], document["group"], document["rows"]
            self.files = document["files"]
            self._checkpointed = self.version
            self.positions = _flatten(document["positions"])
            self.claimants = _flatten(document["claimants"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PipelineError(f"{name} is damaged: {error!r}", field="path") from None
        self._unpublished.clear()

    def _check_beginning(self) -> None:
        """Raise PipelineError if entries were removed although no checkpoint covers them."""
        versions = [version for version in map(_version, self._storage.children(LOG)) if version >= 0]
        # Another writer may have written checkpoints meanwhile, and removed the entries that they cover.
        if versions and min(versions) > 1 and not self._checkpoints():
            problem = f"{self._storage.uri}/{CHECKPOINTS} is missing, and the log begins at entry {min(versions)}"
            fix = "Bring the folder back, or name another path and reset the group"
            raise PipelineError(problem, field="path", fix=fix)

    def _sweep(self) -> None:
        """Remove folders that can never be committed: the position of a partition is past the folder's start."""
        names = self._storage.children(STAGING)
        for name in {name.removesuffix(".json") for name in names if name[0] not in "._"}:
            data = self._storage.read(f"{STAGING}/{name}.json")
            # The intent is written first: a folder without one was discarded while a task was writing.
            if data is None or self._is_dead(data):
                self.discard(f"{STAGING}/{name}")

    def _is_dead(self, intent: bytes) -> bool:
        try:
            ranges = _flatten(loads(intent))
            return any(self.positions.get(partition, start) > start for partition, (start, _) in ranges.items())
        except (ValueError, KeyError, TypeError, AttributeError):
            return False


def _name(version: int) -> str:
    return f"{LOG}/{_numbered(version)}"


def _numbered(version: int) -> str:
    return f"{version:020}.json"


def _version(name: str) -> int:
    """Return the version in a file's name; -1 for other files, such as one being written."""
    number = name.removesuffix(".json")
    return int(number) if number != name and number.isdecimal() else -1


def _parents(name: str) -> set[str]:
    parts = name.split("/")[:-1]
    return {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}


def _compact(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _published(name: str, version: int, index: int) -> str:
    """Return `<partition folders>/part-<version>-<index><suffixes>`: unique, and sorted in commit order."""
    parent, slash, last = name.removesuffix(UNCOMMITTED).rpartition("/")
    suffix = last[last.index(".") :] if "." in last else ""
    return f"{parent}{slash}part-{version:010}-{index:05}{suffix}"


def _nest(flat: Mapping[TopicPartition, object]) -> dict[str, dict[str, object]]:
    nested: dict[str, dict[str, object]] = {}
    for (topic, partition), value in sorted(flat.items(), key=lambda item: item[0]):
        nested.setdefault(topic, {})[str(partition)] = value
    return nested


def _flatten(nested: Mapping[str, JsonObject]) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic, int(number)): value for topic, by in nested.items() for number, value in by.items()}
