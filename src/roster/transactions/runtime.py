"""Transactional ids, the clock of the current step, and the effects it has collected so far."""

from collections.abc import Callable, Iterable

from roster.coordinator_common import Continuation, PendingWrites, Reply
from roster.model import CancelTimer, SetTimer, TopicPartition
from roster.transactions import metadata as change
from roster.transactions import records
from roster.transactions.config import TransactionConfig
from roster.transactions.events import Effects, PartitionsAdded, TimerKind, TimerName, WriteMarkers
from roster.transactions.metadata import Metadata, Transaction
from roster.transactions.states import TransactionState
from roster.wire import ErrorCode, Message
from roster.wire.offsets_topic import partition_of

COORDINATOR_EPOCH = 0
"""Single broker: the leader epoch of `__transaction_state` never changes."""
RETRY_MS = 500
"""Delay before the next attempt to write the record of a complete transaction."""


class Runtime:
    """Transactional ids and effects; `now` (monotonic, ms) and `wall_ms` belong to the current step."""

    def __init__(self, config: TransactionConfig) -> None:
        self.config = config
        self.now = 0
        self.wall_ms = 0
        self.transactions: dict[str, Transaction] = {}
        self.loaded: dict[int, bool] = {}
        """Partitions of `__transaction_state` this process coordinates; False while one is being loaded."""
        self.writes = PendingWrites()
        self._wanting_ids: dict[int, Callable[[int | None], None]] = {}
        self._last_wanted = 0
        self._effects = Effects()

    # -- transactional ids ---------------------------------------------------------------------------------------

    def partition_of(self, transactional_id: str) -> int:
        """Return the partition of `__transaction_state` that has the id."""
        return partition_of(transactional_id, self.config.partitions)

    def find(self, transactional_id: str) -> Transaction | ErrorCode:
        """Return the transactional id, or the error: not valid, not loaded here, or INVALID_PRODUCER_ID_MAPPING."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        transaction = self.transactions.get(transactional_id)
        return transaction or self.availability(transactional_id) or ErrorCode.INVALID_PRODUCER_ID_MAPPING

    def availability(self, transactional_id: str) -> ErrorCode:
        """Return the error for an id whose partition is not loaded here, or NONE."""
        loaded = self.loaded.get(self.partition_of(transactional_id))
        if loaded is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    # -- changes -------------------------------------------------------------------------------------------------

    def store(self, transaction: Transaction, following: Metadata, then: Continuation) -> None:
        """Write the next state; once it is durable, it takes effect and `then` runs."""
        transaction.pending = following

        def written(error: ErrorCode) -> None:
            transaction.pending = None
            if not error:
                self._enter(transaction, following)
            then(error)

        self.writes.start(transaction.partition, [records.record(transaction.transactional_id, following)], written)

    def _enter(self, transaction: Transaction, following: Metadata) -> None:
        timeout = TimerName(TimerKind.TRANSACTION_TIMEOUT, transaction.transactional_id)
        before, transaction.current = transaction.current, following
        if following.state is TransactionState.ONGOING:
            if before.state is not TransactionState.ONGOING:
                self.set_timer(timeout, self.now + following.timeout_ms)
        elif before.state is TransactionState.ONGOING:
            self.cancel_timer(timeout)
        if following.state.is_prepared:
            self.write_markers(transaction)

    def write_markers(self, transaction: Transaction) -> None:
        """Request the markers of a prepared transaction."""
        current = transaction.current
        self._effects.markers.append(
            WriteMarkers(
                transaction.transactional_id,
                current.producer_id,
                current.producer_epoch,
                current.state is TransactionState.PREPARE_COMMIT,
                current.partitions,
                COORDINATOR_EPOCH,
            )
        )

    def complete(self, transaction: Transaction) -> None:
        """Store that every marker is durable; retried until it succeeds."""

        def stored(error: ErrorCode) -> None:
            if error and self.transactions.get(transaction.transactional_id) is transaction:
                self.set_timer(TimerName(TimerKind.COMPLETION, transaction.transactional_id), self.now + RETRY_MS)

        self.store(transaction, change.complete(transaction.current, self.wall_ms), stored)

    # -- effects -------------------------------------------------------------------------------------------------

    def reply(self, token: int, message: Message) -> None:
        """Answer a request now."""
        self._effects.replies.append(Reply(token, message))

    def reply_added(self, token: int, partitions: Iterable[TopicPartition], error: ErrorCode) -> None:
        """Answer AddPartitions with one error for all partitions."""
        self._effects.added.append(PartitionsAdded(token, dict.fromkeys(partitions, error)))

    def reply_verified(self, token: int, errors: dict[TopicPartition, ErrorCode]) -> None:
        """Answer AddPartitions with one error per partition."""
        self._effects.added.append(PartitionsAdded(token, errors))

    def want_producer_id(self, then: Callable[[int | None], None]) -> None:
        """Request a new producer id; `then` gets it in a later step, or None."""
        self._last_wanted += 1
        self._wanting_ids[self._last_wanted] = then
        self._effects.producer_ids.append(self._last_wanted)

    def producer_id_given(self, number: int, producer_id: int | None) -> None:
        """Resume the request that waits for a producer id."""
        self._wanting_ids.pop(number)(producer_id)

    def set_timer(self, name: TimerName, deadline: int) -> None:
        """Request TimerExpired(name) at `deadline` (ms); replaces the timer's earlier deadline."""
        self._effects.timers.append(SetTimer(name, deadline))

    def cancel_timer(self, name: TimerName) -> None:
        """Cancel a timer."""
        self._effects.timers.append(CancelTimer(name))

    def take_effects(self) -> Effects:
        """Return the effects collected since the last call."""
        effects, self._effects = self._effects, Effects()
        effects.writes = self.writes.take_started()
        return effects
