"""Responses to JoinGroup and SyncGroup, built from the state of a group."""

from __future__ import annotations

from roster.coordinator.group import Group, Member, ParkedJoin
from roster.wire import ErrorCode
from roster.wire.messages import JoinGroupResponse, SyncGroupResponse

NULLABLE_PROTOCOL_NAME_FROM = 7
"""JoinGroup version from which the protocol name of an error is null, not empty."""


def join_error(call: ParkedJoin, error: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    """Build the response that rejects a JoinGroup."""
    protocol_name = None if call.api_version >= NULLABLE_PROTOCOL_NAME_FROM else ""
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=protocol_name)


def join_response(
    group: Group, member: Member, *, leader: str | None = None, list_members: bool = True, skip_assignment: bool = False
) -> JoinGroupResponse:
    """Build the response that announces the current generation; only the leader gets every member's metadata."""
    protocol = group.protocol
    leads = list_members and member.member_id == group.leader_id
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=protocol,
        leader=(group.leader_id or "") if leader is None else leader,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=[
            JoinGroupResponse.Member(
                member_id=other.member_id, group_instance_id=other.instance_id, metadata=other.metadata(protocol)
            )
            for other in group.members.values()
        ]
        if leads
        else [],
    )


def sync_response(group: Group, member: Member) -> SyncGroupResponse:
    """Build the response with the member's assignment."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )
