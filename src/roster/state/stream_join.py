"""Join of two streams within a time: pairs of rows with equal keys whose times differ by at most that time.

With `bounds` the right row's time less the left one's is between these two, which are within that time.

A row is late if it is older than the largest time of its own side by more than the grace period. All pairs of rows that
are not late are found, whichever side comes first; they depend only on the order of each side's records. A row is kept
until the other side's time exceeds its own by the join's time plus the grace period. Then no partner can arrive any
more, and an outer join emits a row that had none. A semi join emits a left row with its first partner.

    0x03, bucket, key   rows of the left side; buckets are as long as the time of the join
    0x04, bucket, key   rows of the right side
    0x05, time, key     rows of the left side at that time have no partner yet; they have the same partners
    0x06, time, key     rows of the right side, of a full join
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.aggregate import Keyed, Update
from roster.state.byte_slices import Structs, spread
from roster.state.event_time import (
    AT,
    NOW_KEY,
    OF,
    Lateness,
    Reach,
    Times,
    left_out,
    microseconds,
    ordered_time,
    read_time,
    running,
    stream_time,
    time_bytes,
    times_of,
    with_entries,
    without_at,
)
from roster.state.keys import encode_keys
from roster.state.rows import RowLayout
from roster.state.store import Snapshot, StateError

OTHER = "other side: "
"""Prefix of the right side's column names in a table with rows of both sides."""
IS_OTHER = "other side"
"""Column that is true for rows of the right side."""
LEFT, RIGHT = 0, 1
ROWS_KEYS = (b"\x03", b"\x04")
PREFIX_LENGTH = 10
"""Bytes before the encoded key in the key of rows: the side and the bucket."""
WAITING_KEYS = (b"\x05", b"\x06")
"""First bytes of the keys of rows that have had no partner."""
WAITING_SIDES = {"inner": (), "left": (LEFT,), "full": (LEFT, RIGHT), "semi": (LEFT,)}
"""By the kind of join, the sides whose rows wait for their first partner."""
TIME_KEYS = (b"\xffleft time", b"\xffright time")
"""Keys of the stream times of both sides."""
NOW_KEYS = (NOW_KEY, NOW_KEY + b" right")
"""Keys of their times after a batch, for sides whose rows name their sources."""
_NEIGHBOURS = np.array([-1, 0, 1])
Chosen = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StreamJoin(Keyed):
    """The operator of `join`. Rows of both sides come in one table, see `joined_columns`.

    times: columns with the times of both sides. right: columns of the right side in the results. how: one of
    `WAITING_SIDES`. bounds: of the right row's time less the left one's; None: `within` both ways. Keys and times may
    be columns that both sides share. Results have these and `right` of a right row without a partner.
    Raises StateError for a time that is not positive or a grace period below 0, and for columns that do not fit.
    """

    times: tuple[str, str]
    right: tuple[str, ...]
    within: timedelta
    grace: timedelta
    how: str
    bounds: tuple[timedelta, timedelta] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.within, timedelta) or self.within <= timedelta():
            raise StateError(f"join: within={self.within!r} is not a positive timedelta")
        if not isinstance(self.grace, timedelta) or self.grace < timedelta():
            raise StateError(f"join: grace={self.grace!r} is not a timedelta of 0 or more")

    @property
    def keeps_all(self) -> bool:
        """True if rows without a partner are results, once none can arrive any more."""
        return self.how in {"left", "full"}

    @property
    def time_column(self) -> str:
        """The column of times of the left side."""
        return self.times[0]

    @property
    def span(self) -> tuple[int, int]:
        """Least and largest microseconds from a left row's time to that of a partner."""
        low, high = (-self.within, self.within) if self.bounds is None else self.bounds
        return microseconds(low), microseconds(high)

    @property
    def lag(self) -> int:
        """Microseconds that a time of a pair may be behind the largest one so far."""
        return microseconds(2 * self.within + self.grace)

    @property
    def reach(self) -> Reach:
        """How far times of results to come may be behind that of the side that is behind."""
        return Reach(microseconds(self.within + self.grace), self.times)

    @property
    def kept(self) -> Mapping[str, object]:
        """What is kept, by name."""
        bounds = {} if self.bounds is None else {"bounds": [str(each) for each in self.bounds]}
        return {"operator": "join", "times": list(self.times), "within": str(self.within), "how": self.how, **bounds}

    def sides(self, columns: pa.Schema) -> tuple[pa.Schema, pa.Schema]:
        """Return the columns of both sides' rows, which are the state's values."""
        left, right = (self.names(columns.names, number) for number in (LEFT, RIGHT))
        of_right = [columns.field(name).with_name(name.removeprefix(OTHER)) for name in right]
        return pa.schema([columns.field(name) for name in left]), pa.schema(of_right)

    def names(self, columns: Sequence[str], number: int) -> list[str]:
        """Return the columns of one side, of a table with rows of both."""
        plain = [name for name in columns if name != IS_OTHER and not name.startswith(OTHER)]
        if number == LEFT:
            return plain
        shared = {name for name in (*self.keys, self.times[1], AT, OF) if OTHER + name not in columns}
        return [name for name in columns if name.startswith(OTHER) or (name in plain and name in shared)]

    def __call__(self, table: pa.Table, store: Snapshot) -> Update:
        """Return a batch's pairs, and the rows to keep."""
        sides = [_Side.of(self, number, table, store) for number in (LEFT, RIGHT)]
        codes = _numbered(sides)
        within, (low, high) = microseconds(self.within), self.span
        for side, latest in zip(sides, (high, -low), strict=True):
            side.kept_from = sides[1 - side.number].now - microseconds(self.grace) - latest
        needed = _Needed.of(sides, within)
        kept = needed.read(store, codes, [side.layout for side in sides])
        (old_left, old_right), (left, right) = kept, [side.rows() for side in sides]
        lefts, rights = _Rows.joined(old_left, left), _Rows.joined(old_right, right)
        nulls = np.concatenate([side.codes_of_nulls() for side in sides])
        of_new = _pairs(left, rights, self.span, nulls)
        of_old = _pairs(old_left, right, self.span, nulls)
        at_left = np.concatenate([of_old[0], of_new[0] + len(old_left.times)])
        at_right = np.concatenate([of_old[1] + len(old_right.times), of_new[1]])
        results = [self._results(lefts.table, at_left, rights.table, at_right)]
        changes = _kept(sides, codes, store, within)
        for number in WAITING_SIDES[self.how]:
            rows, old, paired = ((lefts, old_left, at_left), (rights, old_right, at_right))[number]
            firsts, alone, waiting = self._waiting(sides[number], rows, paired, len(old.times), codes, store)
            if self.how == "semi":
                results = [lefts.table.filter(pa.array(firsts))]
            elif number == LEFT:
                results += [self._results(alone, np.arange(len(alone)), rights.table, None)]
            else:
                results += [self._of_right(alone, results[0].schema)]
            changes = with_entries(changes, list(waiting), list(waiting.values()))
        times = [(TIME_KEYS[side.number], time_bytes(side.now)) for side in sides if side.now != side.before]
        changes = with_entries(changes, [key for key, _ in times], [value for _, value in times])
        parts = [left_out(side.table, side.fresh, side.times, side.at, -side.number) for side in sides]
        late = tuple(rows for tables, _ in parts for rows in tables)
        counted: dict[str, Any] = {"late": sum(map(len, late)), "late_rows": late}
        lateness = Lateness.joined(late for _, late in parts)
        return Update(pa.concat_tables(results).combine_chunks(), changes, lateness=lateness, **counted)

    def _results(self, left: pa.Table, at_left: Times, right: pa.Table, at_right: Times | None) -> pa.Table:
        """Return rows of the left side, with or without their partners of the right side."""
        result = left.take(pa.array(at_left, pa.int64()))
        places = pa.nulls(len(at_left), pa.int64()) if at_right is None else pa.array(at_right, pa.int64())
        for name in self.right:
            result = result.append_column(name, right[name].take(places))
        return result

    def _of_right(self, rows: pa.Table, columns: pa.Schema) -> pa.Table:
        """Return rows of the right side, without partners, with the columns of results."""
        own = {*self.keys, *self.right, *({self.times[0]} & {self.times[1]})}
        values = (
            rows[field.name].cast(field.type) if field.name in own else pa.nulls(len(rows), field.type)
            for field in columns
        )
        return pa.table(list(values), schema=columns)

    def _waiting(
        self, side: _Side, rows: _Rows, paired: Times, known: int, codes: pa.Array, store: Snapshot
    ) -> tuple[Chosen, pa.Table, dict[bytes, bytes | None]]:
        """Return which rows of a side have their first partner, rows that stay without, and changes to waiting ones.

        paired: the places of rows with partners of this batch. known: how many rows are of earlier batches.
        """
        waiting_key, bound = WAITING_KEYS[side.number], side.kept_from
        has_partner, is_new = np.zeros(len(rows.times), np.bool_), np.arange(len(rows.times)) >= known
        has_partner[paired] = True
        # Rows that waited and have a partner now: their entries are looked up, as they may be missing.
        old = np.flatnonzero(has_partner & ~is_new)
        waiting_keys = _keys(waiting_key, rows.times[old], codes, rows.codes[old])
        waited = [value is not None for value in store.multi_get(waiting_keys)]
        changes: dict[bytes, bytes | None] = dict.fromkeys(compress(waiting_keys, waited))
        firsts = has_partner & is_new
        firsts[old[np.array(waited, np.bool_)]] = True
        over = is_new & ~has_partner & (rows.times < bound)
        waits = np.flatnonzero(is_new & ~has_partner & ~over)
        changes |= dict.fromkeys(_keys(waiting_key, rows.times[waits], codes, rows.codes[waits]), b"")
        gone = [key for key, _ in store.scan(waiting_key, waiting_key + _encoded_number(bound)) if key not in changes]
        changes |= dict.fromkeys(gone)
        alone = [rows.table.filter(pa.array(over)), *([self._expired(side, gone, store)] if self.keeps_all else [])]
        return firsts, pa.concat_tables(alone), changes

    def _expired(self, side: _Side, gone: list[bytes], store: Snapshot) -> pa.Table:
        """Return the rows of a side that these entries mark."""
        within = microseconds(self.within)
        buckets: dict[bytes, set[int]] = {}
        for key in gone:
            time = int.from_bytes(key[2:10], "big") - (1 << 63)
            buckets.setdefault(ROWS_KEYS[side.number] + _encoded_number(time // within) + key[10:], set()).add(time)
        stored = side.layout.decode(store.multi_get(list(buckets)))
        wanted = [(place, time) for place, times in enumerate(buckets.values()) for time in times]
        places = np.array([place for place, _ in wanted], np.int64)
        times = np.array([time for _, time in wanted], np.int64)
        low = _before(places, times, stored.places, stored.times, inclusive=False)
        high = _before(places, times, stored.places, stored.times, inclusive=True)
        return stored.table.filter(pa.array(high > low))


def joined_columns(left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """Return the columns of a table with rows of both sides: each has nulls in the columns of the other."""
    others = [pa.field(OTHER + field.name, field.type) for field in right]
    return pa.schema([*(pa.field(f.name, f.type) for f in left), *others, pa.field(IS_OTHER, pa.bool_())])


def in_columns(batch: pa.RecordBatch, columns: pa.Schema, *, is_other: bool) -> pa.RecordBatch:
    """Return the rows of one side with the columns of both."""
    columns_of = {OTHER + name if is_other else name: batch.column(name) for name in batch.schema.names}
    columns_of[IS_OTHER] = pa.array(np.full(batch.num_rows, is_other))
    arrays = [columns_of[f.name] if f.name in columns_of else pa.nulls(batch.num_rows, f.type) for f in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def has_rows(table: pa.Table) -> tuple[bool, bool]:
    """Return whether a table with rows of both sides has some of the left and of the right one."""
    others = pc.sum(table[IS_OTHER]).as_py() or 0
    return others < len(table), others > 0


@dataclass(slots=True)
class _Rows:
    """Rows of one side with the numbers of their keys and their times."""

    table: pa.Table
    codes: Times
    times: Times

    @classmethod
    def joined(cls, first: _Rows, second: _Rows) -> _Rows:
        return cls(
            pa.concat_tables([first.table, second.table]),
            np.concatenate([first.codes, second.codes]),
            np.concatenate([first.times, second.times]),
        )


@dataclass(slots=True)
class _Side:
    """The rows of one side of a batch that are not late, and the stream time before and after them."""

    number: int
    table: pa.Table
    times: Times
    at: Times
    fresh: Chosen
    has_key: Chosen
    taken: Chosen
    before: int
    now: int
    keys: pa.Array
    layout: RowLayout
    kept_from: int = 0
    """Rows before this time are no longer kept."""
    codes: Times | None = None

    @classmethod
    def of(cls, join: StreamJoin, number: int, table: pa.Table, store: Snapshot) -> _Side:
        is_mine = pc.fill_null(table[IS_OTHER], False)
        mine = table.filter(is_mine if number == RIGHT else pc.invert(is_mine)).combine_chunks()
        mine = mine.select(join.names(table.column_names, number))
        mine = mine.rename_columns([name.removeprefix(OTHER) for name in mine.column_names])
        before = stream_time(store, TIME_KEYS[number])
        times, has = times_of(mine, join.times[number])
        stream_times = running(times, before)
        now = int(stream_times[-1]) if len(stream_times) else before
        (of_sources,) = store.multi_get([NOW_KEYS[number]])
        if of_sources is not None:
            stream_times, now = mine[AT].to_numpy(), read_time(of_sources)
        fresh = has & (times + microseconds(join.grace) >= stream_times)
        has_key = np.ones(len(mine), np.bool_)
        for name in join.keys:
            has_key &= mine[name].is_valid().to_numpy()
        is_taken = has_key | (join.keeps_all and number in WAITING_SIDES[join.how])
        keys = encode_keys(mine, join.keys)
        layout = RowLayout.of(without_at(mine).schema)
        return cls(number, mine, times, stream_times, fresh, has_key, fresh & is_taken, before, now, keys, layout)

    def codes_of_nulls(self) -> Times:
        """Return the numbers of the keys that pair with none, as they have nulls."""
        assert self.codes is not None  # numbered before
        return np.unique(self.codes[~self.has_key[self.taken]])

    def rows(self) -> _Rows:
        assert self.codes is not None  # numbered before
        return _Rows(without_at(self.table.filter(pa.array(self.taken))), self.codes, self.times[self.taken])


def _numbered(sides: list[_Side]) -> pa.Array:
    """Number the keys of the rows to be joined; return the keys by number."""
    chunks = [side.keys.filter(pa.array(side.taken)).combine_chunks() for side in sides]
    plain = [chunk if isinstance(chunk, pa.Array) else pa.concat_arrays(chunk.chunks) for chunk in chunks]
    encoded = pa.concat_arrays(plain).dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    sides[LEFT].codes, sides[RIGHT].codes = codes[: len(plain[0])], codes[len(plain[0]) :]
    return encoded.dictionary


_Named = np.dtype([("side", "<i8"), ("code", "<i8"), ("bucket", "<i8")])


@dataclass(slots=True)
class _Needed:
    """The values that a batch reads or writes: of its rows' own buckets, and of three buckets of the other side."""

    names: Structs

    @classmethod
    def of(cls, sides: list[_Side], within: int) -> _Needed:
        parts = [np.zeros(0, _Named)]
        for side in sides:
            rows = side.rows()
            own, _ = _distinct(_named(side.number, rows.codes, np.floor_divide(rows.times, within)))
            near = np.repeat(own, len(_NEIGHBOURS))
            near["side"] = 1 - side.number
            near["bucket"] += np.tile(_NEIGHBOURS, len(own))
            parts += [own, near]
        return cls(_distinct(np.concatenate(parts))[0])

    def read(self, store: Snapshot, codes: pa.Array, layouts: list[RowLayout]) -> tuple[_Rows, _Rows]:
        """Return the rows of both sides that the store has there."""
        stored_rows = []
        for number, layout in enumerate(layouts):
            names = self.names[self.names["side"] == number]
            stored = layout.decode(store.multi_get(_row_keys(number, codes, names)))
            stored_rows.append(_Rows(stored.table, names["code"][stored.places], stored.times))
        return stored_rows[LEFT], stored_rows[RIGHT]


def _named(side: int, codes: Times, buckets: Times) -> Structs:
    names = np.zeros(len(codes), _Named)
    names["side"], names["code"], names["bucket"] = side, codes, buckets
    return names


def _distinct(names: Structs) -> tuple[Structs, Times]:
    """Return the names in order, each once, and the place of each given one; `np.unique` is slow for them."""
    order = np.lexsort((names["bucket"], names["code"], names["side"]))
    ordered = names[order]
    is_first = np.ones(len(names), np.bool_)
    is_first[1:] = np.logical_or.reduce([np.diff(ordered[name]) != 0 for name in ("side", "code", "bucket")])
    places = np.empty(len(names), np.int64)
    places[order] = np.cumsum(is_first) - 1
    return ordered[is_first], places


def _kept(sides: list[_Side], codes: pa.Array, store: Snapshot, within: int) -> pa.Table:
    """Return the changes that store a batch's rows and remove expired ones."""
    empty = pa.table({"key": pa.array([], pa.binary()), "value": pa.array([], pa.binary())})
    changes = [empty]
    for side in sides:
        bound = side.kept_from
        rows = side.rows()
        is_kept = rows.times >= bound
        buckets = np.floor_divide(rows.times, within)[is_kept]
        kept_codes = rows.codes[is_kept]
        own, places = _distinct(_named(side.number, kept_codes, buckets))
        keys = _row_keys(side.number, codes, own)
        old = store.multi_get(keys)
        values = side.layout.appended(old, rows.table.filter(pa.array(is_kept)), rows.times[is_kept], places)
        changes.append(pa.table({"key": pa.array(keys, pa.binary()), "value": values.cast(pa.binary())}))
        first, last = ROWS_KEYS[side.number], ROWS_KEYS[side.number] + _encoded_number(bound // within)
        passed = [key for key, _ in store.scan(first, last)]
        changes.append(pa.table({"key": pa.array(passed, pa.binary()), "value": pa.nulls(len(passed), pa.binary())}))
    return pa.concat_tables(changes)


def _pairs(left: _Rows, right: _Rows, span: tuple[int, int], nulls: Times) -> tuple[Times, Times]:
    """Return the indexes in both sides of rows that pair. nulls: codes of keys that do not."""
    right_codes = np.where(np.isin(right.codes, nulls), -1, right.codes) if len(nulls) else right.codes
    order = np.lexsort((right.times, right_codes))
    low = _before(right_codes, right.times, left.codes, left.times + span[0], inclusive=False)
    high = _before(right_codes, right.times, left.codes, left.times + span[1], inclusive=True)
    return np.repeat(np.arange(len(low)), high - low), order[spread(low, high - low)]


def _before(codes: Times, times: Times, at_codes: Times, at_times: Times, *, inclusive: bool) -> Times:
    """Return how many rows, in the order of codes and times, are before each place, or with `inclusive` at it too."""
    is_row = np.repeat([1, 0], [len(codes), len(at_codes)])
    tie = 1 - is_row if inclusive else is_row
    order = np.lexsort((tie, np.concatenate([times, at_times]), np.concatenate([codes, at_codes])))
    before = np.empty(len(order), np.int64)
    before[order] = np.cumsum(is_row[order])
    return before[len(codes) :]


def _row_keys(side: int, codes: pa.Array, names: Structs) -> list[bytes]:
    return _keys(ROWS_KEYS[side], names["bucket"], codes, names["code"])


def _keys(first: bytes, numbers: Times, codes: pa.Array, row_codes: Times) -> list[bytes]:
    numbered = encode_keys(pa.table({"n": pa.array(numbers, pa.int64())}), ["n"]).combine_chunks()
    keys = codes.take(pa.array(row_codes, pa.int64()))
    return list(pc.binary_join_element_wise(first, numbered, keys, b"").to_pylist())


def _encoded_number(number: int) -> bytes:
    """Return a number as `encode_keys` does."""
    return b"\x01" + ordered_time(number)
