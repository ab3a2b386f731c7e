"""Committed offsets of a group, by OffsetFetch: those that count, and those that an open transaction holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from roster.client.coordinators import Coordinators
from roster.client.errors import group_error
from roster.model import OffsetAndMetadata, TopicPartition
from roster.wire import ErrorCode
from roster.wire.messages import OffsetFetchRequest, OffsetFetchResponse


async def committed_offsets(
    coordinators: Coordinators, group: str, partitions: Collection[TopicPartition] | None, *, stable: bool = True
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the committed offsets of a group, all or of `partitions`; partitions without one are left out.

    With `stable`, waits for the end of transactions that hold offsets of these partitions.
    """
    request = _offset_fetch(group, partitions, stable=stable)
    return _positions(await _fetch(coordinators, group, request))


async def pending_offsets(
    coordinators: Coordinators, group: str, partitions: Collection[TopicPartition]
) -> set[TopicPartition]:
    """Return the partitions among these for which an open transaction holds an offset."""
    answer = await _fetch(coordinators, group, _offset_fetch(group, partitions, stable=True), unstable_is_answer=True)
    return {
        TopicPartition(topic.name, row.partition_index)
        for topic in answer.topics
        for row in topic.partitions
        if row.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    }


async def _fetch(
    coordinators: Coordinators, group: str, request: OffsetFetchRequest, *, unstable_is_answer: bool = False
) -> OffsetFetchResponse.Group:
    """Fetch offsets, retried while the coordinator is not ready."""
    answers = {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    if unstable_is_answer:
        answers.add(ErrorCode.UNSTABLE_OFFSET_COMMIT)

    def code_of(response: OffsetFetchResponse) -> int:
        answer = response.groups[0]
        rows = {row.error_code for topic in answer.topics for row in topic.partitions}
        return min({answer.error_code, *rows} - answers, default=ErrorCode.NONE)

    doing = f"fetching the offsets of group {group!r}"
    response, code = await coordinators.ask_until_ready(group, request, OffsetFetchResponse, code_of, doing)
    if code is not ErrorCode.NONE:
        raise group_error(code, group, "its offsets cannot be fetched")
    return response.groups[0]


def _offset_fetch(group: str, partitions: Collection[TopicPartition] | None, *, stable: bool) -> OffsetFetchRequest:
    topics = None
    if partitions is not None:
        wanted: dict[str, list[int]] = defaultdict(list)
        for partition in sorted(set(partitions)):
            wanted[partition.topic].append(partition.partition)
        topics = [OffsetFetchRequest.Topic(name=name, partition_indexes=n) for name, n in wanted.items()]
    return OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group, topics=topics)], require_stable=stable)


def _positions(answer: OffsetFetchResponse.Group) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(topic.name, row.partition_index): OffsetAndMetadata(
            row.committed_offset, row.committed_leader_epoch, row.metadata or ""
        )
        for topic in answer.topics
        for row in topic.partitions
        if row.committed_offset >= 0
    }
