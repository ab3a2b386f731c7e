"""The writes of a coordinator: those of one turn of the event loop become one batch of each partition.

So commits that arrive together, of one group or of many, and transactions likewise, share a batch and a sync of the
disk; each is answered after it. A batch counts as a whole or not at all, whatever a crash leaves of the file.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from roster._clock import wall_ms
from roster.broker.log.producer_state import SequenceError
from roster.broker.stored_records import append_records
from roster.coordinator_common import WriteCompleted
from roster.wire import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roster.broker.log.flusher import Flusher
    from roster.broker.log.partition_log import PartitionLog
    from roster.coordinator_common import LogRecord, Write

MAX_BYTES = 256 * 1024
"""Append a batch once its keys and values reach this size; its last write may exceed it."""

logger = logging.getLogger(__name__)


class GatheredWrites:
    """Appends writes to the partitions of an internal topic.

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
        """Append a write by the end of this turn of the event loop; one of a transaction is a batch of its own."""
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
