"""Heartbeat: renew a member's session, and signal a rebalance."""

from __future__ import annotations

from roster.coordinator.group import Group
from roster.coordinator.group_context import GroupContext
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
