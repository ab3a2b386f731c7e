"""JoinGroup: validate the request, add or update the member, and start a rebalance if needed."""

from dataclasses import replace
from typing import NamedTuple

from roster.coordinator.config import CoordinatorConfig
from roster.coordinator.group import Group, Member, ParkedJoin, Protocols, metadata_size
from roster.coordinator.group_context import GroupContext, join_error, join_response
from roster.coordinator.rebalance import (
    cancel_join_phase,
    maybe_complete_join_phase,
    maybe_prepare_rebalance_or_complete_join,
    prepare_rebalance,
)
from roster.coordinator.runtime import Runtime
from roster.coordinator.states import GroupState, Trigger
from roster.coordinator_common import Reply, RequestReceived
from roster.wire import ErrorCode
from roster.wire.messages import JoinGroupRequest, JoinGroupResponse

MEMBER_ID_REQUIRED_FROM = 4
"""KIP-394: JoinGroup version from which a new dynamic member first gets an id and then joins with it."""
SKIP_ASSIGNMENT_FROM = 9
"""KIP-814: JoinGroup version from which a returning static leader is answered with skip_assignment."""
MAX_INSTANCE_ID_LENGTH = 249
"""Kafka's limit for group.instance.id. Kafka's clients check it, others may not."""
MAX_CLIENT_ID_PREFIX = 249


def join_group(rt: Runtime, event: RequestReceived, request: JoinGroupRequest) -> JoinGroupResponse | None:
    """Handle a JoinGroup; None if the request is parked until the end of the join phase."""
    join = JoinCall.of(event, request)
    group = rt.groups.get(request.group_id)
    if error := validate(rt, group, join):
        return reject(rt, group, join, error)
    ctx = create_group(rt, request.group_id) if group is None else GroupContext(rt, group)
    if join.member_id:
        return join_existing_member(ctx, join)
    if join.instance_id is not None:
        join_new_static_member(ctx, join)
        return None
    return join_new_dynamic_member(ctx, join)


class JoinCall(NamedTuple):
    """A JoinGroup request with values derived from it."""

    event: RequestReceived
    request: JoinGroupRequest
    member_id: str
    """Empty for a new member."""
    instance_id: str | None
    """`group.instance.id` of a static member, else None."""
    rebalance_timeout_ms: int
    protocols: Protocols
    metadata_bytes: int
    """Size of the metadata of all protocols."""
    parked: ParkedJoin
    """The part of the request that is kept until the end of the join phase."""

    @classmethod
    def of(cls, event: RequestReceived, request: JoinGroupRequest) -> "JoinCall":
        """Parse a request; if it names a protocol twice, the first entry counts.

        Without a rebalance timeout above 0 (v0 has none), the session timeout is used for it.
        """
        protocols: dict[str, bytes] = {}
        for protocol in request.protocols:
            protocols.setdefault(protocol.name, protocol.metadata)
        timeout = request.rebalance_timeout_ms
        return cls(
            event=event,
            request=request,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            rebalance_timeout_ms=timeout if timeout > 0 else request.session_timeout_ms,
            protocols=tuple(protocols.items()),
            metadata_bytes=sum(map(len, protocols.values())),
            parked=ParkedJoin(event.token, event.api_version),
        )


# -- validation ------------------------------------------------------------------------------------------------------


def validate(rt: Runtime, group: Group | None, join: JoinCall) -> ErrorCode:
    """Return the error that rejects the request, in the order of Kafka's checks, or NONE."""
    return validate_request(rt.config, join) or (
        validate_new_group(rt, join) if group is None else validate_joining_member(rt.config, group, join)
    )


def validate_request(config: CoordinatorConfig, join: JoinCall) -> ErrorCode:
    """Check the parts of a request that do not depend on the group."""
    if not join.request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if not config.min_session_timeout_ms <= join.request.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if len(join.instance_id or "") > MAX_INSTANCE_ID_LENGTH:
        return ErrorCode.INVALID_REQUEST
    if join.metadata_bytes > config.max_member_metadata_bytes:
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
    member = group.members.get(join.member_id or group.instances.get(join.instance_id or "", ""))
    if not group.supports_protocols(join.request.protocol_type, join.protocols, member):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if join.member_id:
        pending = join.member_id in group.pending_members and join.instance_id is None
        return ErrorCode.NONE if pending else group.validate_member(join.member_id, join.instance_id)
    if join.instance_id is None and len(group.pending_members) >= config.max_pending_members:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE


