"""A partition's log: segments one after another, append at the end, read anywhere below the high watermark."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from roster.broker.config import LogConfig
from roster.broker.log.aborted_transactions import AbortedTransaction
from roster.broker.log.batch_check import LEADER_EPOCH
from roster.broker.log.log_start import LogStart
from roster.broker.log.open_files import OPEN_FILES
from roster.broker.log.producer_state import ProducerTable
from roster.broker.log.recovery import Recovery
from roster.broker.log.segment import Segment
from roster.broker.log.segment_index import BEFORE_ALL_TIME
from roster.wire.control_records import EndTxnMarker, build_marker
from roster.wire.records import LAST_TIME, NO_PRODUCER, BatchHeader, read_batch, read_header


class Appended(NamedTuple):
    """Position of a batch in the log."""

    base_offset: int
    last_offset: int


class TimedOffset(NamedTuple):
    """A record's offset and its timestamp."""

    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class FlushPoint:
    """Segments to sync for everything below `end_offset` to be durable."""

    end_offset: int
    segment: Segment
    position: int
    to_seal: tuple[tuple[Segment, bytes], ...]
    new_names_in: tuple[Path, ...]

    def sync(self) -> None:
        """Sync them, in a thread of its own. Older segments first: a torn one is always the last."""
        for directory in self.new_names_in:
            OPEN_FILES.sync_directory(directory)
        for segment, producers in self.to_seal:
            segment.seal(producers)
        self.segment.sync()


class PartitionLog:
    """One partition on disk. Not thread-safe: one event loop appends and reads, threads sync, read and check segments.

    Offsets below `high_watermark` are durable, and only those are ever read: a consumer never sees a record that a
    power failure could take back.
    """

    def __init__(
        self, directory: Path, config: LogConfig, *, compacted: bool = False, was_compacted: bool = False
    ) -> None:
        self.directory = directory
        self.compacted = compacted
        self.gaps = compacted or was_compacted
        """True if offsets may be missing between batches."""
        self.high_watermark = 0
        self.watchers: set[Callable[[], None]] = set()
        """Called whenever the high watermark rises."""
        self.removed = False
        """Set when the topic is deleted; requests that still hold the log must stop using it."""
        self.config = config
        self.start = LogStart()
        """First offset of the log after deletions."""
        self.maintenance = asyncio.Lock()
        """Held while segments are rewritten or deleted."""
        self._segments: list[Segment] = []
        self.producers = ProducerTable()
        """The producers that wrote here."""
        self._to_seal: list[tuple[Segment, bytes]] = []
        self._new_names_in: list[Path] = []
        self._durable_segment: Segment | None = None
        self._durable_position = 0
        self.clean_end = 0
        """Offset up to which compaction has removed superseded records since the broker started."""
        self._compact_from_bytes = 0

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be asked for."""
        return max(self.start.offset, self._segments[0].base_offset if self._segments else 0)

    @property
    def end_offset(self) -> int:
        """The offset the next record gets."""
        return self._segments[-1].next_offset if self._segments else 0

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided; readers of committed records stop there."""
        return max(self.producers.last_stable_offset(self.high_watermark), self.log_start_offset)

    @property
    def is_dirty(self) -> bool:
        """True if something was appended that is not durable yet."""
        return self.high_watermark < self.end_offset or bool(self._to_seal)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    def configure(self, config: LogConfig, *, compacted: bool) -> None:
        """Change how the log is kept from now on."""
        self.config = config
        self.compacted = compacted
        self.gaps |= compacted

    # Recovery

    def open(self, now_ms: int) -> None:
        """Read what the directory holds; afterwards everything that is left is durable.

        Raise CorruptSegmentError for damage that cannot be worked around.
        """
        if not self.directory.exists():
            return
        recovery = Recovery(self.directory, self.config.index_interval_bytes, now_ms, gaps=self.gaps)
        recovery.run()
        self._segments, self.producers, self.start = recovery.segments, recovery.producers, recovery.start
        if self._segments:
            active = self._segments[-1]
            self._set_durable(active, active.size, active.next_offset)

    @property
    def segments(self) -> list[Segment]:
        """The segments, oldest first."""
        return list(self._segments)

    def verify(self) -> None:
        """Check every batch; raise CorruptSegmentError for the first that is damaged."""
        for segment in self._segments:
            for block in range(segment.blocks):
                damage = segment.check(block)
                if damage is not None:
                    raise damage.error()

    @property
    def highest_producer_id(self) -> int:
        """The highest producer id in the log that a broker issued, or -1."""
        return self.producers.highest_id

    def retire(self) -> None:
        """Retire the log of a deleted topic: wake waiting requests, and never open its files again."""
        self.removed = True
        for segment in self._segments:
            segment.retire()
        self.notify()

    # Writing

    def append(self, header: BatchHeader, batch: memoryview, now_ms: int) -> Appended:
        """Write a valid batch at the end, or find the one it repeats; not durable until a flush.

        Raise SequenceError if the batch does not follow its producer's last, OSError if the disk refuses it.
        """
        if header.producer_id != NO_PRODUCER:
            repeated = self.producers.check(header)
            if repeated is not None:
                return Appended(repeated.base_offset, repeated.last_offset)
        base_offset = self._write(header, batch, now_ms)
        if header.producer_id != NO_PRODUCER:
            self.producers.add(header, base_offset, now_ms)
        return Appended(base_offset, base_offset + header.last_offset_delta)

    def append_transactional(self, batch: memoryview, now_ms: int) -> Appended:
        """Write a batch of the broker's own, part of a producer's transaction; not durable until a flush.

        Raise SequenceError if the producer was fenced.
        """
        header = read_header(batch)
        self.producers.check_epoch(header)
        base_offset = self._write(header, batch, now_ms)
        self.producers.add(header, base_offset, now_ms)
        return Appended(base_offset, base_offset + header.last_offset_delta)

    def append_marker(self, marker: EndTxnMarker, producer_id: int, producer_epoch: int, now_ms: int) -> int:
        """End a producer's transaction here, if it has one; return the marker's offset, not durable until a flush.

        Raise SequenceError if the producer or the coordinator was fenced, OSError if the disk refuses it.
        """
        batch = build_marker(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        header = read_header(batch)
        self.producers.check_marker(header, marker)
        offset = self._write(header, memoryview(batch), now_ms)
        self.producers.end(header, marker, offset, now_ms)
        return offset

    def _write(self, header: BatchHeader, batch: memoryview, now_ms: int) -> int:
        """Write a batch at the end and return its offset."""
        segment = self._segment_for(header.size, header.newest, now_ms)
        base_offset = segment.next_offset
        segment.append(header, batch, base_offset, LEADER_EPOCH)
        return base_offset

    def _is_full(self, segment: Segment, size: int, timestamp: int) -> bool:
        """Return True if a batch of a size and with a newest timestamp has to begin a new segment."""
        if not segment.size:
            return False
        if segment.size + size > self.config.segment_bytes:
            return True
        first = segment.first_timestamp()
        lag = self.config.max_compaction_lag_ms if self.compacted else self.config.segment_ms
        return first >= 0 and timestamp - first > min(lag, self.config.segment_ms)

    def _segment_for(self, size: int, timestamp: int, now_ms: int) -> Segment:
        """The segment the next batch goes to."""
        if not self._segments:
            if not self.directory.exists():
                self.directory.mkdir(parents=True)
                self._new_names_in.append(self.directory.parent)
            self._begin_segment(0)
        elif self._is_full(self._segments[-1], size, timestamp):
            self.roll(now_ms)
        return self._segments[-1]

    def _begin_segment(self, base_offset: int) -> None:
        segment = Segment(self.directory, base_offset, self.config.index_interval_bytes, gaps=self.gaps)
        segment.create()
        self._segments.append(segment)
        self._new_names_in.append(self.directory)

    def roll(self, now_ms: int) -> None:
        """Begin a new active segment; the next flush seals the old one. Does nothing if the active one is empty."""
        if not self._segments[-1].size:
            return
        self.producers.expire(now_ms - self.config.producer_expiration_ms)
        ended = self._segments[-1]
        self._begin_segment(self.end_offset)
        self._to_seal.append((ended, self.producers.encode(ended.base_offset)))

    # Flushing

    def begin_flush(self) -> FlushPoint | None:
        """Return the segments to sync now; None if everything is durable."""
        if not self.is_dirty:
            return None
        active = self._segments[-1]
        return FlushPoint(self.end_offset, active, active.size, tuple(self._to_seal), tuple(self._new_names_in))

    def finish_flush(self, point: FlushPoint) -> None:
        """Raise the high watermark to a point that was synced."""
        del self._to_seal[: len(point.to_seal)]
        del self._new_names_in[: len(point.new_names_in)]
        self._set_durable(point.segment, point.position, point.end_offset)
        self.notify()

    def _set_durable(self, segment: Segment, position: int, end_offset: int) -> None:
        self._durable_segment, self._durable_position = segment, position
        self.high_watermark = end_offset
        self.producers.durable(end_offset)

    def _durable_end(self, segment: Segment) -> int:
        """Return the position up to which a segment may be read."""
        if segment.next_offset <= self.high_watermark:
            return segment.size
        return self._durable_position if segment is self._durable_segment else 0

    # Compaction

    def wants_compaction(self, now_ms: int) -> bool:
        """Return True if enough was appended since the last compaction for another, or a record waits too long."""
        if not self.compacted or self.size < self._compact_from_bytes:
            return False
        segments = self.old_enough(self._segments, now_ms)
        if self.size < self.config.compact_min_bytes:
            return self._is_overdue(segments, now_ms)
        return self.is_worth_compacting(segments, now_ms)

    def old_enough(self, segments: list[Segment], now_ms: int) -> list[Segment]:
        """Return the segments up to the first one with a record younger than `min.compaction.lag.ms`."""
        lag = self.config.min_compaction_lag_ms
        return list(takewhile(lambda segment: segment.max_timestamp <= now_ms - lag, segments)) if lag else segments

    def is_worth_compacting(self, segments: list[Segment], now_ms: int) -> bool:
        """Return True if enough of these, the oldest segments, was not compacted yet, or for too long."""
        dirty = sum(segment.size for segment in segments if segment.next_offset > self.clean_end)
        enough = dirty >= sum(segment.size for segment in segments) * self.config.min_cleanable_dirty_ratio
        return dirty > 0 and (enough or self._is_overdue(segments, now_ms))

    def _is_overdue(self, segments: list[Segment], now_ms: int) -> bool:
        """Return True if a segment not compacted yet began more than `max.compaction.lag.ms` ago, as Kafka counts."""
        begun_before = now_ms - self.config.max_compaction_lag_ms
        return begun_before > 0 and any(
            0 < segment.first_timestamp() < begun_before
            for segment in segments
            if segment.size and segment.next_offset > self.clean_end
        )

    def compacted_to(self, offset: int) -> None:
        """Record that superseded records up to an offset are gone."""
        self.clean_end = offset
        self._compact_from_bytes = 0

    def postpone_compaction(self) -> None:
        """Do not compact again after a failure until the log has grown enough."""
        size = self.size
        self._compact_from_bytes = size + max(
            self.config.compact_min_bytes, int(size * self.config.min_cleanable_dirty_ratio)
        )

    def sealed_segments(self) -> list[Segment]:
        """The segments that will not change any more."""
        unsealed = {self._segments[-1], *(segment for segment, _ in self._to_seal)} if self._segments else set()
        return [segment for segment in self._segments if segment not in unsealed]

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Put one segment in the place of consecutive ones."""
        place = self._segments.index(old[0])
        self._segments[place : place + len(old)] = [new]
        self.producers.aborted.forget_before(new.next_offset)

    # Retention

    def begin_at(self, start: LogStart, gone: list[Segment]) -> None:
        """Begin at an offset that is stored; `gone` are the oldest segments, which end before it."""
        self.start = start
        del self._segments[: len(gone)]
        self.producers.aborted.forget_before(self._segments[0].base_offset if self._segments else 0)
        self.notify()

    # Reading

    def locate(
        self, offset: int, max_bytes: int, *, at_least_one: bool, before: int | None = None
    ) -> tuple[Segment, int, int] | None:
        """Locate whole batches from the one with this offset on: segment, from, to; None if nothing can be read.

        No more than `max_bytes`, except that `at_least_one` gives the first batch whatever its size. `before` is where
        a batch begins at which to stop, the last stable offset.
        """
        if offset >= (self.high_watermark if before is None else before):
            return None
        first = max(bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
        for segment in self._segments[first:]:
            start = segment.position_of(offset)
            end = self._durable_end(segment)
            if before is not None and before < min(segment.next_offset, self.high_watermark):
                end = min(end, segment.position_of(before))
            if start >= end:
                continue
            stop = segment.cut(start, min(start + max_bytes, end))
            if stop == start and at_least_one:
                stop = segment.first_batch_end(start)
            return (segment, start, stop) if stop > start else None
        return None

    def aborted_in(self, offset: int, segment: Segment, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records from an offset up to a position in a segment."""
        return self.producers.aborted.overlapping(offset, segment.offset_behind(end))

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool = True) -> bytes | bytearray:
        """Whole batches from the one that holds this offset on, waiting for the disk if need be."""
        place = self.locate(offset, max_bytes, at_least_one=at_least_one)
        return b"" if place is None else place[0].read(place[1], place[2])

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every durable batch in order; for small logs that are read whole."""
        for segment in list(self._segments):
            end = self._durable_end(segment)
            for header, position, batch in segment.batches():
                if position + len(batch) > end:
                    return
                yield header, batch

    def offset_for_time(self, timestamp: int) -> TimedOffset | None:
        """The first record whose timestamp is at or after the given one."""
        for segment in self._segments:
            if segment.max_timestamp < timestamp:
                continue
            for header, position, batch in segment.batches(segment.position_of_time(timestamp)):
                if position >= self._durable_end(segment):
                    return None
                if header.max_timestamp < timestamp:
                    continue
                for record in read_batch(batch):
                    if LAST_TIME >= record.timestamp >= timestamp and record.offset >= self.log_start_offset:
                        return TimedOffset(record.timestamp, record.offset)
        return None

    def newest_record(self) -> TimedOffset | None:
        """The first of the records with the greatest timestamp."""
        holders = [s for s in self._segments if s.max_timestamp > BEFORE_ALL_TIME]
        if not holders:
            return None
        segment = max(holders, key=lambda s: s.max_timestamp)
        return self.offset_for_time(segment.max_timestamp)

    # Closing

    def notify(self) -> None:
        """Wake all requests that wait for this partition."""
        for watcher in list(self.watchers):
            watcher()

    def close(self) -> None:
        """Seal the active segment, so that the next start need not read it, and close every file.

        Only once everything is durable and no flush is under way.
        """
        try:
            if self._segments and self._segments[-1].size and not self.is_dirty:
                self._segments[-1].seal(self.producers.encode(self._segments[-1].base_offset))
        finally:
            for segment in self._segments:
                segment.close()
