"""The definition of a store's entries, as a record in its changelog.

    {"format": 1, "definition": {…}, "inputs": {topic: next offset}, "releases": [id, …]}

It is the last record of each batch's transaction; see `Definition` for its fields. A pipeline compares it with its own
definition before it reads or writes an entry, and tools can read a store without its pipeline.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from roster._json import JsonObject, loads
from roster.state.aggregate import Layout
from roster.state.aggregate_functions import Aggregate, Kind
from roster.state.entries import Entries
from roster.state.join_entries import SIDES, JoinEntries
from roster.state.plain_entries import HexEntries, PlainEntries
from roster.state.processor.entries import VariableEntries
from roster.state.store import Readable, StateError
from roster.state.type_texts import text_of, type_of

STATE_KEY = b"\xff~state"
"""Key of what the entries mean and of the input offsets that belong to them, in the store and in its changelog."""

FORMAT = 1
"""Version of everything stored; changes when one release cannot read another's format."""

_MOST_RELEASES = 16
"""Most releases that a record names."""


class OtherDefinitionError(StateError):
    """The entries were written with another definition, or by another release; nothing was changed.

    fix: the way out, "" for the general one.
    """

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__(problem)
        self.fix = fix


Document: TypeAlias = Mapping[str, Any]
"""A definition as JSON, or a part of it."""
Migrate: TypeAlias = Mapping[str, Any] | Callable[[pa.Table], pa.Table] | None
"""How entries come from an earlier definition's entries; see `Definition`."""


@dataclass(frozen=True)
class Definition:
    """The meaning of a store's entries, as JSON values; the order of columns and aggregates counts.

    operator   what keeps them, with the arguments by which they are kept: window, session, within, time_mode …
    keys       {column: type} of the keys
    aggregates {name: what is kept and its type}; row, kinds: the columns of a value
    sides      {left, right: {column: type}} of a join's rows
    variables  true for a processor, whose store has a list of its variables
    subtopology, stores   the number of its sub-topology, and all stores there in the order of a row's way

    migrate: of a pipeline's own definition: {result: the earlier result that it comes from, None: it begins anew}, or a
    function of the table of all rows; of a join {side: function}, of a processor {variable: function}; None if
    nothing is said.
    """

    document: Document
    migrate: Migrate = field(default=None, compare=False)
    registry: bytes = field(default=b"", compare=False)
    """The list of a processor's variables, of a pipeline's own definition."""

    @classmethod
    def of(
        cls,
        kept: Document,
        keys: pa.Schema,
        layout: Layout | None,
        *,
        has_variables: bool = False,
        sides: tuple[pa.Schema, pa.Schema] | None = None,
        migrate: Migrate = None,
    ) -> Definition:
        """Return the definition for an operator. layout: of the values, None for times of first rows, or no values."""
        document: JsonObject = {**kept, "keys": _columns(keys)}
        if has_variables:
            document["variables"] = True
        elif sides is not None:
            document["sides"] = dict(zip(SIDES, map(_columns, sides), strict=True))
        elif layout is not None:
            document["aggregates"] = layout.described()
            document["row"] = [list(column) for column in layout.row.descr]
            document["kinds"] = {name: str(kind) for name, kind in layout.kinds.items()}
            if layout.nested:
                document["nested"] = {name: text_of(kind) for name, kind in layout.nested.items()}
        return cls(document, migrate)

    @property
    def functions(self) -> dict[str, Callable[[pa.Table], pa.Table]]:
        """The functions of `migrate` by what they are for: a side, or a variable."""
        return (
            {}
            if callable(self.migrate)
            else {n: function for n, function in (self.migrate or {}).items() if callable(function)}
        )

    def described(self) -> JsonObject:
        """Return it for other programs, with the variables of a processor."""
        return {**self.document, "variables": json.loads(self.registry)} if self.registry else dict(self.document)

    @classmethod
    def from_described(cls, document: Document) -> Definition:
        """Read what `described` returns."""
        variables = document.get("variables")
        if not isinstance(variables, Mapping):
            return cls(dict(document))
        return cls({**document, "variables": True}, registry=json.dumps(variables).encode())

    def among(self, subtopology: int, stores: Iterable[str]) -> Definition:
        """Return the definition with the store's place in a pipeline."""
        return replace(self, document={**self.document, "subtopology": subtopology, "stores": list(stores)})

    @property
    def keys(self) -> pa.Schema:
        """Columns of the keys."""
        return _schema(self.document["keys"])

    @property
    def sides(self) -> dict[str, pa.Schema] | None:
        """Columns of the rows of both sides of a join, None for other stores."""
        return {side: _schema(self.document["sides"][side]) for side in SIDES} if "sides" in self.document else None

    @property
    def has_variables(self) -> bool:
        """True if the store has a list of variables."""
        return bool(self.document.get("variables"))

    @property
    def is_ordered(self) -> bool:
        """True if the operator reads ranges of keys: what passes with time, rows of joins and of maps, timers."""
        if self.has_variables:
            kinds = {variable["kind"] for variable in json.loads(self.registry or b"{}").values()}
            return self.document.get("time_mode") != "None" or not kinds or "map" in kinds
        is_by_key = self.document["operator"] in {"aggregate", "deduplicate"}
        return not is_by_key or not self.document.keys().isdisjoint(("window", "session", "time"))

    @property
    def layout(self) -> Layout:
        """The layout of values, for a definition with aggregates."""
        aggregates = {
            name: Aggregate(Kind(result["kind"]), result["column"], arguments=_hashable(result.get("arguments", ())))
            for name, result in self.document["aggregates"].items()
        }
        return Layout(
            aggregates,
            np.dtype([(name, kind) for name, kind in self.document["row"]]),
            {name: type_of(kind) for name, kind in self.document["kinds"].items()},
            dict(part for name, aggregate in aggregates.items() for part in aggregate.stored(name)),
            nested={name: type_of(kind) for name, kind in self.document.get("nested", {}).items()},
        )

    @property
    def fingerprint(self) -> str:
        """Text that differs between definitions, the same in all releases of Arrow."""
        return _digest([FORMAT, {name: value for name, value in self.document.items() if name != "stores"}])

    @property
    def release(self) -> str:
        """Text that differs between definitions, and between those that say another `migrate`."""
        own, migrate = self.fingerprint, self.migrate
        if migrate is None:
            return own
        if callable(migrate):
            return _digest([own, function_name(migrate)])
        return _digest(
            [
                own,
                sorted(
                    (name, function_name(function) if callable(function) else function)
                    for name, function in migrate.items()
                ),
            ]
        )

    def entries(self) -> Entries:
        """Return the reader of the entries."""
        if self.has_variables:
            return VariableEntries(self.keys)
        if (sides := self.sides) is not None:
            return JoinEntries(self.keys, list(sides.values()))
        layout = self.layout if "aggregates" in self.document else None
        return PlainEntries(self.keys, layout, has_sessions="session" in self.document)


