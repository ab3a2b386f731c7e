"""A store's entries as parts: tables by column name, and marks for the entries that are the store's own.

Marks are the entries whose keys begin with 0xff: the definition, the list of variables, stream times, how far a sweep
has come. They are not rows, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import pyarrow as pa

from roster.state.byte_slices import as_bytes
from roster.state.definition import STATE_KEY, UNSAID, Definition, Noted, OtherDefinitionError
from roster.state.event_time import read_time
from roster.state.join_entries import SIDES
from roster.state.processor.entries import VALUE_OF
from roster.state.processor.variables import REGISTRY_KEY, decode_registry
from roster.state.saved.columns import Saved, duration, entry_table
from roster.state.saved.join_sides import SavedSides
from roster.state.saved.plain import SavedAggregates, SavedFirstRows, SavedSessions
from roster.state.saved.variables import EXPIRY, POSITION, SCHEMA, SavedVariables
from roster.state.source_times import RIGHT_SOURCES_KEY, SOURCES_KEY, Known
from roster.state.windows import END, START

_MARK = 0xFF
_TIME = b" time"
"""End of the keys of stream times."""
_ROWS = 1_000_000
"""Entries decoded at a time; an intermediate takes up to eight bytes for each of their bytes."""


def saved(definition: Definition, registry: bytes | None = None) -> Saved:
    """Return what makes tables of a store's entries. registry: the store's list of variables, None: the definition's.

    Raises ValueError, LookupError or TypeError for a definition that no release writes.
    """
    keys, document = definition.keys, definition.document
    if definition.has_variables:
        return SavedVariables(keys, registry or definition.registry)
    if (sides := definition.sides) is not None:
        return SavedSides(keys, sides, document)
    if "row" not in document:
        return SavedFirstRows(keys)
    kind = SavedSessions if "session" in document else SavedAggregates
    return kind(keys, document, definition.layout)


@dataclass(frozen=True)
class StoreEntries:
    """The entries of one store of one task: its marks, and a table of the others (`key`, `value`)."""

    marks: Mapping[bytes, bytes]
    plain: pa.Table

    @classmethod
    def of(cls, entries: pa.Table) -> StoreEntries:
        """Split the last values of a changelog's keys; those that are null are left out."""
        entries = entries.filter(entries["value"].is_valid()).combine_chunks()
        data, offsets = as_bytes(entries["key"])
        is_mark = pa.array(data[offsets[:-1]] == _MARK)
        marks = entries.filter(is_mark)
        plain = entries.filter(pa.array(data[offsets[:-1]] != _MARK))
        return cls(dict(zip(marks["key"].to_pylist(), marks["value"].to_pylist(), strict=True)), plain)

    def definition_record(self) -> Noted | None:
        """Return the definition with its input offsets, None for a store without entries.

        Raises OtherDefinitionError if there are entries without one, or of another release.
        """
        data = self.marks.get(STATE_KEY)
        if data is None and (self.marks or len(self.plain)):
            raise OtherDefinitionError(UNSAID)
        return None if data is None else Noted.decode(data)

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield the parts' tables, several of a part if there are many rows; entries of a key stay together.

        Raises OtherDefinitionError and ValueDamagedError.
        """
        record = self.definition_record()
        if record is None:
            return
        reader = saved(record.definition, self.marks.get(REGISTRY_KEY))
        for table in _slices(self.plain, reader):
            yield from reader.tables(table).items()

    @classmethod
    def join(cls, marks: Mapping[bytes, bytes], tables: Mapping[str, pa.Table]) -> StoreEntries:
        """Return the entries that these are the marks and the parts' tables of. Raises as `definition_record`."""
        entries = cls(marks, _EMPTY)
        record = entries.definition_record()
        if record is None or not tables:
            return entries
        return cls(marks, saved(record.definition, marks.get(REGISTRY_KEY)).entries(tables))

    def table(self) -> pa.Table:
        """Return all entries, marks last: the definition is the last one, where pipelines look for it."""
        order = sorted(self.marks, key=lambda key: (key == STATE_KEY, key))
        marks: Any = [
            pa.array(order, pa.large_binary()),
            pa.array([self.marks[key] for key in order], pa.large_binary()),
        ]
        return pa.concat_tables([self.plain.cast(_EMPTY.schema), entry_table(*marks)])


