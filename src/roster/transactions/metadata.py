"""State of a transactional id, and its changes.

A `Metadata` is the content of one record of `__transaction_state`. Each function below returns the next one. It takes
effect when its record is durable; until then every other request is answered CONCURRENT_TRANSACTIONS.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from roster.coordinator_common import IllegalTransitionError
from roster.model import TopicPartition
from roster.transactions.states import AT_REST, PREVIOUS, TransactionState
from roster.wire import ErrorCode

NONE = -1
"""No producer id, epoch or time."""
LAST_EPOCH = 2**15 - 2
"""The last epoch that a client gets. One more fences it; the client then needs another producer id."""
CLIENT_V1, CLIENT_V2 = 0, 2
"""Transactions version of the client that ended a transaction, as in the records: without, with KIP-890's new epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """State of a transactional id; times in ms (wall clock)."""

    state: TransactionState
    producer_id: int
    producer_epoch: int = NONE
    last_epoch: int = NONE
    """The client's previous epoch, to recognise a repeated InitProducerId. Not stored."""
    previous_producer_id: int = NONE
    next_producer_id: int = NONE
    """Id that the client gets when the transaction is complete, if the epochs of the present id are used up."""
    timeout_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NONE
    updated_ms: int = NONE
    client_version: int = CLIENT_V1

    @property
    def is_exhausted(self) -> bool:
        """True if the producer id has no epoch left for a client."""
        return self.producer_epoch >= LAST_EPOCH


@dataclass(slots=True)
class Transaction:
    """A transactional id; `pending` is its next state while the record is being written, else None."""

    transactional_id: str
    partition: int
    current: Metadata
    pending: Metadata | None = None

    @property
    def is_changing(self) -> bool:
        """True while a state or markers are being written; other changes are refused, and clients retry."""
        return self.pending is not None or self.current.state.is_prepared


def _next(before: Metadata, state: TransactionState, wall_ms: int) -> Metadata:
    if before.state not in PREVIOUS[state]:
        raise IllegalTransitionError(f"{state.label} after {before.state.label}")
    return replace(before, state=state, updated_ms=wall_ms)


def initialize(
    before: Metadata, timeout_ms: int, expected_epoch: int | None, new_producer_id: int | None, wall_ms: int
) -> Metadata | ErrorCode:
    """Return Empty with the client's next epoch, the same for a repeated request, or PRODUCER_FENCED.

    `expected_epoch` is the client's epoch, None for a new instance. `new_producer_id` replaces an id without epochs
    left.
    """
    if new_producer_id is not None:
        epoch, last = 0, before.producer_epoch if expected_epoch is not None else NONE
    elif expected_epoch is None:
        epoch, last = before.producer_epoch + 1, NONE
    elif before.producer_epoch in (expected_epoch, NONE):
        epoch, last = before.producer_epoch + 1, before.producer_epoch
    elif expected_epoch == before.last_epoch:
        epoch, last = before.producer_epoch, before.last_epoch
    else:
        return ErrorCode.PRODUCER_FENCED
    return replace(
        _next(before, TransactionState.EMPTY, wall_ms),
        producer_id=before.producer_id if new_producer_id is None else new_producer_id,
        producer_epoch=epoch,
        last_epoch=last,
        previous_producer_id=before.producer_id,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        started_ms=NONE,
        client_version=CLIENT_V1,
    )


def add(before: Metadata, partitions: Iterable[TopicPartition], wall_ms: int) -> Metadata:
    """Return Ongoing with more partitions; the first partitions start the transaction's timeout."""
    started = wall_ms if before.state in AT_REST else before.started_ms
    return replace(
        _next(before, TransactionState.ONGOING, wall_ms),
        partitions=before.partitions.union(partitions),
        started_ms=started,
        client_version=CLIENT_V1,
    )


def prepare(
    before: Metadata, *, commit: bool, client_version: int, new_producer_id: int | None, wall_ms: int
) -> Metadata:
    """Return PrepareCommit or PrepareAbort, in transactions version 2 with the epoch that fences late writes."""
    state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    bumped = client_version >= CLIENT_V2
    return replace(
        _next(before, state, wall_ms),
        producer_epoch=before.producer_epoch + bumped,
        last_epoch=before.producer_epoch if bumped else before.last_epoch,
        next_producer_id=NONE if new_producer_id is None else new_producer_id,
        started_ms=wall_ms if before.state in AT_REST else before.started_ms,
        client_version=client_version,
    )


def complete(before: Metadata, wall_ms: int) -> Metadata:
    """Return CompleteCommit or CompleteAbort, with the next producer id if there is one."""
    committed = before.state is TransactionState.PREPARE_COMMIT
    state = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    rotated = before.next_producer_id != NONE
    return replace(
        _next(before, state, wall_ms),
        producer_id=before.next_producer_id if rotated else before.producer_id,
        producer_epoch=0 if rotated else before.producer_epoch,
        previous_producer_id=before.producer_id,
        next_producer_id=NONE,
        partitions=frozenset(),
    )


def expire(before: Metadata) -> Metadata:
    """Return Dead."""
    return _next(before, TransactionState.DEAD, before.updated_ms)
