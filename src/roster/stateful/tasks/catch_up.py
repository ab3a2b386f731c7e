"""Brings a store up to an offset of its changelog: with its pending changes, the changelog, or from nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from roster._clock import wall_ms
from roster.model import TopicPartition
from roster.state.changelog import restore
from roster.state.definition import STATE_KEY, Noted
from roster.state.sorted_load import SortedLoad
from roster.state.store import Position

if TYPE_CHECKING:
    from roster.state.file_store import TaskStore

log = logging.getLogger("roster.spark")

Fetch: TypeAlias = Callable[[TopicPartition, int, int], Iterable[pa.RecordBatch]]
"""Reads the committed records of a partition from one offset up to before another."""

_MOST_OFFSETS = 5_000_000
"""Most changelog offsets to apply in one go."""
_FEWEST_OFFSETS = 20_000
"""Least changelog offsets to apply in one go."""
_FEWEST_SORTED = 500_000
"""Least changelog offsets that an empty store gets in the order of keys."""
LONGEST_BEHIND = 43_200.0
"""Seconds after which a store that is behind is rebuilt: compaction may have dropped tombstones that it never saw."""


class StoreTarget(NamedTuple):
    """The state that a task's store must have before a batch, as determined by the driver."""

    changelog: TopicPartition
    begin: int
    """First offset of the changelog partition."""
    end: int
    """Offset at which the state before the batch ends."""
    inputs: Mapping[str, int]
    """Next offset of each input topic that the state covers."""
    token: str | None
    """Token of the last committed attempt, if this application made it and has owned the task since; else None."""
    is_replay: bool = False
    """True if the sink has the results already and only the state lacks them."""
    is_paused: bool = False
    """True if another group writes the results, late rows among them."""
    idle_until: tuple[int | None, ...] = ()
    """Stream time in ms, of a join both sides', that the store gets as there have been no records; None: as it was."""


class Applied(NamedTuple):
    """Result of `catch_up`: the store's changelog offset, records and bytes applied."""

    position: int
    records: int = 0
    bytes: int = 0


def catch_up(store: TaskStore, target: StoreTarget, fetch: Fetch, until: float = float("inf")) -> Applied:
    """Bring the store's values up to the target's end: for restoring, standby copies and commits alike.

    The pending batch is applied if the target's token names it: that is how a batch is committed. The rest is read from
    the changelog. until: monotonic seconds at which to stop, after at least one record batch, or where records are
    aborted after as many offsets as there seemed to be time for; the store's position says how far it came.
    """
    if store.settle(target.token, Position(target.end, target.inputs)):
        return Applied(target.end)
    position = _sound_position(store, target)
    load = SortedLoad(store, position.changelog)
    is_long = target.end - position.changelog >= _FEWEST_SORTED
    into = load if store.is_ordered and (load.is_begun or (is_long and not store.count())) else store
    size = records = 0
    began, first = time.monotonic(), into.position().changelog
    reached = first
    ahead = _Ahead(store, target, fetch)
    is_over = partial(_is_past, until)

    def batches(upto: int) -> Iterable[pa.RecordBatch]:
        nonlocal size
        for batch in fetch(target.changelog, reached, upto):
            size += batch.nbytes
            yield batch

    while reached < target.end and not load.is_merging:
        # In slices: after a cancellation the next task continues from the last one.
        now = time.monotonic()
        upto = min(target.end, reached + _offsets_in(until - now, reached - first, now - began))
        records += restore(into, batches(upto), upto, inputs={}, is_over=is_over, is_unsaid=ahead.is_other)
        reached = into.position().changelog
        if is_over():
            break
    if into is load:
        is_read = load.is_merging or reached >= target.end
        if not is_read or (reached > first and is_over()) or not load.merge(is_over):
            return Applied(load.progress(), records, size)
        is_unsaid = _Ahead(store, target, fetch).is_other(reached)
        load.finish([STATE_KEY] if is_unsaid else [], [None] if is_unsaid else [])
        log.info("store %s: loaded its changelog up to %d in the order of keys", target.changelog, reached)
        rest = catch_up(store, target, fetch, until)
        return Applied(rest.position, records + rest.records, size + rest.bytes)
    if reached == target.end and store.position().inputs != target.inputs:
        store.commit([], [], Position(reached, target.inputs))
    if records:
        log.info(
            "store %s: restored %d changelog records from %d to %d in %.1f s",
            *(target.changelog, records, position.changelog, reached, time.monotonic() - began),
        )
    return Applied(reached, records, size)


def _is_past(moment: float) -> bool:
    return time.monotonic() >= moment


def _sound_position(store: TaskStore, target: StoreTarget) -> Position:
    """Return a store's position, after clearing one that this changelog cannot bring to the target."""
    position = store.position()
    is_old = position.changelog < target.end and 0 < store.written_at < wall_ms() / 1000 - LONGEST_BEHIND
    if is_old or not target.begin <= position.changelog <= target.end:
        # A log that begins later has lost records that the store lacks; one that ends earlier is another log.
        store.clear()
        position = Position(target.begin)
        store.commit([], [], position)
    return position


class _Ahead:
    """The definition at the target's end.

    A change in place begins with a record that takes the definition away, but compaction drops that record. A store on
    its way to another definition may then have entries of both, so it must not have the earlier one.
    """

    def __init__(self, store: TaskStore, target: StoreTarget, fetch: Fetch) -> None:
        self._target, self._fetch, self._begin = target, fetch, store.position().changelog
        (self._said,) = store.multi_get([STATE_KEY])

    def is_other(self, offset: int) -> bool:
        """Return True if a store at an offset is to have no definition until it is further."""
        if self._said is None or offset >= self._target.end - 1:  # behind the end's last record is the marker
            return False
        last, said = self._last
        if said is None or offset > last:
            return False
        before, after = Noted.decode(self._said), Noted.decode(said)
        return (before.definition, before.releases) != (after.definition, after.releases)

    @cached_property
    def _last(self) -> tuple[int, bytes | None]:
        """The last definition record before the target's end: its offset and value."""
        back, start = 2, self._target.end
        while start > self._begin:
            start = max(self._begin, self._target.end - back)
            last: tuple[int, bytes | None] | None = None
            for batch in self._fetch(self._target.changelog, start, self._target.end):
                definitions = pa.Table.from_batches([batch]).filter(pc.field("key") == STATE_KEY)
                if len(definitions):
                    last = definitions["offset"][-1].as_py(), definitions["value"][-1].as_py()
            if last is not None:
                return last
            back *= 100
        return self._begin, None


def _offsets_in(seconds: float, passed: int, spent: float) -> int:
    """Return the size of the next slice in offsets, from the offsets passed and the seconds spent so far.

    Aborted records yield no batches between which to check the time, so the slice itself must fit the time.
    """
    if seconds == float("inf"):
        return _MOST_OFFSETS
    rate = passed / spent if spent > 0 else 0.0
    return int(min(max(seconds * rate, _FEWEST_OFFSETS), _MOST_OFFSETS))
