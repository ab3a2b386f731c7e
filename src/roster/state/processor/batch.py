"""A task processes a batch: calls user code for each key of the batch, then for each timer that is due.

With a watermark this equals two batches of Spark. Rows up to the watermark are late; the others are processed, then the
timers up to it. Then, as in Spark's batch without data, the watermark moves to the largest time seen minus its delay,
and timers up to there are processed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from roster.state.aggregate import Update
from roster.state.bad_rows import Failure, bad_rows, is_of_a_row
from roster.state.event_time import (
    NEVER,
    NONE_LATE,
    NOW_KEY,
    STREAM_TIME_KEY,
    left_out,
    microseconds,
    read_time,
    stream_time_change,
    times_of,
    without_at,
)
from roster.state.keys import decode_keys, encode_keys
from roster.state.processor.codec import MakeStruct
from roster.state.processor.overlay import Overlay, end_of
from roster.state.processor.states import Current, ListState, MapState, ValueState
from roster.state.processor.timers import Timers
from roster.state.processor.variables import Variable, Variables
from roster.state.store import Snapshot, StateError

AnyValue = TypeVar("AnyValue", bound=ValueState)
AnyList = TypeVar("AnyList", bound=ListState)
AnyMap = TypeVar("AnyMap", bound=MapState)
Key: TypeAlias = tuple[object, ...]
MakeKeys: TypeAlias = Callable[[Sequence[pa.Array]], list[Key]]
"""Makes the keys that user code gets of the columns of keys."""

TAKEN = b"\x03"
"""Prefix of keys that have taken their initial state."""


class TimeMode(Enum):
    """The kind of time of timers, by Spark's names."""

    NONE = "None"
    PROCESSING = "ProcessingTime"
    EVENT = "EventTime"


class Now(NamedTuple):
    """Processing time and watermark in ms since the epoch; the watermark is -1 where there is none."""

    processing: int
    watermark: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings that stay the same from batch to batch.

    event_time: column of timestamps from which the watermark comes, None for no watermark. delay: how far the watermark
    is behind the largest time. Raises StateError if they do not fit `mode`.
    """

    keys: tuple[str, ...]
    mode: TimeMode = TimeMode.NONE
    event_time: str | None = None
    delay: timedelta = timedelta()

    def __post_init__(self) -> None:
        if self.mode is TimeMode.EVENT and self.event_time is None:
            raise StateError("event_time: time mode EventTime needs the column that the watermark comes from")
        if not isinstance(self.delay, timedelta) or self.delay < timedelta():
            raise StateError(f"delay: {self.delay!r} is not a timedelta of zero or more")


class KeyedState:
    """State during a batch: variables, timers and the current key."""

    def __init__(self, overlay: Overlay, plan: Plan, make_struct: MakeStruct | None, current: Current) -> None:
        self.current, self._overlay, self._plan = current, overlay, plan
        self.variables, self.timers = Variables(overlay, make_struct), Timers(overlay)
        self._is_open = True

    def declared(self) -> None:
        """Refuse further variables after `init`. Raises StateError if it left out one of the store's."""
        self._is_open = False
        self.variables.check_all_are_declared()

    def value(self, make: type[AnyValue], name: str, schema: pa.Schema, ttl: int | None = None) -> AnyValue:
        """Return the value of this name; `make` is its class."""
        return make(self._declare("value", name, schema, None, ttl), self._overlay, self.current)

    def list(self, make: type[AnyList], name: str, schema: pa.Schema, ttl: int | None = None) -> AnyList:
        """Return the list of this name; `make` is its class."""
        return make(self._declare("list", name, schema, None, ttl), self._overlay, self.current)

    def map(self, make: type[AnyMap], name: str, key: pa.Schema, schema: pa.Schema, ttl: int | None = None) -> AnyMap:
        """Return the map of this name; `make` is its class."""
        return make(self._declare("map", name, schema, key, ttl), self._overlay, self.current)

    def remove(self, name: str) -> None:
        """Remove a variable with its values, if there is one."""
        self.check_open(name)
        self.variables.remove(name)

    def check_open(self, name: str) -> None:
        """Raise StateError after `init`."""
        if not self._is_open:
            raise StateError(f"state variable {name!r}: declare and remove it in init()")

    def _declare(self, kind: str, name: str, schema: pa.Schema, key: pa.Schema | None, ttl: int | None) -> Any:
        self.check_open(name)
        if ttl is not None and self._plan.mode is not TimeMode.PROCESSING:
            raise StateError(f"state variable {name!r}: a time to live needs time mode ProcessingTime")
        return self.variables.declare(kind, name, schema, key, ttl)

    def register_timer(self, at: int) -> None:
        """Set a timer of the current key."""
        self.timers.register(self._timed(), at)

    def delete_timer(self, at: int) -> None:
        """Remove a timer of the current key."""
        self.timers.delete(self._timed(), at)

    def list_timers(self) -> Sequence[int]:
        """Return the timers of the current key, ascending."""
        return self.timers.of(self._timed())

    def _timed(self) -> bytes:
        if self._plan.mode is TimeMode.NONE:
            raise StateError("timers need time mode ProcessingTime or EventTime")
        if self.current.key is None:
            raise StateError("timers: there is no key in init() and close()")
        return self.current.key


