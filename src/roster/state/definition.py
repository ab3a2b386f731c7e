"""What the entries of a store mean, as JSON beside it: for tools that have the store but not the pipeline."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from roster._files import write_atomically
from roster.state.aggregate import Layout, cut, result_of
from roster.state.event_time import read_time
from roster.state.keys import decode_keys, encode_keys, is_text
from roster.state.sessions import ENDS_KEY
from roster.state.store import StateError
from roster.state.windows import START

FILE = "definition.json"


@dataclass(frozen=True)
class Definition:
    """Columns of the keys, and of the values: None for the time at which a key came first.

    has_variables: the entries are those of a processor's variables, of which the store has a list of its own.
    """

    keys: pa.Schema
    layout: Layout | None
    has_variables: bool = False

    def encode(self) -> bytes:
        """Return it as JSON."""
        document: dict[str, Any] = {"keys": base64.b64encode(self.keys.serialize().to_pybytes()).decode()}
        if self.has_variables:
            document["variables"] = True
        elif self.layout is not None:
            document["aggregates"] = list(self.layout.aggregates)
            document["row"] = self.layout.row.descr
            document["sessions"] = self.layout.sessions
            if self.layout.kinds:
                kinds = pa.schema(self.layout.kinds.items())
                document["kinds"] = base64.b64encode(kinds.serialize().to_pybytes()).decode()
        return json.dumps(document).encode()

    @property
    def fingerprint(self) -> str:
        """Text that differs between definitions, the same in all releases of Arrow."""
        layout = self.layout
        parts = [str(self.keys.remove_metadata()), str(self.has_variables)]
        if layout is not None:
            parts += [str(list(layout.aggregates)), str(layout.row.descr), str(layout.sessions)]
            parts += [f"{name} {kind}" for name, kind in layout.kinds.items()]
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]


def write_definition(directory: Path, data: bytes) -> None:
    """Write what `Definition.encode` returned into a store's directory, unless it is there; for the store's writer."""
    path = directory / FILE
    if not path.exists() or path.read_bytes() != data:
        write_atomically(path, data)


class Entries:
    """Reads keys and values by the JSON of a `Definition`; without one they are hexadecimal."""

    def __init__(self, document: dict[str, Any] | None) -> None:
        self._keys: pa.Schema | None = None
        self._row: np.dtype[Any] | None = None
        self._names: list[str] = []
        self.variable_keys: pa.Schema | None = None
        """Columns of the keys of a store with variables, of which the store has a list; None for others."""
        self._kinds: dict[str, pa.DataType] = {}
        self._has_sessions = False
        if document and document.get("variables"):
            self.variable_keys = _schema(document["keys"])
        elif document:
            self._keys = _schema(document["keys"])
            if "kinds" in document:
                self._kinds = {each.name: each.type for each in _schema(document["kinds"])}
            self._names = document.get("aggregates", [])
            self._row = np.dtype([(name, kind) for name, kind in document["row"]]) if "row" in document else None
            self._has_sessions = bool(document.get("sessions"))

    @classmethod
    def of_definition(cls, definition: Definition) -> Entries:
        """Return what reads the entries of stores that are so defined."""
        return cls(json.loads(definition.encode()))

    @classmethod
    def of(cls, store: Path) -> Entries:
        """Return what the directory of a store says of its entries."""
        path = store / FILE
        try:
            return cls(json.loads(path.read_bytes()) if path.exists() else None)
        except (ValueError, KeyError, TypeError, pa.ArrowInvalid) as error:
            raise StateError(f"{path}: damaged ({error}); remove it to see entries as hexadecimal") from error

    def key_of(self, texts: Sequence[str]) -> bytes:
        """Return a key's bytes from the texts of its columns. Raises StateError if they do not fit."""
        keys = self.variable_keys if self._keys is None else self._keys
        if keys is None:
            return bytes.fromhex(texts[0])
        if len(texts) != len(keys):
            raise StateError(f"a key has {len(keys)} columns: {', '.join(keys.names)}")
        (key,) = encode_keys(pa.table(parsed(texts, keys), keys.names), keys.names).to_pylist()
        return bytes(key)

    def rows(self, entries: Sequence[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
        """Return entries as rows of their columns; what a store notes for itself is left out."""
        plain = [entry for entry in entries if entry[0] < ENDS_KEY]
        if self._keys is None:
            return [{"key": key.hex(), "value": value.hex()} for key, value in plain]
        keys = pa.table(decode_keys([key for key, _ in plain], self._keys.types), self._keys.names).to_pylist()
        return [row | value for row, (_, data) in zip(keys, plain, strict=True) for value in self._values(data)]

    def schema(self) -> pa.Schema:
        """Return the columns of rows, with their types."""
        if self._keys is None:
            return pa.schema([("key", pa.string()), ("value", pa.string())])
        moment = pa.timestamp("us", "UTC")
        if self._row is None:
            own = [pa.field("first", moment)]
        else:
            own = [pa.field(name, moment) for name in ("first", "last") if self._has_sessions]
            own += [
                pa.field(name, self._kinds.get(name) or pa.from_numpy_dtype(self._row[name])) for name in self._names
            ]
        return pa.schema([*self._keys.remove_metadata(), *own])

    def table(self, entries: Sequence[tuple[bytes, bytes]]) -> pa.Table:
        """Return the same rows as an Arrow table."""
        return pa.Table.from_pylist(self.rows(entries), self.schema())

    def _values(self, value: bytes) -> list[dict[str, Any]]:
        if self._row is None:
            return [{"first": _moment(read_time(value))}]
        if texts := [name for name, kind in self._kinds.items() if is_text(kind)]:
            (row,) = np.frombuffer(value[: self._row.itemsize], self._row)
            found = dict(zip(texts, cut(value, row, texts), strict=True))
            return [self._aggregates(row) | {name: self._result(name, found[name], row) for name in texts}]
        rows = np.frombuffer(value, self._row)
        return [self._times(row) | self._aggregates(row) for row in rows]

    def _times(self, row: Any) -> dict[str, Any]:
        if not self._has_sessions:
            return {}
        return {"first": _moment(row[START].item()), "last": _moment(row["last"].item())}

    def _aggregates(self, row: Any) -> dict[str, Any]:
        return {name: self._result(name, row[name].item(), row) for name in self._names}

    def _result(self, name: str, value: Any, row: Any) -> Any:
        if not row[f"has {name}"]:
            return None
        if name not in self._kinds or (isinstance(value, int) and is_text(self._kinds[name])):
            return value
        return result_of(pa.array([value]), self._kinds[name])[0].as_py()


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def parsed(texts: Sequence[str], columns: pa.Schema) -> list[Any]:
    """Return an array of one value for each text, of the first columns' types. Raises StateError if they do not fit."""
    try:
        return [pa.array([text], pa.string()).cast(field.type) for text, field in zip(texts, columns, strict=False)]
    except (pa.ArrowException, UnicodeError) as error:
        raise StateError(f"the key does not fit its columns {columns.names}: {error}") from None


def json_text(document: Any) -> str:
    """Return rows as JSON: times in ISO 8601, bytes as text, numbers that are not finite as null."""
    return json.dumps(_plain(document), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if value is None or isinstance(value, (str, int)):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _moment(time: int) -> Any:
    return pa.scalar(time, pa.int64()).cast(pa.timestamp("us", "UTC")).as_py()