@dataclass(frozen=True)
class Noted:
    """A store's definition record.

    inputs: next offset of each input topic. releases: those that changed the definition in place, the present one last.
    """

    definition: Definition
    inputs: Mapping[str, int]
    releases: Sequence[str] = ()

    def encode(self) -> bytes:
        """Return it as JSON."""
        document = {"format": FORMAT, "definition": self.definition.document, "inputs": dict(self.inputs)}
        if self.releases:
            document["releases"] = list(self.releases)
        return json.dumps(document, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: bytes) -> Noted:
        """Decode the bytes of `encode`. Raises OtherDefinitionError for those of another release."""
        try:
            document = loads(data)
            version = document["format"]
            if version == FORMAT:
                definition, inputs = Definition(dict(document["definition"])), dict(document["inputs"])
                return cls(definition, inputs, tuple(map(str, document.get("releases", ()))))
        except DAMAGED as error:
            raise damaged(error) from None
        raise OtherDefinitionError(f"its state was written in format {version!r}, this release has format {FORMAT}")

    def followed_by(self, definition: Definition, inputs: Mapping[str, int]) -> Noted:
        """Return the record after a batch under a definition, which may be another one than before."""
        if self.definition.document == definition.document or self.definition.fingerprint == definition.fingerprint:
            return Noted(definition, inputs, self.releases)
        before = self.releases or [self.definition.release]
        return Noted(definition, inputs, [*before, definition.release][-_MOST_RELEASES:])

    @classmethod
    def of(cls, store: Readable) -> Noted | None:
        """Return a store's definition, None for an empty store. Raises OtherDefinitionError if it cannot be read."""
        (data,) = store.multi_get([STATE_KEY])
        if data is not None:
            return cls.decode(data)
        if store.scan(limit=1):
            raise OtherDefinitionError(UNSAID)
        return None


def _digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:32]


UNSAID = "its state does not say what it means: another program or release wrote it"


def entries_of(store: Readable) -> Entries:
    """Return the reader of a store's entries; in hexadecimal if the store has no definition.

    Raises OtherDefinitionError for a store of another release.
    """
    (data,) = store.multi_get([STATE_KEY])
    if data is None:
        return HexEntries()
    try:
        return Noted.decode(data).definition.entries()
    except DAMAGED as error:
        raise damaged(error) from None


DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, pa.ArrowException)
"""Errors of reading JSON that no release writes."""


def damaged(error: BaseException) -> OtherDefinitionError:
    """Return the error for a record that no release writes."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return OtherDefinitionError(f"its record of what it means is damaged ({reason})")


def _columns(schema: pa.Schema) -> dict[str, str]:
    return {field.name: text_of(_plain_type(field.type)) for field in schema}


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _schema(columns: Mapping[str, str]) -> pa.Schema:
    return pa.schema([(name, type_of(kind)) for name, kind in columns.items()])


def shown(value: object) -> str:
    """Return a part of a definition for people."""
    if isinstance(value, Mapping):
        if {"kind", "column", "type"} <= value.keys() <= {"kind", "column", "type", "arguments"}:
            return f"{value['kind']}({value['column']}) {value['type']}"
        return "(" + ", ".join(f"{name} {shown(part)}" for name, part in value.items()) + ")"
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    return "none" if value is None else str(value)


def function_name(function: object) -> str:
    """Return the module and the name of a function."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def json_text(document: object) -> str:
    """Return rows as JSON: times in ISO 8601, bytes as text, numbers that are not finite as null."""
    return json.dumps(_plain(document), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        keys = (name if isinstance(name, (str, int)) else str(_plain(name)) for name in value)
        return dict(zip(keys, map(_plain, value.values()), strict=True))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if value is None or isinstance(value, (str, int)):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
