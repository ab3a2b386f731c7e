"""Where records and groups stand: offsets of a log by time, committed offsets of a group."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping

from roster.client.cluster import MOST_PAUSE, NEWS_PATIENCE, RETRY_PAUSE, Cluster, expect
from roster.client.errors import (
    AuthorizationError,
    BrokerError,
    ClientError,
    GroupError,
    RequestTimeoutError,
    UnknownGroupError,
    UnknownTopicError,
    UnreachableError,
)
from roster.member.types import Node
from roster.model import OffsetAndMetadata, TopicPartition
from roster.wire import ErrorCode, Message
from roster.wire.errors import error_code
from roster.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

LATEST = -1
EARLIEST = -2

STALE_LEADER = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Answers that a newer look at the metadata, or a moment, can cure."""

STALE_COORDINATOR = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
PASSING = STALE_COORDINATOR | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.REQUEST_TIMED_OUT,
}


class Patience:
    """Retries within the request timeout: a pause that doubles, then an error."""

    def __init__(self, seconds: float) -> None:
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._pause = RETRY_PAUSE
        self._seconds = seconds

    async def pause(self, what: str, cause: str) -> None:
        """Wait before the next attempt; RequestTimeoutError when the time is up."""
        if asyncio.get_running_loop().time() + self._pause > self._deadline:
            raise RequestTimeoutError(f"{what} did not succeed within {self._seconds:g} s: {cause}")
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, MOST_PAUSE)


