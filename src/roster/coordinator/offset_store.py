"""Writes, deletes and expires the committed offsets of a group.

An offset is visible from the time its write is durable until its tombstone is durable.
"""

from collections import Counter
from collections.abc import Mapping

from roster.coordinator import records
from roster.coordinator.events import TransactionEnd
from roster.coordinator.group import CommittedOffset, Group
from roster.coordinator.group_context import GroupContext
from roster.coordinator.runtime import Runtime
from roster.coordinator.states import GroupState, Trigger
from roster.coordinator_common import Continuation, LogRecord
from roster.wire import ErrorCode


def write_offsets(
    ctx: GroupContext, offsets: Mapping[tuple[str, int], CommittedOffset | None], then: Continuation, *more: LogRecord
) -> None:
    """Write offsets (None: tombstones) and `more` records; apply the offsets once durable, then call `then`."""
    group = ctx.group
    group.pending_offset_writes.update(offsets.keys())

    def written(error: ErrorCode) -> None:
        group.complete_offset_writes(offsets)
        if not error:
            for (topic, partition), committed in offsets.items():
                group.store_offset(topic, partition, committed)
        then(error)
        drop_if_unused(ctx)

    log = [
        records.offset_record(group.group_id, topic, partition, committed)
        for (topic, partition), committed in offsets.items()
    ]
    ctx.rt.writes.start(group.partition, [*log, *more], written)


def write_pending_offsets(
    ctx: GroupContext, offsets: dict[tuple[str, int], CommittedOffset], producer: tuple[int, int], then: Continuation
) -> None:
    """Write offsets as part of a producer's (id, epoch) transaction; they take effect with the commit marker."""
    group, rt = ctx.group, ctx.rt
    producer_id, _ = producer
    group.transactional_writes.update(offsets.keys())

    def written(error: ErrorCode) -> None:
        group.transactional_writes -= Counter(offsets.keys())
        if not error:
            for (topic, partition), committed in offsets.items():
                group.add_pending_offset(producer_id, topic, partition, committed)
            rt.in_transaction.setdefault((group.partition, producer_id), set()).add(group.group_id)
        then(error)
        drop_if_unused(ctx)

    log = [
        records.offset_record(group.group_id, topic, partition, committed)
        for (topic, partition), committed in offsets.items()
    ]
    rt.writes.start(group.partition, log, written, producer)


def end_transaction(rt: Runtime, partition: int, end: TransactionEnd) -> None:
    """Commit or drop the pending offsets of a producer's transaction in one partition."""
    for group_id in rt.in_transaction.pop((partition, end.producer_id), ()):
        group = rt.groups.get(group_id)
        if group is not None:
            group.end_transaction(end.producer_id, committed=end.committed)
            drop_if_unused(GroupContext(rt, group))


def drop_if_unused(ctx: GroupContext) -> None:
    """Drop a simple group without offsets; the log has no record of it."""
    group = ctx.group
    never_joined = group.protocol_type is None and group.generation == 0 and not group.recorded
    if never_joined and group.state is GroupState.EMPTY and not group.pending_members and not group.all_offsets():
        group.transition(Trigger.DELETED, ctx.rt.wall_ms)
        ctx.rt.drop_group(group)


def delete_group(ctx: GroupContext, then: Continuation) -> None:
    """Delete an empty group with all its offsets; Dead until the tombstones are durable, Empty again if that fails."""
    group = ctx.group
    since_ms = group.state_since_ms
    group.transition(Trigger.DELETED, ctx.rt.wall_ms)
    for member_id in list(group.pending_members):
        ctx.remove_pending_member(member_id)

    def written(error: ErrorCode) -> None:
        if error:
            group.transition(Trigger.DELETION_FAILED, ctx.rt.wall_ms)
            group.state_since_ms = since_ms
        else:
            ctx.rt.drop_group(group)
        then(error)

    tombstones: dict[tuple[str, int], CommittedOffset | None] = dict.fromkeys(sorted(group.all_offsets()))
    write_offsets(ctx, tombstones, written, records.group_tombstone(group.group_id))


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
