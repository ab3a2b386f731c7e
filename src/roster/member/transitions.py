"""A member's states and every transition between them, in one table."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a member stands; the first four are Kafka's client states."""

    UNJOINED = "Unjoined"
    PREPARING_REBALANCE = "PreparingRebalance"
    """JoinGroup is on its way or parked."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """In a new generation; the leader assigns, SyncGroup is on its way or parked."""
    STABLE = "Stable"
    LEFT = "Left"
    FAILED = "Failed"


class Trigger(Enum):
    """What moves a member from one state to another."""

    JOIN_SENT = "join sent"
    JOIN_ACCEPTED = "join accepted"
    SYNC_ACCEPTED = "sync accepted"
    ATTEMPT_FAILED = "attempt failed"
    """Join or sync did not succeed; generation and member id stay."""
    RESET = "reset"
    """The broker does not know this member in this generation: what it owned is lost."""
    CLOSE = "close"
    FATAL = "fatal"


TRANSITIONS: dict[tuple[State, Trigger], State] = {
    (State.UNJOINED, Trigger.JOIN_SENT): State.PREPARING_REBALANCE,
    (State.STABLE, Trigger.JOIN_SENT): State.PREPARING_REBALANCE,
    (State.PREPARING_REBALANCE, Trigger.JOIN_ACCEPTED): State.COMPLETING_REBALANCE,
    (State.PREPARING_REBALANCE, Trigger.ATTEMPT_FAILED): State.UNJOINED,
    (State.COMPLETING_REBALANCE, Trigger.ATTEMPT_FAILED): State.UNJOINED,
    (State.COMPLETING_REBALANCE, Trigger.SYNC_ACCEPTED): State.STABLE,
    (State.UNJOINED, Trigger.RESET): State.UNJOINED,
    (State.PREPARING_REBALANCE, Trigger.RESET): State.UNJOINED,
    (State.COMPLETING_REBALANCE, Trigger.RESET): State.UNJOINED,
    (State.STABLE, Trigger.RESET): State.UNJOINED,
    (State.UNJOINED, Trigger.CLOSE): State.LEFT,
    (State.PREPARING_REBALANCE, Trigger.CLOSE): State.LEFT,
    (State.COMPLETING_REBALANCE, Trigger.CLOSE): State.LEFT,
    (State.STABLE, Trigger.CLOSE): State.LEFT,
    (State.FAILED, Trigger.CLOSE): State.LEFT,
    (State.UNJOINED, Trigger.FATAL): State.FAILED,
    (State.PREPARING_REBALANCE, Trigger.FATAL): State.FAILED,
    (State.COMPLETING_REBALANCE, Trigger.FATAL): State.FAILED,
    (State.STABLE, Trigger.FATAL): State.FAILED,
}
"""Anything not listed is a defect and raises KeyError."""

OVER = frozenset({State.LEFT, State.FAILED})
