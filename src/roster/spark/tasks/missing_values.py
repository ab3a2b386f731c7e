"""Warns once in a run of columns that should have values and are null in every record."""

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
"""What each operator does with rows whose key is null."""


OUT_OF_RANGE = "time"
"""Use of the column of records' times where one is null, since it does not fit a timestamp."""


class Sought(NamedTuple):
    """A column that should have values: one of `json_columns`, or with `use` a key column of that operator.

    topics: the topics of the operator's rows.
    """

    name: str
    use: str = ""
    topics: tuple[str, ...] = ()


Seen: TypeAlias = Mapping[Sought, bool]
"""{column: True if a row had a value}."""


def looked_at(rows: Any, columns: Iterable[Sought]) -> Seen:
    """Return which of these columns have values in a batch or table; {} without rows."""
    count = rows.num_rows
    return {sought: rows.column(sought.name).null_count < count for sought in columns} if count else {}


def together(*each: Seen) -> Seen:
    """Merge what several have seen."""
    found: dict[Sought, bool] = {}
    for seen in each:
        found |= {sought: has or found.get(sought, False) for sought, has in seen.items()}
    return found


class Look:
    """Records whether the columns that a task's operators use have values."""

    def __init__(self, topics: Iterable[str]) -> None:
        """topics: the topics of its rows."""
        self._topics = tuple(topics)
        self.seen: Seen = {}

    def at(self, rows: Any, names: Iterable[str], use: str, topics: tuple[str, ...] | None = None) -> None:
        """Look at an operator's input rows."""
        sought = [Sought(name, use, self._topics if topics is None else topics) for name in names]
        self.seen = together(self.seen, looked_at(rows, sought))

    def over(
        self, batches: Iterable[Any], names: Iterable[str], use: str, topics: tuple[str, ...] | None = None
    ) -> Iterator[Any]:
        """Look at each batch and yield it."""
        names = tuple(names)
        for batch in batches:
            self.at(batch, names, use, topics)
            yield batch


class MissingValues:
    """Warns once of each column that is null in all records of a run so far."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._valued: set[Sought] = set()
        self._told: set[str] = set()

    def note(self, *each: Seen) -> None:
        """Add what the tasks of a batch have seen."""
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
    if sought.use == OUT_OF_RANGE:
        return (
            f"{sought.name!r} is null in records of {topics}, whose times no timestamp can hold; "
            "their producer may send micro- or nanoseconds, Kafka's are milliseconds"
        )
    so = _SO.get(sought.use, "they are one group in each partition")
    fix = "produce records with keys" if sought.name == "key" else "check its name and the records"
    return (
        f"{sought.use} by {sought.name!r}: it is null in all records of {topics} so far, so {so}; "
        f"{fix}, or name another column"
    )
