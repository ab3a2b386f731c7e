"""The transaction coordinator's shell: requests and timers in, replies and markers out, its records in
`__transaction_state`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roster._clock import wall_ms
from roster.broker.errors import BrokerFailedError
from roster.broker.log.producer_state import SequenceError
from roster.broker.pending_replies import PendingReplies
from roster.broker.stored_records import append_records, read_records
from roster.broker.timers import Timers
from roster.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from roster.transactions import (
    AddPartitions,
    Event,
    MarkersWritten,
    PartitionLoaded,
    PartitionLoading,
    ProducerIdGiven,
    RequestReceived,
    TimerExpired,
    TimerName,
    TopicPartition,
    TransactionCoordinator,
    Write,
    WriteCompleted,
    WriteMarkers,
)
from roster.wire import ErrorCode, WireError
from roster.wire.control_records import ControlType, EndTxnMarker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from roster.broker.call import Call
    from roster.broker.coordinator_shell import CoordinatorShell
    from roster.broker.log.flusher import Flusher
    from roster.broker.log.partition_log import PartitionLog
    from roster.broker.meta import MetaFile
    from roster.broker.topics import TopicCatalogue
    from roster.transactions import TransactionConfig
    from roster.wire import Message

SETTINGS = {"cleanup.policy": "compact"}
BUSY_SECONDS = 1.0
"""How long a Produce waits for the end of the producer's last transaction, before its client has to ask again."""
MARKER_RETRY_SECONDS = 0.5

logger = logging.getLogger(__name__)


