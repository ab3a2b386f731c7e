"""The folder of a history: `records` of `__consumer_offsets` by a pipeline; `polled` and `ends` by time."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from roster._errors import RosterError
from roster.history.positions import Series
from roster.history.tables import COMMITS, GROUPS, SKIPPED
from roster.model import TopicPartition

RECORDS, POLLED, ENDS = "records", "polled", "ends"
ENDS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("begin", pa.int64()),
        ("end", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
"""Columns of the ends: first and next offset of each partition at a time."""


class HistoryError(RosterError):
    """A folder has no history, or cannot be read."""


class HistoryFolder:
    """Reads and writes a history; `place` is a path that all recorders share."""

    def __init__(self, place: str | Path) -> None:
        self._place = Path(place)

    def put(self, table: str, at_ms: int, rows: pa.Table, recorder: str = "") -> bool:
        """Write the rows of a time to a file of their own; False if there is one already.

        recorder: a name, where each recorder writes a file for the same time.
        """
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        path = self._place / table / f"day={at:%Y-%m-%d}" / f"{at_ms}{recorder}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            pq.write_table(rows, scratch, compression="zstd")
            os.link(scratch, path)
        except FileExistsError:
            return False
        finally:
            scratch.unlink(missing_ok=True)
        return True

    def is_polled(self) -> bool:
        """Return True if there are no records of `__consumer_offsets`, only what polling saw."""
        return not (self._place / RECORDS).is_dir() and (self._place / POLLED).is_dir()

    def group_records(self, group: str) -> list[tuple[int, bytes | None]]:
        """Return the group's records in the order of the log: append time in wall-clock ms, and value."""
        rows = self._events(GROUPS, group, ["at", "value", "log_offset"]).sort_by("log_offset")
        return list(zip(_ms(rows["at"]).tolist(), rows["value"].to_pylist(), strict=True))

    def commits(self, group: str) -> dict[TopicPartition, Series]:
        """Return the group's committed offsets by the time at which the coordinator wrote them; removals left out."""
        rows = self._events(COMMITS, group, ["topic", "partition", "offset", "at", "log_offset"]).sort_by("log_offset")
        return _series(rows.filter(pc.is_valid(rows["offset"])), "offset")

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, Series]:
        """Return the ends of the partitions of topics."""
        wanted = pc.field("topic").isin(pa.array(list(topics), pa.string()))
        rows = self._read(ENDS, wanted, ["topic", "partition", "end", "at"])
        return {} if rows is None else _series(rows.sort_by("at"), "end")

    def skipped(self) -> Mapping[str, int]:
        """Return how many records were not read, by reason; empty for what was polled."""
        rows = self._read(RECORDS, pc.field("table") == SKIPPED, ["reason", "records"])
        found: dict[str, int] = {}
        for row in [] if rows is None else rows.to_pylist():
            found[row["reason"]] = found.get(row["reason"], 0) + row["records"]
        return found

    def _events(self, table: str, group: str, columns: list[str]) -> pa.Table:
        """Return the rows of a group. Raises HistoryError if there is no history."""
        wanted = (pc.field("table") == table) & (pc.field("group") == group)
        rows = self._read(POLLED if self.is_polled() else RECORDS, wanted, columns)
        if rows is None:
            raise HistoryError(f"{self._place} has no history; `roster history record --to {self._place}` records one")
        return rows

    def _read(self, name: str, wanted: pc.Expression, columns: list[str]) -> pa.Table | None:
        place = self._place / name
        if not place.is_dir():
            return None
        try:
            found = ds.dataset(place, format="parquet", partitioning="hive")
            return found.to_table(columns=columns, filter=wanted) if found.files else None
        except (pa.ArrowException, OSError) as error:
            raise HistoryError(f"{place} cannot be read: {error}") from error


def _ms(times: pa.ChunkedArray) -> Any:
    return times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() // 1000


def _series(rows: pa.Table, column: str) -> dict[TopicPartition, Series]:
    """Return the values of a column by partition, in the order of the rows, at times that do not fall."""
    topics = rows["topic"].combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    order = np.lexsort((rows["partition"].to_numpy(), topics.indices.to_numpy()))
    numbers = np.stack([topics.indices.to_numpy()[order], rows["partition"].to_numpy()[order]])
    times, values = _ms(rows["at"])[order], rows[column].to_numpy()[order]
    starts = [0, *(np.flatnonzero((np.diff(numbers) != 0).any(axis=0)) + 1).tolist(), len(order)]
    return {
        TopicPartition(names[numbers[0, start]], int(numbers[1, start])): Series(
            np.maximum.accumulate(times[start:stop]), values[start:stop]
        )
        for start, stop in pairwise(starts)
        if stop > start
    }
