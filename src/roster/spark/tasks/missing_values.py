"""Columns in which values are expected and that are null in every record: told once in a run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

log = logging.getLogger(__name__)

_SO = {
    "deduplicate": "only the first of each partition goes on",
    "join": "they pair with nothing",
    "join_table": "none finds an entry",
    "repartition": "all go to partition 0",
}
"""What becomes of rows whose key is null, by operator."""


class Sought(NamedTuple):
    """A column in which values are expected: one of `json_columns`, or with `use` one by which that operator goes.

    topics: those that the operator's rows come from.
    """

    name: str
    use: str = ""
    topics: tuple[str, ...] = ()


Seen: TypeAlias = Mapping[Sought, bool]
"""By column, whether a row had a value of it."""


def looked_at(rows: Any, columns: Iterable[Sought]) -> Seen:
    """Return whether a batch or table has values of these columns; of no rows nothing is known."""
    count = rows.num_rows
    return {sought: rows.column(sought.name).null_count < count for sought in columns} if count else {}


def together(*each: Seen) -> Seen:
    """Return what all have seen."""
    found: dict[Sought, bool] = {}
    for seen in each:
        found |= {sought: has or found.get(sought, False) for sought, has in seen.items()}
    return found


class Look:
    """What one task sees of the columns that its operators go by."""

    def __init__(self, topics: Iterable[str]) -> None:
        """topics: those that its rows come from."""
        self._topics = tuple(topics)
        self.seen: Seen = {}

    def at(self, rows: Any, names: Iterable[str], use: str, topics: tuple[str, ...] | None = None) -> None:
        """Look at the rows that come to an operator."""
        sought = [Sought(name, use, self._topics if topics is None else topics) for name in names]
        self.seen = together(self.seen, looked_at(rows, sought))

    def over(
        self, batches: Iterable[Any], names: Iterable[str], use: str, topics: tuple[str, ...] | None = None
    ) -> Iterator[Any]:
        """Yield the batches, having looked at each."""
        names = tuple(names)
        for batch in batches:
            self.at(batch, names, use, topics)
            yield batch


class MissingValues:
    """Tells once of each column that all records of a run have it null so far."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._valued: set[Sought] = set()
        self._told: set[str] = set()

    def note(self, *each: Seen) -> None:
        """Take what the tasks of a batch have seen."""
        seen = together(*each)
        self._valued.update(sought for sought, has in seen.items() if has)
        missing = [sought for sought in seen if sought not in self._valued]
        for sought in missing:
            if sought.use and sought.name not in self._told:
                self._told.add(sought.name)
                log.warning("%s: %s", self._group, _of_key(sought))
        if fields := sorted({sought.name for sought in missing} - self._told):
            self._told.update(fields)
            text = "%s: no record so far has a value of %s; check the names in json_columns, and the records"
            log.warning(text, self._group, ", ".join(map(repr, fields)))


def _of_key(sought: Sought) -> str:
    topics = ", ".join(map(repr, sought.topics))
    so = _SO.get(sought.use, "they are one group in each partition")
    fix = "produce records with keys" if sought.name == "key" else "check its name and the records"
    return (
        f"{sought.use} by {sought.name!r}: it is null in all records of {topics} so far, so {so}; "
        f"{fix}, or name another column"
    )
