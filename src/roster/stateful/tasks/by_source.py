"""Operators behind a repartition topic that tells sources: they go by a time for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.aggregate import Update
from roster.state.event_time import (
    AT,
    NEVER,
    NOW_KEY,
    OF,
    STREAM_TIME_KEY,
    time_bytes,
    times_of,
    with_entries,
    without_at,
)
from roster.state.pending import WithChanges
from roster.state.source_times import (
    LABELS,
    NOTICE,
    RIGHT_SOURCES_KEY,
    SOURCE,
    SOURCES_KEY,
    Front,
    SourceTimes,
    nearest,
)
from roster.state.store import Snapshot
from roster.state.stream_join import IS_OTHER, LEFT, NOW_KEYS, RIGHT, TIME_KEYS, StreamJoin
from roster.stateful.tasks.bad_records import set_aside
from roster.stateful.tasks.operator_steps import Around
from roster.stateful.tasks.processing import Operator

_UNKNOWN = Front()


def by_source(
    operator: Operator,
    lag: int = 0,
    *,
    passed: str | None = None,
    is_relayed: bool = False,
    is_stepped: bool = False,
    sides: tuple[Sequence[str], ...] = (),
    names: Sequence[str] = (),
) -> Operator:
    """Return the operator for rows with labels and notices; steps that follow it stay outside.

    lag: microseconds that rows of a source may be behind its largest one so far. passed: column of times by which
    results keep the labels of their rows, for the next operator. is_relayed: a source's rows come through many tasks.
    is_stepped: and then through steps, see `SourceTimes.over`.
    sides: of a join, whose rows of both sides have labels: names of the sources of each. names: of all sources, if
    several sub-topologies send them.
    """
    return _inside(operator, lambda inner: BySource(inner, lag, passed, is_relayed, sides, is_stepped, names))


def behind(operator: Operator, front: Front, *, is_sorted: bool, passed: str | None) -> Operator:
    """Return an operator that gets the results of another one.

    is_sorted: rows without labels are put in the order of time: they come in that of keys.
    """
    return _inside(operator, lambda inner: Behind(inner, front.lag, passed, front=front, is_sorted=is_sorted))


def noting(operator: Operator, columns: Sequence[str]) -> Operator:
    """Return an operator that notes the least of these times of each of its results, before steps change them."""
    return _inside(operator, lambda inner: Noting(inner, columns))


def _inside(operator: Operator, around: Callable[[Operator], Around]) -> Operator:
    if isinstance(operator, Around):
        return replace(operator, operator=_inside(operator.operator, around))
    return around(operator)


@dataclass(frozen=True)
class BySource(Around):
    """Its operator gets labelled rows. of_sides: of a join, names of the sources of each side."""

    lag: int
    passed: str | None = None
    is_relayed: bool = False
    of_sides: tuple[Sequence[str], ...] = ()
    is_stepped: bool = False
    names: Sequence[str] = ()

    @property
    def column(self) -> str | None:
        """The column of times of its rows, None if neither it nor the next operator goes by any."""
        return self.time_column or self.passed

    def __call__(self, table: pa.Table, store: Snapshot, /) -> Update:
        """Return results and changes of a batch's rows."""
        return self._with_times(table, store, self.operator)

    @property
    def set_aside(self) -> Callable[[pa.Table, Snapshot], Update] | None:
        """What finds the rows at which a processor fails; other operators are called with parts of the rows."""
        return self._set_aside if hasattr(self.operator, "set_aside") else None

    def _set_aside(self, table: pa.Table, store: Snapshot) -> Update:
        update = self._with_times(table, store, lambda rows, view: set_aside(self.operator, rows, view))
        places = self._places(table)
        return replace(update, bad={int(places[row]): error for row, error in update.bad.items()})

    def _places(self, table: pa.Table) -> Any:
        """Return the places of the rows that the operator gets."""
        return np.flatnonzero(table[NOTICE].is_null().to_numpy(zero_copy_only=False))

    def _times(self, table: pa.Table, store: Any, key: bytes) -> SourceTimes | None:
        options: dict[str, Any] = {"is_relayed": self.is_relayed, "is_stepped": self.is_stepped, "names": self.names}
        return SourceTimes.over(table, self.column, store, key, self.lag, **options)

    def _of_side(self, number: int, table: pa.Table, store: Any) -> SourceTimes | None:
        """Return the times of one side of a join; notices are in the left one's columns."""
        is_mine = pc.equal(pc.fill_null(table[IS_OTHER], False), number == RIGHT)
        rows = table.filter(pc.or_(is_mine, table[NOTICE].is_valid()))
        names = [name for side in self.of_sides for name in side]
        key = (SOURCES_KEY, RIGHT_SOURCES_KEY)[number]
        time = self.operator.times[number]  # type: ignore[attr-defined] # of a join
        is_own = lambda source: nearest(source, names) in self.of_sides[number]  # noqa: E731
        options: dict[str, Any] = {"entry_key": key, "is_own": is_own, "names": self.names}
        return SourceTimes.over(rows, time, store, TIME_KEYS[number], self.lag, **options)

    def _both_sides(self, table: pa.Table, store: Any, operator: Callable[[pa.Table, Any], Update]) -> Update:
        """Return a join's update; each side has the times of its own sources."""
        times = [self._of_side(number, table, store) for number in (LEFT, RIGHT)]
        parts, now = [], dict[bytes, bytes]()
        for number, side in enumerate(times):
            if side is None:  # nothing is known of it yet
                continue
            rows = side.rows.append_column(AT, pa.array(side.at)).append_column(OF, pa.array(side.sources))
            parts.append(rows)
            now[NOW_KEYS[number]] = time_bytes(side.now)
        plain = [name for name in table.column_names if name not in LABELS]
        rows = pa.concat_tables(parts) if parts else table.select(plain).slice(0, 0)
        update = operator(rows, WithChanges(store, now))
        entries = {
            key: side.known
            for key, side in zip((SOURCES_KEY, RIGHT_SOURCES_KEY), times, strict=True)
            if side is not None and side.is_known_new
        }
        sides = [side for side in times if side is not None]
        hold = min((side.hold for side in sides if side.hold is not None), default=None)
        update = replace(update, results=without_at(update.results), hold=hold, has_sources=True)
        if sides:
            most = max(sides, key=lambda side: side.held)
            update = replace(update, held_by=most.held_by, held_ms=most.held // 1000)
        return replace(update, changes=with_entries(update.changes, list(entries), list(entries.values())))

    def _with_times(self, table: pa.Table, store: Any, operator: Callable[[pa.Table, Any], Update]) -> Update:
        if self.of_sides and not self._is_warm_up(table):
            return self._both_sides(table, store, operator)
        is_join = isinstance(self.operator, StreamJoin)
        plain = [name for name in table.column_names if name not in LABELS]
        if self._is_warm_up(table):
            return operator(table, store)
        own = table.filter(pc.invert(table[IS_OTHER])) if is_join else table
        times = self._times(own, store, TIME_KEYS[LEFT] if is_join else STREAM_TIME_KEY)
        if times is None:
            return operator(table.select(plain), store)
        rows = times.rows
        if self.column is not None:
            if not self.has_variables:  # a processor's watermark is that of the whole batch
                rows = rows.append_column(AT, pa.array(times.at))
            rows = rows.append_column(OF, pa.array(times.sources))
        if is_join:
            rows = pa.concat_tables([rows, table.filter(table[IS_OTHER]).select(plain)], promote_options="default")
        update = operator(rows, WithChanges(store, {NOW_KEY: time_bytes(times.now)}))
        results = self._passed(update.results) if self.passed is not None else without_at(update.results)
        update = replace(update, results=results)
        update = replace(update, hold=times.hold, has_sources=True, held_by=times.held_by, held_ms=times.held // 1000)
        update = replace(update, time_of_sources=None if times.now == NEVER else times.now)
        if not times.is_known_new:
            return update
        return replace(update, changes=with_entries(update.changes, [SOURCES_KEY], [times.known]))

    def _passed(self, results: pa.Table) -> pa.Table:
        """Return results with the labels of their rows."""
        times, has = times_of(results, self.passed or "")
        delays = pa.array(np.where(has, results[AT].to_numpy() - times, 0))
        labels = (results[OF], delays, pa.nulls(len(results), pa.binary()))
        rows = without_at(results)
        for name, column in zip(LABELS, labels, strict=True):
            rows = rows.append_column(name, column)
        return rows

    def _is_warm_up(self, table: pa.Table) -> bool:
        return NOTICE not in table.column_names


@dataclass(frozen=True)
class Behind(BySource):
    """Its operator gets results of the operator in front."""

    front: Front = _UNKNOWN
    is_sorted: bool = True

    @property
    def set_aside(self) -> Callable[[pa.Table, Snapshot], Update] | None:
        """What finds the rows at which it fails: of parts of the rows, the first would make those behind it late."""
        alone = replace(self, front=self.front._replace(reached=None))
        return super().set_aside or (lambda table, store: set_aside(alone.__call__, table, store))

    def _places(self, table: pa.Table) -> Any:
        if not self._is_reordered(table):
            return np.arange(len(table))
        return np.argsort(times_of(table, self.time_column or "")[0], kind="stable")

    def _is_reordered(self, table: pa.Table) -> bool:
        return self.is_sorted and SOURCE not in table.column_names

    def _times(self, table: pa.Table, store: Any, key: bytes) -> SourceTimes | None:
        assert self.time_column is not None  # others are not behind anything
        times, _ = times_of(table, self.time_column)
        stepped = self.front.stepped(times)
        if self._is_reordered(table):
            places = np.argsort(times, kind="stable")
            table, times = table.take(pa.array(places)), times[places]
        return SourceTimes.behind(table, times, store, key, self.front, stepped)

    def _is_warm_up(self, table: pa.Table) -> bool:
        return False


@dataclass(frozen=True)
class Noting(Around):
    """Its results have times of their own besides those that steps make of them."""

    columns: Sequence[str] = ()

    def __call__(self, table: pa.Table, store: Snapshot, /) -> Update:
        """Return an update with these times."""
        update = self.operator(table, store)
        names = [name for name in self.columns if name in update.results.column_names]
        columns = [times_of(update.results, name) for name in names]
        return replace(update, times=np.min([np.where(has, times, -NEVER) for times, has in columns], axis=0))
