"""OffsetFetch: answered at once, from durable offsets only."""

from roster.coordinator.group import CommittedOffset, Group
from roster.coordinator.runtime import Runtime
from roster.coordinator_common import RequestReceived
from roster.wire import ErrorCode
from roster.wire.messages import OffsetFetchRequest, OffsetFetchResponse

MANY_GROUPS_FROM = 8
"""OffsetFetch version from which a request names several groups."""
GROUP_ERROR_FROM = 2
"""OffsetFetch version from which the response has an error for the whole group."""
NO_OFFSET = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", committed_at_ms=-1)


def fetch_offsets(rt: Runtime, event: RequestReceived, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return the durable offsets; -1 for a partition without one."""
    if event.api_version >= MANY_GROUPS_FROM:
        return OffsetFetchResponse(
            groups=[
                fetch_group(rt, wanted.group_id, wanted.topics, stable=request.require_stable)
                for wanted in request.groups
            ]
        )
    answer = fetch_group(rt, request.group_id, request.topics, stable=request.require_stable)
    if answer.error_code and event.api_version < GROUP_ERROR_FROM:
        topics = [
            offset_topic(wanted.name, dict.fromkeys(wanted.partition_indexes, NO_OFFSET))
            for wanted in request.topics or []
        ]
        for topic in topics:
            for partition in topic.partitions:
                partition.error_code = answer.error_code
        return OffsetFetchResponse(topics=topics)
    return OffsetFetchResponse(topics=answer.topics, error_code=answer.error_code)


def fetch_group(
    rt: Runtime, group_id: str, topics: list[OffsetFetchRequest.Group.Topic] | None, *, stable: bool = False
) -> OffsetFetchResponse.Group:
    """Build one group's part of the response, for `topics` or for all topics (None).

    With `stable`, a partition with an offset in an undecided transaction gets UNSTABLE_OFFSET_COMMIT; the client
    retries.
    """
    if error := rt.availability_error(group_id):
        return OffsetFetchResponse.Group(group_id=group_id, error_code=error)
    group = rt.groups.get(group_id)
    offsets = {} if group is None else group.offsets
    if topics is None:
        answered = [offset_topic(topic, partitions) for topic, partitions in offsets.items()]
    else:
        answered = []
        for wanted in topics:
            known = offsets.get(wanted.name, {})
            partitions = {partition: known.get(partition, NO_OFFSET) for partition in wanted.partition_indexes}
            answered.append(offset_topic(wanted.name, partitions))
    if stable and group is not None:
        mark_unstable(group, answered)
    return OffsetFetchResponse.Group(group_id=group_id, topics=answered)


def mark_unstable(group: Group, topics: list[OffsetFetchResponse.Group.Topic]) -> None:
    """Replace the offset by the error for partitions with an offset in an undecided transaction."""
    for topic in topics:
        for partition in topic.partitions:
            if group.is_unstable(topic.name, partition.partition_index):
                partition.committed_offset, partition.committed_leader_epoch, partition.metadata = -1, -1, ""
                partition.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT


def offset_topic(name: str, partitions: dict[int, CommittedOffset]) -> OffsetFetchResponse.Group.Topic:
    """Build one topic's part of the response."""
    return OffsetFetchResponse.Group.Topic(
        name=name,
        partitions=[
            OffsetFetchResponse.Group.Topic.Partition(
                partition_index=partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
            )
            for partition, committed in partitions.items()
        ],
    )
