"""Expiration: delete offsets past their retention, and empty groups that have no other offsets."""

from __future__ import annotations

from roster.coordinator.group import CommittedOffset, Group
from roster.coordinator.group_context import GroupContext
from roster.coordinator.offset_store import delete_group, write_offsets
from roster.coordinator.runtime import Runtime
from roster.coordinator.states import GroupState


def expire_offsets(rt: Runtime, partition: int) -> None:
    """Delete offsets past their retention, and empty groups without offsets (worked case GC-27)."""
    for group in rt.groups_in(partition):
        if group.state is GroupState.DEAD:
            continue
        expired = expired_offsets(rt, group)
        none_left = not group.all_offsets() - expired.keys()
        if none_left and group.state is GroupState.EMPTY and not group.pending_members:
            delete_group(GroupContext(rt, group), lambda _: None)
        elif expired:
            write_offsets(GroupContext(rt, group), expired, lambda _: None)


def expired_offsets(rt: Runtime, group: Group) -> dict[tuple[str, int], CommittedOffset | None]:
    """Return the offsets past their retention, as tombstones, without those with a pending write or transaction.

    | group                                              | retention runs from                        |
    |----------------------------------------------------|--------------------------------------------|
    | no protocol type (simple)                          | the commit                                 |
    | Empty                                              | when it became Empty, else the commit      |
    | Stable consumer group with readable subscriptions  | the commit; topics in use never expire     |
    | any other                                          | never                                      |
    """
    since_ms: int | None = None
    in_use: set[str] = set()
    if group.protocol_type is not None and group.state is GroupState.EMPTY:
        since_ms = group.state_since_ms
    elif group.protocol_type is not None:
        subscribed = group.subscribed_topics() if group.state is GroupState.STABLE else None
        if subscribed is None:
            return {}
        in_use = subscribed
    return {
        (topic, partition): None
        for topic, partitions in group.offsets.items()
        if topic not in in_use
        for partition, committed in partitions.items()
        if (topic, partition) not in group.pending_offset_writes
        and not group.is_unstable(topic, partition)
        and has_expired(rt, committed, since_ms)
    }


def has_expired(rt: Runtime, committed: CommittedOffset, since_ms: int | None) -> bool:
    """Return True if the offset's own expiry time, if a client set one, or its retention has passed."""
    if committed.expires_at_ms is not None:
        return rt.wall_ms >= committed.expires_at_ms
    start = committed.committed_at_ms if since_ms is None else since_ms
    return rt.wall_ms - start >= rt.config.offsets_retention_ms
