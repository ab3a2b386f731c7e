"""Offsets: of partition logs by time, deleted up to one (KIP-107), and of a group for assignors that weigh lag."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from roster.client.cluster import PROPAGATION_TIME, Cluster
from roster.client.coordinators import Coordinators
from roster.client.errors import (
    AuthorizationError,
    BrokerError,
    ClientError,
    RequestTimeoutError,
    UnknownTopicError,
    UnreachableError,
    group_error,
)
from roster.client.loop import OnLoop, blocking
from roster.client.retry import Retry
from roster.model import OffsetAndMetadata, PartitionOffsets, TopicPartition
from roster.model.offsets import OffsetSpec
from roster.wire import ErrorCode, Message
from roster.wire.errors import error_code
from roster.wire.messages import DeleteRecordsRequest, ListOffsetsRequest, OffsetFetchRequest, OffsetFetchResponse

_STALE_LEADER = frozenset(
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
"""Retriable: refresh the metadata, or wait."""
_NOT_DELETED = {
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is behind the end of the partition",
    ErrorCode.POLICY_VIOLATION: "the topic is compacted",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic is the cluster's own",
}


class LogOffsets(OnLoop):
    """Looks up offsets of partition logs, in the cluster of an `Admin` or a `GroupMember`."""

    _cluster: Cluster

    @blocking
    async def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return await log_offsets(self._cluster, partitions, OffsetSpec.EARLIEST)

    @blocking
    async def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log end offset of each partition: the offset of its next record."""
        return await log_offsets(self._cluster, partitions, OffsetSpec.LATEST)

    @blocking
    async def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition, where the first open transaction begins."""
        return await log_offsets(self._cluster, partitions, OffsetSpec.LATEST, is_committed=True)

    @blocking
    async def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each time, in ms since the epoch; None if all records are older."""
        return await list_offsets(self._cluster, dict(times))


async def list_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], *, is_committed: bool = False
) -> dict[TopicPartition, int | None]:
    """List an offset for each partition's time.

    A time is an OffsetSpec or ms since the epoch; the offset is None where no record is at or after it. With
    `is_committed` a log ends at its last stable offset.
    """

    def ask(some: Mapping[TopicPartition, int]) -> ListOffsetsRequest:
        topics: dict[str, ListOffsetsRequest.Topic] = {}
        for (topic, partition), time in some.items():
            entry = topics.setdefault(topic, ListOffsetsRequest.Topic(name=topic))
            entry.partitions.append(ListOffsetsRequest.Partition(partition_index=partition, timestamp=time))
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(is_committed),
            topics=list(topics.values()),
            timeout_ms=int(cluster.timeout * 1000),
        )

    def refused(partition: TopicPartition, code: ErrorCode) -> ClientError:
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return AuthorizationError(f"this client may not read topic {partition.topic}; grant it READ", code=code)
        return BrokerError(f"the offset of {partition} could not be listed: {code.name}", code=code)

    rows = await _ask_leaders(cluster, times, ask, refused, "listing offsets")
    return {partition: None if row.offset < 0 else row.offset for partition, row in rows.items()}


async def delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Delete the records before an offset of each partition, -1 for all; return the first offset left in each."""

    def ask(some: Mapping[TopicPartition, int]) -> DeleteRecordsRequest:
        topics: dict[str, DeleteRecordsRequest.Topic] = {}
        for (name, partition), offset in some.items():
            topic = topics.setdefault(name, DeleteRecordsRequest.Topic(name=name))
            topic.partitions.append(DeleteRecordsRequest.Partition(partition_index=partition, offset=offset))
        return DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=int(cluster.timeout * 1000))

    rows = await _ask_leaders(cluster, before, ask, _not_deleted, "deleting records")
    return {partition: row.low_watermark for partition, row in rows.items()}


def _not_deleted(partition: TopicPartition, code: ErrorCode) -> ClientError:
    if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        text = f"this client may not delete records of {partition.topic}; grant it DELETE"
        return AuthorizationError(text, code=code)
    return BrokerError(f"records of {partition} could not be deleted: {_NOT_DELETED.get(code, code.name)}", code=code)


async def _ask_leaders(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    ask: Callable[[Mapping[TopicPartition, int]], Message],
    refused: Callable[[TopicPartition, ErrorCode], ClientError],
    purpose: str,
) -> dict[TopicPartition, Any]:
    """Ask the leaders about partitions until each is answered; return the rows of their responses.

    `ask` makes the request to one leader, `refused` the error for a code that does not pass.
    """
    rows: dict[TopicPartition, Any] = {}
    retry = Retry(cluster.timeout)
    while missing := [partition for partition in wanted if partition not in rows]:
        cause = ""
        by_leader = await partitions_by_leader(cluster, missing)
        asking = [
            _ask(cluster, leader, ask({p: wanted[p] for p in of_leader})) for leader, of_leader in by_leader.items()
        ]
        for answers, trouble in await asyncio.gather(*asking):
            cause = trouble or cause
            for topic, row in answers:
                partition, code = TopicPartition(topic, row.partition_index), error_code(row.error_code)
                if code is ErrorCode.NONE:
                    rows[partition] = row
                elif code in _STALE_LEADER:
                    cause = f"{partition}: {code.name}"
                else:
                    raise refused(partition, code)
        if cause:
            cluster.forget({partition.topic for partition in missing if partition not in rows})
            await retry.pause_or_fail(purpose, cause)
    return rows


async def log_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], end: int, *, is_committed: bool = False
) -> dict[TopicPartition, int]:
    """List the offset at one end of each partition's log, as OffsetSpec names it; `is_committed` as above."""
    offsets = await list_offsets(cluster, dict.fromkeys(partitions, end), is_committed=is_committed)
    return {partition: offset or 0 for partition, offset in offsets.items()}


