"""The two phases of a rebalance: join and sync. `states.TRANSITIONS` has the transitions between them.

Each phase ends with a record that is durable before any response: the join phase with the generation and its members,
the sync phase (`sync_group`) with their assignments. So a new coordinator continues where this one stopped (client-side
assignment proposal, "Handling Coordinator Failures").
"""

from roster.coordinator.events import TimerKind, TimerName
from roster.coordinator.group import Member
from roster.coordinator.group_context import GroupContext
from roster.coordinator.states import GroupState, Trigger
from roster.model import CancelTimer, SetTimer
from roster.wire import ErrorCode


def maybe_prepare_rebalance_or_complete_join(ctx: GroupContext) -> None:
    """Handle a change of members or metadata: begin a join phase, or complete the current one if all have joined."""
    if ctx.group.can_rebalance():
        prepare_rebalance(ctx)
    else:
        maybe_complete_join_phase(ctx)


# -- join phase ------------------------------------------------------------------------------------------------------


def prepare_rebalance(ctx: GroupContext) -> None:
    """Begin a join phase; parked SyncGroup requests are answered REBALANCE_IN_PROGRESS."""
    group = ctx.group
    if group.state is GroupState.COMPLETING:
        reset_assignments(ctx, ErrorCode.REBALANCE_IN_PROGRESS)
    cancel_sync_phase(ctx)
    was_empty = group.state is GroupState.EMPTY
    group.transition(Trigger.REBALANCE_NEEDED, ctx.rt.wall_ms)
    if was_empty:
        delay = ctx.rt.config.initial_rebalance_delay_ms
        group.initial_delay_left_ms = max(group.rebalance_timeout_ms() - delay, 0)
        schedule_initial_rebalance(ctx, delay)
    elif group.has_all_members_joined():
        complete_join_phase(ctx)
    else:
        schedule_join_phase_end(ctx, group.rebalance_timeout_ms())


def schedule_initial_rebalance(ctx: GroupContext, delay_ms: int) -> None:
    """Wait `delay_ms` for the first members of an empty group, so that they join the same generation."""
    ctx.group.new_member_added = False
    ctx.group.initial_delay_ms = delay_ms
    if delay_ms == 0:
        complete_join_phase(ctx)
    else:
        schedule_join_phase_end(ctx, delay_ms)


def expire_join_phase(ctx: GroupContext) -> None:
    """Handle the join timer: extend the initial delay if a member joined meanwhile and time is left, else complete."""
    group = ctx.group
    if group.state is not GroupState.PREPARING or group.join_deadline is None or ctx.rt.now < group.join_deadline:
        return
    left = group.initial_delay_left_ms
    if left and group.new_member_added:
        group.initial_delay_left_ms = max(left - group.initial_delay_ms, 0)
        schedule_initial_rebalance(ctx, min(ctx.rt.config.initial_rebalance_delay_ms, left))
    else:
        complete_join_phase(ctx)


def maybe_complete_join_phase(ctx: GroupContext) -> None:
    """Complete the join phase early once all members have joined; the initial delay is never shortened."""
    group = ctx.group
    waits = group.initial_delay_left_ms is not None or group.generation_write is not None
    if group.state is GroupState.PREPARING and not waits and group.has_all_members_joined():
        complete_join_phase(ctx)


def complete_join_phase(ctx: GroupContext) -> None:
    """End the join phase: remove dynamic members that have not rejoined; the others form the next generation."""
    group = ctx.group
    cancel_join_phase(ctx)
    for member in group.remove_not_yet_rejoined():
        ctx.end_session(member)
    for member in group.without_common_protocol():
        refuse_member(ctx, member)
    if not group.members:  # if this write fails, the old generation reappears after a failover and expires again
        group.become_empty(ctx.rt.wall_ms)
        ctx.write_group(lambda _: None)
    elif group.maybe_elect_new_joined_leader():
        store_generation(ctx)
    else:
        schedule_join_phase_end(ctx, group.rebalance_timeout_ms())


def refuse_member(ctx: GroupContext, member: Member) -> None:
    """Remove a member that has no protocol in common with the others."""
    ctx.fail_join(member, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member.member_id)
    ctx.remove_member(member)


def store_generation(ctx: GroupContext) -> None:
    """Store the next generation; its members are answered once it is durable.

    Until then the previous generation is valid. If members join or leave meanwhile, the same generation is written
    again, since no member knows it yet.
    """
    group = ctx.group
    generation, protocol, changes = group.next_generation, group.select_protocol() or "", group.changes
    group.generation_write = changes

    def written(error: ErrorCode) -> None:
        if group.generation_write != changes:
            return  # the group was aborted
        group.generation_write = None
        if error:
            fail_join_phase(ctx, error)
        elif group.changes != changes:
            complete_join_phase(ctx)
        else:
            group.begin_generation(generation, protocol, ctx.rt.wall_ms)
            ctx.complete_joins()
            schedule_sync_phase_end(ctx)

    ctx.write_generation(generation, protocol, written)


def fail_join_phase(ctx: GroupContext, error: ErrorCode) -> None:
    """Answer every parked JoinGroup with `error`; the join phase continues, so members can retry."""
    for member in ctx.group.members.values():
        if member.parked_join is not None:
            member.is_new = False
            ctx.fail_join(member, error, member.member_id)
            ctx.renew_session(member)
    schedule_join_phase_end(ctx, ctx.group.rebalance_timeout_ms())


def schedule_join_phase_end(ctx: GroupContext, timeout_ms: int) -> None:
    """End the join phase after `timeout_ms` at the latest."""
    ctx.group.join_deadline = ctx.rt.now + timeout_ms
    ctx.rt.timers.append(SetTimer(TimerName(TimerKind.JOIN, ctx.group.group_id), ctx.group.join_deadline))


def cancel_join_phase(ctx: GroupContext) -> None:
    """Cancel the join timer, and ignore a generation that is being written."""
    ctx.group.generation_write = None
    if ctx.group.join_deadline is not None:
        ctx.rt.timers.append(CancelTimer(TimerName(TimerKind.JOIN, ctx.group.group_id)))
    ctx.group.join_deadline = ctx.group.initial_delay_left_ms = None


# -- sync phase ------------------------------------------------------------------------------------------------------


def schedule_sync_phase_end(ctx: GroupContext) -> None:
    """Wait for the SyncGroup of every member, at most for the rebalance timeout."""
    ctx.group.sync_deadline = ctx.rt.now + ctx.group.rebalance_timeout_ms()
    ctx.rt.timers.append(SetTimer(TimerName(TimerKind.SYNC, ctx.group.group_id), ctx.group.sync_deadline))


def cancel_sync_phase(ctx: GroupContext) -> None:
    """Cancel the sync timer."""
    ctx.group.pending_sync_members.clear()
    if ctx.group.sync_deadline is not None:
        ctx.group.sync_deadline = None
        ctx.rt.timers.append(CancelTimer(TimerName(TimerKind.SYNC, ctx.group.group_id)))


def reset_assignments(ctx: GroupContext, error: ErrorCode) -> None:
    """Clear all assignments and answer every parked SyncGroup with `error`."""
    for member in ctx.group.members.values():
        member.assignment = b""
        ctx.propagate_assignment(member, error)


def expire_pending_sync(ctx: GroupContext) -> None:
    """Handle the sync timer: remove members (also static ones) that did not fetch their assignment, and rebalance."""
    group = ctx.group
    if group.sync_deadline is None or ctx.rt.now < group.sync_deadline:
        return
    group.sync_deadline = None
    if not group.pending_sync_members:
        return
    for member_id in list(group.pending_sync_members):
        ctx.remove_member(group.members[member_id])
    maybe_prepare_rebalance_or_complete_join(ctx)
