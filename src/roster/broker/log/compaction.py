"""Log compaction: keeps only the newest record of each key; offsets do not change (Kafka's log cleaner).

A first pass over the records appended since the last compaction finds the newest offset of up to `MOST_KEYS` keys. A
second one copies what is not superseded, a few segments at a time. Records are looked at one after another; a batch
whose records cannot be read is copied as it is.
"""

import asyncio
import hashlib
import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from roster._clock import wall_ms
from roster._extras import MissingExtraError
from roster._files import sync_path
from roster.broker.config import LogConfig
from roster.broker.log.aborted_transactions import AbortedTransaction
from roster.broker.log.batch_check import LEADER_EPOCH
from roster.broker.log.flusher import Flusher
from roster.broker.log.partition_log import PartitionLog
from roster.broker.log.segment import LOG_SUFFIX, Segment
from roster.broker.log.segment_index import BEFORE_ALL_TIME
from roster.wire import WireError
from roster.wire.compression import expanded
from roster.wire.record_spans import RecordSpan, record_spans
from roster.wire.records import HEADER_SIZE, BatchHeader, is_time, read_header, with_body

MOST_KEYS = 2_000_000
"""Keys that one rewriting looks at, of some 150 bytes of memory each."""
_LONGEST_KEY = 32
"""Longer keys are remembered by their digest."""


class Stopped(Exception):  # an instruction, not a failure
    """The broker is stopping."""


class Replaced(NamedTuple):
    """Consecutive segments, and the segment that replaced them on the disk."""

    old: list[Segment]
    new: Segment


