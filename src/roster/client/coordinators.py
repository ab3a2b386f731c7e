"""Coordinators of groups and of transactional ids: lookup, cache, requests; committed offsets of a group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from roster.client.cluster import Cluster, expect
from roster.client.errors import (
    RequestTimeoutError,
    UnreachableError,
    group_error,
    transaction_error,
)
from roster.client.retry import Retry
from roster.member.types import Node
from roster.model import OffsetAndMetadata, TopicPartition
from roster.wire import ErrorCode, Message
from roster.wire.errors import error_code
from roster.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator."""

FENCE_TIMEOUT_MS = 60_000
"""Transaction timeout of a producer that takes over an id only to abort its transaction."""

STALE_COORDINATOR = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
RETRIABLE = STALE_COORDINATOR | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.REQUEST_TIMED_OUT,
}


class Coordinators:
    """Sends requests to the coordinators of groups or transactional ids; finds and caches them."""

    def __init__(self, cluster: Cluster, key_type: int = GROUP) -> None:
        self._cluster = cluster
        self._key_type = key_type
        self._coordinators: dict[str, Node] = {}

    async def coordinator(self, group: str) -> Node:
        """Find the group's coordinator with FindCoordinator, retried within the request timeout while there is none."""
        if group in self._coordinators:
            return self._coordinators[group]
        retry = Retry(self._cluster.timeout)
        while True:
            request = FindCoordinatorRequest(key_type=self._key_type, coordinator_keys=[group])
            response = expect(await self._cluster.request_any(request), FindCoordinatorResponse)
            found = response.coordinators[0] if response.coordinators else None
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if found is None else error_code(found.error_code)
            if found is not None and code is ErrorCode.NONE:
                self._coordinators[group] = Node(found.node_id, found.host, found.port)
                return self._coordinators[group]
            if code not in RETRIABLE:
                if self._key_type == TRANSACTION:
                    raise transaction_error(code, group, "its coordinator cannot be found")
                raise group_error(code, group, "its coordinator cannot be found")
            kind = "group" if self._key_type == GROUP else "transactional id"
            await retry.pause_or_fail(f"finding the coordinator of {kind} {group!r}", code.name)

    async def ask(self, group: str, request: Message, highest: int | None = None) -> Message:
        """Ask the group's coordinator, finding it again once if it cannot be reached."""
        for attempt in range(2):
            node = await self.coordinator(group)
            try:
                return await self._cluster.request(node, request, highest=highest)
            except (UnreachableError, RequestTimeoutError):
                self.forget(group)
                if attempt:
                    raise
        raise AssertionError("unreachable")

    def forget(self, group: str) -> None:
        """Drop the cached coordinator of a group."""
        self._coordinators.pop(group, None)

    async def committed(
        self, group: str, partitions: Collection[TopicPartition] | None, *, stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, all or of `partitions`; partitions without one are left out.

        With `stable`, waits for the end of transactions that hold offsets of these partitions.
        """
        request = _offset_fetch(group, partitions, stable=stable)
        return _positions(await self._fetch(group, request))

    async def pending(self, group: str, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions among these for which an open transaction holds an offset."""
        answer = await self._fetch(group, _offset_fetch(group, partitions, stable=True), unstable_is_answer=True)
        return {
            TopicPartition(topic.name, row.partition_index)
            for topic in answer.topics
            for row in topic.partitions
            if row.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        }

    async def _fetch(
        self, group: str, request: OffsetFetchRequest, *, unstable_is_answer: bool = False
    ) -> OffsetFetchResponse.Group:
        """Fetch offsets, retried while the coordinator is not ready."""
        answers = {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        if unstable_is_answer:
            answers.add(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        retry = Retry(self._cluster.timeout)
        while True:
            response = expect(await self.ask(group, request), OffsetFetchResponse)
            answer = response.groups[0]
            codes = {error_code(answer.error_code)}
            codes |= {error_code(row.error_code) for topic in answer.topics for row in topic.partitions}
            codes -= answers
            if not codes:
                return answer
            code = min(codes)
            if code not in RETRIABLE:
                raise group_error(code, group, "its offsets cannot be fetched")
            if code in STALE_COORDINATOR:
                self.forget(group)
            await retry.pause_or_fail(f"fetching the offsets of group {group!r}", code.name)


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
