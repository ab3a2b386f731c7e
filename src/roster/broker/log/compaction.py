"""Log compaction: keeps only the newest record of each key; offsets do not change."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from roster._clock import wall_ms
from roster.broker.log.rewriting import Rewriting, Stopped
from roster.wire import WireError

if TYPE_CHECKING:
    from roster.broker.log.flusher import Flusher
    from roster.broker.log.partition_log import PartitionLog

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