def merged_marks(marks_of_tasks: Iterable[Mapping[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the marks of a task that gets keys of several tasks, which have these; without the definition.

    Times are the latest ones: what was over stays over. A sweep begins anew. The list of variables is the longest one.
    Raises OtherDefinitionError if the lists contradict each other.
    """
    merged: dict[bytes, bytes] = {}
    for marks in marks_of_tasks:
        for name, value in marks.items():
            before = merged.get(name, value)
            if name == REGISTRY_KEY:
                merged[name] = _longest(before, value)
            elif name in (SOURCES_KEY, RIGHT_SOURCES_KEY):
                merged[name] = Known.decode(before).with_other(Known.decode(value)).encode()
            elif name.endswith(_TIME):
                merged[name] = max(before, value, key=read_time)
    return merged


def _longest(one: bytes, other: bytes) -> bytes:
    """Return the list of variables that has all of the other one. Raises OtherDefinitionError if neither has."""
    short, long = sorted([one, other], key=len)
    whole = decode_registry(long)
    for name, entry in decode_registry(short).items():
        known = whole.get(name)
        own = entry.kind, entry.number, entry.map_key, entry.first
        is_same = known is not None and (known.kind, known.number, known.map_key, known.first) == own
        if known is None or not is_same or known.written[: len(entry.written)] != entry.written:
            raise OtherDefinitionError(f"its tasks have different lists of variables ({name!r})")
    return long


_EMPTY = entry_table(pa.array([], pa.binary()), pa.array([], pa.binary()))


def _slices(plain: pa.Table, reader: Saved) -> Iterator[pa.Table]:
    """Yield entries in slices. Those of joins and sessions are marked by others, so they stay together."""
    if not isinstance(reader, (SavedAggregates, SavedFirstRows)):
        yield plain
        return
    for start in range(0, len(plain), _ROWS):
        yield plain.slice(start, _ROWS)


class SeedPart(NamedTuple):
    """The columns of a part, those that have no nulls, and those that no two rows have alike, () if rows may be alike.

    gap: of sessions, which must be as long, and must not overlap or touch.
    """

    columns: pa.Schema
    present: tuple[str, ...]
    unique: tuple[str, ...] = ()
    gap: timedelta | None = None


def seed_parts(definition: Definition) -> dict[str, SeedPart]:
    """Return what each part of a store needs. Raises ValueError, LookupError or TypeError for a damaged definition."""
    return {part: _seed_part(definition, part, columns) for part, columns in saved(definition).schemas().items()}


def _seed_part(definition: Definition, part: str, columns: pa.Schema) -> SeedPart:
    document, keys, names = definition.document, definition.keys.names, columns.names
    if (sides := definition.sides) is not None:
        return SeedPart(columns, (document["times"][SIDES.index(part)], *names[len(sides[part]) :]))
    if definition.has_variables:
        columns = pa.schema([column for column in columns if column.name != SCHEMA])
        if VALUE_OF["list"] in names:
            columns = columns.append(pa.field(POSITION, pa.int64()))
        present = tuple(name for name in columns.names if name != EXPIRY)
        is_value = {*VALUE_OF.values()}
        return SeedPart(columns, present, () if POSITION in present else tuple(n for n in present if n not in is_value))
    if "session" in document:
        gap = timedelta(microseconds=duration(document["session"]["gap"]))
        return SeedPart(pa.schema(list(columns)[:-1]), (START, END), (START, *keys), gap)
    present = tuple(name for name in (START, END) if name in names and "window" in document)
    return SeedPart(columns, present if "row" in document else (names[-1],), tuple(keys))
