"""Deduplication: the first row of each key passes, its repetitions within a time do not.

A key is remembered from its first row for a span of the task's stream time. Older rows are late: their keys may be
forgotten already. Forgotten keys are removed from the store now and then. Without a time no key is ever forgotten, nor
is one that has the time among its columns and null there, as in Spark; other rows whose time is null are late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roster.state.aggregate import Keyed, Update
from roster.state.event_time import (
    STREAM_TIME_KEY,
    Clock,
    Reach,
    Times,
    left_out,
    microseconds,
    read_time,
    stream_time_change,
    time_bytes,
    with_entries,
)
from roster.state.keys import encode_keys
from roster.state.store import Snapshot, StateError

_FOR_EVER = 253_402_300_799_999_999
"""Time of a key that is not forgotten: the last of the year 9999, which an export can show."""
_SWEPT_KEY = b"\xffswept"
"""Key of the stream time at which forgotten keys were removed last."""


@dataclass(frozen=True, slots=True)
class Deduplication(Keyed):
    """The first row of each key within a time: the operator of `deduplicate`.

    column: timestamps; None: a key's first row of all time. slack: how far behind the stream time a row may be; None:
    as far as `within`. Raises StateError for a time that is not positive, and for columns that do not fit.
    """

    column: str | None
    within: timedelta = timedelta.max
    slack: timedelta | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.within, timedelta) or self.within <= timedelta():
            raise StateError(f"deduplicate: within={self.within!r} is not a positive timedelta")

    @property
    def time_column(self) -> str | None:
        """The column of times."""
        return self.column

    @property
    def reach(self) -> Reach | None:
        """How far rows to come may be behind the stream time, None without one."""
        slack = self.within if self.slack is None else self.slack
        return None if self.column is None else Reach(microseconds(slack), (self.column,))

    @property
    def kept(self) -> Mapping[str, object]:
        """What is kept, by name."""
        return {"operator": "deduplicate", **({} if self.column is None else {"time": self.column})}

    def __call__(self, table: pa.Table, store: Snapshot) -> Update:
        """Return the rows that pass, in their order and with the time at each, and the keys to remember."""
        table = table.combine_chunks()
        if self.column is None:
            return self._of_all_time(table, store)
        clock, within = Clock.over(table, self.column, store), microseconds(self.within)
        slack = within if self.slack is None else microseconds(self.slack)
        times, stream_times = clock.times, clock.at
        encoded = encode_keys(table, self.keys).combine_chunks().dictionary_encode()
        fresh = clock.has & (times + slack >= stream_times)
        if self.column in self.keys:
            fresh, times = fresh | ~clock.has, np.where(clock.has, times, _FOR_EVER)
            stream_times = np.where(clock.has, stream_times, 0)  # before the first time, too
        keys = encoded.dictionary.to_pylist()
        first = np.array([read_time(value) for value in store.multi_get(keys)], np.int64)
        passed = self._pass(encoded.indices.to_numpy(), times, stream_times, fresh, first, within)
        places = encoded.indices.to_numpy()[passed]
        changes = dict(zip([keys[place] for place in places], [time_bytes(t) for t in times[passed]], strict=True))
        entries = self._changes(changes, store, clock, within)
        late, lateness = left_out(table, fresh, times, stream_times)
        results = table.take(pa.array(passed))
        return Update(results, entries, sum(map(len, late)), late_rows=late, lateness=lateness)

    def _of_all_time(self, table: pa.Table, store: Snapshot) -> Update:
        """Return the rows whose keys are new."""
        encoded = encode_keys(table, self.keys).combine_chunks().dictionary_encode()
        keys = encoded.dictionary.to_pylist()
        _, firsts = np.unique(encoded.indices.to_numpy(), return_index=True)
        known = zip(firsts, keys, store.multi_get(keys), strict=True)
        new = {key: first for first, key, value in known if value is None}
        results = table.take(pa.array(np.sort(np.array(list(new.values()), np.int64))))
        values = pa.array([time_bytes(0)] * len(new), pa.binary())
        return Update(results, pa.table({"key": pa.array(list(new), pa.binary()), "value": values}))

    @staticmethod
    def _pass(
        places: Times, times: Times, stream_times: Times, fresh: npt.NDArray[np.bool_], first: Times, within: int
    ) -> Times:
        """Return the rows that pass; takes a round for each time that a key is forgotten within the batch."""
        passed, rows = [], np.flatnonzero(fresh)
        while len(rows):
            rows = rows[first[places[rows]] + within < stream_times[rows]]
            _, begins = np.unique(places[rows], return_index=True)
            firsts = rows[begins]
            first[places[firsts]] = times[firsts]
            passed.append(firsts)
            rows = np.setdiff1d(rows, firsts, assume_unique=True)
        return np.sort(np.concatenate(passed)) if passed else np.zeros(0, np.int64)

    @staticmethod
    def _changes(changes: dict[bytes, bytes], store: Snapshot, clock: Clock, within: int) -> pa.Table:
        now = clock.now
        table = pa.table({"key": pa.array(changes, pa.binary()), "value": pa.array(changes.values(), pa.binary())})
        entries: dict[bytes, bytes | None] = {} if now == clock.before else dict([stream_time_change(now)])
        (swept,) = store.multi_get([_SWEPT_KEY])
        if read_time(swept) + within < now:
            entries[_SWEPT_KEY] = time_bytes(now)
            stored = store.scan(stop=min(STREAM_TIME_KEY, _SWEPT_KEY)) if swept is not None else []
            entries |= {key: None for key, value in stored if key not in changes and read_time(value) + within < now}
        return with_entries(table, list(entries), list(entries.values()))
