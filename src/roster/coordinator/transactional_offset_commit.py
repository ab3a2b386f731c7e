"""TxnOffsetCommit: store offsets that take effect when the transaction commits (KIP-98, KIP-447).

The shell has already checked with the transaction coordinator that the transaction has the group's partition.
"""

from __future__ import annotations

from collections.abc import Collection

from roster.coordinator.group import CommittedOffset, Group
from roster.coordinator.group_context import GroupContext
from roster.coordinator.offset_commit import topic_errors
from roster.coordinator.offset_store import drop_if_unused, write_pending_offsets
from roster.coordinator.runtime import Runtime
from roster.coordinator.states import GroupState
from roster.coordinator_common import Reply, RequestReceived
from roster.wire import ErrorCode
from roster.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse


def commit_transactional_offsets(
    rt: Runtime, event: RequestReceived, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | None:
    """Store pending offsets; None if the response waits until they are durable."""
    group = rt.groups.get(request.group_id)
    if error := validate(rt, group, request):
        return transactional_commit_response(request, error)
    ctx = GroupContext(rt, rt.create_group(request.group_id) if group is None else group)
    offsets = accepted_offsets(rt, request)
    if not offsets:
        drop_if_unused(ctx)
        return transactional_commit_response(request, ErrorCode.NONE, offsets)

    def written(error: ErrorCode) -> None:
        rt.replies.append(Reply(event.token, transactional_commit_response(request, error, offsets)))

    write_pending_offsets(ctx, offsets, (request.producer_id, request.producer_epoch), written)
    return None


def validate(rt: Runtime, group: Group | None, request: TxnOffsetCommitRequest) -> ErrorCode:
    """Return the error that rejects every offset, or NONE.

    Unlike with OffsetCommit, a client that names no member may commit in any state of the group, and a member may
    commit during a rebalance: the end of the transaction decides.
    """
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        if error := rt.availability_error(request.group_id):
            return error
        return ErrorCode.NONE if request.generation_id < 0 else ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    names_member = request.generation_id >= 0 or request.member_id or request.group_instance_id is not None
    if not names_member or (request.generation_id < 0 and group.state is GroupState.EMPTY):
        return ErrorCode.NONE
    if error := group.validate_member(request.member_id, request.group_instance_id):
        return error
    return group.validate_generation(request.generation_id)


def accepted_offsets(rt: Runtime, request: TxnOffsetCommitRequest) -> dict[tuple[str, int], CommittedOffset]:
    """Return the offsets of the request whose metadata is not too large."""
    return {
        (topic.name, partition.partition_index): CommittedOffset(
            partition.committed_offset, partition.committed_leader_epoch, partition.committed_metadata or "", rt.wall_ms
        )
        for topic in request.topics
        for partition in topic.partitions
        if len(partition.committed_metadata or "") <= rt.config.offset_metadata_max_bytes
    }


def transactional_commit_response(
    request: TxnOffsetCommitRequest, error: ErrorCode, accepted: Collection[tuple[str, int]] | None = None
) -> TxnOffsetCommitResponse:
    """Build the response: `error` for every partition, or OFFSET_METADATA_TOO_LARGE where it is not `accepted`."""
    return TxnOffsetCommitResponse(topics=topic_errors(request.topics, error, accepted))
