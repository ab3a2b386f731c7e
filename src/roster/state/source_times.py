"""Event time of a task behind a repartition topic: one time for each source, an input partition in front of the topic.

Senders label each row with its source and how far it is behind the largest time of its source so far. A notice follows
the rows of a batch: the times of the sources in it, and what is known of all others. A row is late by the time of its
own source. What the task keeps closes at the least time of the sources that hold it back: those that had more to read
when the batch of the last notice was planned. If none had, it is the largest time of all.

So an operator's results depend on the order of each source's records alone, while no source is read to its end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.event_time import NEVER, Times, stream_time, times_of
from roster.state.store import Snapshot, Store

SOURCES_KEY = b"\xfftimes of sources"
"""Key of the sources in a store. A group's merged or divided tasks do without it: they hear of all sources again."""
SOURCE, DELAY, NOTICE = "\0source", "\0delay", "\0notice"
"""Columns of rows from a repartition topic: the source, 0 for none; microseconds behind its time; or a notice alone."""
UNLABELLED = 0
_DELAY_BITS, _SOURCES = 43, (1 << 20) - 1
_LONGEST = (1 << _DELAY_BITS) - 1
"""Microseconds of the longest delay that a label holds: 101 days."""
_KNOWN = np.dtype([("source", "<i8"), ("time", "<i8"), ("ended", "<i8")])


def source_of(topic: str, partition: int) -> int:
    """Return the number of a source, the same in all applications and releases."""
    return (crc32(topic.encode()) + partition) % _SOURCES + 1


def labels(source: int, delays: Times) -> Times:
    """Return the labels of a source's rows, given their delays in microseconds."""
    return (source << _DELAY_BITS) | np.minimum(delays, _LONGEST)


def read_labels(labels: Times) -> tuple[Times, Times]:
    """Return the sources and the delays that labels have."""
    return labels >> _DELAY_BITS, labels & _LONGEST


def labelled(columns: pa.Schema) -> pa.Schema:
    """Return the columns of rows with labels and notices."""
    more = [pa.field(SOURCE, pa.int64()), pa.field(DELAY, pa.int64()), pa.field(NOTICE, pa.binary())]
    return pa.schema([*columns, *more])


