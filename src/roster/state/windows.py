"""Aggregates of each key by windows of event time: tumbling ones, or hopping ones that overlap.

A window is closed once the stream time has reached its end plus the grace period: from then on its rows are late, its
result is final, and its state is removed. The state's key begins with the window's start, so that closed windows are a
range of the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from roster.state.aggregate import Keyed, Layout, Update, aggregate
from roster.state.aggregate_functions import Aggregate
from roster.state.durations import Duration, as_timedelta
from roster.state.event_time import Clock, Reach, Times, left_out, microseconds, with_entries
from roster.state.keys import decode_keys, encode_keys
from roster.state.store import Snapshot, StateError

START, END = "window_start", "window_end"
"""Columns that precede the keys in results."""
_KIND = pa.timestamp("ms", "UTC")


@dataclass(frozen=True, slots=True, init=False)
class Window:
    """Windows of event time, aligned to the epoch or a time after it.

    Durations are whole milliseconds, given as a timedelta or in Spark's words: "1 hour".

    Args:
        column: timestamps; those without a zone are UTC.
        size: length of a window.
        every: time from the start of one window to the next; None: `size`, so that windows do not overlap.
        grace: time after a window's end for which rows are taken.
        start: time from the epoch to the start of a window, less than `every`.

    Raises:
        StateError: a duration is not positive, or `every` is longer than `size`.

    """

    column: str
    size: timedelta
    every: timedelta | None
    grace: timedelta
    start: timedelta

    def __init__(
        self,
        column: str,
        size: Duration,
        every: Duration | None = None,
        grace: Duration = timedelta(),
        start: Duration = timedelta(),
    ) -> None:
        object.__setattr__(self, "column", column)
        object.__setattr__(self, "size", _duration("size", size, 1))
        object.__setattr__(self, "every", None if every is None else _duration("every", every, 1))
        object.__setattr__(self, "grace", _duration("grace", grace, 0))
        object.__setattr__(self, "start", _duration("start", start, 0))
        hop = self.hop
        if hop > self.size:
            raise StateError(f"window: every {hop} is longer than size {self.size}, so rows would be in no window")
        if self.start >= hop:
            raise StateError(f"window: start {self.start} is not less than every {hop}")

    @property
    def hop(self) -> timedelta:
        """Time from the start of one window to the next."""
        return self.size if self.every is None else self.every

    @staticmethod
    def session(column: str, gap: Duration, *, grace: Duration = timedelta()) -> SessionWindow:
        """Return windows that grow: rows of a key that follow each other within `gap` are one session.

        A session begins with its first row and ends `gap` after its last one, as with Spark's `session_window`.

        Args:
            column: timestamps; those without a zone are UTC.
            gap: time without a row that ends a session.
            grace: time after a session's end for which rows are taken.

        Raises:
            StateError: a duration is not positive.

        """
        return SessionWindow(column, gap, grace)


@dataclass(frozen=True, slots=True, init=False)
class SessionWindow:
    """Sessions of event time, see `Window.session`."""

    column: str
    gap: timedelta
    grace: timedelta

    def __init__(self, column: str, gap: Duration, grace: Duration = timedelta()) -> None:
        object.__setattr__(self, "column", column)
        object.__setattr__(self, "gap", _duration("gap", gap, 1))
        object.__setattr__(self, "grace", _duration("grace", grace, 0))


def _duration(name: str, given: Duration, least: int) -> timedelta:
    """Return a duration. Raise StateError for less than `least` milliseconds, or fractions of them."""
    millisecond = timedelta(milliseconds=1)
    value = as_timedelta(f"window: {name}", given)
    if value < least * millisecond or value % millisecond:
        raise StateError(f"window: {name}={given!r} is not {least} or more whole milliseconds")
    return value


def check_names(own: set[str], table: pa.Table, aggregates: Mapping[str, Aggregate]) -> None:
    """Raise StateError if a column or an aggregate has the name of a result column."""
    if taken := sorted(own.intersection([*table.column_names, *aggregates])):
        raise StateError(f"window: results have a column {taken[0]!r} of their own: rename the other one in map_arrow")


@dataclass(frozen=True, slots=True)
class EventTimeAggregation(Keyed):
    """Aggregates by key and window of event time. With `final` each window has one result, when it is closed."""

    aggregates: Mapping[str, Aggregate]
    window: Window | SessionWindow
    final: bool

    @property
    @override
    def result_keys(self) -> tuple[str, ...]:
        return (START, *self.keys)

    @property
    def time_column(self) -> str:
        """The column of times."""
        return self.window.column


@dataclass(frozen=True, slots=True)
class WindowedAggregation(EventTimeAggregation):
    """Aggregates by key and window: the operator of `aggregate(window=…)`."""

    window: Window

    @property
    def lag(self) -> int:
        """Microseconds that a time within a result's window may be behind the largest one so far.

        Final results are in the order of their windows, so their starts and ends are not behind.
        """
        size, given = self.window.size, self.window
        return microseconds(size - given.hop if self.final else size + given.grace)

    @property
    def reach(self) -> Reach:
        """How far starts of results to come may be behind the stream time."""
        return Reach(microseconds(self.window.size + self.window.grace), (START,))

    @property
    def kept(self) -> Mapping[str, object]:
        """What is kept, by name."""
        window = {"column": self.window.column, "size": str(self.window.size), "every": str(self.window.hop)}
        if self.window.start:
            window["start"] = str(self.window.start)
        return {"operator": "aggregate", "window": window}

    @override
    def key_columns(self, columns: pa.Schema) -> pa.Schema:
        return pa.schema([pa.field(START, _KIND), *(columns.field(name) for name in self.keys)])

    @override
    def layout(self, columns: pa.Schema) -> Layout | None:
        return Layout.of(columns, self.result_keys, self.aggregates)

    def __call__(self, table: pa.Table, store: Snapshot) -> Update:
        """Return results and changes of a batch's rows. Raises as `aggregate` does."""
        check_names({START, END}, table, self.aggregates)
        clock = Clock.over(table, self.window.column, store)
        placed, taken = self._placed(table, clock.times, clock.has, clock.at)
        update = aggregate(placed, store, self.result_keys, self.aggregates, in_order=True)
        results, changes = self._closed(placed.schema, update, store, clock.now)
        late, lateness = left_out(table, taken, clock.times, clock.at)
        counted: dict[str, Any] = {"late": len(table) - len(taken), "late_rows": late, "lateness": lateness}
        ends = pc.add(results[START].cast(pa.int64()), microseconds(self.window.size) // 1000).cast(_KIND)
        return Update(results.add_column(1, END, ends), clock.with_times(changes), **counted)

    def _placed(self, table: pa.Table, times: Times, has: np.ndarray, stream_times: Times) -> tuple[pa.Table, Times]:
        """Return a row for each open window of each row, and the indexes of rows with one."""
        hop, size = microseconds(self.window.hop), microseconds(self.window.size)
        begin = microseconds(self.window.start)
        newest = np.floor_divide(times - begin, hop) * hop + begin
        parts = []
        for back in range(-(-size // hop)):
            start = newest - back * hop
            is_open = start + size + microseconds(self.window.grace) > stream_times
            rows = np.flatnonzero(has & (times < start + size) & is_open)
            column = pa.array(start[rows] // 1000, pa.int64()).cast(_KIND)
            parts.append((rows, table.take(pa.array(rows)).add_column(0, START, [column])))
        # In the order of rows, so that sums of floats do not depend on the number of windows.
        order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable")
        placed = pa.concat_tables([part for _, part in parts]).take(pa.array(order))
        return placed, parts[0][0]

    def _closed(self, columns: pa.Schema, update: Update, store: Snapshot, now: int) -> tuple[pa.Table, pa.Table]:
        """Return the results to emit, and the changes with closed windows removed."""
        last = now - microseconds(self.window.size) - microseconds(self.window.grace)
        bound = _bound(last // 1000 + 1)
        changed = dict(zip(update.changes["key"].to_pylist(), update.changes["value"].to_pylist(), strict=True))
        closed = dict(store.scan(stop=bound)) | {key: value for key, value in changed.items() if key < bound}
        emitted = update.results
        if self.final:
            layout = Layout.of(columns, self.result_keys, self.aggregates)
            keys = sorted(closed)
            kinds = [columns.field(name).type for name in self.result_keys]
            decoded = pa.table(decode_keys(keys, kinds), list(self.result_keys))
            emitted = layout.with_results(decoded, layout.decode([closed[key] for key in keys]))
        changes = update.changes
        if closed:
            changes = changes.filter(pc.invert(pc.is_in(changes["key"], pa.array(list(closed), pa.binary()))))
            stored = [
                key for key, value in zip(closed, store.multi_get(list(closed)), strict=True) if value is not None
            ]
            changes = with_entries(changes, stored, [None] * len(stored))
        return emitted, changes


def _bound(start: int) -> bytes:
    """Return the least key of windows that start at this time, in milliseconds, or later."""
    least = max(start, -(1 << 62))
    (key,) = encode_keys(pa.table({START: pa.array([least], pa.int64()).cast(_KIND)}), [START]).to_pylist()
    return bytes(key)
