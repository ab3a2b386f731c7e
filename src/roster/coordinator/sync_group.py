"""SyncGroup: the leader's assignment is stored, then sent to every member."""

from collections.abc import Mapping

from roster.coordinator.group import Group
from roster.coordinator.group_context import GroupContext, sync_response
from roster.coordinator.rebalance import maybe_prepare_rebalance_or_complete_join, reset_assignments
from roster.coordinator.runtime import Runtime
from roster.coordinator.states import GroupState, Trigger
from roster.coordinator_common import RequestReceived
from roster.wire import ErrorCode
from roster.wire.consumer.messages import failure_reason
from roster.wire.messages import SyncGroupRequest, SyncGroupResponse

PROTOCOL_REQUIRED_FROM = 5
"""KIP-559: SyncGroup version from which the request names the protocol type and protocol."""


def sync_group(rt: Runtime, event: RequestReceived, request: SyncGroupRequest) -> SyncGroupResponse | None:
    """Handle a SyncGroup; None if the request is parked until the assignment is stored."""
    group = rt.groups.get(request.group_id)
    error = validate(rt, group, request, event.api_version)
    if error or group is None:
        return SyncGroupResponse(error_code=error)
    member = group.members[request.member_id]
    group.pending_sync_members.discard(member.member_id)
    if group.state is GroupState.STABLE:
        return sync_response(group, member)
    ctx = GroupContext(rt, group)
    ctx.complete_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)  # an earlier one, replaced by this one
    member.parked_sync = event.token
    ctx.renew_session(member)
    if member.member_id == group.leader_id and group.sync_write_generation != group.generation:
        assignments = {entry.member_id: entry.assignment for entry in request.assignments}
        if failure_reason(assignments.get(member.member_id, b"")) is None:
            store_assignment(ctx, assignments)
        else:
            fail_assignment(ctx, assignments[member.member_id])
    return None


def validate(rt: Runtime, group: Group | None, request: SyncGroupRequest, api_version: int) -> ErrorCode:
    """Return the error that rejects the request, in the order of worked case GC-23, or NONE."""
    if api_version >= PROTOCOL_REQUIRED_FROM and (request.protocol_type is None or request.protocol_name is None):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return rt.availability_error(request.group_id) or ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error := group.validate_member(request.member_id, request.group_instance_id):
        return error
    if sum(len(entry.assignment) for entry in request.assignments) > rt.config.max_group_metadata_bytes:
        return ErrorCode.MESSAGE_TOO_LARGE
    if error := group.validate_generation(request.generation_id):
        return error
    if request.protocol_type not in {None, group.protocol_type} or request.protocol_name not in {None, group.protocol}:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING else ErrorCode.NONE


def fail_assignment(ctx: GroupContext, explanation: bytes) -> None:
    """Answer the members with an error and the leader's explanation; this generation ends, and members may rejoin.

    The error is UNKNOWN_SERVER_ERROR, as the protocol has no other for it; it is fatal to Kafka's clients.
    """
    for member in ctx.group.members.values():
        if member.parked_sync is not None:
            ctx.renew_session(member)
            ctx.complete_sync(member, ErrorCode.UNKNOWN_SERVER_ERROR, explanation)
    maybe_prepare_rebalance_or_complete_join(ctx)


def store_assignment(ctx: GroupContext, assigned: Mapping[str, bytes]) -> None:
    """Store the generation with its assignments; the group is Stable once that is durable.

    Members that are not in `assigned` get empty bytes.
    """
    group = ctx.group
    generation = group.generation
    assignments = {member_id: assigned.get(member_id, b"") for member_id in group.members}
    group.sync_write_generation = generation

    def written(error: ErrorCode) -> None:
        if group.sync_write_generation == generation:
            group.sync_write_generation = None
        if group.state is not GroupState.COMPLETING or group.generation != generation:
            return  # a rebalance has begun meanwhile; the record is of a past generation
        if error:
            reset_assignments(ctx, error)
            maybe_prepare_rebalance_or_complete_join(ctx)
            return
        group.transition(Trigger.ASSIGNMENT_STORED, ctx.rt.wall_ms)
        group.perhaps_unannounced = False
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            ctx.propagate_assignment(member)

    ctx.write_group(written, assignments)
