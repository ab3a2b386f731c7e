"""Names of the timers that the coordinator sets."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class TimerKind(Enum):
    """Purpose of a timer."""

    SESSION = "session"
    """Session of a member, or the reservation of a pending member id."""
    JOIN = "join"
    """End of the join phase, or of a window of the initial one."""
    SYNC = "sync"
    """End of the wait for members that do not fetch their assignment."""
    OFFSET_EXPIRATION = "offset expiration"
    """Next check of the committed offsets of one partition of `__consumer_offsets`."""


class TimerName(NamedTuple):
    """Identity of a timer; setting a name again replaces its deadline."""

    kind: TimerKind
    group_id: str = ""
    member_id: str = ""
    """For SESSION."""
    partition: int = -1
    """For OFFSET_EXPIRATION."""


def session_timer(group_id: str, member_id: str) -> TimerName:
    """Name the session timer of a member or of a pending member id."""
    return TimerName(TimerKind.SESSION, group_id, member_id)


def join_timer(group_id: str) -> TimerName:
    """Name the timer that ends the join phase of a group."""
    return TimerName(TimerKind.JOIN, group_id)


def sync_timer(group_id: str) -> TimerName:
    """Name the timer that ends the sync phase of a group."""
    return TimerName(TimerKind.SYNC, group_id)


def offset_expiration_timer(partition: int) -> TimerName:
    """Name the timer of the periodic expiration in a partition of `__consumer_offsets`."""
    return TimerName(TimerKind.OFFSET_EXPIRATION, partition=partition)
