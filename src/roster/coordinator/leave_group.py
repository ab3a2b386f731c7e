"""LeaveGroup: remove members, on their own request or an administrator's."""

from roster.coordinator.group import Group
from roster.coordinator.group_context import GroupContext
from roster.coordinator.rebalance import maybe_complete_join_phase, maybe_prepare_rebalance_or_complete_join
from roster.coordinator.runtime import Runtime
from roster.coordinator.states import GroupState
from roster.coordinator_common import RequestReceived
from roster.wire import ErrorCode
from roster.wire.messages import LeaveGroupRequest, LeaveGroupResponse

BATCH_LEAVE_FROM = 3
"""KIP-345: LeaveGroup version from which a request names several members and the response has an error for each."""


def leave_group(rt: Runtime, event: RequestReceived, request: LeaveGroupRequest) -> LeaveGroupResponse | None:
    """Remove members; if the group is then empty, the response waits until its record is durable."""
    batch = event.api_version >= BATCH_LEAVE_FROM
    leaving = request.members if batch else [LeaveGroupRequest.Member(member_id=request.member_id)]
    group = rt.groups.get(request.group_id)
    if error := validate(rt, group, request):
        return LeaveGroupResponse(error_code=error)
    if group is None:
        results = [member_result(entry, ErrorCode.UNKNOWN_MEMBER_ID) for entry in leaving]
    else:
        results = remove_leaving_members(GroupContext(rt, group), leaving)
    response = LeaveGroupResponse(members=results) if batch else LeaveGroupResponse(error_code=results[0].error_code)
    rt.reply_when_durable(event.token, response, lambda error: LeaveGroupResponse(error_code=error))
    return None


def validate(rt: Runtime, group: Group | None, request: LeaveGroupRequest) -> ErrorCode:
    """Return the error that rejects the whole request, or NONE."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return rt.availability_error(request.group_id)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if group.state is GroupState.DEAD else ErrorCode.NONE


def remove_leaving_members(
    ctx: GroupContext, leaving: list[LeaveGroupRequest.Member]
) -> list[LeaveGroupResponse.Member]:
    """Remove the members, then rebalance if any was removed."""
    members_before = len(ctx.group.members)
    results = [member_result(entry, remove_leaving_member(ctx, entry)) for entry in leaving]
    if len(ctx.group.members) < members_before:
        maybe_prepare_rebalance_or_complete_join(ctx)
    else:
        maybe_complete_join_phase(ctx)  # a pending member may have left
    return results


def remove_leaving_member(ctx: GroupContext, entry: LeaveGroupRequest.Member) -> ErrorCode:
    """Remove one member: by instance id alone (an administrator's request), or by member id (its own)."""
    group = ctx.group
    member_id = entry.member_id
    if not member_id:
        member_id = group.instances.get(entry.group_instance_id or "", "")
        if not member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id in group.pending_members:
        ctx.remove_pending_member(member_id)
        return ErrorCode.NONE
    elif error := group.validate_member(member_id, entry.group_instance_id):
        return error
    ctx.remove_member(group.members[member_id])
    return ErrorCode.NONE


def member_result(entry: LeaveGroupRequest.Member, error: ErrorCode) -> LeaveGroupResponse.Member:
    """Build the result for one member."""
    return LeaveGroupResponse.Member(
        member_id=entry.member_id, group_instance_id=entry.group_instance_id, error_code=error
    )
