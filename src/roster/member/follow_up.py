"""Heartbeats after a rebalance: frequent while a follow-up round may come, then at the configured interval.

A cooperative assignor moves a partition in two rounds. Its owner gives it up after the first round and rejoins; the new
owner gets it in the second, once every member has rejoined. A member learns of the second round from its next
heartbeat. It cannot know whether there will be one, since its assignment says nothing about other members, nor when,
since the old owner finishes its batch first. So after each sync the heartbeat interval grows in proportion to the time
since the sync, from `FOLLOW_UP_MS` to the configured interval. A partition then waits for its new owner at most 1/20
longer than the old owner took to give it up. A rebalance costs each member about 70 additional heartbeats, over 20
times the configured interval.
"""

from __future__ import annotations

FOLLOW_UP_MS = 100
"""Interval right after a rebalance."""
_GROWTH = 20
"""The interval is the time since the sync divided by this."""


def heartbeat_interval(configured_ms: int, since_sync_ms: int | None) -> int:
    """Return the ms until the next heartbeat; `since_sync_ms` is None if no follow-up round can come."""
    if since_sync_ms is None:
        return configured_ms
    return min(configured_ms, max(FOLLOW_UP_MS, since_sync_ms // _GROWTH))