class Rewriting:
    """One rewriting of the oldest, sealed segments of a log; for a thread of its own.

    Segments that end at or before offset `clean_end` were rewritten before. A tombstone from before
    `keep_tombstones_since` (wall-clock ms) goes too, a record without a key stays. Every transaction in the segments
    must be decided: records of `aborted` ones go, and so do markers without records. The last record stays: a reader
    up to there would wait for it. `check` is called now and then, and may raise `Stopped`.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        config: LogConfig,
        keep_tombstones_since: int,
        aborted: Sequence[AbortedTransaction] = (),
        *,
        clean_end: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._segments = segments
        self._config = config
        self._keep_tombstones_since = keep_tombstones_since
        self._aborted = _Aborted(aborted)
        self._clean_end = clean_end
        self._check = check
        self._end = segments[-1].next_offset
        self._newest: dict[bytes, int] = {}
        self._in_transaction: set[int] = set()
        """Producers of whose transaction a record was kept."""
        self._is_changed = False
        """True if anything was left out of the segment being written."""
        self.covered = clean_end
        """Offset up to which superseded records go; known once `replaced` has begun."""
        self.unreadable: list[int] = []
        """Base offsets of batches that were copied without a look at their records."""

    def replaced(self, most_keys: int = MOST_KEYS) -> Iterator[Replaced]:
        """Rewrite; yield each time a new segment is in place, and remove what it replaced when resumed.

        A crash at any point is harmless: the new segment takes the place of the first old one, and the others, which
        recovery recognises by their offsets, are removed oldest first, so that a deletion never disappears before what
        it deleted.
        """
        self.covered = self._read_keys(most_keys)
        group: list[Segment] = []
        new: Segment | None = None
        try:
            for segment in self._segments:
                if new is None:
                    new = self._begin(segment)
                elif self._is_full(new, segment):
                    whole, new = new, None
                    yield from self._replace(group, whole)
                    group, new = [], self._begin(segment)
                group.append(segment)
                for header, batch in self._kept_batches(segment):
                    new.append(header, batch, header.base_offset, LEADER_EPOCH)
            if new is not None:
                whole, new = new, None
                yield from self._replace(group, whole)
        finally:
            if new is not None:  # cut off
                new.retire()
                new.path.unlink(missing_ok=True)

    def _begin(self, first: Segment) -> Segment:
        new = Segment(
            first.path.parent,
            first.base_offset,
            self._config.index_interval_bytes,
            gaps=True,
            suffix=LOG_SUFFIX + ".tmp",
        )
        new.path.unlink(missing_ok=True)
        new.create()
        self._is_changed = False
        return new

    def _is_full(self, new: Segment, following: Segment) -> bool:
        """Return True if another segment would make a new one larger, or older at its end, than a segment may be."""
        if not new.size:
            return False
        first = new.first_timestamp()
        is_older = first >= 0 and following.max_timestamp - first > self._config.segment_ms
        return is_older or new.size + following.size > self._config.segment_bytes

    def _replace(self, old: list[Segment], new: Segment) -> Iterator[Replaced]:
        first, last = old[0], old[-1]
        if len(old) == 1 and not self._is_changed:
            new.retire()
            new.path.unlink()
            return
        new.extend(last.next_offset)
        producers = Segment(last.path.parent, last.base_offset, self._config.index_interval_bytes).load_sidecar()
        if producers is None:
            raise WireError(f"{last.path} is not sealed")
        first.retire(keep_open=True)
        new.take_place(first, producers.encode(new.next_offset))
        yield Replaced(old, new)
        for segment in old[1:]:
            segment.retire(keep_open=True)
            segment.sidecar_path.unlink(missing_ok=True)
            segment.path.unlink()
            sync_path(segment.path.parent)

    # Reading

    def _read_keys(self, most: int) -> int:
        """Find the newest offset of each key behind the clean end; return the offset up to which that was done."""
        for segment in self._segments:
            if segment.next_offset <= self._clean_end:
                continue
            for header, _, batch in segment.batches():
                self._check()
                if header.is_control or header.base_offset < self._clean_end or header in self._aborted:
                    continue
                newest = self._keys_of(header, batch)
                if self._newest and len(self._newest) + len(newest) > most:
                    return header.base_offset
                self._newest.update(newest)
        return self._end

    def _keys_of(self, header: BatchHeader, batch: memoryview) -> dict[bytes, int]:
        """Return the newest offset of each key of a batch, none if it cannot be read."""
        newest = {}
        try:
            for span in self._records(header, batch):
                if span.key_size >= 0:
                    newest[_name(span)] = header.base_offset + span.offset_delta
        except (WireError, MissingExtraError):
            self.unreadable.append(header.base_offset)
            return {}
        return newest

    def _records(self, header: BatchHeader, batch: memoryview) -> Iterator[RecordSpan]:
        """Yield the records of a batch; WireError if they cannot be read."""
        pieces = expanded(header.compression, bytes(batch[HEADER_SIZE:]))
        last = -1
        for span in record_spans(pieces, header.records_count):
            self._check()
            if not last < span.offset_delta <= header.last_offset_delta:
                raise WireError(f"record: offset_delta {span.offset_delta} behind {last}")
            last = span.offset_delta
            yield span

    # Copying

    def _kept_batches(self, segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches to copy."""
        for header, _, batch in segment.batches():
            self._check()
            kept = self._kept_marker(header, batch) if header.is_control else self._kept(header, batch)
            self._is_changed |= kept is not batch
            if kept is not None:
                yield read_header(kept), kept

    def _kept_marker(self, header: BatchHeader, batch: memoryview) -> memoryview | None:
        """Return a marker if a record of its transaction is kept, or at the end."""
        if header.producer_id not in self._in_transaction and header.last_offset + 1 != self._end:
            return None
        self._in_transaction.discard(header.producer_id)
        return batch

    def _kept(self, header: BatchHeader, batch: memoryview) -> memoryview | None:
        """Return what is kept of a batch of records, None if nothing is."""
        kept = None if header in self._aborted else self._not_superseded(header, batch)
        if kept is not None and header.is_transactional:
            self._in_transaction.add(header.producer_id)
        return kept

    def _not_superseded(self, header: BatchHeader, batch: memoryview) -> memoryview | None:
        """Return a batch without what is superseded, None if nothing is left; producer, offsets and sequences stay."""
        body, count, newest = bytearray(), 0, BEFORE_ALL_TIME
        try:
            for span in self._records(header, batch):
                if self._is_kept(header, span):
                    body += span.data[span.start : span.end]
                    count += 1
                    stamp = header.time_of(span.timestamp_delta)
                    newest = max(newest, stamp if is_time(stamp) else -1)
        except (WireError, MissingExtraError):
            return batch
        if count in (0, header.records_count):
            return batch if count else None
        return memoryview(with_body(header._replace(records_count=count, max_timestamp=newest), bytes(body)))

    def _is_kept(self, header: BatchHeader, span: RecordSpan) -> bool:
        offset = header.base_offset + span.offset_delta
        if span.key_size < 0 or offset >= self.covered:
            return True
        if self._newest.get(_name(span), -1) > offset:
            return False
        is_young = header.time_of(span.timestamp_delta) >= self._keep_tombstones_since
        return span.value_size >= 0 or is_young or offset + 1 == self._end


