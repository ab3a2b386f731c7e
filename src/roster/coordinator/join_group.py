"""JoinGroup: validate the request, add or update the member, and start a rebalance where one is needed."""

from __future__ import annotations

from roster.coordinator.config import CoordinatorConfig
from roster.coordinator.events import RequestReceived
from roster.coordinator.group import Group, Member, metadata_size
from roster.coordinator.group_context import GroupContext
from roster.coordinator.join_call import JoinCall
from roster.coordinator.rebalance import (
    cancel_join_phase,
    maybe_complete_join_phase,
    maybe_prepare_rebalance_or_complete_join,
)
from roster.coordinator.responses import join_error, join_response
from roster.coordinator.runtime import Runtime
from roster.coordinator.states import GroupState, Trigger
from roster.coordinator.static_member import replace_static_member
from roster.wire import ErrorCode
from roster.wire.messages import JoinGroupRequest

MAX_INSTANCE_ID_LENGTH = 249
"""Kafka's limit for group.instance.id; its clients check it, a server has to."""
MAX_CLIENT_ID_PREFIX = 249


def join_group(rt: Runtime, event: RequestReceived, request: JoinGroupRequest) -> None:
    """Answer or park a JoinGroup."""
    join = JoinCall.of(event, request)
    group = rt.groups.get(request.group_id)
    if error := validate(rt, group, join):
        reject(rt, group, join, error)
        return
    ctx = create_group(rt, request.group_id) if group is None else GroupContext(rt, group)
    if join.member_id:
        join_existing_member(ctx, join)
    elif join.instance_id is not None:
        join_new_static_member(ctx, join)
    else:
        join_new_dynamic_member(ctx, join)


# -- validation ------------------------------------------------------------------------------------------------------


def validate(rt: Runtime, group: Group | None, join: JoinCall) -> ErrorCode:
    """Return the error that rejects the request, in the order of Kafka's checks, or NONE."""
    return validate_request(rt.config, join) or (
        validate_new_group(rt, join) if group is None else validate_joining_member(rt.config, group, join)
    )


def validate_request(config: CoordinatorConfig, join: JoinCall) -> ErrorCode:
    """Check what does not depend on the group."""
    if not join.request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if not config.min_session_timeout_ms <= join.request.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if len(join.instance_id or "") > MAX_INSTANCE_ID_LENGTH:
        return ErrorCode.INVALID_REQUEST
    if metadata_size(join.protocols) > config.max_member_metadata_bytes:
        return ErrorCode.MESSAGE_TOO_LARGE
    return ErrorCode.NONE


def validate_new_group(rt: Runtime, join: JoinCall) -> ErrorCode:
    """Check a request for a group that does not exist."""
    if error := rt.availability_error(join.request.group_id):
        return error
    if not join.request.protocol_type or not join.protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.UNKNOWN_MEMBER_ID if join.member_id else ErrorCode.NONE


def validate_joining_member(config: CoordinatorConfig, group: Group, join: JoinCall) -> ErrorCode:
    """Check a request against the group: its size, its state, its protocols and its members."""
    if not accepts_joining_member(config, group, join):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if not group.supports_protocols(join.request.protocol_type, join.protocols):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if join.member_id:
        pending = join.member_id in group.pending_members and join.instance_id is None
        return ErrorCode.NONE if pending else group.validate_member(join.member_id, join.instance_id)
    if join.instance_id is None and len(group.pending_members) >= config.max_pending_members:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE


def accepts_joining_member(config: CoordinatorConfig, group: Group, join: JoinCall) -> bool:
    """Check the limits of members and of metadata, the latter with the member's new protocols in place of its old."""
    member = group.members.get(join.member_id or group.instances.get(join.instance_id or "", ""))
    before = 0 if member is None else metadata_size(member.protocols)
    if group.metadata_bytes - before + metadata_size(join.protocols) > config.max_group_metadata_bytes:
        return False
    match group.state:
        case GroupState.EMPTY | GroupState.DEAD:
            return True
        case GroupState.PREPARING:  # of members that rejoin the first max_group_size have a place
            return group.awaiting_join < config.max_group_size or (
                member is not None and member.parked_join is not None
            )
        case _:
            return len(group.members) < config.max_group_size or member is not None


def reject(rt: Runtime, group: Group | None, join: JoinCall, error: ErrorCode) -> None:
    """Answer with the error; a member that a full group has no place for is removed, and its id is void."""
    full = error is ErrorCode.GROUP_MAX_SIZE_REACHED
    if full and group is not None:
        remove_from_full_group(GroupContext(rt, group), join.member_id)
    rt.reply(join.event.token, join_error(join.parked, error, "" if full else join.member_id))


