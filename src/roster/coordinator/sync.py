"""SyncGroup: the leader's assignment comes in, is made durable, and goes out to everybody."""

from __future__ import annotations

from roster.coordinator import records, session
from roster.coordinator.events import RequestReceived
from roster.coordinator.group import Group, GroupState, Member
from roster.coordinator.rebalance import answer_sync, assignment_reply, fail_syncs, rebalance
from roster.coordinator.runtime import Runtime
from roster.wire import ErrorCode
from roster.wire.messages import SyncGroupRequest, SyncGroupResponse

PROTOCOL_REQUIRED_FROM = 5
"""KIP-559: from this version on, the request names the protocol type and protocol."""


def sync(rt: Runtime, event: RequestReceived, request: SyncGroupRequest) -> None:
    """Answer or park a SyncGroup."""
    group = rt.groups.get(request.group_id)
    error = refusal(rt, group, request, event.api_version)
    if error or group is None:
        rt.reply(event.token, SyncGroupResponse(error_code=error))
        return
    member = group.members[request.member_id]
    group.pending_sync.discard(member.member_id)
    if group.state is GroupState.STABLE:
        rt.reply(event.token, assignment_reply(group, member))
        return
    answer_sync(rt, group, member, ErrorCode.REBALANCE_IN_PROGRESS)  # an earlier one that this one displaces
    member.parked_sync = event.token
    if member.member_id == group.leader_id and group.sync_write_generation != group.generation:
        write_assignment(rt, group, request)


def refusal(rt: Runtime, group: Group | None, request: SyncGroupRequest, api_version: int) -> ErrorCode:
    """Why there is no assignment to wait for, in the order of worked case GC-23; NONE if there is."""
    if api_version >= PROTOCOL_REQUIRED_FROM and (request.protocol_type is None or request.protocol_name is None):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return rt.unavailable(request.group_id) or ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error := session.validate(group, request.member_id, request.group_instance_id):
        return error
    if sum(len(entry.assignment) for entry in request.assignments) > rt.config.max_group_metadata_bytes:
        return ErrorCode.MESSAGE_TOO_LARGE
    if request.generation_id != group.generation:
        group.witness(request.generation_id)
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type not in {None, group.protocol_type} or request.protocol_name not in {None, group.protocol}:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def write_assignment(rt: Runtime, group: Group, request: SyncGroupRequest) -> None:
    """Store the generation with its assignment; only then is it Stable. Members the leader left out get nothing."""
    generation = group.generation
    given = {entry.member_id: entry.assignment for entry in request.assignments}
    assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
    group.sync_write_generation = generation

    def written(error: ErrorCode) -> None:
        if group.sync_write_generation == generation:
            group.sync_write_generation = None
        if group.state is not GroupState.COMPLETING or group.generation != generation:
            return  # the group has moved on; what the log has now is a past generation
        if error:
            fail_syncs(rt, group, error)
            rebalance(rt, group)
            return
        group.move_to(GroupState.STABLE, rt.wall_ms)
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            hand_over(rt, group, member)

    rt.write(group.partition, [records.group_record(group, assignments)], written)


def hand_over(rt: Runtime, group: Group, member: Member) -> None:
    """Answer a member that waits for its assignment; its session starts anew, it could not be watched meanwhile."""
    if member.parked_sync is not None:
        session.renew(rt, group, member)
        answer_sync(rt, group, member)
