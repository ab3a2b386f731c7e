"""Aggregates of each key by sessions of event time: rows of a key that follow each other within a gap.

A single row is a session from its time to its time plus the gap. It is merged with open sessions of its key that it
overlaps or touches, as in Spark's `session_window`. A session is closed once the stream time has passed its end plus
the grace period. The sessions depend only on the order of the partition's records.

    key of the state   encoded key columns: all open sessions of the key, each a row as of `aggregate`
    0x02, time, key    the key may have a session that ends then; rewritten only when that time has passed
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from roster.state.aggregate import Layout, Update, grouped, row_of, set_moments
from roster.state.aggregate_functions import IGNORING_NULLS, Aggregate, Kind
from roster.state.byte_slices import Structs
from roster.state.event_time import Clock, Reach, Times, left_out, microseconds, ordered_time, with_entries
from roster.state.expressions import Expression, quoted
from roster.state.keys import decode_keys, encode_keys
from roster.state.store import Snapshot
from roster.state.windows import END, START, EventTimeAggregation, SessionWindow, check_names

ENDS_KEY = b"\x02"
"""First byte of the keys for the ends of sessions; sorts behind all encoded keys."""
_KIND = pa.timestamp("us", "UTC")
_SESSION = "session"
_NONE = np.iinfo(np.int64).max
_BY_TIME = {
    Kind.FIRST: Kind.MIN_BY,
    Kind.FIRST_VALID: Kind.MIN_BY,
    Kind.LAST: Kind.MAX_BY,
    Kind.LAST_VALID: Kind.MAX_BY,
}


@dataclass(frozen=True, slots=True)
class SessionAggregation(EventTimeAggregation):
    """Aggregates by key and session: the operator of `aggregate(window=Window.session(…))`.

    Without `final` each change has a result, and results of sessions that were merged into an earlier one are
    retracted.
    """

    window: SessionWindow

    @property
    def reach(self) -> Reach | None:
        """How far ends of final results to come may be behind the stream time; open ones may begin at any time."""
        return Reach(microseconds(self.window.grace), (END,)) if self.final else None

    @property
    def kept(self) -> Mapping[str, object]:
        """What is kept, by name."""
        return {"operator": "aggregate", "session": {"column": self.window.column, "gap": str(self.window.gap)}}

    @override
    def layout(self, columns: pa.Schema) -> Layout:
        aggregates = {name: _by_time(aggregate, self.window.column) for name, aggregate in self.aggregates.items()}
        layout = Layout.of(columns, self.keys, aggregates)
        fields: Any = [("ends", "<i8"), (START, "<i8"), ("last", "<i8"), *layout.row.descr]
        return replace(layout, row=row_of(fields), breaks_ties=True)

    def __call__(self, table: pa.Table, store: Snapshot) -> Update:
        """Return results and changes of a batch's rows. Raises as `aggregate` does."""
        check_names({START, END, _SESSION}, table, self.aggregates)
        gap, grace = microseconds(self.window.gap), microseconds(self.window.grace)
        clock = Clock.over(table, self.window.column, store)
        rows = np.flatnonzero(clock.has & (clock.times + gap + grace >= clock.at))
        known = _Known.read(self, table, rows, store, clock.now - grace - 1)
        sessions = self._sessions(table, rows, known, clock, gap, grace)
        is_open = sessions.rows["last"] + gap + grace >= clock.now
        changes = clock.with_times(known.changes(sessions.places[is_open], sessions.rows[is_open], gap))
        emitted = sessions.closed(~is_open, known.keys) if self.final else np.flatnonzero(sessions.touched)
        results = self._results(known, sessions.places[emitted], sessions.rows[emitted], gap)
        gone = None
        if not self.final and len(sessions.gone):
            gone = known.with_keys(sessions.gone["place"], sessions.gone["start"])
        late, lateness = left_out(table, rows, clock.times, clock.at)
        counted: dict[str, Any] = {"late": len(table) - len(rows), "late_rows": late, "lateness": lateness}
        return Update(results, changes, retracted=gone, retracts=not self.final, **counted)

    def _sessions(self, table: pa.Table, rows: Times, known: _Known, clock: Clock, gap: int, grace: int) -> _Sessions:
        """Return all sessions of a batch's keys, with the batch's rows in them."""
        old, count = known.rows, len(known.rows)
        place = np.concatenate([known.row_places, known.places, known.places])
        time = np.concatenate([clock.times[rows], old[START], old["last"]])
        came = np.concatenate([clock.at[rows], np.full(2 * count, clock.before)])
        # At equal times, the start of a known session sorts before the rows and its end after them.
        rank = np.repeat(np.array([1, 0, 2], np.int8), [len(rows), count, count])
        order = np.lexsort((rank, time, place))
        first = _first_of_sessions(place[order], time[order], came[order], rank[order], gap, grace)
        number = np.empty(len(order), np.int64)
        number[order] = np.cumsum(first) - 1
        of_rows, of_old = number[: len(rows)], number[len(rows) : len(rows) + count]
        begins = np.flatnonzero(first)
        sessions = np.zeros(len(begins), known.layout.memory)
        places = place[order][begins]
        sessions[START] = time[order][begins]
        sessions["last"] = time[order][np.append(begins[1:], len(order)) - 1] if len(begins) else 0
        touched = np.zeros(len(begins), np.bool_)
        touched[of_rows] = True
        is_same = ~touched[of_old]
        sessions[of_old[is_same]] = old[is_same]
        self._aggregate(table.take(pa.array(rows)), of_rows, of_old[~is_same], old[~is_same], sessions, known)
        gone = touched[of_old] & (sessions[START][of_old] != old[START])
        vanished = np.zeros(int(gone.sum()), [("place", "<i8"), ("start", "<i8")])
        vanished["place"], vanished["start"] = known.places[gone], old[START][gone]
        return _Sessions(places, sessions, touched, vanished)

    def _aggregate(
        self, table: pa.Table, of_rows: Times, of_old: Times, old: Structs, sessions: Structs, known: _Known
    ) -> None:
        """Set the aggregates of the sessions that have rows of the batch."""
        layout = known.layout
        parts = grouped(table.append_column(_SESSION, pa.array(of_rows, pa.int64())), [_SESSION], layout)
        if len(old) or layout.collected:
            before = layout.with_results(pa.table({_SESSION: pa.array(of_old, pa.int64())}), old, as_numbers=True)
            several = pa.concat_tables([before, parts.cast(before.schema)])
            parts = grouped(several, [_SESSION], layout.of_parts())
            layout.set_results(sessions, parts[_SESSION].to_numpy(), parts)
            set_moments(layout, sessions, several[_SESSION].to_numpy(), several)
        else:
            layout.set_results(sessions, parts[_SESSION].to_numpy(), parts)

    def _results(self, known: _Known, places: Times, rows: Structs, gap: int) -> pa.Table:
        keyed = known.with_keys(places, rows[START])
        ends = pa.array(rows["last"] + gap, pa.int64()).cast(_KIND)
        return known.layout.with_results(keyed.add_column(1, END, ends), rows)


