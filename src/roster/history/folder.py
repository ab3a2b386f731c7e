"""The folder of a history: `records` of `__consumer_offsets` by a pipeline; `ends` by time."""

import os
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from roster._errors import RosterError
from roster.history.derived import ENDS, EVENTS
from roster.history.tables import COMMITS, GROUPS, SKIPPED

RECORDS = "records"
ENDS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("begin", pa.int64()),
        ("end", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("topic_id", pa.binary()),
    ]
)
"""Columns of the ends: first and next offset of each partition at a time."""


class HistoryError(RosterError):
    """A folder has no history, or cannot be read."""


class HistoryFolder:
    """Reads and writes a history; `place` is a path that all recorders share."""

    def __init__(self, place: str | Path) -> None:
        self._place = Path(place)

    def put(self, table: str, at_ms: int, rows: pa.Table) -> bool:
        """Write the rows of a time to a file of their own; False if there is one already."""
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
        path = self._place / table / f"day={moment:%Y-%m-%d}" / f"{at_ms}.parquet"
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

    def require(self) -> None:
        """Raise HistoryError if the folder has none."""
        if not (self._place / RECORDS).is_dir():
            raise HistoryError(f"{self._place} has no history; `roster history record --to {self._place}` records one")

    def events(self, group: str) -> pa.Table:
        """Return all rows about a group, with the columns of EVENTS. Raises HistoryError without a history."""
        schema = EVENTS.remove(EVENTS.get_field_index("topic_id"))
        wanted = pc.field("table").isin([COMMITS, GROUPS]) & (pc.field("group") == group)
        self.require()
        events = self._read(RECORDS, wanted, schema.names)
        events = schema.empty_table() if events is None else events.cast(schema)
        topics = pc.unique(pc.drop_null(events["topic"]))
        ends = self._read(ENDS, pc.field("topic").isin(topics), ["topic", "partition", "end", "at", "topic_id"])
        if ends is None:
            return pa.concat_tables([EVENTS.empty_table(), events], promote_options="default")
        ends = ends.rename_columns(["topic", "partition", "offset", "at", "topic_id"])
        for name, value in (("table", ENDS), ("group", group)):
            ends = ends.append_column(name, pa.repeat(value, len(ends)))
        return pa.concat_tables([EVENTS.empty_table(), events, ends], promote_options="default")

    def files(self, name: str) -> list[str]:
        """Return the absolute paths of all files of a folder of the history."""
        place = (self._place / name).absolute()
        return list(ds.dataset(place, format="parquet").files) if place.is_dir() else []

    def rebalances(self) -> pa.Table:
        """Return the columns group and at of all records of groups. Raises HistoryError without a history."""
        names = ["group", "at"]
        self.require()
        rows = self._read(RECORDS, pc.field("table") == GROUPS, names)
        return EVENTS.empty_table().select(names) if rows is None else rows

    def skipped(self) -> Mapping[str, int]:
        """Return how many records were not read, by reason."""
        rows = self._read(RECORDS, pc.field("table") == SKIPPED, ["reason", "records"])
        counts: dict[str, int] = {}
        for row in [] if rows is None else rows.to_pylist():
            counts[row["reason"]] = counts.get(row["reason"], 0) + row["records"]
        return counts

    def _read(self, name: str, wanted: pc.Expression, columns: list[str]) -> pa.Table | None:
        place = self._place / name
        if not place.is_dir():
            return None
        try:
            dataset = ds.dataset(place, format="parquet", partitioning="hive")
            return dataset.to_table(columns=columns, filter=wanted) if dataset.files else None
        except (pa.ArrowException, OSError) as error:
            raise HistoryError(f"{place} cannot be read: {error}") from error
