"""What the entries of a store mean, as JSON beside it: for tools that have the store but not the pipeline."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from roster._files import write_atomically
from roster._json import loads
from roster.state.aggregate import Layout
from roster.state.entries import Entries
from roster.state.join_entries import JoinEntries
from roster.state.plain_entries import HexEntries, PlainEntries
from roster.state.processor.entries import VariableEntries
from roster.state.store import StateError

FILE = "definition.json"

_ENTRIES = "entries by task"
"""How applications give each other entries: another text wherever one release would not understand another."""


@dataclass(frozen=True)
class Definition:
    """Columns of the keys, and of the values: None for the time at which a key came first.

    has_variables: the entries are those of a processor's variables, of which the store has a list of its own. sides:
    they are rows of two streams with these columns.
    """

    keys: pa.Schema
    layout: Layout | None
    has_variables: bool = False
    sides: tuple[pa.Schema, pa.Schema] | None = None

    def encode(self) -> bytes:
        """Return it as JSON."""
        document: dict[str, Any] = {"keys": _text(self.keys)}
        if self.has_variables:
            document["variables"] = True
        elif self.sides is not None:
            document["sides"] = list(map(_text, self.sides))
        elif self.layout is not None:
            document["aggregates"] = list(self.layout.aggregates)
            document["row"] = self.layout.row.descr
            document["averages"] = self.layout.averages
            document["sessions"] = self.layout.sessions
            if self.layout.kinds:
                document["kinds"] = _text(pa.schema(self.layout.kinds.items()))
        return json.dumps(document).encode()

    @property
    def fingerprint(self) -> str:
        """Text that differs between definitions, the same in all releases of Arrow."""
        layout = self.layout
        parts = [_ENTRIES, str(self.keys.remove_metadata()), str(self.has_variables)]
        parts += [str(side.remove_metadata()) for side in self.sides or ()]
        if layout is not None:
            parts += [str(list(layout.aggregates)), str(layout.row.descr), str(layout.sessions)]
            parts += [f"{name} {kind}" for name, kind in layout.kinds.items()]
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]


def write_definition(directory: Path, data: bytes) -> None:
    """Write what `Definition.encode` returned into a store's directory, unless it is there; for the store's writer."""
    path = directory / FILE
    if not path.exists() or path.read_bytes() != data:
        write_atomically(path, data)


def entries_of(definition: Definition) -> Entries:
    """Return what reads the entries of stores that are so defined."""
    return _entries(json.loads(definition.encode()))


def entries_at(store: Path) -> Entries:
    """Return what reads the entries of the store in a directory, by what this says of them.

    Raises StateError if that is damaged; without it entries are hexadecimal.
    """
    path = store / FILE
    try:
        return _entries(loads(path.read_bytes())) if path.exists() else HexEntries()
    except (ValueError, LookupError, TypeError, AttributeError, pa.ArrowException, OSError) as error:
        raise StateError(f"{path}: damaged ({error}); remove it to see entries as hexadecimal") from error


def _entries(document: dict[str, Any]) -> Entries:
    keys = _schema(document["keys"])
    if document.get("variables"):
        return VariableEntries(keys)
    if "sides" in document:
        return JoinEntries(keys, list(map(_schema, document["sides"])))
    return PlainEntries(keys, document)


def _text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def json_text(document: Any) -> str:
    """Return rows as JSON: times in ISO 8601, bytes as text, numbers that are not finite as null."""
    return json.dumps(_plain(document), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_plain_name(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if value is None or isinstance(value, (str, int)):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _plain_name(name: Any) -> Any:
    """Return the key of a map: text, or what becomes text in JSON."""
    return name if isinstance(name, (str, int)) else str(_plain(name))