async def list_offsets(cluster: Cluster, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    """The offset for each partition's time: LATEST, EARLIEST or wall-clock ms; None where no record is that young."""
    found: dict[TopicPartition, int | None] = {}
    patience = Patience(cluster.timeout)
    while missing := [partition for partition in times if partition not in found]:
        by_leader = await _by_leader(cluster, missing)
        answers = await asyncio.gather(
            *(_ask_leader(cluster, leader, {p: times[p] for p in group}) for leader, group in by_leader.items())
        )
        cause = ""
        for offsets, trouble in answers:
            found.update(offsets)
            cause = trouble or cause
        if cause:
            cluster.forget({partition.topic for partition in times if partition not in found})
            await patience.pause("listing offsets", cause)
    return found


async def _by_leader(cluster: Cluster, partitions: list[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """The partitions by their leader's id.

    A partition may be younger than what is remembered of its topic, since the group's leader can have seen it first:
    it is looked for again for `NEWS_PATIENCE` seconds; then UnknownTopicError.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + NEWS_PATIENCE
    while True:
        topics = await cluster.topics({partition.topic for partition in partitions})
        counts = {name: len(topic.leaders) for name, topic in topics.items()}
        beyond = [partition for partition in partitions if not 0 <= partition.partition < counts[partition.topic]]
        if not beyond:
            break
        if loop.time() >= deadline:
            name = beyond[0].topic
            raise UnknownTopicError(
                f"topic {name} has {counts[name]} partitions, so there is no {beyond[0]}", topics=[name]
            )
        cluster.forget({partition.topic for partition in beyond})
        await asyncio.sleep(RETRY_PAUSE)
    leaders: dict[int, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        leaders[topics[partition.topic].leaders[partition.partition]].append(partition)
    return leaders


async def _ask_leader(
    cluster: Cluster, leader: int, times: dict[TopicPartition, int]
) -> tuple[dict[TopicPartition, int | None], str]:
    """The offsets one broker gave, and what stood in the way of the others."""
    address = cluster.address(leader)
    if address is None:
        return {}, f"{next(iter(times))} has no leader"
    topics: dict[str, ListOffsetsRequest.Topic] = {}
    for (topic, partition), time in times.items():
        entry = topics.setdefault(topic, ListOffsetsRequest.Topic(name=topic))
        entry.partitions.append(ListOffsetsRequest.Partition(partition_index=partition, timestamp=time))
    request = ListOffsetsRequest(replica_id=-1, topics=list(topics.values()), timeout_ms=int(cluster.timeout * 1000))
    try:
        response = expect(await cluster.request(address, request), ListOffsetsResponse)
    except (UnreachableError, RequestTimeoutError) as error:
        return {}, str(error)
    offsets: dict[TopicPartition, int | None] = {}
    trouble = ""
    for answer in response.topics:
        for row in answer.partitions:
            answered = TopicPartition(answer.name, row.partition_index)
            code = error_code(row.error_code)
            if code is ErrorCode.NONE:
                offsets[answered] = None if row.offset < 0 else row.offset
            elif code in STALE_LEADER:
                trouble = f"{answered}: {code.name}"
            elif code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise AuthorizationError(f"this client may not read topic {answered.topic}; grant it READ", code=code)
            else:
                raise BrokerError(f"the offset of {answered} could not be listed: {code.name}", code=code)
    return offsets, trouble


class Groups:
    """Requests to the coordinators of groups, which it finds and remembers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators: dict[str, Node] = {}

    async def coordinator(self, group: str) -> Node:
        """The group's coordinator; waits while there is none yet, within the request timeout."""
        if group in self._coordinators:
            return self._coordinators[group]
        patience = Patience(self._cluster.timeout)
        while True:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
            response = expect(await self._cluster.request_any(request), FindCoordinatorResponse)
            found = response.coordinators[0] if response.coordinators else None
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if found is None else error_code(found.error_code)
            if found is not None and code is ErrorCode.NONE:
                self._coordinators[group] = Node(found.node_id, found.host, found.port)
                return self._coordinators[group]
            if code not in PASSING:
                raise group_error(code, group, "its coordinator cannot be found")
            await patience.pause(f"finding the coordinator of group {group!r}", code.name)

    async def ask(self, group: str, request: Message) -> Message:
        """Ask the group's coordinator, finding it again once if it cannot be reached."""
        for attempt in range(2):
            node = await self.coordinator(group)
            try:
                return await self._cluster.request(node, request)
            except (UnreachableError, RequestTimeoutError):
                self.forget(group)
                if attempt:
                    raise
        raise AssertionError("unreachable")

    def forget(self, group: str) -> None:
        """The coordinator is to be found anew."""
        self._coordinators.pop(group, None)

    async def committed(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets, all or of `partitions`; what has none is left out."""
        topics = None
        if partitions is not None:
            wanted: dict[str, list[int]] = defaultdict(list)
            for partition in sorted(set(partitions)):
                wanted[partition.topic].append(partition.partition)
            topics = [OffsetFetchRequest.Topic(name=name, partition_indexes=n) for name, n in wanted.items()]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequest.Group(group_id=group, topics=topics)], require_stable=True
        )
        patience = Patience(self._cluster.timeout)
        while True:
            response = expect(await self.ask(group, request), OffsetFetchResponse)
            answer = response.groups[0]
            codes = {error_code(answer.error_code)}
            codes |= {error_code(row.error_code) for topic in answer.topics for row in topic.partitions}
            codes -= {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            if not codes:
                return _positions(answer)
            code = min(codes)
            if code not in PASSING:
                raise group_error(code, group, "its offsets cannot be fetched")
            if code in STALE_COORDINATOR:
                self.forget(group)
            await patience.pause(f"fetching the offsets of group {group!r}", code.name)


def _positions(answer: OffsetFetchResponse.Group) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(topic.name, row.partition_index): OffsetAndMetadata(
            row.committed_offset, row.committed_leader_epoch, row.metadata or ""
        )
        for topic in answer.topics
        for row in topic.partitions
        if row.committed_offset >= 0
    }


def group_error(code: ErrorCode, group: str, what: str) -> ClientError:
    """The exception for an error about a group."""
    name = f"group {group!r}: {what}"
    if code in (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        return AuthorizationError(f"{name}; grant this client READ on group and topics ({code.name})", code=code)
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        return UnknownGroupError(f"there is no group {group!r}; the name may be misspelt", code=code)
    return GroupError(f"{name} ({code.name})", code=code)
