"""`manifest.json` of an export: what it holds. It is written last, so an export without it is none."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from roster._json import loads
from roster.model import TopicPartition
from roster.model.topics import offsets_by_topic
from roster.state.definition import Definition, Noted
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
            "stores": {name: _store(each) for name, each in self.stores.items()},
            "repartition": {
                topic: {"partitions": count, "partitioner": "murmur2", "files": [each._asdict() for each in files]}
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
            {name: _decoded(each) for name, each in document["stores"].items()},
            {
                TopicPartition(topic, int(number)): offset
                for topic, of in document["offsets"].items()
                for number, offset in of.items()
            },
            {
                topic: (each["partitions"], tuple(Written(**file) for file in each["files"]))
                for topic, each in document["repartition"].items()
            },
        )

    @classmethod
    def read(cls, folder: Folder) -> Manifest:
        """Return the manifest of an export. Raises FolderError if there is none, or none that can be read."""
        if folder.size(MANIFEST) is None:
            raise FolderError(f"{folder.shown} has no {MANIFEST}: it is no export, or one that did not end")
        try:
            return cls.decode(folder.read(MANIFEST))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise FolderError(f"{folder.shown}: {MANIFEST} cannot be read ({error})") from None


def _store(store: SavedStore) -> dict[str, Any]:
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


def _task(store: SavedStore, number: int) -> dict[str, Any]:
    marks = {key[1:].decode(): value for key, value in store.marks.get(number, {}).items()}
    times = {name: _moment(read_time(value)) for name, value in marks.items() if name.endswith(_TIME)}
    noted = store.notes.get(number)
    own: dict[str, Any] = {}
    if noted is not None:
        own = {"inputs": dict(noted.inputs)}
        own |= {"releases": list(noted.releases)} if noted.releases else {}
        own |= {"definition": noted.definition.document} if noted.definition != store.definition else {}
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


def _decoded(document: Mapping[str, Any]) -> SavedStore:
    parts, tasks = document["parts"], {int(number): each for number, each in document["tasks"].items()}
    notes = {
        number: Noted(
            Definition(each.get("definition", document["definition"])), each["inputs"], tuple(each.get("releases", ()))
        )
        for number, each in tasks.items()
        if "inputs" in each
    }
    marks = {
        number: {
            b"\xff" + name.encode(): base64.b64decode(value, validate=True) for name, value in each["marks"].items()
        }
        for number, each in tasks.items()
    }
    return SavedStore(
        document["changelog"],
        document["partitions"],
        notes,
        {part: each["columns"] for part, each in parts.items()},
        {part: tuple(Written(**file) for file in each["files"]) for part, each in parts.items()},
        marks,
        {number: each["changelog_end"] for number, each in tasks.items()},
    )