def plain_keys(columns: Sequence[pa.Array]) -> list[Key]:
    """Return keys of Python's values."""
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


class Code(Protocol):
    """Calls the user's code for keys and timers, and collects the rows it returns."""

    def open(self, state: KeyedState, table: pa.Table) -> None:
        """Begin a batch. `table`: its rows, grouped by key, each key's in their order."""

    def rows(self, key: Key, begin: int, end: int, now: Now, *, is_new: bool) -> None:
        """Handle a key's rows, from `begin` up to before `end`. `is_new`: the key has no initial state yet."""

    def timer(self, key: Key, at: int, now: Now) -> None:
        """Handle a timer of a key."""

    def threshold(self, now: int) -> int:
        """Return the time up to which timers are due."""

    def taken(self, *, valid: bool) -> pa.Table | None:
        """Forget the rows that calls have returned so far; if they are `valid` return them first."""

    def close(self) -> pa.Table:
        """End the batch; return all rows."""


def take(
    table: pa.Table,
    store: Snapshot,
    plan: Plan,
    code: Code,
    *,
    clock: Callable[[], int],
    make_struct: MakeStruct | None = None,
    make_keys: MakeKeys = plain_keys,
    make_timer_keys: MakeKeys = plain_keys,
    has_initial_state: bool = False,
    sets_aside: bool = False,
) -> Update:
    """Call the code for a batch's rows. Nothing is written: the caller commits the changes.

    clock: wall-clock milliseconds. make_keys, make_timer_keys: the keys that come with rows and with timers.
    sets_aside: find all rows at which the code fails, and remove timers at which it does. Raises StateError for columns
    that do not fit, and else the code's errors.
    """
    overlay = Overlay(store)
    processing = clock()
    current = Current(None, processing)
    times = _Times(plan, table, store)
    table = without_at(table)
    fresh = table if times.fresh is None else table.filter(pa.array(times.fresh))
    keys = _Keys(fresh, plan.keys)
    state = KeyedState(overlay, plan, make_struct, current)
    code.open(state, keys.table)
    state.declared()
    batch = (_BatchSetAside if sets_aside else _Batch)(
        plan, overlay, state, code, keys.types, make_timer_keys, has_initial_state
    )
    now = Now(processing, times.before)
    batch.rows(keys, make_keys(keys.columns), now)
    batch.timers(now)
    if times.after > times.before:
        batch.timers(Now(processing, times.after))
    current.key = None
    sweep(overlay, state.variables, current, len(table))
    if times.stream_time > times.stream_time_before:
        overlay.put(*stream_time_change(times.stream_time))
    results = pa.concat_tables([*batch.results, code.close()])
    timer = state.timers.first() if plan.mode is TimeMode.PROCESSING else None
    wait = None if timer is None else timer - code.threshold(clock())
    places = np.arange(len(table)) if times.fresh is None else np.flatnonzero(times.fresh)
    bad = {int(places[keys.order[row]]): error for row, error in batch.bad.items()}
    late = len(table) - len(fresh)
    counted: dict[str, Any] = {"late": late, "lateness": times.lateness}
    return Update(results, overlay.changes(), timer_in_ms=wait, bad=bad, failures=tuple(batch.failures), **counted)


