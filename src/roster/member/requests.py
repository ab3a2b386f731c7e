"""Builders of the requests that a member sends to its coordinator."""

from collections.abc import Mapping

from roster.member.config import MemberConfig
from roster.member.outbox import Identity
from roster.model import OffsetAndMetadata, TopicPartition
from roster.wire.consumer import PROTOCOL_TYPE
from roster.wire.messages import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)

MAX_REASON = 255
"""Limit on the characters of a reason for joining or leaving (KIP-800)."""
GROUP_KEY = 0


def find_coordinator(config: MemberConfig) -> FindCoordinatorRequest:
    """Build the FindCoordinator request."""
    return FindCoordinatorRequest(key_type=GROUP_KEY, coordinator_keys=[config.group])


def join_group(
    config: MemberConfig, member_id: str, subscriptions: Mapping[str, bytes], reason: str
) -> JoinGroupRequest:
    """Build the JoinGroup request: one subscription per assignor, in the order of preference."""
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
    """Build the SyncGroup request; `assignments` is empty unless the member is the leader."""
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


def describe_group(config: MemberConfig) -> DescribeGroupsRequest:
    """Build the DescribeGroups request."""
    return DescribeGroupsRequest(groups=[config.group])


def heartbeat(config: MemberConfig, identity: Identity) -> HeartbeatRequest:
    """Build the Heartbeat request."""
    generation, member_id = identity
    return HeartbeatRequest(
        group_id=config.group, generation_id=generation, member_id=member_id, group_instance_id=config.group_instance_id
    )


def leave_group(config: MemberConfig, member_id: str, reason: str) -> LeaveGroupRequest:
    """Build the LeaveGroup request."""
    leaving = LeaveGroupRequest.Member(member_id=member_id, reason=reason[:MAX_REASON])
    return LeaveGroupRequest(group_id=config.group, members=[leaving])


def offset_commit(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], group: str, identity: Identity, instance_id: str | None
) -> OffsetCommitRequest:
    """Build the OffsetCommit request."""
    generation, member_id = identity
    topics: dict[str, OffsetCommitRequest.Topic] = {}
    for (topic, partition), position in sorted(offsets.items()):
        entry = topics.setdefault(topic, OffsetCommitRequest.Topic(name=topic))
        entry.partitions.append(
            OffsetCommitRequest.Partition(
                partition_index=partition,
                committed_offset=position.offset,
                committed_leader_epoch=position.leader_epoch,
                committed_metadata=position.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=list(topics.values()),
    )
