"""Background scrubbing: reads the logs again, slowly, so that damage is found early."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roster.broker.log.partition_log import PartitionLog
    from roster.broker.log.segment import Segment
    from roster.broker.topics import Topic

BYTES_PER_SECOND = 8 << 20
SHARE = 0.1
"""Largest share of time spent: a step of t seconds is followed by nine t of rest."""
PERIOD_SECONDS = 86_400.0
_STEP_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class Verifier:
    """Checks every batch that will not change any more, once after the start and then every `PERIOD_SECONDS`."""

    def __init__(self, topics: Iterable[Topic], bytes_per_second: int = BYTES_PER_SECOND) -> None:
        self._topics = topics
        self._bytes_per_second = bytes_per_second
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the background task."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Finish the step under way: afterwards no thread uses any file."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not self._stopping.is_set():
            await self.check_all()
            await self._rest(PERIOD_SECONDS)

    async def check_all(self) -> None:
        """Check all logs once; damage goes to the log of the broker."""
        for topic in self._topics:
            for log in topic.logs:
                for segment in log.segments:
                    if self._stopping.is_set():
                        return
                    await self._check(log, segment)
            await asyncio.sleep(0)

    async def _check(self, log: PartitionLog, segment: Segment) -> None:
        loop = asyncio.get_running_loop()
        done = 0
        while done < log.settled_blocks(segment) and not log.removed and not self._stopping.is_set():
            began = loop.time()
            try:
                done, size = await asyncio.to_thread(_step, segment, done, log.settled_blocks(segment))
            except FileNotFoundError:  # deleted or rewritten meanwhile
                return
            except OSError as error:
                logger.error("%s cannot be read: %s", segment.path, error)
                return
            await self._rest(max(size / self._bytes_per_second, (loop.time() - began) * (1 / SHARE - 1)))

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass


def _step(segment: Segment, first: int, end: int) -> tuple[int, int]:
    """Check some blocks from the first on; return the next one and the bytes read."""
    size = 0
    while first < end and size < _STEP_BYTES:
        segment.check(first)
        size += segment.block_size(first)
        first += 1
    return first, size
