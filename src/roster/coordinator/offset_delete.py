"""OffsetDelete (KIP-496), and the deletion of a topic's offsets with the topic."""

from collections.abc import Iterable

from roster.coordinator.group import CommittedOffset, Group
from roster.coordinator.group_context import GroupContext
from roster.coordinator.offset_store import write_offsets
from roster.coordinator.runtime import Runtime
from roster.coordinator.states import GroupState
from roster.coordinator_common import Reply, RequestReceived
from roster.wire import ErrorCode
from roster.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse, TopicErrors


def delete_offsets(rt: Runtime, event: RequestReceived, request: OffsetDeleteRequest) -> OffsetDeleteResponse | None:
    """Delete offsets of topics that no member subscribes to; None if the response waits until that is durable."""
    group = rt.groups.get(request.group_id)
    error = validate(rt, group, request)
    if error or group is None:
        return OffsetDeleteResponse(error_code=error)
    topics: list[TopicErrors] = []
    tombstones: dict[tuple[str, int], CommittedOffset | None] = {}
    known = group.all_offsets()
    subscribed = group.subscribed_topics()
    for topic in request.topics:
        in_use = is_subscribed_to(group, subscribed, topic.name)
        outcome = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if in_use else ErrorCode.NONE
        topics.append(
            TopicErrors(
                name=topic.name,
                partitions=[
                    TopicErrors.Partition(partition_index=partition.partition_index, error_code=outcome)
                    for partition in topic.partitions
                ],
            )
        )
        if not in_use:
            keys = ((topic.name, partition.partition_index) for partition in topic.partitions)
            tombstones.update({key: None for key in keys if key in known})
    response = OffsetDeleteResponse(topics=topics)
    if not tombstones:
        return response

    def written(error: ErrorCode) -> None:
        rt.replies.append(Reply(event.token, OffsetDeleteResponse(error_code=error) if error else response))

    write_offsets(GroupContext(rt, group), tombstones, written)
    return None


def validate(rt: Runtime, group: Group | None, request: OffsetDeleteRequest) -> ErrorCode:
    """Return the error that rejects the whole request, or NONE."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return rt.availability_error(request.group_id) or ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is GroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY and not group.is_consumer_group():
        return ErrorCode.NON_EMPTY_GROUP  # unknown which topics its members use
    return ErrorCode.NONE


def is_subscribed_to(group: Group, subscribed: set[str] | None, topic: str) -> bool:
    """Return True if a topic is in use.

    A consumer group with a subscription that cannot be decoded uses every topic, a group of another type none.
    """
    return group.is_consumer_group() if subscribed is None else topic in subscribed


def topics_deleted(rt: Runtime, topics: Iterable[str]) -> None:
    """Delete the offsets of deleted topics, even if members subscribe to them."""
    deleted = set(topics)
    for group in list(rt.groups.values()):
        tombstones: dict[tuple[str, int], CommittedOffset | None] = {
            key: None for key in sorted(group.all_offsets()) if key[0] in deleted
        }
        if tombstones and group.state is not GroupState.DEAD:
            write_offsets(GroupContext(rt, group), tombstones, lambda _: None)
