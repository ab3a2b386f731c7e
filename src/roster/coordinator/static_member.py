"""A static member that returns without its member id (KIP-345): it replaces its former self under a new id."""

from __future__ import annotations

from roster.coordinator.group import Group, Member, ParkedJoin
from roster.coordinator.group_context import GroupContext
from roster.coordinator.join_call import JoinCall
from roster.coordinator.rebalance import maybe_complete_join_phase, prepare_rebalance
from roster.coordinator.responses import join_error, join_response
from roster.coordinator.states import GroupState
from roster.wire import ErrorCode
from roster.wire.messages import JoinGroupResponse

SKIP_ASSIGNMENT_FROM = 9
"""KIP-814: JoinGroup version from which a returning static leader is answered with skip_assignment."""


def replace_static_member(ctx: GroupContext, join: JoinCall, new_id: str) -> None:
    """Give the member a new id and fence the old one; rebalance only if the selected protocol changes."""
    group = ctx.group
    member = group.members[group.instances[join.instance_id or ""]]
    old_leader = group.leader_id
    before = ReplacedMember(member)
    ctx.fail_join(member, ErrorCode.FENCED_INSTANCE_ID, member.member_id)
    ctx.answer_sync(member, ErrorCode.FENCED_INSTANCE_ID)
    ctx.end_session(member)
    group.replace_member_id(member, new_id)
    member.client_id, member.client_host, member.is_new = join.event.client_id, join.event.client_host, False
    ctx.update_member(member, join)
    ctx.renew_session(member)
    match group.state:
        case GroupState.STABLE if group.select_protocol() == group.protocol:
            keep_generation(ctx, member, before, old_leader)
        case GroupState.STABLE | GroupState.COMPLETING:
            prepare_rebalance(ctx)
        case _:
            maybe_complete_join_phase(ctx)


class ReplacedMember:
    """Identity and settings of a static member before its replacement."""

    def __init__(self, member: Member) -> None:
        self.member_id = member.member_id
        self.client_id = member.client_id
        self.client_host = member.client_host
        self.protocols = member.protocols
        self.session_timeout_ms = member.session_timeout_ms
        self.rebalance_timeout_ms = member.rebalance_timeout_ms

    def restore(self, ctx: GroupContext, member: Member) -> None:
        """Undo the replacement."""
        ctx.end_session(member)
        ctx.group.replace_member_id(member, self.member_id)
        ctx.group.set_protocols(member, self.protocols)
        member.client_id, member.client_host = self.client_id, self.client_host
        member.session_timeout_ms = self.session_timeout_ms
        member.rebalance_timeout_ms = self.rebalance_timeout_ms
        ctx.renew_session(member)


def keep_generation(ctx: GroupContext, member: Member, before: ReplacedMember, old_leader: str | None) -> None:
    """Store the new member id, then answer with the current generation; the other members notice nothing."""
    group = ctx.group
    call = member.parked_join
    new_id = member.member_id

    def written(error: ErrorCode) -> None:
        if group.state is not GroupState.STABLE or member.member_id != new_id or member.parked_join is not call:
            return  # a rebalance began meanwhile; the JoinGroup waits in it, or has been answered
        parked = group.unpark_join(member)
        if parked is None:
            return
        if error:
            before.restore(ctx, member)
            ctx.rt.reply(parked.token, join_error(parked, error))
            return
        ctx.renew_session(member)
        ctx.rt.reply(parked.token, returning_member_response(group, member, parked, old_leader))

    ctx.write_group(written)


def returning_member_response(
    group: Group, member: Member, call: ParkedJoin, old_leader: str | None
) -> JoinGroupResponse:
    """Build the response for a static member that returned.

    A returning leader must not assign again. From v9 on the response says so; up to v8 it names the leader's old id,
    which is not the member's own.
    """
    if call.api_version >= SKIP_ASSIGNMENT_FROM:
        return join_response(group, member, skip_assignment=member.member_id == group.leader_id)
    return join_response(group, member, leader=old_leader, list_members=False)
