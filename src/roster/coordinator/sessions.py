"""Session expiry: removes members, and reserved member ids, that were silent until their deadline.

A member's session is a deadline in memory. If the shell's timer fires before the deadline, it is set again for the time
left. So a heartbeat sets no timer, and a silent member is still removed exactly at its deadline.
"""

from __future__ import annotations

from roster.coordinator.group import Member
from roster.coordinator.group_context import GroupContext
from roster.coordinator.rebalance import maybe_complete_join_phase, maybe_prepare_rebalance_or_complete_join


def expire_session(ctx: GroupContext, member_id: str) -> None:
    """Handle a session timer: remove the member, or the pending one, whose deadline has passed."""
    group = ctx.group
    if member_id in group.pending_members:
        if ctx.rt.now >= group.pending_members[member_id]:
            ctx.remove_pending_member(member_id)
            maybe_complete_join_phase(ctx)
        return
    member = group.members.get(member_id)
    if member is not None and has_expired(ctx, member):
        ctx.remove_member(member)
        maybe_prepare_rebalance_or_complete_join(ctx)


def has_expired(ctx: GroupContext, member: Member) -> bool:
    """Return True if the member must be removed; otherwise the timer is set again if needed.

    A member that waits for the leader sends no heartbeats: its open connection shows that it is alive.
    """
    member.timer_deadline = None
    if member.waits_for_join():
        return False
    if member.parked_sync is not None and ctx.rt.is_connected(member.parked_sync):
        ctx.renew_session(member)
        return False
    if ctx.rt.now < member.deadline:
        ctx.set_session_timer(member)
        return False
    return True
