"""Log compaction: keeps only the newest record of each key; offsets do not change."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from typing import TYPE_CHECKING

from roster._clock import wall_ms
from roster._files import sync_path
from roster.broker.log.batch_check import LEADER_EPOCH
from roster.broker.log.segment import LOG_SUFFIX, Segment
from roster.wire import WireError
from roster.wire.records import build_batch, read_batch, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from roster.broker.log.aborted_transactions import AbortedTransaction
    from roster.broker.log.flusher import Flusher
    from roster.broker.log.partition_log import PartitionLog
    from roster.wire.records import BatchHeader, Record

logger = logging.getLogger(__name__)


def rewrite(
    segments: Sequence[Segment],
    index_interval_bytes: int,
    keep_tombstones_since: int,
    aborted: Sequence[AbortedTransaction] = (),
) -> Segment:
    """Replace sealed, consecutive segments by one with the newest record of each key; for a thread of its own.

    A tombstone from before `keep_tombstones_since` (wall-clock ms) goes too, a record without a key stays. Every
    transaction in the segments must be decided: records of `aborted` ones go, and so do markers without records. What
    is at the end stays: a reader up to there would wait for it.
    A crash at any point is harmless: the new segment takes the place of the first old one by a rename,
    and the others, which recovery recognises by their offsets, are deleted oldest first, so that a deletion never
    disappears before what it deleted.
    """
    left_out = _Aborted(aborted)
    newest, last = _newest(segments, left_out), segments[-1].next_offset - 1

    def is_kept(record: Record) -> bool:
        if record.key is None:
            return True
        return newest[record.key] == record.offset and (
            record.value is not None or record.timestamp >= keep_tombstones_since or record.offset == last
        )

    directory = segments[0].path.parent
    final_path = segments[0].path
    compacted = Segment(directory, segments[0].base_offset, index_interval_bytes, gaps=True, suffix=LOG_SUFFIX + ".tmp")
    compacted.path.unlink(missing_ok=True)
    compacted.create()
    for header, batch in _kept_batches(segments, left_out, is_kept):
        compacted.append(header, batch, header.base_offset, LEADER_EPOCH)
    compacted.extend(last + 1)
    newest_segment = Segment(directory, segments[-1].base_offset, index_interval_bytes)
    producers = newest_segment.load_sidecar()
    if producers is None:
        raise WireError(f"{newest_segment.path} is not sealed")
    compacted.sync()
    segments[0].retire(keep_open=True)
    segments[0].unseal()
    compacted.move(final_path)
    sync_path(directory)
    compacted.seal(producers.encode(compacted.next_offset))
    for segment in segments[1:]:
        segment.sidecar_path.unlink(missing_ok=True)
        segment.path.unlink()
        sync_path(directory)
    return compacted


def _newest(segments: Sequence[Segment], left_out: _Aborted) -> dict[bytes, int]:
    """Return the offset of the newest record of each key."""
    newest: dict[bytes, int] = {}
    for segment in segments:
        for header, _, batch in segment.batches():
            if not header.is_control and header not in left_out:
                newest.update((record.key, record.offset) for record in read_batch(batch) if record.key is not None)
    return newest


def _kept_batches(
    segments: Sequence[Segment], left_out: _Aborted, is_kept: Callable[[Record], bool]
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of the new segment; a marker only if a record of its transaction is kept, or at the end."""
    in_transaction: set[int] = set()
    end = segments[-1].next_offset
    for segment in segments:
        for header, _, batch in segment.batches():
            if header.is_control:
                if header.producer_id in in_transaction or header.last_offset + 1 == end:
                    in_transaction.discard(header.producer_id)
                    yield header, batch
                continue
            records = [] if header in left_out else read_batch(batch)
            kept = [record for record in records if is_kept(record)]
            if not kept:
                continue
            if header.is_transactional:
                in_transaction.add(header.producer_id)
            data = batch if len(kept) == len(records) else memoryview(_rebuild(header, kept))
            yield read_header(data), data


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


def _rebuild(header: BatchHeader, kept: list[Record]) -> bytes:
    """Return the batch without superseded records; producer id, epoch and sequence stay."""
    return build_batch(
        kept,
        base_offset=header.base_offset,
        leader_epoch=LEADER_EPOCH,
        compression=header.compression,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        last_offset=header.last_offset,
    )


class Compactor:
    """Rewrites logs that have become dirty, one at a time, in the background."""

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self._queue: dict[PartitionLog, None] = {}
        self._task: asyncio.Task[None] | None = None

    def consider(self, log: PartitionLog) -> None:
        """Compact the log if enough was appended since the last time."""
        if log.wants_compaction:
            self._queue[log] = None
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._queue:
                log = next(iter(self._queue))
                del self._queue[log]  # what is appended from here on may make it dirty again
                if not log.wants_compaction:
                    continue
                try:
                    async with log.maintenance:
                        await self._compact(log)
                except (OSError, WireError) as error:
                    logger.error(
                        "%s: cannot be compacted, and stays as it is until the next start: %s", log.directory, error
                    )
                    log.compacted = False
        finally:
            self._task = None

    async def _compact(self, log: PartitionLog) -> None:
        before = log.size
        if log.last_stable_offset == log.end_offset:
            log.roll(wall_ms())
            await self._flusher.durable(log)
        stable = log.last_stable_offset
        old = [segment for segment in log.sealed_segments() if segment.next_offset <= stable]
        drop_before = wall_ms() - log.config.tombstone_retention_ms
        if log.removed or not log.is_worth_compacting(old):
            return
        aborted = log.producers.aborted.overlapping(0, old[-1].next_offset)
        compacted = await asyncio.to_thread(rewrite, old, log.config.index_interval_bytes, drop_before, aborted)
        log.replace(old, compacted)
        logger.info("%s: compacted from %d to %d bytes", log.directory, before, log.size)

    async def stop(self) -> None:
        """Finish the compaction under way and start no other."""
        self._queue.clear()
        if self._task is not None:
            await asyncio.wait([self._task])
