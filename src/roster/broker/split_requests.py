"""Requests about very many groups or offsets, split into parts that the coordinator handles one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roster.broker.request_limits import count_items

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from roster.wire.messages import DescribeGroupsRequest, OffsetFetchRequest

AT_ONCE = 250
"""Groups or partitions per part; other clients are served between two parts."""
COMMITS_AT_ONCE = 2_000
"""The same for OffsetCommit, where each part is a write."""


def describe_parts(request: DescribeGroupsRequest) -> Iterator[DescribeGroupsRequest]:
    """Split DescribeGroups into requests of AT_ONCE groups.

    A larger request gets each group described once. Apache Kafka repeats a description as often as the group is named,
    which multiplies the group's metadata by the repetitions.
    """
    groups = request.groups
    if len(groups) > AT_ONCE:
        groups = list(dict.fromkeys(groups))
    for start in range(0, max(len(groups), 1), AT_ONCE):
        yield replace(request, groups=groups[start : start + AT_ONCE])


def offset_fetch_parts(request: OffsetFetchRequest) -> Iterator[OffsetFetchRequest]:
    """Split OffsetFetch into requests of AT_ONCE partitions; the topics of one group may come in several parts."""
    if count_items(request, AT_ONCE) <= AT_ONCE:
        yield request
        return
    for topics in topic_parts(request.topics, "partition_indexes") if request.topics else ():
        yield replace(request, topics=topics)
    for group in request.groups:
        parts: Iterable[Any] = [None] if group.topics is None else topic_parts(group.topics, "partition_indexes")
        for topics in parts:
            yield replace(request, groups=[replace(group, topics=topics)])


def topic_parts(topics: Iterable[Any], field: str, at_once: int = AT_ONCE) -> Iterator[list[Any]]:
    """Split topics with their partitions in `field` into lists that hold at most `at_once` topics and partitions."""
    part: list[Any] = []
    room = at_once
    for topic in topics:
        partitions = getattr(topic, field)
        start = 0
        while start < len(partitions) or start == 0:
            if room < 2:
                yield part
                part, room = [], at_once
            some = partitions[start : start + room - 1]
            part.append(replace(topic, **{field: some}))
            room -= len(some) + 1
            start += max(len(some), 1)
    yield part
