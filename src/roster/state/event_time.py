"""Event time of a task: its stream time, which only grows.

The stream time at a row is the largest time of all rows of the task up to it, in the order of offsets, as in Kafka
Streams. Which rows are late depends only on that order, not on batch boundaries, so a retried batch has the same
results: `windows`, `sessions`, `deduplicate` and `stream_join` each say which. Without new records in a task's
partition its stream time does not change, unless it is told to by `idle_changes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.store import Snapshot, StateError, Value

STREAM_TIME_KEY = b"\xffstream time"
"""Key of the stream time in a store; behind all encoded keys, which begin with 0x00 or 0x01."""

NOW_KEY, AT, OF = b"\xff~now", "\0at", "\0of"
"""For a task with a time for each source, in the operator's view of the store, the stream time after the batch; in its
table, columns with the time at each row and the number of its source. The store has none of them."""

NEVER = -(1 << 62)
"""Stream time before the first row."""

Times = npt.NDArray[np.int64]

_ENTRIES = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_MOST_SOURCES = 8


def microseconds(duration: timedelta) -> int:
    """Return a duration in microseconds."""
    return duration // timedelta(microseconds=1)


def times_of(table: pa.Table, column: str) -> tuple[Times, npt.NDArray[np.bool_]]:
    """Return microseconds since the epoch of each row, and a mask of rows with a time.

    Raises StateError if the column is missing or does not hold timestamps; times without a zone are UTC.
    """
    if column not in table.column_names:
        raise StateError(f"window: no column {column!r} among {', '.join(table.column_names)}")
    values: pa.Array = table[column].combine_chunks()
    if not pa.types.is_timestamp(values.type):
        raise StateError(f"window: column {column!r} is {values.type}, no timestamp")
    numbers = values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64())
    has = numbers.is_valid().to_numpy(zero_copy_only=False)
    return numbers.fill_null(NEVER).to_numpy(zero_copy_only=False), has


def stream_time(store: Snapshot, key: bytes = STREAM_TIME_KEY) -> int:
    """Return the stream time that the store has under a key, in microseconds."""
    (value,) = store.multi_get([key])
    return read_time(value)


def stream_time_after(before: Snapshot, changes: pa.Table, key: bytes) -> int:
    """Return the stream time once changes are made, in microseconds."""
    place: int = pc.index(changes["key"], key).as_py()
    return stream_time(before, key) if place < 0 else read_time(changes["value"][place].as_py())


def idle_changes(store: Snapshot, until: Mapping[bytes, int]) -> dict[bytes, Value]:
    """Return the changes that move stream times, by their keys, on to these in milliseconds."""
    return {key: time_bytes(ms * 1000) for key, ms in until.items() if ms * 1000 > stream_time(store, key)}


def running(times: Times, before: int) -> Times:
    """Return the stream time at each row."""
    return np.maximum(np.maximum.accumulate(times), before) if len(times) else times


def stream_time_change(now: int) -> tuple[bytes, bytes]:
    """Return the entry of the stream time."""
    return STREAM_TIME_KEY, time_bytes(now)


def time_bytes(time: int) -> bytes:
    """Return a time as it is stored."""
    return int(time).to_bytes(8, "little", signed=True)


def ordered_time(time: int) -> bytes:
    """Return a time as part of a key: bytes in the order of time. Raises OverflowError beyond 64 bits."""
    return (time + (1 << 63)).to_bytes(8, "big")


def read_time(value: bytes | None) -> int:
    """Return a stored time; NEVER if there is none."""
    return NEVER if value is None else int.from_bytes(value, "little", signed=True)


class Reach(NamedTuple):
    """How far results to come may be behind an operator's stream time: `delay` microseconds, by the least of `columns`.

    Windows, sessions and rows that are still open end later than the stream time less the grace, and a row to come is
    late by the stream time before its batch. So this is true of whatever comes, from any source and however late.
    """

    delay: int
    columns: tuple[str, ...]


class Clock(NamedTuple):
    """Stream time `before` a batch, `at` each of its rows and `now`, after it; `times` of rows that `has` marks.

    With a time for each source `at` is that of the row's source, and `now` may be less.
    """

    times: Times
    has: npt.NDArray[np.bool_]
    before: int
    at: Times
    now: int

    @classmethod
    def over(cls, table: pa.Table, column: str, store: Snapshot) -> Clock:
        """Return the clock of a batch's rows. Raises as `times_of` does."""
        stored, now = store.multi_get([STREAM_TIME_KEY, NOW_KEY])
        before = read_time(stored)
        times, has = times_of(table, column)
        if now is not None:
            return cls(times, has, before, table[AT].to_numpy(), read_time(now))
        stream_times = running(times, before)
        return cls(times, has, before, stream_times, int(stream_times[-1]) if len(stream_times) else before)

    def with_times(self, changes: pa.Table) -> pa.Table:
        """Return the changes of the batch, with the stream time's change, if any."""
        if self.now == self.before:
            return changes
        key, value = stream_time_change(self.now)
        return with_entries(changes, [key], [value])


class Lateness(NamedTuple):
    """How late rows are, and where they come from.

    behind: {milliseconds from a row's time to the stream time that it is late by, up to two digits: rows}, of those
    that have a time. sources: {number: rows}, 0 for a task that has one time; the most frequent.
    """

    behind: Mapping[int, int]
    sources: Mapping[int, int]

    @classmethod
    def of(cls, times: Times, stream_times: Times, sources: Times) -> Lateness:
        """Return it of late rows."""
        behind = -(-(stream_times - times)[times != NEVER] // 1000)
        scale = 10 ** np.maximum(np.log10(np.maximum(behind, 1)).astype(np.int64) - 1, 0)
        most = Counter(sources.tolist()).most_common(_MOST_SOURCES)
        return cls(Counter((-(-behind // scale) * scale).tolist()), dict(most))

    @classmethod
    def joined(cls, parts: Iterable[Lateness]) -> Lateness:
        """Return that of several sets of rows."""
        behind, sources = Counter[int](), Counter[int]()
        for lateness in parts:
            behind.update(lateness.behind)
            sources.update(lateness.sources)
        return cls(behind, sources)


NONE_LATE = Lateness({}, {})


def left_out(
    table: pa.Table, taken: Times | npt.NDArray[np.bool_], times: Times, stream_times: Times, source: int = 0
) -> tuple[tuple[pa.Table, ...], Lateness]:
    """Return the rows left out, by their places or a mask, and how late they are; no table if there are none.

    at: the stream time at each row. source: of rows that do not name theirs.
    """
    is_late = np.ones(len(table), np.bool_)
    is_late[taken] = False
    if not is_late.any():
        return (), NONE_LATE
    rows = table.filter(pa.array(is_late))
    sources = rows[OF].to_numpy() if OF in rows.column_names else np.full(len(rows), source)
    return (without_at(rows),), Lateness.of(times[is_late], stream_times[is_late], sources)


def without_at(table: pa.Table) -> pa.Table:
    """Return the rows as they came, without the time at each and its source."""
    return table.drop_columns([name for name in (AT, OF) if name in table.column_names])


def with_entries(changes: pa.Table, keys: list[bytes], values: list[bytes | None]) -> pa.Table:
    """Append entries to a table of changes."""
    more = pa.Table.from_arrays([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=_ENTRIES)
    return pa.concat_tables([changes if changes.schema.equals(_ENTRIES) else changes.cast(_ENTRIES), more])
