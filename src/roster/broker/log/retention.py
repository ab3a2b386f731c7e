"""Retention: deletes the oldest records of logs by age, by size and by request (KIP-107).

Kafka's rules: whole segments go, oldest first. A segment is too old if its newest timestamp is more than `retention.ms`
ago; segments go by size as long as what is left is at least `retention.bytes`. If every segment is too old, the active
one ends first.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TypeVar

from roster._clock import wall_ms
from roster._files import sync_path
from roster.broker.log.flusher import Flusher
from roster.broker.log.log_start import LogStart, write_log_start
from roster.broker.log.partition_log import PartitionLog
from roster.broker.log.segment import Segment
from roster.wire import WireError

T = TypeVar("T")

logger = logging.getLogger(__name__)


def expired_segments(log: PartitionLog, now_ms: int) -> int:
    """Return how many of the oldest segments are too old or too much, the active one included."""
    config = log.config
    segments = log.segments
    count = 0
    if config.retention_ms >= 0:
        oldest = now_ms - config.retention_ms
        while count < len(segments) and segments[count].size and newest_timestamp(segments[count]) < oldest:
            count += 1
    if config.retention_bytes >= 0:
        left = sum(segment.size for segment in segments[count:])
        while count < len(segments) and segments[count].size and left - segments[count].size >= config.retention_bytes:
            left -= segments[count].size
            count += 1
    return count


def newest_timestamp(segment: Segment) -> int:
    """Return the newest timestamp of a segment's records, or the file's if all are before 1970, as in Kafka."""
    if segment.max_timestamp >= 0:
        return segment.max_timestamp
    return int(segment.path.stat().st_mtime * 1000)


class Retention:
    """Deletes from the front of logs, one log at a time, in the background and by request.

    Each look at a log in the background ends with `looked_at`.
    """

    def __init__(
        self,
        flusher: Flusher,
        logs: Callable[[], Iterable[PartitionLog]],
        interval_ms: int,
        looked_at: Callable[[PartitionLog], None] = lambda _: None,
    ) -> None:
        self._looked_at = looked_at
        self._flusher = flusher
        self._logs = logs
        self._interval = interval_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        """Begin to look at all logs, again and again."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Finish the deletion under way: afterwards no thread uses any file."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._under_way:
            await asyncio.wait(list(self._under_way))

    async def _finish(self, work: Coroutine[None, None, T]) -> T:
        """Run something that a cancelled caller must not leave half done."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self.check_all()

    async def check_all(self) -> None:
        """Delete from every log what is too old or too much."""
        for log in self._logs():
            if not log.removed and expired_segments(log, wall_ms()):
                try:
                    await self._finish(self._expire(log))
                except (OSError, WireError) as error:
                    logger.error("%s: old records cannot be deleted, and stay until later: %s", log.directory, error)
            if not log.removed:
                self._looked_at(log)
            await asyncio.sleep(0)

    async def _expire(self, log: PartitionLog) -> None:
        async with log.maintenance:
            if log.removed:
                return
            now = wall_ms()
            if expired_segments(log, now) == len(log.segments):
                log.roll(now)
            await self._flusher.durable(log)
            count = min(expired_segments(log, now), len(log.segments) - 1)
            if count:
                await self._delete_before(log, log.segments[count].base_offset)

    async def delete_records(self, log: PartitionLog, offset: int) -> int:
        """Delete the records before an offset, at most the high watermark; return where the log begins then.

        It is durable when this returns. OSError if the disk refuses it.
        """
        return await self._finish(self._delete_records(log, offset))

    async def _delete_records(self, log: PartitionLog, offset: int) -> int:
        async with log.maintenance:
            if offset > log.log_start_offset and not log.removed:
                await self._delete_before(log, offset)
            return log.log_start_offset

    async def _delete_before(self, log: PartitionLog, offset: int) -> None:
        before = log.log_start_offset
        sealed = log.sealed_segments()
        gone = [segment for segment in sealed if segment.next_offset <= offset]
        producers = await asyncio.to_thread(_producers_behind, gone) if gone else log.start.producers
        start = LogStart(offset, producers)
        await asyncio.to_thread(write_log_start, log.directory, start)
        log.begin_at(start, gone)
        logger.info("%s: begins at offset %d, before at %d", log.directory, offset, before)
        await asyncio.to_thread(_remove, gone)


def _producers_behind(segments: Sequence[Segment]) -> bytes:
    """Return the encoded producers as of the end of the last of these, sealed segments."""
    last = segments[-1]
    table = Segment(last.path.parent, last.base_offset, 1 << 20).load_sidecar()
    if table is None:
        raise WireError(f"{last.path} is not sealed")
    return table.encode(last.next_offset)


def _remove(segments: Sequence[Segment]) -> None:
    """Remove the files, oldest first; those that a crash leaves go at the next start."""
    for segment in segments:
        segment.retire(keep_open=True)  # readers under way finish
        segment.sidecar_path.unlink(missing_ok=True)
        segment.path.unlink(missing_ok=True)
    if segments:
        sync_path(segments[0].path.parent)
