"""Warns once in a run of columns that are null in every record, and ends one of a topic in another format."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from roster.model import TopicPartition
from roster.pipeline.batch import Range
from roster.pipeline.errors import PipelineError
from roster.state.source_times import NOTICE

log = logging.getLogger("roster.spark")

_EFFECTS = {
    "deduplicate": "only the first of each partition goes on",
    "join": "they pair with nothing",
    "join_table": "none finds an entry",
    "repartition": "all go to partition 0",
}
"""What each operator does with rows whose key is null."""


OUT_OF_RANGE = "time"
"""Use of the column of records' times where one is null, since it does not fit a timestamp."""


class Sought(NamedTuple):
    """A column that should have values: one of values with a format, or with `use` a key column of that operator.

    topics: the topics of the operator's rows. With `use` READ or BAD, values of a topic that have the format or not;
    `name` is that of the method, and what is wrong with the first one.
    """

    name: str
    use: str = ""
    topics: tuple[str, ...] = ()


READ, BAD = "read", "bad"
_FEW, _MANY = 10, 100
"""How many records without the format, and none with it, end a run: from the topic's first record on, or from later."""
Seen: TypeAlias = Mapping[Sought, int]
"""{column: True if a row had a value, or for BAD how many have not}."""


def columns_with_values(rows: pa.RecordBatch | pa.Table, columns: Iterable[Sought]) -> Seen:
    """Return which of these columns have values in a batch or table; {} without rows."""
    count = rows.num_rows
    if NOTICE in rows.schema.names and not rows.column(NOTICE).null_count:
        return {}
    return {sought: rows.column(sought.name).null_count < count for sought in columns} if count else {}


def merged_seen(*parts: Seen) -> Seen:
    """Merge what several have seen."""
    merged: dict[Sought, int] = {}
    for part in parts:
        for sought, has in part.items():
            before = merged.get(sought, False)
            merged[sought] = has + before if sought.use == BAD else has or before
    return merged


class ColumnsSeen:
    """Which of the columns that a task's operators use have values."""

    def __init__(self, topics: Iterable[str]) -> None:
        """topics: the topics of its rows."""
        self._topics = tuple(topics)
        self.columns: Seen = {}

    def add(
        self, rows: pa.RecordBatch | pa.Table, names: Iterable[str], use: str, topics: tuple[str, ...] | None = None
    ) -> None:
        """Record which columns of an operator's input rows have values."""
        sought = [Sought(name, use, self._topics if topics is None else topics) for name in names]
        self.columns = merged_seen(self.columns, columns_with_values(rows, sought))

    def adding(
        self, batches: Iterable[pa.RecordBatch], names: Iterable[str], use: str, topics: tuple[str, ...] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield each batch, once it is added."""
        names = tuple(names)
        for batch in batches:
            self.add(batch, names, use, topics)
            yield batch


class MissingValues:
    """Warns once of each column that is null in all records of a run so far; counts those of another format."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._bad: dict[str, int] = {}
        self._read: set[str] = set()
        self._late: set[str] = set()
        self.valued: set[Sought] = set()
        """Columns that have had a value: nothing more is noted of them."""
        self._reported: set[str] = set()

    def note(self, *parts: Seen, ranges: Mapping[TopicPartition, Range] = MappingProxyType({})) -> None:
        """Add what the tasks of a batch have seen. Raises PipelineError if no record of a topic has the format."""
        merged = dict(merged_seen(*parts))
        self._late |= {partition.topic for partition, span in ranges.items() if span.start} - self._bad.keys()
        formats = {sought: merged.pop(sought) for sought in list(merged) if sought.use in (READ, BAD)}
        self._read |= {sought.topics[0] for sought, count in formats.items() if sought.use == READ and count}
        for sought, count in formats.items():
            topic = sought.topics[0]
            if topic in self._read or not count:
                continue
            self._bad[topic] = self._bad.get(topic, 0) + count
            if self._bad[topic] >= (_MANY if topic in self._late else _FEW):
                method, _, problem = sought.name.partition(": ")
                raise PipelineError(
                    f"none of the first {self._bad[topic]} records of topic {topic!r} has the format: {problem}",
                    field=method,
                    fix="Read the topic by the method and settings of its format",
                )
        self.valued.update(sought for sought, has in merged.items() if has)
        missing = [sought for sought in merged if sought not in self.valued]
        for sought in missing:
            if sought.use and sought.name not in self._reported:
                self._reported.add(sought.name)
                log.warning("%s: %s", self._group, _of_key(sought))
        if fields := sorted({sought.name for sought in missing} - self._reported):
            self._reported.update(fields)
            text = "%s: no record so far has a value of %s; check the names of columns, and the records"
            log.warning(text, self._group, ", ".join(map(repr, fields)))


def _of_key(sought: Sought) -> str:
    topics = ", ".join(map(repr, sought.topics))
    if sought.use == OUT_OF_RANGE:
        return (
            f"{sought.name!r} is null in records of {topics}, whose times no timestamp can hold; "
            "their producer may send micro- or nanoseconds, Kafka's are milliseconds"
        )
    so = _EFFECTS.get(sought.use, "they are one group in each partition")
    fix = "produce records with keys" if sought.name == "key" else "check its name and the records"
    return (
        f"{sought.use} by {sought.name!r}: it is null in all records of {topics} so far, so {so}; "
        f"{fix}, or name another column"
    )
