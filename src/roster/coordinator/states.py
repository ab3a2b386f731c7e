"""A group's states and every transition between them, in one table."""

from enum import Enum


class GroupState(Enum):
    """State of a group, as in Kafka's ClassicGroupState; the values are the names on the wire."""

    __hash__ = object.__hash__  # in C: looked up in every step

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    """Join phase: parked JoinGroup requests wait for the other members."""
    COMPLETING = "CompletingRebalance"
    """Sync phase: the generation has begun; SyncGroup requests wait for the leader's assignment."""
    STABLE = "Stable"
    DEAD = "Dead"


class Trigger(Enum):
    """Cause of a transition."""

    REBALANCE_NEEDED = "rebalance needed"
    """A member joins, leaves, changes its metadata, expires or does not fetch its assignment; the leader rejoins; the
    assignment cannot be stored."""
    JOIN_PHASE_COMPLETED = "join phase completed"
    """Every member has rejoined and no pending member id is open, or the rebalance timeout has passed."""
    LAST_MEMBER_LEFT = "last member left"
    """The join phase is over, and no member is left."""
    ASSIGNMENT_STORED = "assignment stored"
    """The leader's assignment is durable."""
    DELETED = "deleted"
    """DeleteGroups, or the last offset of an empty group has expired."""
    DELETION_FAILED = "deletion failed"
    """The tombstones could not be stored."""
    UNLOADED = "unloaded"
    """Another process has become the coordinator."""


TRANSITIONS: dict[tuple[GroupState, Trigger], GroupState] = {
    (GroupState.EMPTY, Trigger.REBALANCE_NEEDED): GroupState.PREPARING,
    (GroupState.COMPLETING, Trigger.REBALANCE_NEEDED): GroupState.PREPARING,
    (GroupState.STABLE, Trigger.REBALANCE_NEEDED): GroupState.PREPARING,
    (GroupState.PREPARING, Trigger.JOIN_PHASE_COMPLETED): GroupState.COMPLETING,
    (GroupState.PREPARING, Trigger.LAST_MEMBER_LEFT): GroupState.EMPTY,
    (GroupState.COMPLETING, Trigger.ASSIGNMENT_STORED): GroupState.STABLE,
    (GroupState.EMPTY, Trigger.DELETED): GroupState.DEAD,
    (GroupState.DEAD, Trigger.DELETION_FAILED): GroupState.EMPTY,
    **{(state, Trigger.UNLOADED): GroupState.DEAD for state in GroupState},
}
"""Any other combination is a bug and raises IllegalTransitionError."""