class TransactionShell:
    """Runs one coordinator for all partitions of `__transaction_state`; the topic is created when it is needed."""

    def __init__(
        self,
        topics: TopicCatalogue,
        flusher: Flusher,
        meta: MetaFile,
        groups: CoordinatorShell,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._topics = topics
        self._flusher = flusher
        self._meta = meta
        self._groups = groups
        self._on_failure = on_failure
        self._timers: Timers[TimerName] = Timers(self._timer_expired)
        self._pending = PendingReplies()
        self._logs: list[PartitionLog] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._creating = asyncio.Lock()
        self._coordinator: TransactionCoordinator | None = None
        self._stopped = False

    async def start(self, config: TransactionConfig) -> None:
        """Load the transactional ids, if there ever was one, and go on with the transactions that were decided."""
        self._config = config
        if self._topics.get(TRANSACTIONS_TOPIC) is not None:
            await self._begin()

    async def _begin(self) -> TransactionCoordinator:
        """Return the coordinator; the first time with a new topic, or while the old one is being loaded."""
        async with self._creating:
            if self._coordinator is not None:
                return self._coordinator
            topic = self._topics.get(TRANSACTIONS_TOPIC)
            if topic is None:
                topic = await self._topics.create(TRANSACTIONS_TOPIC, self._config.partitions, SETTINGS)
            self._logs = topic.logs
            offsets = self._topics.get(OFFSETS_TOPIC)
            count = self._config.offsets_partitions if offsets is None else len(offsets.logs)
            config = replace(self._config, partitions=len(self._logs), offsets_partitions=count)
            self._coordinator = TransactionCoordinator(config)
            for partition, log in enumerate(self._logs):
                self._step(PartitionLoading(partition))
                if not log.high_watermark:
                    self._step(PartitionLoaded(partition, (), wall_ms()))
            self._run(self._load())
            return self._coordinator

    async def _load(self) -> None:
        try:
            for partition, log in enumerate(self._logs):
                if log.high_watermark:
                    records = await asyncio.to_thread(read_records, log)
                    self._step(PartitionLoaded(partition, records, wall_ms()))
        except WireError as error:
            self._on_failure(BrokerFailedError(f"cannot load the transactions: {error}"))

    async def stop(self) -> None:
        """Stop timers, loading and markers under way, which the next start goes on with."""
        self._stopped = True
        self._timers.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._pending.cancel()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the transaction coordinator failed", exc_info=error)
            self._on_failure(BrokerFailedError(f"the transaction coordinator failed: {error}"))

    # Requests

    async def handle(self, call: Call[Any]) -> Message:
        """Give a request to the coordinator and wait for its reply."""
        await self._begin()
        response: Message = await self._ask(lambda token: RequestReceived(token, call.version, wall_ms(), call.message))
        return response

    async def add(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Iterable[TopicPartition],
        *,
        verify_only: bool = False,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Add partitions to the transaction of a producer (id, epoch), or check that they were added before.

        While the producer's last transaction is being completed it waits, for a short time.
        """
        await self._begin()
        wanted = frozenset(partitions)
        deadline = asyncio.get_running_loop().time() + BUSY_SECONDS
        while True:
            errors: Mapping[TopicPartition, ErrorCode] = await self._ask(
                lambda token: AddPartitions(
                    token, transactional_id, *producer, wanted, wall_ms(), verify_only=verify_only
                )
            )
            is_busy = ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
            if not is_busy or asyncio.get_running_loop().time() > deadline:
                return errors
            await asyncio.sleep(0.002)

    async def _ask(self, event: Callable[[int], Event]) -> Any:
        return await self._pending.ask(lambda token: self._step(event(token)))

    # Effects

    def _step(self, event: Event) -> None:
        if self._coordinator is None or self._stopped:
            return
        effects = self._coordinator.step(event, self._timers.now())
        self._timers.apply(effects.timers)
        for write in effects.writes:
            self._write(write)
        for marker in effects.markers:
            self._run(self._write_markers(marker))
        for number in effects.producer_ids:
            self._run(self._give_producer_id(number))
        for reply in effects.replies:
            self._pending.answer(reply.token, reply.message)
        for added in effects.added:
            self._pending.answer(added.token, added.errors)

    def _timer_expired(self, name: TimerName) -> None:
        self._step(TimerExpired(name, wall_ms()))

    async def _give_producer_id(self, number: int) -> None:
        try:
            producer_id: int | None = await self._meta.new_producer_id()
        except OSError as error:
            logger.error("cannot reserve producer ids: %s", error)
            producer_id = None
        self._step(ProducerIdGiven(number, producer_id, wall_ms()))

    def _write(self, write: Write) -> None:
        now = wall_ms()
        log = self._logs[write.partition]
        try:
            append_records(log, write.records, now)
        except OSError as error:
            logger.error("cannot write to %s-%d: %s", TRANSACTIONS_TOPIC, write.partition, error)
            failed = WriteCompleted(write.id, now, ErrorCode.KAFKA_STORAGE_ERROR)
            asyncio.get_running_loop().call_soon(self._step, failed)
            return
        self._flusher.when_durable(log, lambda error: self._step(WriteCompleted(write.id, wall_ms(), error)))

    # Markers

    async def _write_markers(self, marker: WriteMarkers) -> None:
        """Write a transaction's markers, however often it takes, and tell the coordinator when all are durable."""
        kind = ControlType.COMMIT if marker.committed else ControlType.ABORT
        end = EndTxnMarker(kind, marker.coordinator_epoch)
        producer = (marker.producer_id, marker.producer_epoch)
        left = sorted(marker.partitions)
        while left:
            outcomes = await self.write_markers(end, producer, left)
            left = [each for each in left if outcomes[each] is ErrorCode.KAFKA_STORAGE_ERROR]
            if left:
                await asyncio.sleep(MARKER_RETRY_SECONDS)
        self._step(MarkersWritten(marker.transactional_id, *producer, wall_ms()))

    async def write_markers(
        self, end: EndTxnMarker, producer: tuple[int, int], partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """End a producer's (id, epoch) transaction in partitions; return one error each, once all are durable."""
        outcomes: dict[TopicPartition, ErrorCode] = {}
        written: list[tuple[TopicPartition, asyncio.Future[None]]] = []
        for each in partitions:
            if each.topic == OFFSETS_TOPIC:
                await self._groups.loaded()
            topic = self._topics.get(each.topic)
            log = topic.log(each.partition) if topic is not None else None
            if log is None:
                outcomes[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            try:
                log.append_marker(end, *producer, wall_ms())
            except SequenceError as fenced:
                outcomes[each] = fenced.code
            except OSError as error:
                logger.error("cannot write a marker to %s-%d: %s", *each, error)
                outcomes[each] = ErrorCode.KAFKA_STORAGE_ERROR
            else:
                written.append((each, self._flusher.durable(log)))
        for each, durable in written:
            try:
                await durable
            except OSError:
                outcomes[each] = ErrorCode.KAFKA_STORAGE_ERROR
                continue
            outcomes[each] = ErrorCode.NONE
            if each.topic == OFFSETS_TOPIC:
                self._groups.transaction_ended(each.partition, producer[0], end)
        return outcomes