async def partitions_by_leader(cluster: Cluster, partitions: list[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """Group partitions by their leader's broker id.

    Cached metadata may lack a new partition that the group's leader has seen: it is refreshed for `PROPAGATION_TIME`
    seconds; then UnknownTopicError.
    """
    retry = Retry(PROPAGATION_TIME)
    while True:
        topics = await cluster.topics({partition.topic for partition in partitions})
        counts = {name: len(topic.leaders) for name, topic in topics.items()}
        beyond = [partition for partition in partitions if not 0 <= partition.partition < counts[partition.topic]]
        if not beyond:
            break
        if retry.expired:
            name = beyond[0].topic
            raise UnknownTopicError(
                f"topic {name} has {counts[name]} partitions, so there is no {beyond[0]}", topics=[name]
            )
        cluster.forget({partition.topic for partition in beyond})
        await retry.pause()
    leaders: dict[int, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        leaders[topics[partition.topic].leaders[partition.partition]].append(partition)
    return leaders


async def _ask(cluster: Cluster, leader: int, request: Any) -> tuple[list[tuple[str, Any]], str]:
    """Return topic and row for each partition in a leader's response, and why there are none, or ""."""
    address = cluster.address(leader)
    if address is None:
        return [], f"{request.topics[0].name}-{request.topics[0].partitions[0].partition_index} has no leader"
    try:
        response: Any = await cluster.request(address, request)
    except (UnreachableError, RequestTimeoutError) as error:
        return [], str(error)
    return [(topic.name, row) for topic in response.topics for row in topic.partitions], ""


async def partition_offsets(
    cluster: Cluster, coordinators: Coordinators, group: str, partitions: Mapping[str, int], timeout: float
) -> PartitionOffsets:
    """Look up the PartitionOffsets of every partition of these topics.

    One request per broker and kind of offset, all at once. Raises TimeoutError after `timeout` seconds, and
    ClientError.
    """
    wanted = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    async with asyncio.timeout(timeout), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(list_offsets(cluster, dict.fromkeys(wanted, OffsetSpec.EARLIEST)))
        end = tasks.create_task(list_offsets(cluster, dict.fromkeys(wanted, OffsetSpec.LATEST)))
        committed = tasks.create_task(committed_offsets(coordinators, group, wanted))
    return by_topic(partitions, first.result(), end.result(), committed.result())


def by_topic(
    topics: Iterable[str],
    begins: Mapping[TopicPartition, int | None],
    ends: Mapping[TopicPartition, int | None],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
) -> PartitionOffsets:
    """Return the offsets of the partitions of `begins` by topic and number."""
    offsets: dict[str, dict[int, tuple[int, int, int | None]]] = {topic: {} for topic in topics}
    for tp, begin in begins.items():
        offset = committed.get(tp)
        offsets[tp.topic][tp.partition] = (begin or 0, ends.get(tp) or 0, None if offset is None else offset.offset)
    return offsets


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

    purpose = f"fetching the offsets of group {group!r}"
    response, code = await coordinators.ask_until_ready(group, request, OffsetFetchResponse, code_of, purpose)
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