def accepts_joining_member(config: CoordinatorConfig, group: Group, join: JoinCall) -> bool:
    """Check the limits on the number of members and on their metadata, with the member's new protocols."""
    member = group.members.get(join.member_id or group.instances.get(join.instance_id or "", ""))
    before = 0 if member is None else metadata_size(member.protocols)
    if group.metadata_bytes - before + join.metadata_bytes > config.max_group_metadata_bytes:
        return False
    match group.state:
        case GroupState.EMPTY | GroupState.DEAD:
            return True
        case GroupState.PREPARING:  # the first max_group_size members that rejoin are accepted
            return group.awaiting_join < config.max_group_size or (
                member is not None and member.parked_join is not None
            )
        case _:
            return len(group.members) < config.max_group_size or member is not None


def reject(rt: Runtime, group: Group | None, join: JoinCall, error: ErrorCode) -> JoinGroupResponse:
    """Build the error response; if the group is full, remove the member and invalidate its id."""
    full = error is ErrorCode.GROUP_MAX_SIZE_REACHED
    if full and group is not None:
        remove_from_full_group(GroupContext(rt, group), join.member_id)
    return join_error(join.parked, error, "" if full else join.member_id)


def remove_from_full_group(ctx: GroupContext, member_id: str) -> None:
    """Remove a member, or a pending one, that could not rejoin; complete the join phase if it waited for that one."""
    group = ctx.group
    if member_id in group.pending_members:
        ctx.remove_pending_member(member_id)
    elif member_id in group.members:
        ctx.end_session(group.members[member_id])
        group.remove(group.members[member_id])
    maybe_complete_join_phase(ctx)


# -- new groups ------------------------------------------------------------------------------------------------------


def create_group(rt: Runtime, group_id: str) -> GroupContext:
    """Create a group and write its record; abort the group if that fails and no generation is written."""
    ctx = GroupContext(rt, rt.create_group(group_id))

    def written(error: ErrorCode) -> None:
        unborn = not ctx.group.generation and ctx.group.generation_write is None
        if error and unborn and ctx.group.state is not GroupState.DEAD:
            abort_new_group(ctx, error)

    ctx.write_group(written)
    return ctx


def abort_new_group(ctx: GroupContext, error: ErrorCode) -> None:
    """Drop a group that could not be stored; answer its parked JoinGroup requests with `error`."""
    group = ctx.group
    for member in list(group.members.values()):
        ctx.fail_join(member, error)
        ctx.remove_member(member)
    for member_id in list(group.pending_members):
        ctx.remove_pending_member(member_id)
    if group.state is GroupState.PREPARING:
        cancel_join_phase(ctx)
        group.transition(Trigger.LAST_MEMBER_LEFT, ctx.rt.wall_ms)
    if not group.all_offsets():
        group.transition(Trigger.DELETED, ctx.rt.wall_ms)
        ctx.rt.drop_group(group)


# -- new members -----------------------------------------------------------------------------------------------------


def join_new_dynamic_member(ctx: GroupContext, join: JoinCall) -> JoinGroupResponse | None:
    """Add a dynamic member, or send it a member id to join with: then a lost response leaves no member behind."""
    new_id = f"{join.event.client_id[:MAX_CLIENT_ID_PREFIX]}-{ctx.rt.new_id()}"
    if join.event.api_version >= MEMBER_ID_REQUIRED_FROM:
        ctx.add_pending_member(new_id, join.request.session_timeout_ms)
        return join_error(join.parked, ErrorCode.MEMBER_ID_REQUIRED, new_id)
    add_member(ctx, join, new_id)
    return None


