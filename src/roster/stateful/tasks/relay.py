"""A task between two repartitions that has no operator of its own: it passes on the times of its sources.

Its store has one entry, that of its sources. A row keeps the label that it came with, so it is late by the time of the
input partition that it is from, whichever task it came through. A notice tells the time of this task, as of any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from roster.state.aggregate import Update
from roster.state.store import Snapshot

OPERATOR = "repartition"
_NO_CHANGES = pa.table({"key": pa.array([], pa.binary()), "value": pa.array([], pa.binary())})


@dataclass(frozen=True)
class Relay:
    """An operator whose results are its rows. keys: columns by which they were placed. time_column: of the rows."""

    keys: pa.Schema
    time_column: str

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Columns by which rows were placed."""
        return tuple(self.keys.names)

    @property
    def kept(self) -> Mapping[str, object]:
        """What is kept, by name."""
        return {"operator": OPERATOR}

    def key_columns(self, _columns: pa.Schema) -> pa.Schema:
        """Return the columns by which rows were placed."""
        return self.keys

    def layout(self, _columns: pa.Schema) -> None:
        """Return None: it has no values."""

    def __call__(self, table: pa.Table, _store: Snapshot) -> Update:
        """Return the rows."""
        return Update(table, _NO_CHANGES)
