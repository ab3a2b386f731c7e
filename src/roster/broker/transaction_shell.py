"""The transaction coordinator's shell: requests and timers in, replies and markers out, its records in
`__transaction_state`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from roster._clock import wall_ms
from roster.broker.call import Call
from roster.broker.coordinator_shell import CoordinatorShell
from roster.broker.hooks import Hooks
from roster.broker.log.flusher import Flusher
from roster.broker.log.partition_log import PartitionLog
from roster.broker.log.producer_state import SequenceError
from roster.broker.meta import MetaFile
from roster.broker.shell import Shell
from roster.broker.stored_records import read_records
from roster.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicCatalogue
from roster.coordinator_common import LogRecord
from roster.model import TopicPartition
from roster.transactions import (
    AddPartitions,
    Event,
    MarkersWritten,
    ProducerIdGiven,
    TimerName,
    TransactionConfig,
    TransactionCoordinator,
    WriteMarkers,
)
from roster.wire import ErrorCode, Message
from roster.wire.control_records import ControlType, EndTxnMarker

BUSY_SECONDS = 1.0
"""How long a Produce waits for the end of the producer's last transaction, before its client has to ask again."""
MARKER_RETRY_SECONDS = 0.5

logger = logging.getLogger(__name__)


class TransactionShell(Shell[TimerName]):
    """Runs one coordinator for all partitions of `__transaction_state`; the topic is created when it is needed."""

    topic_name = TRANSACTIONS_TOPIC
    kept = "transactions"

    def __init__(
        self,
        topics: TopicCatalogue,
        flusher: Flusher,
        meta: MetaFile,
        groups: CoordinatorShell,
        on_failure: Callable[[BaseException], None],
        hooks: Hooks,
    ) -> None:
        super().__init__(topics, flusher, on_failure)
        self._meta = meta
        self._groups = groups
        self._hooks = hooks
        self._creating = asyncio.Lock()
        self._coordinator: TransactionCoordinator | None = None

    async def start(self, config: TransactionConfig) -> None:
        """Load the transactional ids, if the topic exists, and complete decided transactions."""
        self._config = config
        if self._topics.get(TRANSACTIONS_TOPIC) is not None:
            await self._begin()

    async def _begin(self) -> TransactionCoordinator:
        """Return the coordinator; the first time with a new topic, or while the old one is being loaded."""
        async with self._creating:
            if self._coordinator is not None:
                return self._coordinator
            partitions = await self._open(self._config.partitions)
            offsets = self._topics.get(OFFSETS_TOPIC)
            count = self._config.offsets_partitions if offsets is None else len(offsets.logs)
            self._coordinator = TransactionCoordinator(
                replace(self._config, partitions=partitions, offsets_partitions=count)
            )
            self._begin_loading()
            return self._coordinator

    def _read(self, log: PartitionLog) -> tuple[LogRecord, ...]:
        return read_records(log)

    def _unreadable_records(self) -> int:
        return 0 if self._coordinator is None else self._coordinator.unreadable_records

    def states(self) -> Counter[str]:
        """Return how many transactional ids are in each state."""
        return Counter() if self._coordinator is None else self._coordinator.states()

    # Requests

    async def handle(self, call: Call[Message]) -> Message:
        """Give a request to the coordinator and wait for its reply."""
        await self._begin()
        return await super().handle(call)

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
            errors: Mapping[TopicPartition, ErrorCode] = await self._pending.ask(
                lambda token: self._step(
                    AddPartitions(token, transactional_id, *producer, wanted, wall_ms(), verify_only=verify_only)
                )
            )
            is_busy = ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
            if not is_busy or asyncio.get_running_loop().time() > deadline:
                return errors
            await asyncio.sleep(0.002)

    # Effects

    def _step(self, event: Event) -> None:
        if self._coordinator is None or self._stopped:
            return
        effects = self._coordinator.step(event, self._timers.now())
        self._carry_out(effects.timers, effects.writes, effects.replies)
        for marker in effects.markers:
            self._run(self._write_markers(marker))
        for number in effects.producer_ids:
            self._run(self._give_producer_id(number))
        for added in effects.added:
            self._pending.answer(added.token, added.errors)

    async def _give_producer_id(self, number: int) -> None:
        try:
            producer_id: int | None = await self._meta.new_producer_id()
        except OSError as error:
            logger.error("cannot reserve producer ids: %s", error)
            producer_id = None
        self._step(ProducerIdGiven(number, producer_id, wall_ms()))

    # Markers

    async def _write_markers(self, marker: WriteMarkers) -> None:
        """Write a transaction's markers, with retries, and tell the coordinator when all are durable."""
        kind = ControlType.COMMIT if marker.committed else ControlType.ABORT
        end = EndTxnMarker(kind, marker.coordinator_epoch)
        producer = (marker.producer_id, marker.producer_epoch)
        left = sorted(marker.partitions)
        while left:
            outcomes = await self.write_markers(end, producer, left)
            left = [partition for partition in left if outcomes[partition] is ErrorCode.KAFKA_STORAGE_ERROR]
            if left:
                await asyncio.sleep(MARKER_RETRY_SECONDS)
        if self._hooks.measures is not None:
            self._hooks.measures.transactions[marker.committed] += 1
        self._step(MarkersWritten(marker.transactional_id, *producer, wall_ms()))

    async def write_markers(
        self, end: EndTxnMarker, producer: tuple[int, int], partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """End a producer's (id, epoch) transaction in partitions; return one error each, once all are durable."""
        outcomes: dict[TopicPartition, ErrorCode] = {}
        written: list[tuple[TopicPartition, asyncio.Future[None]]] = []
        for partition in partitions:
            if partition.topic == OFFSETS_TOPIC:
                await self._groups.loaded()
            log = self._topics.log(*partition)
            if log is None:
                outcomes[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            try:
                log.append_marker(end, *producer, wall_ms())
            except SequenceError as fenced:
                outcomes[partition] = fenced.code
            except OSError as error:
                logger.error("cannot write a marker to %s-%d: %s", *partition, error)
                outcomes[partition] = ErrorCode.KAFKA_STORAGE_ERROR
            else:
                written.append((partition, self._flusher.durable(log)))
        for partition, durable in written:
            try:
                await durable
            except OSError:
                outcomes[partition] = ErrorCode.KAFKA_STORAGE_ERROR
                continue
            outcomes[partition] = ErrorCode.NONE
            if partition.topic == OFFSETS_TOPIC:
                self._groups.transaction_ended(partition.partition, producer[0], end)
        return outcomes
