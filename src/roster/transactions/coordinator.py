"""The transaction coordinator: one `step` per event, dispatched to the module of the request or timer."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from roster.coordinator_common import (
    LogRecord,
    PartitionLoaded,
    PartitionLoading,
    PartitionUnloaded,
    RequestReceived,
    TimerExpired,
    WriteCompleted,
)
from roster.transactions import metadata as change
from roster.transactions import records
from roster.transactions.add_partitions import add_offsets, add_or_verify, add_partitions
from roster.transactions.config import TransactionConfig
from roster.transactions.end_transaction import end_transaction, fence
from roster.transactions.events import (
    AddPartitions,
    Effects,
    Event,
    MarkersWritten,
    ProducerIdGiven,
    TimerKind,
    TimerName,
)
from roster.transactions.init_producer_id import init_producer_id
from roster.transactions.metadata import Transaction
from roster.transactions.queries import describe_transactions, list_transactions
from roster.transactions.runtime import Runtime
from roster.transactions.states import TransactionState
from roster.wire import ErrorCode
from roster.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)

REQUEST_HANDLERS: dict[type, Callable[[Runtime, RequestReceived, Any], None]] = {
    InitProducerIdRequest: init_producer_id,
    AddPartitionsToTxnRequest: add_partitions,
    AddOffsetsToTxnRequest: add_offsets,
    EndTxnRequest: end_transaction,
    DescribeTransactionsRequest: describe_transactions,
    ListTransactionsRequest: list_transactions,
}
"""Handler of each request in RequestReceived."""

GRACE_MS = 10_000
"""Minimum time that an open transaction gets after loading, so that its client can reconnect. Apache Kafka first checks
for timed-out transactions as long after its start."""
BUSY_MS = 100
"""Delay before a timeout is checked again while the state of its transaction is being written."""


class TransactionCoordinator:
    """Kafka's transaction coordinator as a state machine; deterministic, no I/O, no clock.

    Writes to one partition must be reported complete in the order of the effects.
    """

    def __init__(self, config: TransactionConfig) -> None:
        self._rt = Runtime(config)
        self.unreadable_records = 0
        """Number of records skipped while loading because they could not be decoded."""

    def step(self, event: Event, now: int) -> Effects:
        """Handle one event at monotonic time `now` (ms, never decreasing); return the effects for the shell."""
        self._rt.now = now
        self._rt.wall_ms = getattr(event, "wall_ms", self._rt.wall_ms)
        match event:
            case RequestReceived():
                REQUEST_HANDLERS[type(event.message)](self._rt, event, event.message)
            case AddPartitions():
                add_or_verify(self._rt, event)
            case ProducerIdGiven():
                self._rt.producer_id_given(event.number, event.producer_id)
            case MarkersWritten():
                self._markers_written(event)
            case TimerExpired():
                self._timer_expired(event.name)
            case WriteCompleted():
                self._rt.writes.complete(event.id, event.error)
            case PartitionLoaded():
                self._load(event.partition, event.records)
            case PartitionLoading():
                self._unload(event.partition)
                self._rt.loaded[event.partition] = False
            case PartitionUnloaded():
                self._unload(event.partition)
                self._rt.loaded.pop(event.partition, None)
        return self._rt.take_effects()

    def transaction(self, transactional_id: str) -> Transaction | None:
        """Return the transactional id, for inspection, or None."""
        return self._rt.transactions.get(transactional_id)

    def states(self) -> Counter[str]:
        """Return how many transactional ids are in each state, by its name on the wire."""
        return Counter(transaction.current.state.label for transaction in self._rt.transactions.values())

    # -- events --------------------------------------------------------------------------------------------------

    def _markers_written(self, event: MarkersWritten) -> None:
        transaction = self._rt.transactions.get(event.transactional_id)
        if transaction is None or transaction.pending is not None:
            return
        current = transaction.current
        written_for = (event.producer_id, event.producer_epoch)
        if current.state.is_prepared and written_for == (current.producer_id, current.producer_epoch):
            self._rt.complete(transaction)

    # -- timers --------------------------------------------------------------------------------------------------

    def _timer_expired(self, name: TimerName) -> None:
        if name.kind is TimerKind.ID_EXPIRATION:
            self._expire_ids(name.partition)
            return
        transaction = self._rt.transactions.get(name.transactional_id)
        if transaction is None:
            return
        state = transaction.current.state
        if transaction.pending is not None:
            self._rt.set_timer(name, self._rt.now + BUSY_MS)
        elif name.kind is TimerKind.TRANSACTION_TIMEOUT and state is TransactionState.ONGOING:
            fence(self._rt, transaction, lambda error: self._retry(name) if error else None)
        elif name.kind is TimerKind.COMPLETION and state.is_prepared:
            self._rt.complete(transaction)

    def _retry(self, name: TimerName) -> None:
        if name.transactional_id in self._rt.transactions:
            self._rt.set_timer(name, self._rt.now + BUSY_MS)

    def _expire_ids(self, partition: int) -> None:
        """Remove the transactional ids of a partition that have not been used for their expiration time."""
        rt = self._rt
        if not rt.loaded.get(partition):
            return
        before = rt.wall_ms - rt.config.expiration_ms
        expired = [
            transaction
            for transaction in rt.transactions.values()
            if transaction.partition == partition
            and transaction.pending is None
            and transaction.current.state.may_expire
            and transaction.current.updated_ms <= before
        ]
        for transaction in expired:
            self._expire(transaction)
        self._schedule_expiration(partition)

    def _expire(self, transaction: Transaction) -> None:
        rt = self._rt
        transaction.pending = change.expire(transaction.current)

        def written(error: ErrorCode) -> None:
            transaction.pending = None
            if not error and rt.transactions.get(transaction.transactional_id) is transaction:
                del rt.transactions[transaction.transactional_id]

        rt.writes.start(transaction.partition, [records.tombstone(transaction.transactional_id)], written)

    def _schedule_expiration(self, partition: int) -> None:
        name = TimerName(TimerKind.ID_EXPIRATION, partition=partition)
        self._rt.set_timer(name, self._rt.now + self._rt.config.expiration_check_interval_ms)

    # -- loading and unloading -----------------------------------------------------------------------------------

    def _load(self, partition: int, stored: Sequence[LogRecord]) -> None:
        """Take over the ids of a partition: complete prepared transactions, and set timers for open ones."""
        rt = self._rt
        self._unload(partition)
        transactions, unreadable = records.replay(partition, stored)
        self.unreadable_records += unreadable
        rt.loaded[partition] = True
        rt.transactions.update(transactions)
        for transaction in transactions.values():
            current = transaction.current
            if current.state.is_prepared:
                rt.write_markers(transaction)
            elif current.state is TransactionState.ONGOING:
                left = min(current.started_ms + current.timeout_ms - rt.wall_ms, current.timeout_ms)
                name = TimerName(TimerKind.TRANSACTION_TIMEOUT, transaction.transactional_id)
                rt.set_timer(name, rt.now + max(left, GRACE_MS))
        self._schedule_expiration(partition)

    def _unload(self, partition: int) -> None:
        """Drop the transactional ids of a partition; answer their open requests with NOT_COORDINATOR."""
        rt = self._rt
        if partition not in rt.loaded:
            return
        rt.writes.fail(partition)
        rt.cancel_timer(TimerName(TimerKind.ID_EXPIRATION, partition=partition))
        for transactional_id in [
            key for key, transaction in rt.transactions.items() if transaction.partition == partition
        ]:
            for kind in (TimerKind.TRANSACTION_TIMEOUT, TimerKind.COMPLETION):
                rt.cancel_timer(TimerName(kind, transactional_id))
            del rt.transactions[transactional_id]
