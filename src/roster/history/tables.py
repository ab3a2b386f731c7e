"""The rows of a history, made of records of `__consumer_offsets`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.records.native import OFFSETS, Compiled, kernel
from roster.wire import WireError
from roster.wire.columns.kernel import Kernel
from roster.wire.columns.offsets import offset_records
from roster.wire.columns.offsets_layout import COMMIT, DAMAGED, GROUP, NEWER, OTHER, REMOVED
from roster.wire.consumer_groups import decode_consumer_key
from roster.wire.offsets_topic import GroupMetadataKey, decode_key

COMMITS, GROUPS, SKIPPED = "commits", "groups", "skipped"
REASONS = {OTHER: "other kind of group", NEWER: "newer version", DAMAGED: "damaged"}

_TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("day", pa.date32()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("metadata", pa.string()),
        ("committed_at", _TIME),
        ("expires_at", _TIME),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("reason", pa.string()),
        ("records", pa.int64()),
        ("at", _TIME),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
    ]
)
"""Columns of all tables; those that a table does not use are null in it.

commits: a committed offset, or its removal (`offset` is null). groups: a classic group after a rebalance, or any record
of a consumer group (`key`, `value`; null: removed). skipped: `records` that were not read, for a `reason`. `at` is when
the coordinator wrote the record, at `log_partition` and `log_offset` of its topic.
"""

_LATEST_MS = 253_402_300_799_999
"""The last moment of the year 9999."""


@dataclass(frozen=True)
class HistoryRows:
    """The function for `Pipeline.map_arrow`: records of `__consumer_offsets` to rows with the columns of SCHEMA."""

    code: Compiled

    def __call__(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some records, table by table."""
        yield from rows_of(kernel(self.code, OFFSETS), records)


def rows_of(loops: Kernel, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of records with the columns key, value, partition, offset and timestamp, table by table."""
    decoded = offset_records(loops, records["key"], records["value"])
    kinds, about = decoded.kinds, records.select(["partition", "offset", "timestamp"])
    yield _rows(
        COMMITS,
        about.filter(pa.array((kinds == COMMIT) | (kinds == REMOVED))),
        {name: _column(name, decoded.commits[name]) for name in decoded.commits.schema.names},
    )
    names = {int(row): _group_of(records["key"][row].as_py()) for row in np.flatnonzero(kinds == GROUP)}
    kinds[[row for row, name in names.items() if name is None]] = DAMAGED
    groups = records.filter(pa.array(kinds == GROUP))
    known = pa.array([name for name in names.values() if name is not None], pa.string())
    yield _rows(GROUPS, groups, {"group": known, "key": groups["key"], "value": groups["value"]})
    for kind, reason in REASONS.items():
        skipped = records.filter(pa.array(kinds == kind))
        if len(skipped):
            yield _rows(SKIPPED, skipped[:1], {"reason": pa.array([reason]), "records": pa.array([len(skipped)])})


def _rows(table: str, records: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    count = len(records)
    written_at = records["timestamp"].cast(_TIME)
    every = {
        "table": pa.repeat(table, count),
        "day": written_at.cast(pa.date32()),
        "at": written_at,
        "log_partition": records["partition"],
        "log_offset": records["offset"],
        **columns,
    }
    arrays = [every[field.name] if field.name in every else pa.nulls(count, field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _column(name: str, values: pa.Array) -> pa.Array:
    """Return the column as in SCHEMA; an out-of-range timestamp becomes null."""
    if SCHEMA.field(name).type != _TIME:
        return values
    is_moment = pc.and_(pc.greater_equal(values, 0), pc.less_equal(values, _LATEST_MS))
    return pc.if_else(is_moment, values, None).cast(pa.timestamp("ms", "UTC")).cast(_TIME)


def _group_of(key: bytes) -> str | None:
    try:
        if (of_consumers := decode_consumer_key(key)) is not None:
            return of_consumers[1]
        about = decode_key(key)
    except WireError:
        return None
    return about.group if isinstance(about, GroupMetadataKey) else None
