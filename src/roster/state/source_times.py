"""Event time of a task behind a repartition topic: one time for each source, an input partition in front of the topic.

Senders label each row with its source and how far it is behind the largest time of its source so far. A notice follows
the rows of a batch: the times of the sources in it, and what is known of all others. A row is late by the time of its
own source. What the task keeps closes at the least time of the sources that hold it back: those that had more to read
when the batch of the last notice was planned, and those that wait. If none does, it is the largest time of all.

If operators with state are in front of the topic, a source is a task of theirs. It waits while it holds results back,
or while sources of its own hold it back. It is then at the least of their times and the largest that it has sent.

Notices come in the order of commits, not in that in which their senders looked for what is left to read. So a notice
does not free a source that another one, written since its sender looked, says has more to read.

So an operator's results depend on the order of each source's records alone, while no source is read to its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.event_time import NEVER, STREAM_TIME_KEY, Times, stream_time, times_of
from roster.state.store import Snapshot

SOURCES_KEY = b"\xfftimes of sources"
"""Key of the sources in a store; of a join whose sides have sources each, those of the left one."""
RIGHT_SOURCES_KEY = SOURCES_KEY + b" right"
"""Key of those of the right one."""
SOURCE, DELAY, NOTICE = "\0source", "\0delay", "\0notice"
"""Columns of rows from a repartition topic: the source, 0 for none; microseconds behind its time; or a notice alone,
with its offset as the delay."""
LABELS = (SOURCE, DELAY, NOTICE)
UNLABELLED = 0
HELD = -1 << 21
"""Name of an entry among the sources: the least time of those that hold the task back, and in `ended` which it is.

It is 0 if none does, but the notice of rows is still to come. The entry of minus a source is the largest time of rows
of a source that is a task with sources of its own."""
STEPPED = HELD + 1
"""Name of an entry for an operator behind steps: by how much these have made times of rows less, at most, so far."""
WAITING = -1
"""In `ended`: the source waits; less the number of the source of its own that holds it back, if one does."""
BEHIND = HELD - 2
"""Less the number of a source, the name of its entry of `Known.behind`: with the offset as time, and the batch."""
_DELAY_BITS, _SOURCES = 43, (1 << 20) - 1
UNTIMED = (1 << _DELAY_BITS) - 1
"""The delay of a row that says nothing of its source's time; others are less: at most 101 days."""
_KNOWN = np.dtype([("source", "<i8"), ("time", "<i8"), ("ended", "<i8")])


def source_of(topic: str, partition: int) -> int:
    """Return the number of a source, the same in all applications and releases."""
    return (crc32(topic.encode()) + partition) % _SOURCES + 1


def nearest(source: int, names: Sequence[str]) -> str:
    """Return the name that `source_of` made a number of, among these."""
    return min(names, key=lambda name: (source - source_of(name, 0)) % _SOURCES)


def labels(source: int, delays: Times) -> Times:
    """Return the labels of a source's rows, given their delays in microseconds."""
    return (source << _DELAY_BITS) | delays


def read_labels(labels: Times) -> tuple[Times, Times]:
    """Return the sources and the delays that labels have."""
    return labels >> _DELAY_BITS, labels & UNTIMED


def labelled(columns: pa.Schema) -> pa.Schema:
    """Return the columns of rows with labels and notices."""
    more = [pa.field(SOURCE, pa.int64()), pa.field(DELAY, pa.int64()), pa.field(NOTICE, pa.binary())]
    return pa.schema([*columns, *more])


def without_notices(table: pa.Table) -> pa.Table:
    """Return the rows among rows and notices."""
    return table.filter(table[NOTICE].is_null()) if NOTICE in table.column_names else table


