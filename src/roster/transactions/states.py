"""The states of a transactional id and every transition between them, in one table."""

from enum import IntEnum


class TransactionState(IntEnum):
    """State of a transactional id, numbered as in the records of `__transaction_state`."""

    EMPTY = 0
    """It has a producer, but no transaction yet."""
    ONGOING = 1
    PREPARE_COMMIT = 2
    """The decision is durable; markers are being written."""
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    """Every partition has its marker."""
    COMPLETE_ABORT = 5
    DEAD = 6
    """The id has expired; its tombstone is being written."""
    PREPARE_EPOCH_FENCE = 7
    """The producer is fenced on the way from Ongoing to PrepareAbort, in one step: never stored or seen."""

    @property
    def label(self) -> str:
        """The name on the wire, such as "PrepareCommit"."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """True while markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def may_expire(self) -> bool:
        """True if the transactional id may expire."""
        return self in AT_REST


AT_REST = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
"""States without an open transaction."""

PREVIOUS: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: AT_REST,
    TransactionState.ONGOING: AT_REST | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: AT_REST | {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: AT_REST,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
}
"""The states that each state may follow. An abort at rest gives a producer of version 2 a new epoch (KIP-890)."""

BY_LABEL = {state.label: state for state in TransactionState}