def add_member(ctx: GroupContext, join: JoinCall, member_id: str) -> None:
    """Add a member with its JoinGroup parked, and start or continue a rebalance.

    It cannot send heartbeats before the response, so its session timeout is `new_member_join_timeout_ms` until then.
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


def join_existing_member(ctx: GroupContext, join: JoinCall) -> JoinGroupResponse | None:
    """Add a pending member, let a member rejoin, or answer with the current generation if nothing changes."""
    group = ctx.group
    if join.member_id in group.pending_members and join.instance_id is None:
        add_member(ctx, join, join.member_id)
        return None
    member = group.members[join.member_id]
    unchanged = is_unchanged(group, member, join)
    if unchanged and not member.protocols_complete:
        group.update_member(member, join.protocols, join.request.session_timeout_ms, join.rebalance_timeout_ms)
    match group.state:
        case GroupState.COMPLETING if unchanged:
            return join_response(group, member)
        case GroupState.STABLE if unchanged and member.member_id != group.leader_id:
            return join_response(group, member)
        case GroupState.PREPARING | GroupState.COMPLETING | GroupState.STABLE:
            update_member(ctx, member, join)
            maybe_prepare_rebalance_or_complete_join(ctx)
            return None
        case _:
            return join_error(join.parked, ErrorCode.UNKNOWN_MEMBER_ID, join.member_id)


def is_unchanged(group: Group, member: Member, join: JoinCall) -> bool:
    """Return True if a member joins with the same protocols; after loading, only the selected one is compared."""
    if member.protocols_complete:
        return join.protocols == member.protocols
    return dict(join.protocols).get(group.protocol or "") == member.metadata(group.protocol)


def update_member(ctx: GroupContext, member: Member, join: JoinCall) -> None:
    """Update protocols and timeouts from a JoinGroup and park it; an earlier parked JoinGroup has to retry."""
    group, request = ctx.group, join.request
    group.update_member(member, join.protocols, request.session_timeout_ms, join.rebalance_timeout_ms)
    displaced = group.park_join(member, join.parked)
    if displaced is not None:
        response = join_error(displaced, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        ctx.rt.replies.append(Reply(displaced.token, response))


# -- static members --------------------------------------------------------------------------------------------------


def join_new_static_member(ctx: GroupContext, join: JoinCall) -> None:
    """Add a static member, or replace the one with its instance id (KIP-345)."""
    new_id = f"{join.instance_id}-{ctx.rt.new_id()}"
    if join.instance_id in ctx.group.instances:
        replace_static_member(ctx, join, new_id)
    else:
        add_member(ctx, join, new_id)


def replace_static_member(ctx: GroupContext, join: JoinCall, new_id: str) -> None:
    """Give the returning member a new id and fence the old one.

    The group rebalances only if the selected protocol or the subscription changes. For the subscription this differs
    from Apache Kafka, where the group keeps an assignment that does not fit until another event causes a rebalance.
    """
    group = ctx.group
    member = group.members[group.instances[join.instance_id or ""]]
    old_leader = group.leader_id
    before = replace(member)
    topics = group.topics_of(member)
    ctx.fail_join(member, ErrorCode.FENCED_INSTANCE_ID, member.member_id)
    ctx.complete_sync(member, ErrorCode.FENCED_INSTANCE_ID)
    ctx.end_session(member)
    group.replace_member_id(member, new_id)
    member.client_id, member.client_host, member.is_new = join.event.client_id, join.event.client_host, False
    update_member(ctx, member, join)
    ctx.renew_session(member)
    match group.state:
        case GroupState.STABLE if group.select_protocol() == group.protocol and group.topics_of(member) == topics:
            keep_generation(ctx, member, before, old_leader)
        case GroupState.STABLE | GroupState.COMPLETING:
            prepare_rebalance(ctx)
        case _:
            maybe_complete_join_phase(ctx)


def undo_replacement(ctx: GroupContext, member: Member, before: Member) -> None:
    """Give a static member back its identity and settings from `before`."""
    ctx.end_session(member)
    ctx.group.replace_member_id(member, before.member_id)
    ctx.group.update_member(member, before.protocols, before.session_timeout_ms, before.rebalance_timeout_ms)
    member.client_id, member.client_host = before.client_id, before.client_host
    ctx.renew_session(member)


def keep_generation(ctx: GroupContext, member: Member, before: Member, old_leader: str | None) -> None:
    """Store the new member id, then answer with the current generation; the other members are not affected."""
    group = ctx.group
    call = member.parked_join
    new_id = member.member_id

    def written(error: ErrorCode) -> None:
        if group.state is not GroupState.STABLE or member.member_id != new_id or member.parked_join is not call:
            return  # a rebalance has begun meanwhile; the JoinGroup is parked there or has been answered
        parked = group.unpark_join(member)
        if parked is None:
            return
        if error:
            undo_replacement(ctx, member, before)
            ctx.rt.replies.append(Reply(parked.token, join_error(parked, error)))
            return
        ctx.renew_session(member)
        ctx.rt.replies.append(Reply(parked.token, returning_member_response(group, member, parked, old_leader)))

    ctx.write_group(written)


def returning_member_response(
    group: Group, member: Member, call: ParkedJoin, old_leader: str | None
) -> JoinGroupResponse:
    """Build the response for a static member that returned.

    A returning leader must not assign again. From v9 on the response says so; up to v8 it names the leader's old id, so
    the member takes itself for a follower.
    """
    if call.api_version >= SKIP_ASSIGNMENT_FROM:
        return join_response(group, member, skip_assignment=member.member_id == group.leader_id)
    return join_response(group, member, leader=old_leader, list_members=False)
