"""The shell of a coordinator that keeps its state in an internal topic: what both coordinators have in common."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, TypeVar

from roster._clock import wall_ms
from roster.broker.call import Call
from roster.broker.errors import BrokerFailedError
from roster.broker.log.flusher import Flusher
from roster.broker.log.partition_log import PartitionLog
from roster.broker.log.producer_state import SequenceError
from roster.broker.stored_records import append_records
from roster.broker.topics import TopicCatalogue
from roster.coordinator_common import (
    LogRecord,
    PartitionLoaded,
    PartitionLoading,
    Reply,
    RequestReceived,
    TimerExpired,
    Write,
    WriteCompleted,
)
from roster.model import CancelTimer, SetTimer
from roster.wire import ErrorCode, Message, WireError

N = TypeVar("N")
"""Name of a timer, hashable."""


class Timers(Generic[N]):
    """Calls `expired(name)` once the loop's clock is past a timer's deadline, in milliseconds."""

    def __init__(self, expired: Callable[[N], None]) -> None:
        self._expired = expired
        self._handles: dict[N, asyncio.TimerHandle] = {}
        self._running_loop: asyncio.AbstractEventLoop | None = None

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        if self._running_loop is None:  # kept, as to find it costs a system call
            self._running_loop = asyncio.get_running_loop()
        return self._running_loop

    def now(self) -> int:
        """Milliseconds of the event loop's monotonic clock."""
        return int(self._loop.time() * 1000)

    def apply(self, effects: Iterable[SetTimer[N] | CancelTimer[N]]) -> None:
        """Set and cancel the timers that a state machine asks for, in order."""
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.set(effect.name, effect.deadline)
            else:
                self.cancel(effect.name)

    def set(self, name: N, deadline: int) -> None:
        """Set or replace a timer."""
        self.cancel(name)
        self._handles[name] = self._loop.call_at((deadline + 1) / 1000, self._come_up, name)

    def cancel(self, name: N) -> None:
        """Forget a timer, if there is one."""
        if (handle := self._handles.pop(name, None)) is not None:
            handle.cancel()

    def stop(self) -> None:
        """Forget all timers."""
        for name in list(self._handles):
            self.cancel(name)

    def _come_up(self, name: N) -> None:
        del self._handles[name]
        self._expired(name)


MAX_BYTES = 256 * 1024
"""Append a batch once its keys and values reach this size; its last write may exceed it."""


class GatheredWrites:
    """Appends the writes of one turn of the event loop as one batch of each partition.

    So commits and transactions that arrive together share a batch and a sync of the disk; each is answered after it. A
    batch counts as a whole or not at all, whatever a crash leaves of the file.

    Args:
        logs: the partitions.
        flusher: makes appended batches durable.
        completed: called for each write, those of one partition in order, never from within `add`.
    """

    def __init__(
        self, logs: Sequence[PartitionLog], flusher: Flusher, completed: Callable[[WriteCompleted], None]
    ) -> None:
        self._logs = logs
        self._flusher = flusher
        self._completed = completed
        self._gathered: dict[int, list[Write]] = {}
        self._bytes: dict[int, int] = {}

    def add(self, write: Write) -> None:
        """Append a write by the end of this turn of the event loop; a write of a transaction is a separate batch."""
        partition = write.partition
        if write.producer is not None:
            self._append_gathered(partition)
            self._append(partition, [write])
            return
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self.append_all)
        self._gathered.setdefault(partition, []).append(write)
        size = self._bytes.get(partition, 0) + sum(len(key) + len(value or b"") for key, value in write.records)
        self._bytes[partition] = size
        if size >= MAX_BYTES:
            self._append_gathered(partition)

    def append_all(self) -> None:
        """Append the gathered writes."""
        for partition in list(self._gathered):
            self._append_gathered(partition)

    def _append_gathered(self, partition: int) -> None:
        writes = self._gathered.pop(partition, None)
        if writes is not None:
            del self._bytes[partition]
            self._append(partition, writes)

    def _append(self, partition: int, writes: list[Write]) -> None:
        """Append writes as one batch, and complete them once it is durable or has failed."""
        log = self._logs[partition]
        records: list[LogRecord] = [record for write in writes for record in write.records]
        try:
            append_records(log, records, wall_ms(), writes[0].producer)
        except (OSError, SequenceError) as error:
            code = error.code if isinstance(error, SequenceError) else ErrorCode.KAFKA_STORAGE_ERROR
            if code is ErrorCode.KAFKA_STORAGE_ERROR:
                logger.error("cannot write to %s: %s", log.directory, error)
            asyncio.get_running_loop().call_soon(self._complete, writes, code)
            return
        self._flusher.when_durable(log, lambda error: self._complete(writes, error))

    def _complete(self, writes: list[Write], error: ErrorCode) -> None:
        for write in writes:
            self._completed(WriteCompleted(write.id, wall_ms(), error))


