"""What the coordinator knows of one transactional id, and how it changes.

A `Metadata` is what one record of `__transaction_state` holds. Each function below returns the next one; it counts when
its record is durable, and until then every other request is answered CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from roster.coordinator_common import IllegalTransitionError
from roster.model import TopicPartition
from roster.transactions.states import AT_REST, PREVIOUS, TransactionState
from roster.wire import ErrorCode

NONE = -1
"""No producer id, epoch or time."""
LAST_EPOCH = 2**15 - 2
"""The last epoch a client gets; one more fences it, after which it needs another producer id."""
CLIENT_V1, CLIENT_V2 = 0, 2
"""Protocol of the client that ended a transaction, as the records have it: without and with the bump of KIP-890."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """State of a transactional id; times in ms (wall clock)."""

    state: TransactionState
    producer_id: int
    producer_epoch: int = NONE
    last_epoch: int = NONE
    """The client's epoch before this one: with it a repeated InitProducerId is recognised. Not stored."""
    previous_producer_id: int = NONE
    next_producer_id: int = NONE
    """Id that the client gets when the transaction is complete, since the epochs of this one are used up."""
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
    """A transactional id; `pending` is the next state, whose record is being written."""

    transactional_id: str
    partition: int
    current: Metadata
    pending: Metadata | None = None

    @property
    def is_changing(self) -> bool:
        """True while a state or markers are being written: other changes are refused, to be retried."""
        return self.pending is not None or self.current.state.is_prepared


def _next(before: Metadata, state: TransactionState, wall_ms: int) -> Metadata:
    if before.state not in PREVIOUS[state]:
        raise IllegalTransitionError(f"{state.label} after {before.state.label}")
    return replace(before, state=state, updated_ms=wall_ms)


def initialize(
    before: Metadata, timeout_ms: int, expected_epoch: int | None, new_producer_id: int | None, wall_ms: int
) -> Metadata | ErrorCode:
    """Return Empty with the client's next epoch, or the same for a repeated request; PRODUCER_FENCED otherwise.

    `expected_epoch` is the one the client has, None for a new instance; `new_producer_id` replaces one that has no
    epochs left.
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
    """Return Ongoing with more partitions; the first ones start its clock."""
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
    """Return the decision: PrepareCommit or PrepareAbort, in version 2 with the epoch that fences late writes."""
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
