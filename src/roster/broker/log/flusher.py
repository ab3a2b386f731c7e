"""Batched fsync: one sync of the disk serves every request that waits for it."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from roster.broker.log.open_files import MANY, OPEN_FILES, LogFile
from roster.broker.log.partition_log import FlushPoint, PartitionLog
from roster.model.timers import Durations
from roster.wire import ErrorCode

logger = logging.getLogger(__name__)


class Flusher:
    """Makes appended batches durable in rounds, in threads beside the event loop.

    Batches appended during one round become durable in the next. After a failed sync the contents of the
    disk are unknown, so nothing is acknowledged any more and `on_failure` is called, once. `on_flushed` is called with
    each flushed log. `check` is called after each round, and raises OSError if the files synced are not the ones of the
    data directory any more, which counts as a failed sync. It is called in the event loop: in a thread its system call
    would wait for the loop to give up the interpreter's lock. durations: of rounds, if they are to be counted.
    """

    def __init__(
        self,
        threads: int,
        on_failure: Callable[[OSError], None],
        on_flushed: Callable[[PartitionLog], None] = lambda _: None,
        check: Callable[[], None] = lambda: None,
        durations: Durations | None = None,
    ) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="roster-sync")
        self._on_failure = on_failure
        self._on_flushed = on_flushed
        self._check = check
        self._durations = durations
        self._failure: OSError | None = None
        self._waiting: dict[PartitionLog, list[asyncio.Future[None]]] = {}
        self._round: asyncio.Task[None] | None = None

    def durable(self, log: PartitionLog) -> asyncio.Future[None]:
        """Return a future, done once all that was appended so far is on the disk; OSError if that failed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            future.set_exception(self._failure)
        elif not log.is_dirty:
            future.set_result(None)
        else:
            self._waiting.setdefault(log, []).append(future)
            if self._round is None:
                self._round = asyncio.get_running_loop().create_task(self._run())
        return future

    def when_durable(self, log: PartitionLog, done: Callable[[ErrorCode], None]) -> None:
        """Call `done` once all that was appended so far is on the disk, or with KAFKA_STORAGE_ERROR if that failed."""

        def settled(durable: asyncio.Future[None]) -> None:
            lost = durable.cancelled() or durable.exception() is not None
            done(ErrorCode.KAFKA_STORAGE_ERROR if lost else ErrorCode.NONE)

        self.durable(log).add_done_callback(settled)

    async def _run(self) -> None:
        """Sync until no request waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                points = [(log, point) for log in waiting if (point := log.begin_flush()) is not None]
                began = time.perf_counter()
                together = _shares_a_sync(points)
                threads = 1 if together else self._threads
                shares = [points[n::threads] for n in range(min(threads, len(points)))]
                results = await asyncio.gather(
                    *(loop.run_in_executor(self._pool, _sync_all, share, together) for share in shares),
                    return_exceptions=True,
                )
                failure = next((r for r in results if isinstance(r, BaseException)), None) or self._moved()
                if failure is not None:
                    self._fail(waiting, failure)
                    return
                if self._durations is not None:
                    self._durations.add(time.perf_counter() - began)
                for log, point in points:
                    log.finish_flush(point)
                    self._on_flushed(log)
                for futures in waiting.values():
                    for future in futures:
                        if not future.done():
                            future.set_result(None)
        finally:
            self._round = None

    def _moved(self) -> OSError | None:
        """Return the error of `check`."""
        try:
            self._check()
        except OSError as error:
            return error
        return None

    def _fail(self, waiting: dict[PartitionLog, list[asyncio.Future[None]]], failure: BaseException) -> None:
        error = failure if isinstance(failure, OSError) else OSError(str(failure))
        self._failure = error
        for futures in [*waiting.values(), *self._waiting.values()]:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        self._waiting.clear()
        self._on_failure(error)

    @property
    def failed(self) -> bool:
        """True once a sync has failed: nothing may be acknowledged any more."""
        return self._failure is not None

    async def settle(self) -> None:
        """Return when no sync is running: no thread uses any file any more."""
        while self._round is not None:
            await asyncio.wait([self._round])

    async def close(self) -> None:
        """Wait for the syncs under way and give up the threads."""
        await self.settle()
        self._pool.shutdown(wait=True)


def _unsealed(points: list[tuple[PartitionLog, FlushPoint]]) -> list[LogFile]:
    return [point.segment.file for _, point in points if not point.to_seal]


def _shares_a_sync(points: list[tuple[PartitionLog, FlushPoint]]) -> bool:
    """Return True for very many logs on a file system where one call syncs all."""
    files = _unsealed(points)
    return len(files) >= MANY and files[0].disk is not None


def _sync_all(points: list[tuple[PartitionLog, FlushPoint]], together: bool) -> None:
    """Sync logs. together: by one call, where nothing has to come before something else."""
    if together and OPEN_FILES.sync_together(_unsealed(points)):
        points = [(log, point) for log, point in points if point.to_seal]
    for log, point in points:
        try:
            point.sync()
        except OSError:
            if not log.removed:  # deleting a topic takes its files from under the sync
                raise
