"""What a table needs to be a part of a store that has none yet; the store's own columns are left out."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import pyarrow as pa

from roster.state.definition import Definition
from roster.state.join_entries import SIDES
from roster.state.processor.entries import VALUE_OF
from roster.state.saved.columns import duration
from roster.state.saved.parts import saved
from roster.state.saved.variables import EXPIRY, POSITION, SCHEMA
from roster.state.windows import END, START


class SeedPart(NamedTuple):
    """The columns of a part, those that have no nulls, and those that no two rows have alike, () if rows may be alike.

    gap: of sessions, which must be as long, and must not overlap.
    """

    columns: pa.Schema
    present: tuple[str, ...]
    unique: tuple[str, ...] = ()
    gap: timedelta | None = None


def seed_parts(definition: Definition) -> dict[str, SeedPart]:
    """Return what each part of a store needs. Raises ValueError, LookupError or TypeError for a damaged definition."""
    return {part: _part(definition, part, columns) for part, columns in saved(definition).schemas().items()}


def _part(definition: Definition, part: str, columns: pa.Schema) -> SeedPart:
    document, keys, names = definition.document, definition.keys.names, columns.names
    if (sides := definition.sides) is not None:
        return SeedPart(columns, (document["times"][SIDES.index(part)], *names[len(sides[part]) :]))
    if definition.has_variables:
        columns = pa.schema([each for each in columns if each.name != SCHEMA])
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