class _Batch:
    def __init__(
        self,
        plan: Plan,
        overlay: Overlay,
        state: KeyedState,
        code: Code,
        types: Sequence[pa.DataType],
        make_timer_keys: MakeKeys,
        has_initial_state: bool,
    ) -> None:
        self._plan, self._overlay, self._state, self._code, self._types = plan, overlay, state, code, types
        self._make_timer_keys = make_timer_keys
        self._has_initial_state = has_initial_state
        self.results: list[pa.Table] = []
        self.bad: dict[int, Exception] = {}
        self.failures: list[Failure] = []

    def rows(self, keys: _Keys, made: Sequence[Key], now: Now) -> None:
        """Call the code for the rows of each key. `made`: the keys as the code gets them."""
        for variable in self._state.variables.declared.values():
            if variable.kind != "map":
                self._overlay.read_ahead([variable.prefix + key for key in keys.encoded])
        if self._has_initial_state:
            self._overlay.read_ahead([TAKEN + key for key in keys.encoded])
        current, call, begin = self._state.current, self._rows, 0
        for encoded, key, end in zip(keys.encoded, made, keys.ends, strict=True):
            current.key = encoded
            call(encoded, key, begin, end, now)
            begin = end

    def _rows(self, encoded: bytes, key: Key, begin: int, end: int, now: Now) -> None:
        is_new = self._has_initial_state and self._overlay.get(TAKEN + encoded) is None
        self._code.rows(key, begin, end, now, is_new=is_new)
        if is_new:
            self._overlay.put(TAKEN + encoded, b"\x00")

    def timers(self, now: Now) -> None:
        """Call the code for each timer that is due now; timers set meanwhile wait for the next call."""
        if self._plan.mode is TimeMode.NONE:
            return
        limit = now.processing if self._plan.mode is TimeMode.PROCESSING else now.watermark
        due = self._state.timers.due(self._code.threshold(limit))
        keys = self._make_timer_keys(decode_keys([key for key, _ in due], self._types))
        for (encoded, at), key in zip(due, keys, strict=True):
            self._state.current.key = encoded
            self._timer(encoded, key, at, now)

    def _timer(self, encoded: bytes, key: Key, at: int, now: Now) -> None:
        self._code.timer(key, at, now)


class _BatchSetAside(_Batch):
    """Goes on behind calls that fail, with the state as it was before them."""

    def _rows(self, encoded: bytes, key: Key, begin: int, end: int, now: Now) -> None:
        def attempt(first: int, behind: int) -> Exception | None:
            return self._kept(lambda: super(_BatchSetAside, self)._rows(encoded, key, first, behind, now))

        failures = bad_rows(end - begin, lambda first, behind: attempt(begin + first, begin + behind))
        self.bad |= {begin + row: error for row, error in failures.items()}

    def _timer(self, encoded: bytes, key: Key, at: int, now: Now) -> None:
        error = self._kept(lambda: self._code.timer(key, at, now))
        if error is not None:
            self._state.delete_timer(at)
            columns = decode_keys([encoded], self._types)
            row = pa.table({"timer": [at], **dict(zip(self._plan.keys, columns, strict=True))})
            self.failures.append(Failure(row, error, f"timer of {at} ms"))

    def _kept(self, call: Callable[[], None]) -> Exception | None:
        """Return why a call failed, without what it did."""
        self._overlay.mark()
        try:
            call()
            taken = self._code.taken(valid=True)
        except Exception as error:
            if not is_of_a_row(error):
                raise
            self._overlay.undo()
            self._code.taken(valid=False)
            return error
        if taken is not None and len(taken):
            self.results.append(taken)
        return None


