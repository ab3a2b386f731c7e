"""The timers that a member sets: their names, back-offs between retries (KIP-580), the interval of heartbeats."""

from enum import Enum
from typing import NamedTuple, Protocol


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


class RandomSource(Protocol):
    """A random number generator, seeded by the caller; `random.Random` is one."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...


JITTER = 0.2


def backoff_ms(failures: int, initial_ms: int, max_ms: int, random: RandomSource) -> int:
    """Return the pause in ms after `failures` failures: `initial_ms` doubled for each, ±20 %, at most `max_ms`."""
    pause = initial_ms * 2.0 ** min(failures, 30)
    pause *= 1 - JITTER + 2 * JITTER * random.random()
    return max(1, min(int(pause), max_ms))


FOLLOW_UP_MS = 100
"""Interval of heartbeats right after a rebalance, in ms."""
_GROWTH = 20
"""The interval is the time since the sync divided by this."""


def heartbeat_interval(configured_ms: int, since_sync_ms: int | None) -> int:
    """Return the ms until the next heartbeat; `since_sync_ms` is None if no follow-up round can come.

    A cooperative assignor moves a partition in two rounds. Its owner gives it up after the first and rejoins; the new
    owner gets it in the second, once every member has rejoined. A member learns of the second round from its next
    heartbeat. It cannot know whether there will be one, since its assignment says nothing about other members, nor
    when, since the old owner finishes its batch first. So after each sync the interval grows in proportion to the time
    since then, from `FOLLOW_UP_MS` to the configured interval. A partition then waits for its new owner at most 1/20
    longer than the old owner took to give it up. A rebalance costs each member about 70 additional heartbeats, over 20
    times the configured interval.
    """
    if since_sync_ms is None:
        return configured_ms
    return min(configured_ms, max(FOLLOW_UP_MS, since_sync_ms // _GROWTH))