def remove_from_full_group(ctx: GroupContext, member_id: str) -> None:
    """Remove a member, or a pending one, that could not rejoin, and complete the join phase if it waited for it."""
    group = ctx.group
    if member_id in group.pending_members:
        ctx.remove_pending_member(member_id)
    elif member_id in group.members:
        ctx.end_session(group.members[member_id])
        group.remove(group.members[member_id])
    maybe_complete_join_phase(ctx)


# -- new groups ------------------------------------------------------------------------------------------------------


def create_group(rt: Runtime, group_id: str) -> GroupContext:
    """Create a group and write its record; if that fails before the first generation, the group is aborted."""
    ctx = GroupContext(rt, rt.create_group(group_id))

    def written(error: ErrorCode) -> None:
        if error and not ctx.group.generation and ctx.group.state is not GroupState.DEAD:
            abort_new_group(ctx, error)

    ctx.write_group(written)
    return ctx


def abort_new_group(ctx: GroupContext, error: ErrorCode) -> None:
    """Answer every parked JoinGroup of a group that could not be stored with `error`, and drop the group."""
    group = ctx.group
    for member in list(group.members.values()):
        ctx.fail_join(member, error)
        ctx.remove_member(member)
    for member_id in list(group.pending_members):
        ctx.remove_pending_member(member_id)
    if group.state is GroupState.PREPARING:
        cancel_join_phase(ctx)
        ctx.transition(Trigger.LAST_MEMBER_LEFT)
    if not group.all_offsets():
        ctx.transition(Trigger.DELETED)
        ctx.rt.drop_group(group)


# -- new members -----------------------------------------------------------------------------------------------------


def join_new_dynamic_member(ctx: GroupContext, join: JoinCall) -> None:
    """Add a dynamic member, or give it a member id to join with, so that a lost response leaves no member behind."""
    new_id = f"{join.event.client_id[:MAX_CLIENT_ID_PREFIX]}-{ctx.rt.new_id()}"
    if join.requires_known_member_id:
        ctx.add_pending_member(new_id, join.request.session_timeout_ms)
        ctx.rt.reply(join.event.token, join_error(join.parked, ErrorCode.MEMBER_ID_REQUIRED, new_id))
    else:
        add_member(ctx, join, new_id)


def join_new_static_member(ctx: GroupContext, join: JoinCall) -> None:
    """Add a static member, or replace the one with its instance id (KIP-345)."""
    new_id = f"{join.instance_id}-{ctx.rt.new_id()}"
    if join.instance_id in ctx.group.instances:
        replace_static_member(ctx, join, new_id)
    else:
        add_member(ctx, join, new_id)


def add_member(ctx: GroupContext, join: JoinCall, member_id: str) -> None:
    """Add a member with its JoinGroup parked, and start or continue a rebalance.

    Until the response it cannot send heartbeats, so `new_member_join_timeout_ms` replaces its session timeout.
    """
    group = ctx.group
    if not group.members:
        group.protocol_type = join.request.protocol_type
    member = Member(
        member_id=member_id,
        instance_id=join.instance_id,
        client_id=join.event.client_id,
        client_host=join.event.client_host,
        session_timeout_ms=join.request.session_timeout_ms,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        protocols=join.protocols,
        parked_join=join.parked,
        is_new=True,
    )
    group.new_member_added = True
    group.add(member)
    ctx.renew_session(member, ctx.rt.config.new_member_join_timeout_ms)
    maybe_prepare_rebalance_or_complete_join(ctx)


# -- known members ---------------------------------------------------------------------------------------------------


def join_existing_member(ctx: GroupContext, join: JoinCall) -> None:
    """Add a pending member; let a member rejoin, or repeat the current generation if nothing changes."""
    group = ctx.group
    if join.member_id in group.pending_members and join.instance_id is None:
        add_member(ctx, join, join.member_id)
        return
    member = group.members[join.member_id]
    unchanged = join.protocols == member.protocols
    match group.state:
        case GroupState.COMPLETING if unchanged:
            ctx.rt.reply(join.event.token, join_response(group, member))
        case GroupState.STABLE if unchanged and member.member_id != group.leader_id:
            ctx.rt.reply(join.event.token, join_response(group, member))
        case GroupState.PREPARING | GroupState.COMPLETING | GroupState.STABLE:
            ctx.update_member(member, join)
            maybe_prepare_rebalance_or_complete_join(ctx)
        case _:
            ctx.rt.reply(join.event.token, join_error(join.parked, ErrorCode.UNKNOWN_MEMBER_ID, join.member_id))
