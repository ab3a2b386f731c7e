"""JoinGroup: who may enter, under which id, and whether that starts a rebalance."""

from __future__ import annotations

from roster.coordinator import records, session
from roster.coordinator.events import RequestReceived
from roster.coordinator.group import Group, GroupState, Member, ParkedJoin, Protocols, metadata_size
from roster.coordinator.rebalance import (
    complete_if_all_joined,
    generation_reply,
    prepare,
    rebalance,
    refuse_join,
    remove_member,
    stop_waiting_for_joins,
)
from roster.coordinator.runtime import Runtime
from roster.wire import ErrorCode
from roster.wire.messages import JoinGroupRequest, JoinGroupResponse, SyncGroupResponse

MEMBER_ID_REQUIRED_FROM = 4
"""KIP-394: from this version on, a dynamic newcomer is given an id first and joins with it."""
SKIP_ASSIGNMENT_FROM = 9
"""KIP-814: from this version on, a returning static leader can be told that it leads without assigning."""
LONGEST_INSTANCE_ID = 249
"""Kafka's limit for group.instance.id; its clients check it, a server has to."""
LONGEST_CLIENT_ID_PREFIX = 249


def join(rt: Runtime, event: RequestReceived, request: JoinGroupRequest) -> None:
    """Answer or park a JoinGroup."""
    call = ParkedJoin(event.token, event.api_version)
    group = rt.groups.get(request.group_id)
    protocols = unique_protocols(request)
    error = refusal(rt, group, request, protocols)
    if error:
        if error is ErrorCode.GROUP_MAX_SIZE_REACHED and group is not None:
            turn_away(rt, group, request.member_id)
        refuse_join(rt, call, error, "" if error is ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id)
        return
    if group is None:
        group = rt.create_group(request.group_id)
        write_new_group(rt, group)

    if request.member_id in group.pending and request.group_instance_id is None:
        admit(rt, group, event, request, protocols, request.member_id)
    elif request.member_id:
        join_again(rt, group, group.members[request.member_id], request, protocols, call)
    elif request.group_instance_id is not None:
        new_id = f"{request.group_instance_id}-{rt.new_id()}"
        if request.group_instance_id in group.instances:
            replace_static_member(rt, group, event, request, protocols, new_id)
        else:
            admit(rt, group, event, request, protocols, new_id)
    elif event.api_version >= MEMBER_ID_REQUIRED_FROM:
        hand_out_member_id(rt, group, request, call, dynamic_member_id(rt, event))
    else:
        admit(rt, group, event, request, protocols, dynamic_member_id(rt, event))


# -- who may enter ---------------------------------------------------------------------------------------------------


def refusal(rt: Runtime, group: Group | None, request: JoinGroupRequest, protocols: Protocols) -> ErrorCode:
    """Why the request cannot be granted, in the order Kafka checks; NONE if it can."""
    if error := request_error(rt, request, protocols):
        return error
    if group is None:
        return new_group_error(rt, request, protocols)
    return group_error(rt, group, request, protocols) or member_error(rt, group, request)


def request_error(rt: Runtime, request: JoinGroupRequest, protocols: Protocols) -> ErrorCode:
    """Errors of the request itself, whatever the group."""
    config = rt.config
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if len(request.group_instance_id or "") > LONGEST_INSTANCE_ID:
        return ErrorCode.INVALID_REQUEST
    if metadata_size(protocols) > config.max_member_metadata_bytes:
        return ErrorCode.MESSAGE_TOO_LARGE
    return ErrorCode.NONE


def new_group_error(rt: Runtime, request: JoinGroupRequest, protocols: Protocols) -> ErrorCode:
    """Why the request cannot create its group."""
    if error := rt.unavailable(request.group_id):
        return error
    if not request.protocol_type or not protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.UNKNOWN_MEMBER_ID if request.member_id else ErrorCode.NONE


def group_error(rt: Runtime, group: Group, request: JoinGroupRequest, protocols: Protocols) -> ErrorCode:
    """Why the group takes no member with these protocols."""
    member_id = request.member_id or group.instances.get(request.group_instance_id or "", "")
    if not has_room(rt, group, member_id) or not has_room_for(rt, group, member_id, protocols):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if not group.supports(request.protocol_type, protocols):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def member_error(rt: Runtime, group: Group, request: JoinGroupRequest) -> ErrorCode:
    """Why the group does not know the member id, or hands out no new one."""
    if request.member_id:
        if request.member_id in group.pending and request.group_instance_id is None:
            return ErrorCode.NONE
        return session.validate(group, request.member_id, request.group_instance_id)
    if request.group_instance_id is None and len(group.pending) >= rt.config.max_pending_members:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE


def has_room(rt: Runtime, group: Group, member_id: str) -> bool:
    """The size limit. While members rejoin, only those that already have count: the last ones are left out."""
    limit = rt.config.max_group_size
    match group.state:
        case GroupState.EMPTY | GroupState.DEAD:
            return True
        case GroupState.PREPARING:
            member = group.members.get(member_id)
            return group.joined < limit or (member is not None and member.parked_join is not None)
        case _:
            return len(group.members) < limit or member_id in group.members


def has_room_for(rt: Runtime, group: Group, member_id: str, protocols: Protocols) -> bool:
    """The limit of the group's metadata, with the protocols in the place of those the member had."""
    member = group.members.get(member_id)
    before = 0 if member is None else metadata_size(member.protocols)
    return group.metadata_bytes - before + metadata_size(protocols) <= rt.config.max_group_metadata_bytes


def turn_away(rt: Runtime, group: Group, member_id: str) -> None:
    """The group is full: the id is void, and nobody waits for it any more."""
    if member_id in group.pending:
        session.forget_pending(rt, group, member_id)
    elif member_id in group.members:
        session.end(rt, group, group.members[member_id])
        group.remove(group.members[member_id])
    complete_if_all_joined(rt, group)


def unique_protocols(request: JoinGroupRequest) -> Protocols:
    """The request's protocols in order of preference; a name given twice counts where it stands first."""
    first: dict[str, bytes] = {}
    for protocol in request.protocols:
        first.setdefault(protocol.name, protocol.metadata)
    return tuple(first.items())


def rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """The request's rebalance timeout; the session timeout where there is none (v0) or none that makes sense."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms > 0 else request.session_timeout_ms


# -- newcomers -------------------------------------------------------------------------------------------------------


def dynamic_member_id(rt: Runtime, event: RequestReceived) -> str:
    """A new id that shows whose it is."""
    return f"{event.client_id[:LONGEST_CLIENT_ID_PREFIX]}-{rt.new_id()}"


def hand_out_member_id(rt: Runtime, group: Group, request: JoinGroupRequest, call: ParkedJoin, member_id: str) -> None:
    """Have a dynamic newcomer come again under an id, so that a lost answer leaves no member behind."""
    session.watch_pending(rt, group, member_id, request.session_timeout_ms)
    refuse_join(rt, call, ErrorCode.MEMBER_ID_REQUIRED, member_id)


def admit(
    rt: Runtime,
    group: Group,
    event: RequestReceived,
    request: JoinGroupRequest,
    protocols: Protocols,
    member_id: str,
) -> None:
    """Add a member with its JoinGroup parked. It is not watched by its session yet: it cannot send heartbeats."""
    if not group.members:
        group.protocol_type = request.protocol_type
    member = Member(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms(request),
        protocols=protocols,
        parked_join=ParkedJoin(event.token, event.api_version),
        is_new=True,
    )
    group.new_member_in_window = True
    group.add(member)
    session.renew(rt, group, member, rt.config.new_member_join_timeout_ms)
    rebalance(rt, group)


def write_new_group(rt: Runtime, group: Group) -> None:
    """Tell the log of a group that came to be. If that fails before it has a generation, it is dissolved."""

    def written(error: ErrorCode) -> None:
        if error and not group.generation and group.state is not GroupState.DEAD:
            dissolve(rt, group, error)

    rt.write(group.partition, [records.group_record(group)], written)


def dissolve(rt: Runtime, group: Group, error: ErrorCode) -> None:
    """Give up a group that never was: everybody in it is told `error` and starts over."""
    for member in list(group.members.values()):
        parked = group.unpark_join(member)
        if parked is not None:
            refuse_join(rt, parked, error)
        remove_member(rt, group, member)
    for member_id in list(group.pending):
        session.forget_pending(rt, group, member_id)
    if group.state is GroupState.PREPARING:
        stop_waiting_for_joins(rt, group)
        group.move_to(GroupState.EMPTY, rt.wall_ms)
    if not group.known_offsets():
        group.move_to(GroupState.DEAD, rt.wall_ms)
        rt.drop_group(group)


# -- known members ---------------------------------------------------------------------------------------------------


def join_again(
    rt: Runtime, group: Group, member: Member, request: JoinGroupRequest, protocols: Protocols, call: ParkedJoin
) -> None:
    """A member rejoins: it takes part in the join phase, starts one, or is told what it already is part of."""
    unchanged = protocols == member.protocols
    match group.state:
        case GroupState.COMPLETING if unchanged:
            rt.reply(call.token, generation_reply(group, member))
        case GroupState.STABLE if unchanged and member.member_id != group.leader_id:
            rt.reply(call.token, generation_reply(group, member))
        case GroupState.PREPARING | GroupState.COMPLETING | GroupState.STABLE:
            park(rt, group, member, request, protocols, call)
            rebalance(rt, group)
        case _:
            refuse_join(rt, call, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)


def park(
    rt: Runtime, group: Group, member: Member, request: JoinGroupRequest, protocols: Protocols, call: ParkedJoin
) -> None:
    """Take over what the member says of itself and leave it waiting; an earlier request of it is told to retry."""
    group.set_protocols(member, protocols)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = rebalance_timeout_ms(request)
    displaced = group.park_join(member, call)
    if displaced is not None:
        refuse_join(rt, displaced, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)


# -- static members that return without their id (KIP-345) -----------------------------------------------------------


def replace_static_member(
    rt: Runtime,
    group: Group,
    event: RequestReceived,
    request: JoinGroupRequest,
    protocols: Protocols,
    new_id: str,
) -> None:
    """A static member restarted: it takes its old self's place under a new id; the old id is fenced from here on."""
    member = group.members[group.instances[request.group_instance_id or ""]]
    old_leader = group.leader_id
    before = SavedIdentity(member)
    fence(rt, group, member)
    session.end(rt, group, member)
    group.rename(member, new_id)
    member.client_id, member.client_host, member.is_new = event.client_id, event.client_host, False
    park(rt, group, member, request, protocols, ParkedJoin(event.token, event.api_version))
    session.renew(rt, group, member)
    match group.state:
        case GroupState.STABLE if group.vote() == group.protocol:
            keep_generation(rt, group, member, before, old_leader)
        case GroupState.STABLE | GroupState.COMPLETING:
            prepare(rt, group)
        case _:
            complete_if_all_joined(rt, group)


class SavedIdentity:
    """What a static member was before it was replaced."""

    def __init__(self, member: Member) -> None:
        self.member_id = member.member_id
        self.client_id = member.client_id
        self.client_host = member.client_host
        self.protocols = member.protocols
        self.session_timeout_ms = member.session_timeout_ms
        self.rebalance_timeout_ms = member.rebalance_timeout_ms

    def restore(self, rt: Runtime, group: Group, member: Member) -> None:
        """Undo the replacement."""
        session.end(rt, group, member)
        group.rename(member, self.member_id)
        group.set_protocols(member, self.protocols)
        member.client_id, member.client_host = self.client_id, self.client_host
        member.session_timeout_ms = self.session_timeout_ms
        member.rebalance_timeout_ms = self.rebalance_timeout_ms
        session.renew(rt, group, member)


def fence(rt: Runtime, group: Group, member: Member) -> None:
    """Whoever still waits under the old id learns that it has been replaced."""
    parked = group.unpark_join(member)
    if parked is not None:
        refuse_join(rt, parked, ErrorCode.FENCED_INSTANCE_ID, member.member_id)
    if member.parked_sync is not None:
        token, member.parked_sync = member.parked_sync, None
        rt.reply(token, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))


def keep_generation(rt: Runtime, group: Group, member: Member, before: SavedIdentity, old_leader: str | None) -> None:
    """The restart changes nothing the others would notice: store the new id, then answer; no rebalance.

    A returning leader must not assign again. From v9 on it is told so; up to v8 it is kept from it by being given the
    leader's old id, which is not its own.
    """
    call = member.parked_join
    new_id = member.member_id

    def stored(error: ErrorCode) -> None:
        if group.state is not GroupState.STABLE or member.member_id != new_id or member.parked_join is not call:
            return  # a rebalance began meanwhile; the JoinGroup waits in it, or has been answered
        parked = group.unpark_join(member)
        if parked is None:
            return
        if error:
            before.restore(rt, group, member)
            refuse_join(rt, parked, error)
            return
        session.renew(rt, group, member)
        rt.reply(parked.token, returning_reply(group, member, parked, old_leader))

    rt.write(group.partition, [records.group_record(group)], stored)


def returning_reply(group: Group, member: Member, call: ParkedJoin, old_leader: str | None) -> JoinGroupResponse:
    """The present generation for a static member that came back."""
    if call.api_version >= SKIP_ASSIGNMENT_FROM:
        return generation_reply(group, member, skip_assignment=member.member_id == group.leader_id)
    return generation_reply(group, member, leader=old_leader, list_members=False)