class Notice(NamedTuple):
    """What a sender knows once its rows of a batch are read.

    batch: names the batch's attempt. behind: sources outside of the batch that have more to read. reading: those in it.
    times: of the sender's own sources, and of those outside whose time not all have heard; None if unknown. ended: of
    its own those that have no more to read and do not wait. waiting: {one that waits: which source of its own holds it
    back, 0 if none does}. holds: of those that have sources of their own, the least time of sources that hold them
    back, None if none does. tasks: if sources are tasks, the number of the first one, and how many there are. until: a
    time up to which it holds, None for any: what others have to read was asked for a while ago. log_end: of the
    log that it is in, before the sender looked for what is left to read; None if no other sender writes to that log.
    """

    batch: int
    behind: tuple[int, ...]
    reading: tuple[int, ...]
    times: Mapping[int, int | None]
    ended: tuple[int, ...]
    waiting: Mapping[int, int] = MappingProxyType({})
    holds: Mapping[int, int | None] = MappingProxyType({})
    tasks: tuple[int, ...] = ()
    until: int | None = None
    log_end: int | None = None

    def encode(self) -> bytes:
        """Return it as JSON."""
        parts = [self.batch, self.behind, self.reading, [*self.times.items()], self.ended]
        parts += [[*self.waiting.items()], [*self.holds.items()], self.tasks, self.until, self.log_end]
        return json.dumps(parts, separators=(",", ":")).encode()

    def encode_each(self, log_ends: Iterable[int | None]) -> Iterator[bytes]:
        """Yield it as JSON for each of several logs, given the ends of these."""
        same = self._replace(log_end=None).encode().removesuffix(b"null]")
        for end in log_ends:
            yield same + json.dumps(end).encode() + b"]"

    @classmethod
    def decode(cls, data: bytes) -> Notice:
        """Read the bytes of `encode`."""
        batch, behind, reading, times, ended, *more = json.loads(data)
        waiting, holds, tasks = more[:3] or ((), (), ())
        own = dict(waiting), dict(holds), tuple(tasks), *more[3:5]
        return cls(batch, tuple(behind), tuple(reading), dict(times), tuple(ended), *own)

    def among(self, is_own: Callable[[int], bool]) -> Notice:
        """Return what it says of some sources."""
        behind, reading, ended = (tuple(filter(is_own, each)) for each in (self.behind, self.reading, self.ended))
        times, holds = ({source: of[source] for source in of if is_own(source)} for of in (self.times, self.holds))
        waiting = {source: by for source, by in self.waiting.items() if is_own(source)}
        return self._replace(behind=behind, reading=reading, times=times, ended=ended, waiting=waiting, holds=holds)

    def is_gone(self, source: int, names: Sequence[str] = ()) -> bool:
        """Return whether a source was a task that is there no longer. names: of sources, if others send notices too."""
        if not self.tasks or (names and nearest(source, names) != nearest(self.tasks[0], names)):
            return False
        return (source - self.tasks[0]) % _SOURCES >= self.tasks[1]


class Known(NamedTuple):
    """What a store has of the sources of its rows, by their numbers: the entry of `SOURCES_KEY`.

    times: microseconds; of minus a source the largest of its rows. ended: the batch that ended it, 0, or `WAITING`.
    behind: {source with more to read: the offset of the last notice that says so, and 0, or the batch whose own notice
    of the source is still to come}; of `UNLABELLED` the offset of the last notice with `until`, and that time.
    """

    times: dict[int, int]
    ended: dict[int, int]
    behind: dict[int, tuple[int, int]]

    @classmethod
    def decode(cls, entry: bytes | None) -> Known:
        """Read the bytes of `encode`; None: nothing is known."""
        known = cls({}, {}, {})
        for source, number, batch in np.frombuffer(entry or b"", _KNOWN).tolist():
            if source <= BEHIND:
                known.behind[BEHIND - source] = number, batch
            else:
                known.times[source], known.ended[source] = number, batch
        return known

    def encode(self) -> bytes:
        """Return the entry."""
        entries = [(source, time, self.ended.get(source, 0)) for source, time in sorted(self.times.items())]
        behind = [(BEHIND - source, *of_notice) for source, of_notice in sorted(self.behind.items(), reverse=True)]
        return np.array([*behind, *entries], _KNOWN).tobytes()

    def hear(self, notice: Notice, offset: int, names: Sequence[str]) -> None:
        """Record a notice at an offset of the task's log. names: of sources, if several sub-topologies send them.

        A source stays behind until a notice does not say so whose sender looked after the last notice that did was
        written. An offset from the notice's own on is of another log: the task's keys were those of another task.
        """
        for source in notice.times.keys() & {*notice.reading, *notice.waiting}:
            waits = source in notice.waiting
            is_over = notice.batch if source in notice.ended else 0
            self.ended[source] = WAITING - notice.waiting[source] if waits else is_over
        for source in self.ended:
            if notice.is_gone(source, names):
                self.ended[source] = 0
        for source, (told_at, batch) in [*self.behind.items()]:
            is_settled = notice.log_end is None or not notice.log_end <= told_at < offset
            if is_settled or (source and (batch == notice.batch or notice.is_gone(source, names))):
                del self.behind[source]
        if notice.until is not None:
            self.behind[UNLABELLED] = offset, notice.until
        unread = {source for source in notice.reading if source in notice.times and not self.ended[source]}
        self.behind.update(dict.fromkeys({*notice.behind, *unread}, (offset, 0)))
        for source in notice.reading:
            if source not in notice.times and self.ended.get(source) != notice.batch:
                self.behind.setdefault(source, (offset, notice.batch))

    def with_other(self, other: Known) -> Known:
        """Return what a task knows that gets keys of two tasks, which know this."""
        times = {source: max(time, self.times.get(source, NEVER)) for source, time in other.times.items()}
        ended = {
            source: min(batch, mine) if (mine := self.ended.get(source, 0)) <= WAITING else batch
            for source, batch in other.ended.items()
        }
        return Known({**self.times, **times}, {**self.ended, **ended}, {})

    @property
    def hold(self) -> int | None:
        """The least time of the sources that hold the task back as of the last notice, None if none does."""
        return self.times.get(HELD)