class Notice(NamedTuple):
    """What a sender knows once its rows of a batch are read.

    batch: names the batch's attempt. behind: sources outside of the batch that have more to read. reading: those in it.
    times: of the sender's own sources, None if unknown. ended: those among them that have no more to read.
    """

    batch: int
    behind: tuple[int, ...]
    reading: tuple[int, ...]
    times: Mapping[int, int | None]
    ended: tuple[int, ...]

    def encode(self) -> bytes:
        """Return it as JSON."""
        times = list(self.times.items())
        return json.dumps([self.batch, self.behind, self.reading, times, self.ended], separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Notice:
        """Read the bytes of `encode`."""
        batch, behind, reading, times, ended = json.loads(data)
        return cls(batch, tuple(behind), tuple(reading), dict(times), tuple(ended))


class SourceTimes(NamedTuple):
    """The times of a batch's rows by their sources: `rows` without labels and notices, the time `at` each of them.

    sources: of the rows. held_by: the source that holds the task's time back, 0 if none does, None if it is not told in
    this batch. held: microseconds that the time is behind that of the source that is furthest.
    now: the task's time after the batch. known: the entry of `SOURCES_KEY` after it, None if it is unchanged.
    """

    rows: pa.Table
    at: Times
    now: int
    known: bytes | None
    sources: Times
    held_by: int | None = None
    held: int = 0

    @classmethod
    def over(cls, table: pa.Table, column: str, store: Store | Snapshot) -> SourceTimes | None:
        """Return the times of rows and notices; None if no source is known, as with an earlier release's senders."""
        is_notice = table[NOTICE].is_valid().to_numpy(zero_copy_only=False)
        source = table[SOURCE].to_numpy()
        (stored,) = store.multi_get([SOURCES_KEY])
        if stored is None and not is_notice.any() and not source.any():
            return None
        before = stream_time(store)
        times, has = times_of(table, column)
        times = np.where(has, times + table[DELAY].to_numpy(), NEVER)
        places = np.flatnonzero(is_notice)
        notices = [Notice.decode(data) for data in table[NOTICE].filter(pa.array(is_notice)).to_pylist()]
        known = {int(each["source"]): each for each in np.frombuffer(stored or b"", _KNOWN).copy()}
        told = [
            (source, time, int(place))
            for notice, place in zip(notices, places, strict=True)
            for source, time in notice.times.items()
            if time is not None
        ]
        rows = np.flatnonzero(~is_notice)
        seen = _Seen.of(source[rows], times[rows], rows, told, {of: int(each["time"]) for of, each in known.items()})
        ended = {source: int(each["ended"]) for source, each in known.items()}
        for notice in notices:
            ended |= {source: notice.batch if source in notice.ended else 0 for source in notice.times}
        now, held_by, held = before, None, 0
        if notices:
            until = seen.times(int(places[-1]))
            now = max(before, _least(notices[-1], ended, until))
            holding = _holding(notices[-1], ended)
            held_by = min(holding, key=lambda source: until.get(source, NEVER), default=0)
            held = max(until.values(), default=now) - now if holding and now != NEVER else 0
        after = seen.times(len(table))
        entry = np.array([(of, time, ended.get(of, 0)) for of, time in sorted(after.items())], _KNOWN).tobytes()
        at = np.maximum(seen.at, before)
        plain = table.drop_columns([SOURCE, DELAY, NOTICE]).filter(pc.invert(pa.array(is_notice)))
        return cls(plain, at, now, None if entry == stored else entry, source[rows], held_by, held)


def _holding(notice: Notice, ended: Mapping[int, int]) -> set[int]:
    """Return the sources that hold a task back as of a notice.

    A source in the notice's batch does until its rows of that batch are read, too.
    """
    return {*notice.behind, *(source for source in notice.reading if ended.get(source) != notice.batch)}


def _least(notice: Notice, ended: Mapping[int, int], times: Mapping[int, int]) -> int:
    """Return the least time of sources that hold a task back as of a notice, the largest of all if none does."""
    held = _holding(notice, ended)
    if held:
        return min(times.get(source, NEVER) for source in held)
    return max((time for source, time in times.items() if source != UNLABELLED), default=NEVER)


class _Seen(NamedTuple):
    """Times of sources, by place in a batch: as rows show them and notices tell them.

    Ordered by source and place; `time` is the largest up to there, and `at` that of each row.
    """

    source: Times
    place: Times
    time: Times
    at: Times

    @classmethod
    def of(
        cls, source: Times, times: Times, rows: Times, told: list[tuple[int, int, int]], known: Mapping[int, int]
    ) -> _Seen:
        """told: source, time and place of what notices say. known: times before the batch."""
        first = [(of, time, -1) for of, time in known.items()]
        more = np.array([*first, *told], np.int64).reshape(-1, 3)
        all_sources = np.concatenate([source, more[:, 0]])
        place = np.concatenate([rows, more[:, 2]])
        time = np.concatenate([times, more[:, 1]])
        order = np.lexsort((place, all_sources))
        of, largest = all_sources[order], time[order]
        begins = np.flatnonzero(np.diff(of, prepend=-1))
        for begin, end in pairwise([*begins, len(of)]):
            largest[begin:end] = np.maximum.accumulate(largest[begin:end])
        back = np.empty(len(order), np.int64)
        back[order] = largest
        return cls(of, place[order], largest, back[: len(source)])

    def times(self, place: int) -> dict[int, int]:
        """Return the time of each source up to a place."""
        there = self.place <= place
        source, time = self.source[there], self.time[there]
        last = np.flatnonzero(np.diff(source, append=-1))
        return dict(zip(source[last].tolist(), time[last].tolist(), strict=True))


class SourceClock:
    """A sender's look at the times of one source's rows of a batch, in their order."""

    def __init__(self, source: int, column: str | None) -> None:
        """column: of times; None if they are unknown until rows have arrived."""
        self.source, self._column, self._time = source, column, NEVER

    @property
    def time(self) -> int | None:
        """The largest time so far in microseconds, None without one."""
        return None if self._time == NEVER else self._time

    def labels(self, rows: pa.Table) -> Times:
        """Return the labels of the next rows."""
        delays = np.zeros(len(rows), np.int64)
        if self._column is not None and len(rows):
            times, has = times_of(rows, self._column)
            at = np.maximum(np.maximum.accumulate(times), self._time)
            delays = np.where(has, at - times, 0)
            self._time = int(at[-1])
        return labels(self.source, delays)