class PendingReplies:
    """Callbacks for the replies to pending requests, by the token that request and reply share."""

    def __init__(self) -> None:
        self._tokens = itertools.count(1)
        self._waiting: dict[int, Callable[[object], None]] = {}
        self._futures: set[asyncio.Future[object]] = set()

    def begin(self, answered: Callable[[Any], None]) -> int:
        """Return a new token; `answered` is called with the reply to it, unless it is given up."""
        token = next(self._tokens)
        self._waiting[token] = answered
        return token

    def give_up(self, token: int) -> None:
        """Forget a request: its reply is dropped. No error if it was answered."""
        self._waiting.pop(token, None)

    async def ask(self, send: Callable[[int], None]) -> Any:
        """Call `send` with a new token and return the reply to it."""
        reply: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        token = self.begin(lambda message: None if reply.done() else reply.set_result(message))
        self._futures.add(reply)
        try:
            send(token)
            return await reply
        finally:
            self._futures.discard(reply)
            self.give_up(token)

    def answer(self, token: int, reply: object) -> None:
        """Pass a reply to its request, unless the request was given up."""
        answered = self._waiting.pop(token, None)
        if answered is not None:  # else its connection is gone
            answered(reply)

    def is_waiting(self, token: int) -> bool:
        """Return True while a request waits; one whose client has closed the connection was given up."""
        return token in self._waiting

    def cancel(self) -> None:
        """Cancel every request that `ask` waits for."""
        for reply in self._futures:
            reply.cancel()


SETTINGS = {"cleanup.policy": "compact"}

NameT = TypeVar("NameT")

logger = logging.getLogger(__name__)


class Shell(Generic[NameT]):
    """Runs one coordinator for all partitions of an internal topic: requests and timers in, effects out.

    Subclasses set `topic_name` and `kept` (what the records hold, for errors), and define `_step`, `_read` and
    `_unreadable_records`.
    """

    topic_name: str
    kept: str

    def __init__(self, topics: TopicCatalogue, flusher: Flusher, on_failure: Callable[[BaseException], None]) -> None:
        self._topics = topics
        self._flusher = flusher
        self._on_failure = on_failure
        self._timers: Timers[NameT] = Timers(self.timer_expired)
        self._pending = PendingReplies()
        self._logs: list[PartitionLog] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def _step(self, event: Any) -> None:
        """Give the coordinator an event, and carry its effects out."""
        raise NotImplementedError

    def _read(self, log: PartitionLog) -> tuple[object, ...]:
        """Read the records of a partition, in a thread. Raises WireError if one is malformed."""
        raise NotImplementedError

    def _unreadable_records(self) -> int:
        """Return how many records the coordinator has skipped while loading, since it could not decode them."""
        raise NotImplementedError

    async def _open(self, partitions: int) -> int:
        """Open the topic, which is created if it is not there; return the number of its partitions.

        A group or transactional id is looked for in the partition that this number gives, so it must never change.
        """
        topic = self._topics.get(self.topic_name)
        if topic is None:
            topic = await self._topics.create(self.topic_name, partitions, SETTINGS)
        self._logs = topic.logs
        self._writes = GatheredWrites(self._logs, self._flusher, self._completed)
        return len(self._logs)

    def _begin_loading(self) -> asyncio.Task[None]:
        """Load the partitions, those without records at once; until then they answer COORDINATOR_LOAD_IN_PROGRESS."""
        for partition, log in enumerate(self._logs):
            self._step(PartitionLoading(partition))
            if not log.high_watermark:
                self._step(PartitionLoaded(partition, (), wall_ms()))
        return self._run(self._load())

    async def _load(self) -> None:
        try:
            for partition, log in enumerate(self._logs):
                if log.high_watermark:
                    records = await asyncio.to_thread(self._read, log)
                    self._step(PartitionLoaded(partition, records, wall_ms()))
        except WireError as error:
            self._on_failure(BrokerFailedError(f"cannot load the {self.kept}: {error}"))
        if skipped := self._unreadable_records():
            logger.warning("%d records of %s cannot be decoded: what they hold is lost", skipped, self.topic_name)

    async def stop(self) -> None:
        """Stop timers, loading and work under way; parked requests are not answered."""
        self._stopped = True
        self._timers.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._pending.cancel()

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the coordinator of the %s failed", self.kept, exc_info=error)
            self._on_failure(BrokerFailedError(f"the coordinator of the {self.kept} failed: {error}"))

    # Requests

    async def handle(self, call: Call[Message]) -> Message:
        """Give a request to the coordinator and wait for its reply."""
        response: Message = await self._pending.ask(lambda token: self._step(self._received(token, call)))
        return response

    def _received(self, token: int, call: Call[Message]) -> RequestReceived:
        client_id = call.header.client_id or ""
        return RequestReceived(token, call.version, client_id, call.client_host, wall_ms(), call.message)

    # Effects

    def _carry_out(
        self, timers: Iterable[SetTimer[NameT] | CancelTimer[NameT]], writes: Iterable[Write], replies: Iterable[Reply]
    ) -> None:
        self._timers.apply(timers)
        for write in writes:
            self._writes.add(write)
        for reply in replies:
            self._pending.answer(reply.token, reply.message)

    def timer_expired(self, name: NameT) -> None:
        """Give the coordinator a timer that is due."""
        self._completed(TimerExpired(name, wall_ms()))

    def _completed(self, event: object) -> None:
        """Give the coordinator an event that no request waits for."""
        if self._stopped:
            return
        try:
            self._step(event)
        except Exception:
            logger.exception("the coordinator of the %s failed on %s", self.kept, event)