class Front(NamedTuple):
    """What an operator knows of the one in front of it. Times are in microseconds.

    hold: the least time of the sources that hold the task back, None if none does. lag: how far a row may be behind the
    largest one so far. reached: a time that no result to come is behind, by the times that `Reach` names; None if it is
    unknown. times: these of the batch's results, None if they were not asked for. is_exact: the operator goes by one of
    them. is_open: results that it still holds back may begin before `reached`, though they end behind it.
    """

    hold: int | None = None
    lag: int = 0
    reached: int | None = None
    times: Times | None = None
    is_exact: bool = False
    is_open: bool = False

    def stepped(self, times: Times) -> int | None:
        """Return by how much steps have made the times of rows less, at most; None without rows to tell by."""
        has = times != NEVER
        if self.is_exact or self.times is None or not has.any():
            return 0 if self.is_exact else None
        # Steps that drop or add rows are known by the first of each batch alone.
        less = (self.times - times)[has] if len(times) == len(self.times) else self.times.min() - times[has].min()
        return max(int(np.max(less)), 0)


class SourceTimes(NamedTuple):
    """The times of a batch's rows by their sources: `rows` without labels and notices, the time `at` each of them.

    now: the task's time after the batch. known: the entry of `SOURCES_KEY` after it. is_known_new: whether it changes.
    hold: the least time of the sources that hold the task back, None if none does. sources: of the rows. held_by: the
    source that holds the task's time back, of one that waits for a source of its own that one; 0 if none does, None if
    the task has no sources of its own. held: microseconds that the time is behind that of the source that is furthest.
    """

    rows: pa.Table
    at: Times
    now: int
    known: bytes | None
    is_known_new: bool
    hold: int | None
    sources: Times
    held_by: int | None = None
    held: int = 0

    @classmethod
    def over(
        cls,
        table: pa.Table,
        column: str | None,
        store: Snapshot,
        key: bytes = STREAM_TIME_KEY,
        lag: int = 0,
        *,
        is_relayed: bool = False,
        is_stepped: bool = False,
        entry_key: bytes = SOURCES_KEY,
        is_own: Callable[[int], bool] | None = None,
        names: Sequence[str] = (),
    ) -> SourceTimes | None:
        """Return the times of rows and notices; None if no source is known, as with an earlier release's senders.

        column: of times, None if the operator does not go by any. key: of the stream time. lag: microseconds that rows
        of a source may be behind its largest one so far. is_relayed: rows of a source come through several tasks, which
        tell the time. is_stepped: their delays are by how much steps have made them less. entry_key: of what is known.
        is_own: tells which sources of notices count, None: all. names: of sources, if several sub-topologies send them.
        """
        is_notice = table[NOTICE].is_valid().to_numpy(zero_copy_only=False)
        source = table[SOURCE].to_numpy()
        (stored,) = store.multi_get([entry_key])
        if stored is None and not is_notice.any() and not source.any():
            return None
        before, known = stream_time(store, key), Known.decode(stored)
        places, rows = np.flatnonzero(is_notice), np.flatnonzero(~is_notice)
        notices = [Notice.decode(data) for data in table[NOTICE].filter(pa.array(is_notice)).to_pylist()]
        notices = notices if is_own is None else [notice.among(is_own) for notice in notices]
        plain = table.drop_columns(LABELS).filter(pc.invert(pa.array(is_notice)))
        delay = table[DELAY].to_numpy()
        offsets, source, delay, less = delay[places].tolist(), source[rows], delay[rows], 0
        if is_stepped:
            less, delay = max(known.times.get(STEPPED, NEVER), int(delay.max(initial=NEVER))), np.zeros_like(delay)
        times = np.full(len(rows), NEVER)
        if column is not None:
            times, has = times_of(plain, column)
            times = np.where(has, times + np.where(delay == UNTIMED, 0, delay), NEVER)
        relayed = (source != UNLABELLED) & is_relayed
        by_place, shown = dict(zip(places.tolist(), notices, strict=True)), np.where(relayed, NEVER, times)
        times_seen = _seen(source, shown, delay == UNTIMED, rows, by_place, known.times, lag)
        for notice, offset in zip(notices, offsets, strict=True):
            known.hear(notice, offset, names)
        now, hold = before, known.hold
        if notices:
            least, held_by = _least(known, times_seen.times(int(places[-1])))
            least -= max(less, 0)
            # By how much steps make times less is not known before the first row.
            now = before if less == NEVER else max(before, least)
            hold, known.ended[HELD] = least if held_by else None, held_by
        if hold is None and len(rows) and (not notices or rows[-1] > places[-1]):
            hold, known.ended[HELD] = now, 0  # a notice is still to come behind them
        held_by = known.ended.get(HELD, UNLABELLED)
        after = dict.fromkeys((label for label, ended in known.ended.items() if ended <= WAITING), NEVER)
        after |= {label: time for label, time in times_seen.times(len(table)).items() if label != HELD}
        after |= {} if hold is None else {HELD: hold}
        after |= {STEPPED: less} if is_stepped and less != NEVER else {}
        furthest = max((time for label, time in after.items() if label > UNLABELLED), default=now)
        held = max(furthest - now, 0) if held_by and now != NEVER else 0
        entry = known._replace(times=after).encode()
        stream_times = np.where(relayed, times, times_seen.at)
        stream_times = np.maximum(np.maximum(stream_times, before), np.where(delay == UNTIMED, times, NEVER))
        return cls(plain, stream_times, now, entry, entry != stored, hold, source, held_by, held)

    @classmethod
    def behind(
        cls, table: pa.Table, times: Times, store: Snapshot, key: bytes, front: Front, stepped: int | None
    ) -> SourceTimes:
        """Return the times of results of the operator in front, in their order.

        times: of the rows. stepped: by how much steps have made them less, None without rows to tell by. The
        task's time is the largest of the rows, or `hold` if that is less, but for `lag`; or what the operator in front
        has reached, if that is more. Rows with labels are late by the time of their source.

        No row is late by that: the time before a batch is not more than was reached then, and rows to come are not
        behind it. They are of windows that were open, or of rows that were not late, see `Reach`.
        """
        before, count = stream_time(store, key), len(table)
        (stored,) = store.multi_get([SOURCES_KEY])
        known, rows = Known.decode(stored).times, table
        stream_times, sources = np.maximum.accumulate(times), np.zeros(count, np.int64)
        largest, hold = max(before, known.get(UNLABELLED, NEVER), int(times.max(initial=NEVER))), front.hold
        now = max(before, (largest if hold is None else min(largest, hold)) - front.lag)
        less = max((known_less for known_less in (stepped, known.get(STEPPED)) if known_less is not None), default=None)
        if less is not None and front.reached is not None and not (less and front.is_open):
            now = max(now, front.reached - less)
        if SOURCE in table.column_names:
            sources, rows = table[SOURCE].to_numpy(), table.drop_columns(LABELS)
            seen = _Seen.of(sources, times + table[DELAY].to_numpy(), np.arange(count), [], known)
            stream_times, known = seen.at, seen.times(count)
        known |= {UNLABELLED: largest}
        if less is not None and not front.is_exact:
            known[STEPPED] = less
        entry = Known(known, {}, {}).encode() if largest > now or len(known) > 1 else None
        return cls(rows, np.maximum(stream_times, before), now, entry, entry != stored, hold, sources)


