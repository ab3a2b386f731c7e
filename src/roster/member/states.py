"""A member's states and every transition between them, in one table."""

from enum import Enum


class MemberState(Enum):
    """State of a member; the first four are those of Kafka's AbstractCoordinator.MemberState."""

    __hash__ = object.__hash__  # in C: looked up in every step

    UNJOINED = "Unjoined"
    PREPARING_REBALANCE = "PreparingRebalance"
    """JoinGroup is in flight; the coordinator may park it until every member has joined."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """In a new generation: the leader computes the assignment, SyncGroup is due or in flight."""
    STABLE = "Stable"
    LEFT = "Left"
    """Closed by the application."""
    FAILED = "Failed"
    """Stopped by a fatal error."""


class Trigger(Enum):
    """Cause of a transition."""

    JOIN_SENT = "join sent"
    JOIN_ACCEPTED = "join accepted"
    SYNC_ACCEPTED = "sync accepted"
    ATTEMPT_FAILED = "attempt failed"
    """JoinGroup or SyncGroup failed; generation and member id are kept."""
    RESET = "reset"
    """The coordinator does not know the member or its generation; its partitions are lost."""
    CLOSE = "close"
    FATAL = "fatal"


_WORKING = (MemberState.UNJOINED, MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE, MemberState.STABLE)

TRANSITIONS: dict[tuple[MemberState, Trigger], MemberState] = {
    (MemberState.UNJOINED, Trigger.JOIN_SENT): MemberState.PREPARING_REBALANCE,
    (MemberState.STABLE, Trigger.JOIN_SENT): MemberState.PREPARING_REBALANCE,
    (MemberState.PREPARING_REBALANCE, Trigger.JOIN_ACCEPTED): MemberState.COMPLETING_REBALANCE,
    (MemberState.PREPARING_REBALANCE, Trigger.ATTEMPT_FAILED): MemberState.UNJOINED,
    (MemberState.COMPLETING_REBALANCE, Trigger.ATTEMPT_FAILED): MemberState.UNJOINED,
    (MemberState.COMPLETING_REBALANCE, Trigger.SYNC_ACCEPTED): MemberState.STABLE,
    **{(state, Trigger.RESET): MemberState.UNJOINED for state in _WORKING},
    **{(state, Trigger.CLOSE): MemberState.LEFT for state in (*_WORKING, MemberState.FAILED)},
    **{(state, Trigger.FATAL): MemberState.FAILED for state in _WORKING},
}
"""Any other combination is a bug and raises KeyError."""

FINAL_STATES = frozenset({MemberState.LEFT, MemberState.FAILED})
