"""`manifest.json` of an export: what it holds. It is written last, so an export without it is unfinished.

Of several exports each is in a folder named after its moment, such as 20261124T030000Z.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from roster._json import JsonObject, loads
from roster.model import TopicPartition
from roster.model.topics import offsets_by_topic
from roster.state.definition import Definition, Document, Noted
from roster.state.event_time import read_time
from roster.state.saved.folder import Folder, FolderError, Written

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of an export; changes when one release cannot read another's."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = " time"
"""End of the names of marks that are stream times."""


@dataclass(frozen=True)
class SavedStore:
    """A store: its changelog topic, what its tasks' entries mean, and the files of each part.

    notes: definition and input offsets by partition; a partition whose task has had no batch has none. Definitions may
    differ while a release changes them. columns: types of each part's columns as text.
    """

    changelog: str
    partitions: int
    notes: Mapping[int, Noted]
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    files: Mapping[str, tuple[Written, ...]] = field(default_factory=dict)
    marks: Mapping[int, Mapping[bytes, bytes]] = field(default_factory=dict)
    """Entries of the store's own, by partition; without the definition."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """Offset at which the changelog was cut, by partition."""

    @property
    def definition(self) -> Definition | None:
        """The definition of most releases; None if no task has had a batch."""
        newest = max(self.notes.values(), key=lambda noted: len(noted.releases), default=None)
        return None if newest is None else newest.definition


@dataclass(frozen=True)
class Manifest:
    """An export. at: when it was cut, in ISO 8601. offsets: of the group, at the cut.

    on_their_way: each repartition topic with its number of partitions, and the files of records between sub-topologies.
    """

    group: str
    cluster: str | None
    at: str
    stores: Mapping[str, SavedStore]
    offsets: Mapping[TopicPartition, int]
    on_their_way: Mapping[str, tuple[int, tuple[Written, ...]]] = field(default_factory=dict)

    @property
    def moment(self) -> datetime:
        """When it was cut: it holds nothing that the group did later."""
        return datetime.fromisoformat(self.at)

    @property
    def written(self) -> list[Written]:
        """All files."""
        of_stores = [file for store in self.stores.values() for files in store.files.values() for file in files]
        return [*of_stores, *(file for _, files in self.on_their_way.values() for file in files)]

    def encode(self) -> bytes:
        """Return it as JSON."""
        document = {
            "format": FORMAT,
            "group": self.group,
            "cluster": self.cluster,
            "exported_at": self.at,
            "offsets": offsets_by_topic(self.offsets),
            "stores": {name: _store(store) for name, store in self.stores.items()},
            "repartition": {
                topic: {"partitions": count, "partitioner": "murmur2", "files": [file._asdict() for file in files]}
                for topic, (count, files) in self.on_their_way.items()
            },
        }
        return json.dumps(document, indent=1, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read the bytes of `encode`. Raises ValueError, LookupError, TypeError or AttributeError for others."""
        document = loads(data)
        if document["format"] != FORMAT:
            raise ValueError(f"it has format {document['format']!r}, this release reads format {FORMAT}")
        datetime.fromisoformat(document["exported_at"])
        return cls(
            document["group"],
            document["cluster"],
            document["exported_at"],
            {name: _decoded(store) for name, store in document["stores"].items()},
            {
                TopicPartition(topic, int(number)): offset
                for topic, offsets in document["offsets"].items()
                for number, offset in offsets.items()
            },
            {
                topic: (entry["partitions"], tuple(Written(**file) for file in entry["files"]))
                for topic, entry in document["repartition"].items()
            },
        )

    @classmethod
    def read(cls, folder: Folder) -> Manifest:
        """Return the manifest of an export. Raises FolderError if there is none, or none that can be read."""
        if folder.size(MANIFEST) is None:
            raise FolderError(f"{folder.shown} has no {MANIFEST}: not an export, or an unfinished one")
        try:
            return cls.decode(folder.read(MANIFEST))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise FolderError(f"{folder.shown}: {MANIFEST} cannot be read ({error})") from None


def _store(store: SavedStore) -> JsonObject:
    return {
        "changelog": store.changelog,
        "partitions": store.partitions,
        "definition": None if store.definition is None else store.definition.document,
        "parts": {
            part: {
                "columns": dict(columns),
                "rows": sum(file.rows for file in store.files[part]),
                "files": [file._asdict() for file in store.files[part]],
            }
            for part, columns in store.columns.items()
        },
        "tasks": {str(number): _task(store, number) for number in sorted(store.ends)},
    }


def _task(store: SavedStore, number: int) -> JsonObject:
    marks = {key[1:].decode(): value for key, value in store.marks.get(number, {}).items()}
    times = {name: _moment(read_time(value)) for name, value in marks.items() if name.endswith(_TIME)}
    record = store.notes.get(number)
    own: JsonObject = {}
    if record is not None:
        own = {"inputs": dict(record.inputs)}
        own |= {"releases": list(record.releases)} if record.releases else {}
        own |= {"definition": record.definition.document} if record.definition != store.definition else {}
    return {
        "changelog_end": store.ends[number],
        **own,
        "times": times,
        "marks": {name: base64.b64encode(value).decode() for name, value in marks.items()},
    }


def _moment(time: int) -> str | None:
    """Return a stream time in ISO 8601, None for one that a calendar has not."""
    try:
        return (_EPOCH + timedelta(microseconds=time)).isoformat()
    except OverflowError:
        return None


def _decoded(document: Document) -> SavedStore:
    parts, tasks = document["parts"], {int(number): task for number, task in document["tasks"].items()}
    notes = {
        number: Noted(
            Definition(task.get("definition", document["definition"])), task["inputs"], tuple(task.get("releases", ()))
        )
        for number, task in tasks.items()
        if "inputs" in task
    }
    marks = {
        number: {
            b"\xff" + name.encode(): base64.b64decode(value, validate=True) for name, value in task["marks"].items()
        }
        for number, task in tasks.items()
    }
    return SavedStore(
        document["changelog"],
        document["partitions"],
        notes,
        {part: saved_part["columns"] for part, saved_part in parts.items()},
        {part: tuple(Written(**file) for file in saved_part["files"]) for part, saved_part in parts.items()},
        marks,
        {number: task["changelog_end"] for number, task in tasks.items()},
    )


_NAME = re.compile(r"\d{8}T\d{6}Z")


def name_of(moment: datetime) -> str:
    """Return the name of a moment's folder; names sort by time."""
    return moment.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def last_before(folder: Folder, before: datetime | None = None) -> tuple[Folder, Manifest]:
    """Return the last export of a moment before `before`, None: the last. A folder may be an export itself.

    Raises FolderError if there is none.
    """
    if folder.size(MANIFEST) is not None:
        manifest = Manifest.read(folder)
        if before is not None and manifest.moment >= before:
            raise FolderError(f"{folder.shown} is of {manifest.at}, not before {before.isoformat()}")
        return folder, manifest
    moments = [name for name in folder.folders() if _NAME.fullmatch(name)]
    names = [name for name in moments if folder.size(f"{name}/{MANIFEST}") is not None]
    for name in reversed(names):
        # The moment of the state is a little later than that of the name.
        if before is None or name <= name_of(before):
            manifest = Manifest.read(folder.below(name))
            if before is None or manifest.moment < before:
                return folder.below(name), manifest
    if before is not None and names:
        raise FolderError(f"{folder.shown} has no export before {before.isoformat()}; the first is {names[0]}")
    raise FolderError(f"{folder.shown} has no {MANIFEST}: not an export, or an unfinished one")
