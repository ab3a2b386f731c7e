"""Offsets: of partition logs by time, and of a group for assignors that weigh lag."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping

from roster.client.cluster import PROPAGATION_TIME, Cluster, expect
from roster.client.committed_offsets import committed_offsets
from roster.client.coordinators import Coordinators
from roster.client.errors import (
    AuthorizationError,
    BrokerError,
    RequestTimeoutError,
    UnknownTopicError,
    UnreachableError,
)
from roster.client.retry import Retry
from roster.model import PartitionOffsets, TopicPartition
from roster.model.offsets import OffsetSpec
from roster.wire import ErrorCode
from roster.wire.errors import error_code
from roster.wire.messages import ListOffsetsRequest, ListOffsetsResponse

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
"""Retriable: refresh the metadata, or wait."""


async def list_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], *, is_committed: bool = False
) -> dict[TopicPartition, int | None]:
    """List an offset for each partition's time.

    A time is an OffsetSpec or ms since the epoch; the offset is None where no record is at or after it. With
    `is_committed` a log ends at its last stable offset.
    """
    found: dict[TopicPartition, int | None] = {}
    retry = Retry(cluster.timeout)
    while missing := [partition for partition in times if partition not in found]:
        by_leader = await partitions_by_leader(cluster, missing)
        answers = await asyncio.gather(
            *(
                _ask_leader(cluster, leader, {p: times[p] for p in group}, is_committed=is_committed)
                for leader, group in by_leader.items()
            )
        )
        cause = ""
        for offsets, trouble in answers:
            found.update(offsets)
            cause = trouble or cause
        if cause:
            cluster.forget({partition.topic for partition in times if partition not in found})
            await retry.pause_or_fail("listing offsets", cause)
    return found


async def log_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], end: int, *, is_committed: bool = False
) -> dict[TopicPartition, int]:
    """List the offset at one end of each partition's log, as OffsetSpec names it; `is_committed` as above."""
    found = await list_offsets(cluster, dict.fromkeys(partitions, end), is_committed=is_committed)
    return {partition: offset or 0 for partition, offset in found.items()}


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


async def _ask_leader(
    cluster: Cluster, leader: int, times: dict[TopicPartition, int], *, is_committed: bool
) -> tuple[dict[TopicPartition, int | None], str]:
    """List the offsets of one broker; also return why others are still missing, or ""."""
    address = cluster.address(leader)
    if address is None:
        return {}, f"{next(iter(times))} has no leader"
    topics: dict[str, ListOffsetsRequest.Topic] = {}
    for (topic, partition), time in times.items():
        entry = topics.setdefault(topic, ListOffsetsRequest.Topic(name=topic))
        entry.partitions.append(ListOffsetsRequest.Partition(partition_index=partition, timestamp=time))
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(is_committed),
        topics=list(topics.values()),
        timeout_ms=int(cluster.timeout * 1000),
    )
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
    found: dict[str, dict[int, tuple[int, int, int | None]]] = {topic: {} for topic in partitions}
    for partition in wanted:
        position = committed.result().get(partition)
        found[partition.topic][partition.partition] = (
            first.result().get(partition) or 0,
            end.result().get(partition) or 0,
            None if position is None else position.offset,
        )
    return found
