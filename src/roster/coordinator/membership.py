"""Heartbeat and LeaveGroup: staying, and going."""

from __future__ import annotations

from roster.coordinator import session
from roster.coordinator.events import RequestReceived
from roster.coordinator.group import Group, GroupState
from roster.coordinator.rebalance import complete_if_all_joined, rebalance, remove_member
from roster.coordinator.runtime import Runtime
from roster.wire import ErrorCode
from roster.wire.messages import HeartbeatRequest, HeartbeatResponse, LeaveGroupRequest, LeaveGroupResponse

BATCH_LEAVE_FROM = 3
"""KIP-345: from this version on, one LeaveGroup names several members and has an error for each."""


def heartbeat(rt: Runtime, event: RequestReceived, request: HeartbeatRequest) -> None:
    """Renew a session and tell the member whether to rejoin."""
    rt.reply(event.token, HeartbeatResponse(error_code=heartbeat_result(rt, request)))


def heartbeat_result(rt: Runtime, request: HeartbeatRequest) -> ErrorCode:
    """The heartbeat's outcome; one that is in time renews the session, during a rebalance too."""
    group = rt.groups.get(request.group_id)
    if group is None:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        error = rt.unavailable(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # sessions start over once loaded, so nothing is lost and nobody need rejoin
        return error or ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error := session.validate(group, request.member_id, request.group_instance_id):
        return error
    if request.generation_id != group.generation:
        group.witness(request.generation_id)
        return ErrorCode.ILLEGAL_GENERATION
    session.renew(rt, group, group.members[request.member_id])
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING else ErrorCode.NONE


def leave(rt: Runtime, event: RequestReceived, request: LeaveGroupRequest) -> None:
    """Remove members; the answer waits until the log knows that the group is empty, if it is then."""
    batch = event.api_version >= BATCH_LEAVE_FROM
    leaving = request.members if batch else [LeaveGroupRequest.Member(member_id=request.member_id)]
    group = rt.groups.get(request.group_id)
    error = ErrorCode.NONE
    if not request.group_id:
        error = ErrorCode.INVALID_GROUP_ID
    elif group is None:
        error = rt.unavailable(request.group_id)
    elif group.state is GroupState.DEAD:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error:
        rt.reply(event.token, LeaveGroupResponse(error_code=error))
        return

    if group is None:
        outcomes = [outcome(entry, ErrorCode.UNKNOWN_MEMBER_ID) for entry in leaving]
    else:
        members_before = len(group.members)
        outcomes = [outcome(entry, take_out(rt, group, entry)) for entry in leaving]
        if len(group.members) < members_before:
            rebalance(rt, group)
        else:
            complete_if_all_joined(rt, group)  # a pending id may have left
    response = LeaveGroupResponse(members=outcomes) if batch else LeaveGroupResponse(error_code=outcomes[0].error_code)
    rt.reply_when_durable(event.token, response, lambda error: LeaveGroupResponse(error_code=error))


def outcome(entry: LeaveGroupRequest.Member, error: ErrorCode) -> LeaveGroupResponse.Member:
    """One member's line of the answer."""
    return LeaveGroupResponse.Member(
        member_id=entry.member_id, group_instance_id=entry.group_instance_id, error_code=error
    )


def take_out(rt: Runtime, group: Group, entry: LeaveGroupRequest.Member) -> ErrorCode:
    """Remove one member: by instance id alone (an administrator), or by member id (itself)."""
    member_id = entry.member_id
    if not member_id:
        member_id = group.instances.get(entry.group_instance_id or "", "")
        if not member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id in group.pending:
        session.forget_pending(rt, group, member_id)
        return ErrorCode.NONE
    elif error := session.validate(group, member_id, entry.group_instance_id):
        return error
    remove_member(rt, group, group.members[member_id])
    return ErrorCode.NONE
