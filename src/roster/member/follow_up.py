"""Heartbeats after a rebalance: frequent while a follow-up round may come, then at the configured interval.

A cooperative assignor moves a partition in two rounds: its owner gives it up after the first, and joins again; only the
second gives it to its new owner, and only once every member has joined again. A member learns of that second round from
the response to its next heartbeat. It cannot know whether there will be one, as an assignment says nothing of the other
members, nor when, as the owner finishes its batch first. So after each sync the interval grows in proportion to the
time since then, from `FOLLOW_UP_MS` to the configured one: a partition that was given up waits at most 1/20 longer for
its new owner than its old one took, and a rebalance costs a member some 70 heartbeats more, over 20 times the
configured interval.
"""

from __future__ import annotations

FOLLOW_UP_MS = 100
"""Interval right after a rebalance."""
_GROWTH = 20
"""The interval is this part of the time since the sync."""


def heartbeat_interval(configured_ms: int, since_sync_ms: int | None) -> int:
    """Return the ms to the next heartbeat; `since_sync_ms` is None where no follow-up round can come."""
    if since_sync_ms is None:
        return configured_ms
    return min(configured_ms, max(FOLLOW_UP_MS, since_sync_ms // _GROWTH))
