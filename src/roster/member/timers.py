"""Names of the timers that a member sets."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class TimerKind(Enum):
    """Purpose of a timer; JOIN, DISCOVER, METADATA, DESCRIBE and COMMIT end a back-off as well."""

    __hash__ = object.__hash__  # in C: names of timers are hashed with every request

    HEARTBEAT = "heartbeat"
    REVOKE = "revoke"
    """Deadline of a revocation."""
    SECOND_ROUND = "second round"
    """Set by the leader: time by which the second round of a cooperative rebalance should have begun."""
    JOIN = "join"
    DISCOVER = "discover"
    METADATA = "metadata"
    DESCRIBE = "describe"
    COMMIT = "commit"
    COMMIT_DEADLINE = "commit deadline"
    """Deadline of one commit, named by its token."""


class TimerName(NamedTuple):
    """Identity of a timer; setting a name again replaces its deadline."""

    kind: TimerKind
    token: int = 0
    """Token of the commit, for COMMIT_DEADLINE."""


HEARTBEAT = TimerName(TimerKind.HEARTBEAT)
REVOKE = TimerName(TimerKind.REVOKE)
SECOND_ROUND = TimerName(TimerKind.SECOND_ROUND)
JOIN = TimerName(TimerKind.JOIN)
DISCOVER = TimerName(TimerKind.DISCOVER)
METADATA = TimerName(TimerKind.METADATA)
DESCRIBE = TimerName(TimerKind.DESCRIBE)
COMMIT = TimerName(TimerKind.COMMIT)


def commit_deadline(token: int) -> TimerName:
    """Name the timer that ends the commit `token`."""
    return TimerName(TimerKind.COMMIT_DEADLINE, token)