def _name(span: RecordSpan) -> bytes:
    """Return what a key is remembered by, in bounded memory."""
    key = span.data[span.key_start : span.key_start + span.key_size]
    return key if len(key) <= _LONGEST_KEY else hashlib.sha256(key).digest() + b"\0"


class _Aborted:
    """Tells which batches belong to aborted transactions."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for entry in aborted:
            self._by_producer.setdefault(entry.producer_id, []).append(entry)

    def __contains__(self, header: BatchHeader) -> bool:
        entries = self._by_producer.get(header.producer_id) if header.is_transactional else None
        if entries is None:
            return False
        place = bisect_left(entries, header.base_offset, key=lambda entry: entry.last_offset)
        return place < len(entries) and entries[place].first_offset <= header.base_offset


logger = logging.getLogger(__name__)


class Compactor:
    """Rewrites logs that have become dirty, one at a time, in the background."""

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self._queue: dict[PartitionLog, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopping = threading.Event()

    def consider(self, log: PartitionLog) -> None:
        """Compact the log if enough was appended since the last time, or a record waits too long."""
        if log.wants_compaction(wall_ms()) and not self._stopping.is_set():
            self._queue[log] = None
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._queue:
                log = next(iter(self._queue))
                del self._queue[log]  # what is appended from here on may make it dirty again
                if not log.wants_compaction(wall_ms()):
                    continue
                try:
                    async with log.maintenance:
                        await self._compact(log)
                except Stopped:
                    return
                except (OSError, WireError, MemoryError) as error:
                    if not log.removed:
                        logger.error("%s: not compacted, tried again once it has grown: %s", log.directory, error)
                        log.postpone_compaction()
        finally:
            self._task = None

    async def _compact(self, log: PartitionLog) -> None:
        before, now = log.size, wall_ms()
        if log.last_stable_offset == log.end_offset and len(log.old_enough(log.segments, now)) == len(log.segments):
            log.roll(now)
            await self._flusher.durable(log)
        stable = log.last_stable_offset
        sealed = [segment for segment in log.sealed_segments() if segment.next_offset <= stable]
        old = log.old_enough(sealed, now)
        drop_before = now - log.config.delete_retention_ms
        if log.removed or not log.is_worth_compacting(old, now):
            return
        aborted = log.producers.aborted.overlapping(0, old[-1].next_offset)
        work = Rewriting(old, log.config, drop_before, aborted, clean_end=log.clean_end, check=self._check)
        steps = work.replaced()
        while (step := await asyncio.to_thread(next, steps, None)) is not None:
            log.replace(step.old, step.new)
        log.compacted_to(work.covered)
        logger.info("%s: compacted from %d to %d bytes", log.directory, before, log.size)
        if work.unreadable:
            logger.warning(
                "%s: the records of %d batches cannot be read, and stay; the first is at offset %d",
                log.directory,
                len(work.unreadable),
                work.unreadable[0],
            )
        self.consider(log)  # more keys than one rewriting looks at

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopped

    async def stop(self) -> None:
        """Leave the compaction under way where it is, and start no other."""
        self._stopping.set()
        self._queue.clear()
        if self._task is not None:
            await asyncio.wait([self._task])
