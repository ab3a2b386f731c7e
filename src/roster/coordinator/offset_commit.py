"""OffsetCommit and TxnOffsetCommit (KIP-98, KIP-447): store offsets; the response waits until they are durable.

Those of a transaction take effect when it commits. The shell has already checked with the transaction coordinator that
the transaction has the group's partition.
"""

from collections.abc import Collection, Iterable
from typing import TypeAlias, TypeVar

from roster.coordinator.group import CommittedOffset, Group
from roster.coordinator.group_context import GroupContext
from roster.coordinator.offset_store import drop_if_unused, write_offsets, write_pending_offsets
from roster.coordinator.runtime import Runtime
from roster.coordinator.states import GroupState
from roster.coordinator_common import Reply, RequestReceived
from roster.wire import ErrorCode
from roster.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    TopicErrors,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

_Topic: TypeAlias = OffsetCommitRequest.Topic | TxnOffsetCommitRequest.Topic
Errors = TypeVar("Errors", TopicErrors, TxnOffsetCommitResponse.Topic)

GROUP_ID_NOT_FOUND_FROM = 9
"""OffsetCommit version from which a generation in an unknown group is answered GROUP_ID_NOT_FOUND."""


def commit_offsets(rt: Runtime, event: RequestReceived, request: OffsetCommitRequest) -> OffsetCommitResponse | None:
    """Store offsets; None if the response waits until they are durable."""
    group = rt.groups.get(request.group_id)
    if error := validate(rt, group, request, event.api_version):
        return commit_response(request, error)
    ctx = GroupContext(rt, rt.create_group(request.group_id) if group is None else group)
    member = ctx.group.members.get(request.member_id)
    if member is not None:
        ctx.renew_session(member)
    expires_at = None if request.retention_time_ms == -1 else rt.wall_ms + request.retention_time_ms
    offsets = accepted_offsets(rt, request.topics, expires_at)
    if not offsets:
        drop_if_unused(ctx)
        return commit_response(request, ErrorCode.NONE, offsets.keys())

    def written(error: ErrorCode) -> None:
        rt.replies.append(Reply(event.token, commit_response(request, error, offsets.keys())))

    write_offsets(ctx, offsets, written)
    return None


def validate(rt: Runtime, group: Group | None, request: OffsetCommitRequest, api_version: int) -> ErrorCode:
    """Return the error that rejects every offset of the request, or NONE (worked case GC-25)."""
    generation = request.generation_id_or_member_epoch
    if group is None:
        if error := rt.availability_error(request.group_id):
            return error
        if generation < 0:
            return ErrorCode.NONE  # a client without group management creates a simple group
        return ErrorCode.GROUP_ID_NOT_FOUND if api_version >= GROUP_ID_NOT_FOUND_FROM else ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE  # an administrator, or a simple consumer
    if generation < 0 and not request.member_id and request.group_instance_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if error := group.validate_member(request.member_id, request.group_instance_id):
        return error
    if error := group.validate_generation(generation):
        return error
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.COMPLETING else ErrorCode.NONE


def accepted_offsets(
    rt: Runtime, topics: Iterable[_Topic], expires_at: int | None = None
) -> dict[tuple[str, int], CommittedOffset]:
    """Return the offsets of a request whose metadata is not too large."""
    return {
        (topic.name, partition.partition_index): CommittedOffset(
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata or "",
            rt.wall_ms,
            expires_at,
        )
        for topic in topics
        for partition in topic.partitions
        if len(partition.committed_metadata or "") <= rt.config.offset_metadata_max_bytes
    }


def commit_response(
    request: OffsetCommitRequest, error: ErrorCode, accepted: Collection[tuple[str, int]] | None = None
) -> OffsetCommitResponse:
    """Build the response: `error` for every partition, or OFFSET_METADATA_TOO_LARGE where it is not `accepted`."""
    return OffsetCommitResponse(topics=topic_errors(TopicErrors, request.topics, error, accepted))


def topic_errors(
    kind: type[Errors], topics: Iterable[_Topic], error: ErrorCode, accepted: Collection[tuple[str, int]] | None
) -> list[Errors]:
    """Return `error` for every partition, or OFFSET_METADATA_TOO_LARGE where it is not `accepted`."""

    def outcome(topic: str, partition: int) -> ErrorCode:
        is_accepted = accepted is None or (topic, partition) in accepted
        return error if is_accepted else ErrorCode.OFFSET_METADATA_TOO_LARGE

    return [
        kind(
            name=topic.name,
            partitions=[
                TopicErrors.Partition(
                    partition_index=partition.partition_index, error_code=outcome(topic.name, partition.partition_index)
                )
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]


def commit_transactional_offsets(
    rt: Runtime, event: RequestReceived, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | None:
    """Store pending offsets; None if the response waits until they are durable."""
    group = rt.groups.get(request.group_id)
    if error := validate_in_transaction(rt, group, request):
        return transactional_commit_response(request, error)
    ctx = GroupContext(rt, rt.create_group(request.group_id) if group is None else group)
    offsets = accepted_offsets(rt, request.topics)
    if not offsets:
        drop_if_unused(ctx)
        return transactional_commit_response(request, ErrorCode.NONE, offsets)

    def written(error: ErrorCode) -> None:
        rt.replies.append(Reply(event.token, transactional_commit_response(request, error, offsets)))

    write_pending_offsets(ctx, offsets, (request.producer_id, request.producer_epoch), written)
    return None


def validate_in_transaction(rt: Runtime, group: Group | None, request: TxnOffsetCommitRequest) -> ErrorCode:
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


def transactional_commit_response(
    request: TxnOffsetCommitRequest, error: ErrorCode, accepted: Collection[tuple[str, int]] | None = None
) -> TxnOffsetCommitResponse:
    """Build the response: `error` for every partition, or OFFSET_METADATA_TOO_LARGE where it is not `accepted`."""
    return TxnOffsetCommitResponse(topics=topic_errors(TxnOffsetCommitResponse.Topic, request.topics, error, accepted))
