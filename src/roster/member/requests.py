"""The requests a member sends, from its options and from who it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.wire.messages import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roster.member.config import MemberConfig
    from roster.member.outbox import Identity

PROTOCOL_TYPE = "consumer"
MAX_REASON = 255
"""Characters of a reason for joining or leaving (KIP-800)."""
GROUP_KEY = 0


def find_coordinator(config: MemberConfig) -> FindCoordinatorRequest:
    """Who coordinates the group?"""
    return FindCoordinatorRequest(key_type=GROUP_KEY, coordinator_keys=[config.group])


def join_group(
    config: MemberConfig, member_id: str, subscriptions: Mapping[str, bytes], reason: str
) -> JoinGroupRequest:
    """Join with one subscription per assignor, in the order of preference."""
    return JoinGroupRequest(
        group_id=config.group,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=[JoinGroupRequest.Protocol(name=name, metadata=data) for name, data in subscriptions.items()],
        reason=reason[:MAX_REASON],
    )


def sync_group(
    config: MemberConfig, identity: Identity, assignor: str | None, assignments: Mapping[str, bytes]
) -> SyncGroupRequest:
    """Ask for the assignment; the leader brings everyone's."""
    generation, member_id = identity
    return SyncGroupRequest(
        group_id=config.group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=assignor,
        assignments=[
            SyncGroupRequest.Assignment(member_id=member, assignment=data)
            for member, data in sorted(assignments.items())
        ],
    )


def heartbeat(config: MemberConfig, identity: Identity) -> HeartbeatRequest:
    """Still here."""
    generation, member_id = identity
    return HeartbeatRequest(
        group_id=config.group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=config.group_instance_id,
    )


def leave_group(config: MemberConfig, member_id: str, reason: str) -> LeaveGroupRequest:
    """Goodbye."""
    gone = LeaveGroupRequest.Member(member_id=member_id, reason=reason[:MAX_REASON])
    return LeaveGroupRequest(group_id=config.group, members=[gone])
