"""Heartbeat: renew a member's session, and signal a rebalance; expiry of the sessions of silent members.

A member's session is a deadline in memory. If the shell's timer fires before the deadline, it is set again for the time
left. So a heartbeat sets no timer, and a silent member or reserved member id is still removed exactly at its deadline.
"""

from roster.coordinator.group import Group, Member
from roster.coordinator.group_context import GroupContext
from roster.coordinator.rebalance import maybe_complete_join_phase, maybe_prepare_rebalance_or_complete_join
from roster.coordinator.runtime import Runtime
from roster.coordinator.states import GroupState
from roster.coordinator_common import RequestReceived
from roster.wire import ErrorCode
from roster.wire.messages import HeartbeatRequest, HeartbeatResponse


def heartbeat(rt: Runtime, event: RequestReceived, request: HeartbeatRequest) -> HeartbeatResponse:
    """Handle a heartbeat."""
    return HeartbeatResponse(error_code=beat(rt, request))


def beat(rt: Runtime, request: HeartbeatRequest) -> ErrorCode:
    """Renew the session, also during a rebalance; REBALANCE_IN_PROGRESS asks the member to rejoin."""
    group = rt.groups.get(request.group_id)
    error = validate(rt, group, request)
    if error or group is None:
        return error
    GroupContext(rt, group).renew_session(group.members[request.member_id])
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING else ErrorCode.NONE


def validate(rt: Runtime, group: Group | None, request: HeartbeatRequest) -> ErrorCode:
    """Return the error that rejects the request, or NONE."""
    if group is None:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        error = rt.availability_error(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # loading restarts the sessions, so no member has to rejoin
        return error or ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error := group.validate_member(request.member_id, request.group_instance_id):
        return error
    return group.validate_generation(request.generation_id)


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