def _by_time(aggregate: Aggregate, time: str) -> Aggregate:
    """Return the first or last row as that of the least or largest time: sessions lose the order in which rows come."""
    kind = _BY_TIME.get(aggregate.kind)
    if kind is None:
        return aggregate
    order = Aggregate(Kind.MIN, time)
    if aggregate.kind in IGNORING_NULLS.values():
        order = _time_of_values(aggregate, time)
    return replace(aggregate, kind=kind, by=order)


def _time_of_values(aggregate: Aggregate, time: str) -> Aggregate:
    """Return the order of rows by time, which is null where the aggregate's value is."""
    own = aggregate.expression
    text, columns = (quoted(aggregate.column), (aggregate.column,)) if own is None else (own.text, own.columns)
    values = functools.partial(_times_where_valid, aggregate, time)
    text = f"case(isnotnull({text}), {quoted(time)})"
    return Aggregate(Kind.MIN, text, Expression(text, (*dict.fromkeys((*columns, time)),), values))


def _times_where_valid(aggregate: Aggregate, time: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    table = pa.Table.from_batches([batch])
    is_valid = aggregate.column_of(table).is_valid().combine_chunks()
    times = batch.column(time)
    return pa.RecordBatch.from_arrays([pc.if_else(is_valid, times, pa.scalar(None, times.type))], [time])


def _first_of_sessions(
    place: Times, time: Times, came: Times, rank: npt.NDArray[np.int8], gap: int, grace: int
) -> npt.NDArray[np.bool_]:
    """Return where a session begins among rows by place and time.

    A row is part of the session before it if it is within the gap and arrives before that session is closed. It also is
    if a later row within the gap arrives in time, since that row merges both.
    """
    rows = len(place)
    first = np.ones(rows, np.bool_)
    if rows < 2:
        return first
    inside = np.cumsum((rank == 0).astype(np.int64) - (rank == 2))[:-1] > 0
    limit = time[:-1] + gap
    near = (place[1:] == place[:-1]) & (time[1:] <= limit)
    joined = inside | (near & (came[1:] <= limit + grace))
    unsure = np.flatnonzero(near & ~joined)
    if len(unsure):
        until = _within(place, time, unsure, gap)
        spans = np.column_stack([unsure + 1, until]).ravel()
        earliest = np.minimum.reduceat(np.append(came, _NONE), spans)[::2]
        joined[unsure] = earliest <= limit[unsure] + grace
    first[1:] = ~joined
    return first


def _within(place: Times, time: Times, rows: Times, gap: int) -> Times:
    """Return for each of `rows` the next row of another place, or later than by a gap."""
    is_row = np.repeat([True, False], [len(place), len(rows)])
    times = np.append(time, time[rows] + gap)
    order = np.lexsort((~is_row, times, np.append(place, place[rows])))
    before = np.empty(len(order), np.int64)
    before[order] = np.cumsum(is_row[order])
    return before[len(place) :]


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Sessions after a batch by place and start; `gone` are the starts of known ones that begin earlier now."""

    places: Times
    rows: Structs
    touched: npt.NDArray[np.bool_]
    gone: Structs

    def closed(self, which: npt.NDArray[np.bool_], keys: list[bytes]) -> Times:
        """Return closed sessions in the order of their ends, so that batch boundaries do not matter."""
        numbers = np.flatnonzero(which)
        last, begun = (self.rows[name][numbers].copy() for name in ("last", START))
        table = pa.table([last, begun, pa.array(keys, pa.binary()).take(pa.array(self.places[numbers]))], list("abc"))
        order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
        ordered: Times = numbers[order.to_numpy()]
        return ordered


@dataclass(frozen=True, slots=True)
class _Known:
    """The store's sessions of the keys of a batch, and of keys with a session that may be closed.

    A place is a number of `keys`: the batch's keys first, then others. `places` has the known sessions' places.
    """

    table: pa.Table
    """A row of the key columns for each key of the batch."""
    kinds: list[pa.DataType]
    layout: Layout
    keys: list[bytes]
    row_places: Times
    rows: Structs
    places: Times
    ends: Times
    """When a session of the place may end, as noted in the store; _NONE without a note."""
    bound: int

    @classmethod
    def read(cls, operator: SessionAggregation, table: pa.Table, rows: Times, store: Snapshot, bound: int) -> _Known:
        """Read the sessions for the rows of a batch, and those of keys that may have one that ends by `bound`."""
        layout = operator.layout(table.schema)
        names = list(operator.keys)
        encoded = encode_keys(table, names).combine_chunks().take(pa.array(rows)).dictionary_encode()
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        row_places = encoded.indices.to_numpy().astype(np.int64)
        keys = encoded.dictionary.to_pylist()
        first = np.empty(len(keys), np.int64)
        first[row_places[::-1]] = rows[::-1]
        due = store.scan(ENDS_KEY, _ends_key(bound + 1))
        there = set(keys)
        keys += dict.fromkeys(key[9:] for key, _ in due if key[9:] not in there)
        values = store.multi_get(keys)
        parts, places = layout.apart([value or b"" for value in values])
        known = layout.decode(parts)
        ends = np.full(len(keys), _NONE)
        ends[places] = known["ends"]
        kinds = [table.schema.field(name).type for name in names]
        return cls(
            table.select(names).take(pa.array(first)), kinds, layout, keys, row_places, known, places, ends, bound
        )

    def with_keys(self, places: Times, starts: Times) -> pa.Table:
        """Return the starts and the key columns of places."""
        mine = len(self.table)
        others = np.unique(places[places >= mine])
        decoded = decode_keys([self.keys[place] for place in others], self.kinds)
        more = pa.table(decoded, schema=self.table.schema)
        table_rows = np.where(places < mine, places, mine + np.searchsorted(others, places))
        columns = pa.concat_tables([self.table, more]).take(pa.array(table_rows))
        return columns.add_column(0, START, pa.array(starts, pa.int64()).cast(_KIND))

    def changes(self, places: Times, rows: Structs, gap: int) -> pa.Table:
        """Return the changes that leave these sessions, which are open, of all keys."""
        count = np.bincount(places, minlength=len(self.keys))
        ends = np.full(len(self.keys), _NONE)
        np.minimum.at(ends, places, rows["last"] + gap)
        # The noted end is never too late; it is rewritten when its time has passed, or for an earlier end.
        is_due = self.ends <= self.bound
        noted_ends = np.where((self.ends == _NONE) | is_due | (ends < self.ends) | (count == 0), ends, self.ends)
        rows["ends"] = noted_ends[places]
        values = pc.if_else(pa.array(count > 0), self.layout.together(rows, count), pa.scalar(None, pa.binary()))
        keys = pa.array(self.keys, pa.binary())
        known = np.bincount(self.places, minlength=len(self.keys)) > 0
        kept = (count > 0) | known
        old, new = (
            np.flatnonzero((self.ends != noted_ends) & (self.ends != _NONE)),
            np.flatnonzero((self.ends != noted_ends) & (noted_ends != _NONE)),
        )
        removed = [_ends_key(int(self.ends[place])) + self.keys[place] for place in old]
        added = [_ends_key(int(noted_ends[place])) + self.keys[place] for place in new]
        mask = pa.array(kept)
        changes = pa.table({"key": keys.filter(mask), "value": values.filter(mask)})
        return with_entries(changes, removed + added, [*([None] * len(removed)), *([b""] * len(added))])


def _ends_key(time: int) -> bytes:
    return ENDS_KEY + ordered_time(max(time, -(1 << 63)))