def _least(known: Known, times: Mapping[int, int]) -> tuple[int, int]:
    """Return a task's time as of its last notice, and the source that holds it back most, as `SourceTimes` has it.

    A notice that holds up to a time alone holds the task back there: by the source that is furthest, if by no other.
    A source in the notice's batch holds back until its rows of that batch are read, too.
    """
    holding = {source for source in known.behind if source != UNLABELLED}
    holding |= {source for source, batch in known.ended.items() if batch <= WAITING}
    shown = [(time, source) for source, time in times.items() if source > UNLABELLED]
    largest, furthest = max(shown, default=(NEVER, UNLABELLED))
    least, source = min(((times.get(source, NEVER), source) for source in holding), default=(largest, UNLABELLED))
    _, until = known.behind.get(UNLABELLED, (0, -NEVER))
    if least > until:  # others may have got more to read since
        return until, source or furthest
    of_its_own = WAITING - known.ended.get(source, 0)
    return least, of_its_own if of_its_own > UNLABELLED else source


def _seen(
    source: Times,
    times: Times,
    is_untimed: npt.NDArray[np.bool_],
    rows: Times,
    notices: Mapping[int, Notice],
    known: Mapping[int, int],
    lag: int,
) -> _Seen:
    """Return the times of sources by place; of tasks with sources of their own also the largest of their rows.

    source, times, is_untimed, rows: of each row its source, time, label and place. notices: by their places.
    """
    labelled = [
        (-label if label in notice.holds else label, time, place)
        for place, notice in notices.items()
        for label, time in notice.times.items()
        if time is not None
    ]
    largest = _Seen.of(np.where(is_untimed, -source, source), times, rows, labelled, known)
    bounded = [
        (label, max(min(largest.time_of(-label, place), hold if hold is not None else -NEVER) - lag, NEVER), place)
        for place, notice in notices.items()
        for label, hold in notice.holds.items()
    ]
    if not bounded and not is_untimed.any():
        return largest
    end = len(rows) + len(notices)
    labelled += [(label, time, end) for label, time in largest.times(end).items() if HELD < label < UNLABELLED]
    # A row without a time of its source is late by what notices have told before it.
    return _Seen.of(source, np.where(is_untimed, NEVER, times), rows, [*labelled, *bounded], known)


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
        cls, source: Times, times: Times, rows: Times, labelled: list[tuple[int, int, int]], known: Mapping[int, int]
    ) -> _Seen:
        """labelled: source, time and place of what notices say. known: times before the batch."""
        first = [(label, time, -1) for label, time in known.items()]
        more = np.array([*first, *labelled], np.int64).reshape(-1, 3)
        all_sources = np.concatenate([source, more[:, 0]])
        place = np.concatenate([rows, more[:, 2]])
        time = np.concatenate([times, more[:, 1]])
        order = np.lexsort((place, all_sources))
        labels, largest = all_sources[order], time[order]
        begins = np.flatnonzero(np.diff(labels, prepend=HELD - 1))
        for begin, end in pairwise([*begins, len(labels)]):
            largest[begin:end] = np.maximum.accumulate(largest[begin:end])
        back = np.empty(len(order), np.int64)
        back[order] = largest
        return cls(labels, place[order], largest, back[: len(source)])

    def time_of(self, source: int, place: int) -> int:
        """Return the time of a source up to a place."""
        begin, end = np.searchsorted(self.source, [source, source + 1])
        count = int(np.searchsorted(self.place[begin:end], place, "right"))
        return int(self.time[begin + count - 1]) if count else NEVER

    def times(self, place: int) -> dict[int, int]:
        """Return the time of each source up to a place."""
        there = self.place <= place
        source, time = self.source[there], self.time[there]
        last = np.flatnonzero(np.diff(source, append=HELD - 1))
        return dict(zip(source[last].tolist(), time[last].tolist(), strict=True))


