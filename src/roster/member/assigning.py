"""The leader's duty between JoinGroup and SyncGroup.

It learns the group's topics, for some assignors fetches offsets, has the assignment computed, then brings it to the
coordinator. Each step waits for an event, and `Membership.assigning` is the number of the one that may still come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.member.events import Assign, Assigned, FetchOffsets
from roster.member.lookups import refresh_topics
from roster.member.membership import METADATA
from roster.member.subscription import failure_assignment, topics_of
from roster.member.syncing import sync
from roster.member.transitions import State

if TYPE_CHECKING:
    from roster.assignors.lag import Offsets
    from roster.member.events import AssignFailed, OffsetsFetched
    from roster.member.membership import Membership
    from roster.wire.messages import JoinGroupResponse


def lead(me: Membership, response: JoinGroupResponse) -> None:
    """Take on the duty: from now on the topics of the whole group are watched."""
    me.group = {m.member_id: (m.metadata, m.group_instance_id) for m in response.members}
    me.watch.lead(frozenset().union(*(topics_of(metadata) for metadata, _ in me.group.values())))
    if response.skip_assignment:
        me.watch.adopt()
        sync(me, {})
    else:
        me.report("leading", f"assigning for {len(me.group)} members")
    me.out.forget("metadata")  # it asked for other topics
    me.out.resume(METADATA)
    refresh_topics(me)


def awaits_topics(me: Membership) -> bool:
    """Whether the assignment is to be made as soon as the group's topics are known."""
    return me.state is State.COMPLETING_REBALANCE and bool(me.group) and me.assigning is None


def topics_known(me: Membership) -> None:
    """Get what else the assignor wants, then assign."""
    if not me.policy.wants_lag:
        assign(me, None)
        return
    me.assigning = me.out.number()
    partitions, timeout = me.watch.assigned(), me.config.offsets_timeout_ms
    me.out.emit(FetchOffsets(me.assigning, me.config.group, partitions, timeout))


def offsets_fetched(me: Membership, event: OffsetsFetched) -> None:
    """Assign with the offsets, or without when they cannot be had."""
    if event.id == me.assigning:
        if event.offsets is None:
            me.report("leading", f"{me.protocol} does without lags: {event.reason or 'no offsets'}")
        assign(me, event.offsets)


def assign(me: Membership, offsets: Offsets | None) -> None:
    """Have the assignment computed."""
    me.assigning = me.out.number()
    me.out.emit(
        Assign(
            me.assigning,
            me.policy,
            {member: metadata for member, (metadata, _) in me.group.items()},
            me.watch.assigned(),
            {member: instance for member, (_, instance) in me.group.items()},
            me.watch.racks(),
            me.generation,
            offsets,
            me.config.auto_offset_reset,
        )
    )


def assigned(me: Membership, event: Assigned) -> None:
    """Bring the assignment to the coordinator."""
    if event.id == me.assigning:
        me.assigning = None
        sync(me, event.assignments)


def assign_failed(me: Membership, event: AssignFailed) -> None:
    """Tell every member of the group instead."""
    if event.id == me.assigning:
        me.report("retry", f"the assignment failed, the group will be told: {event.reason}")
        assigned(me, Assigned(event.id, dict.fromkeys(me.group, failure_assignment(event.reason))))