class _Keys:
    """Rows grouped by key: the keys' bytes, their columns, and where each key's rows end."""

    def __init__(self, table: pa.Table, names: Sequence[str]) -> None:
        encoded = encode_keys(table, names).combine_chunks().dictionary_encode()
        places = encoded.indices.to_numpy()
        ends = np.cumsum(np.bincount(places, minlength=len(encoded.dictionary)))
        self.order = np.argsort(places, kind="stable")
        self.table = table.take(self.order).combine_chunks()
        self.encoded: list[bytes] = encoded.dictionary.to_pylist()
        self.ends: list[int] = ends.tolist()
        self.types = [_plain_type(self.table[name].type) for name in names]
        firsts = pa.array([0, *self.ends[:-1]] if self.ends else [], pa.int64())
        self.columns = [self.table[name].take(firsts).combine_chunks() for name in names]


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


class _Times:
    """Watermarks before and after a batch in ms, and which rows are not late."""

    def __init__(self, plan: Plan, table: pa.Table, store: Snapshot) -> None:
        self.before = self.after = -1
        self.stream_time = self.stream_time_before = NEVER
        self.fresh: Any = None
        self.lateness = NONE_LATE
        if plan.event_time is None:
            return
        times, has = times_of(table, plan.event_time)
        stored, now = store.multi_get([STREAM_TIME_KEY, NOW_KEY])
        self.stream_time_before = read_time(stored)
        newest = int(times[has].max()) if has.any() and now is None else read_time(now)
        self.stream_time = max(self.stream_time_before, newest)
        self.before = _watermark(self.stream_time_before, plan.delay)
        self.after = _watermark(self.stream_time, plan.delay)
        if plan.mode is TimeMode.EVENT:
            # Rows without a time are not late, as in Spark.
            self.fresh = ~has | (times > self.before * 1000)
            if not self.fresh.all():
                stream_times = np.full(len(table), self.stream_time_before)
                _, self.lateness = left_out(table, self.fresh, times, stream_times)


def _watermark(newest: int, delay: timedelta) -> int:
    return max(newest // 1000 - microseconds(delay) // 1000, 0)


SWEPT_KEY = b"\xffswept"
"""Key of the sweep's progress: the time in ms before which no new round begins, and the next entry's key."""
_LEAST = 10_000
"""Least number of entries checked per batch."""


def sweep(overlay: Overlay, variables: Variables, current: Current, rows: int) -> None:
    """Check some entries with a time to live, and remove expired ones, which reads hide at once.

    A round through all of them begins when the shortest time to live has passed since the last one began. rows: number
    in the batch, as larger batches may add more entries.
    """
    mortal = sorted(
        (variable for variable in variables.declared.values() if variable.may_expire),
        key=lambda variable: variable.prefix,
    )
    if not mortal:
        return
    data = overlay.get(SWEPT_KEY)
    due, start = (0, b"") if data is None else (int.from_bytes(data[:8], "big"), data[8:])
    if not start:
        if due > current.now:
            return
        due = current.now + min([variable.ttl for variable in mortal if variable.ttl is not None], default=86_400_000)
    following = _check_from(overlay, mortal, current, start, max(_LEAST, 2 * rows))
    overlay.put(SWEPT_KEY, due.to_bytes(8, "big") + following)


def _check_from(overlay: Overlay, mortal: list[Variable], current: Current, start: bytes, most: int) -> bytes:
    """Check up to `most` entries from `start` on; return the key of the next one, empty at the end."""
    for variable in mortal:
        end = end_of(variable.prefix)
        if start >= end:
            continue
        entries = overlay.stored(max(start, variable.prefix), end, most)
        for key, data in entries:
            if not overlay.is_changed(key):
                _expire(overlay, variable, current, key, data)
        most -= len(entries)
        if most <= 0:
            return entries[-1][0] + b"\x00"
    return b""


def _expire(overlay: Overlay, variable: Variable, current: Current, key: bytes, data: bytes) -> None:
    if variable.kind == "list":
        kept = ListState(variable, overlay, current).unexpired(data)
        if kept != data:
            overlay.put(key, kept)
        return
    expiry = variable.decode(data, 1, data[0])[2]
    if expiry is not None and expiry <= current.now:
        overlay.put(key, None)