@dataclass
class SourceClock:
    """A sender's look at the times of one source's rows of a batch, in their order.

    column: of times; None if they are unknown until rows have arrived. is_untimed: rows say nothing of the time of
    their source, a task whose rows come in another order. hold: the least time of its own sources that hold it back,
    None if none does, else by `held_by`. waits: it waits.
    """

    source: int
    column: str | None
    is_untimed: bool = False
    hold: int | None = None
    waits: bool = False
    held_by: int = UNLABELLED
    time: int | None = None
    """The largest time so far in microseconds, None without one."""
    passed: int | None = field(default=None, init=False)
    """A time before which no further row of the source is; None if that is not known."""

    @property
    def noticed(self) -> int | None:
        """The time in notices."""
        return max((time for time in (self.time, self.passed) if time is not None), default=None)

    def labels(self, rows: pa.Table) -> Times:
        """Return the labels of the next rows."""
        delays = np.zeros(len(rows), np.int64)
        if self.column is not None and len(rows):
            times, has = times_of(rows, self.column)
            running_times = np.maximum(np.maximum.accumulate(times), NEVER if self.time is None else self.time)
            delays = np.where(has, np.minimum(running_times - times, UNTIMED - 1), 0)
            self.time = None if running_times[-1] == NEVER else int(running_times[-1])
        return labels(self.source, np.full(len(rows), UNTIMED) if self.is_untimed else delays)
