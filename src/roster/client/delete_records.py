"""DeleteRecords: deletes the oldest records of partitions (KIP-107)."""

from __future__ import annotations

from collections.abc import Mapping

from roster.client.cluster import Cluster, expect
from roster.client.errors import AuthorizationError, BrokerError
from roster.client.offsets import STALE_LEADER, partitions_by_leader
from roster.client.retry import Retry
from roster.model import TopicPartition
from roster.wire import ErrorCode
from roster.wire.errors import error_code
from roster.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

_WHY = {
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is behind the end of the partition",
    ErrorCode.POLICY_VIOLATION: "the topic is compacted",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic is the cluster's own",
}


async def delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Delete the records before an offset of each partition, -1 for all; return the first offset left in each."""
    left: dict[TopicPartition, int] = {}
    retry = Retry(cluster.timeout)
    while missing := {partition: offset for partition, offset in before.items() if partition not in left}:
        cause = ""
        for leader, group in (await partitions_by_leader(cluster, list(missing))).items():
            address = cluster.address(leader)
            if address is None:
                cause = f"{group[0]} has no leader"
                continue
            request = _request(cluster, {partition: missing[partition] for partition in group})
            cause = _take_left(expect(await cluster.request(address, request), DeleteRecordsResponse), left) or cause
        if cause:
            cluster.forget({partition.topic for partition in missing})
            await retry.pause_or_fail("deleting records", cause)
    return left


def _request(cluster: Cluster, before: Mapping[TopicPartition, int]) -> DeleteRecordsRequest:
    topics: dict[str, DeleteRecordsRequest.Topic] = {}
    for (name, partition), offset in before.items():
        topic = topics.setdefault(name, DeleteRecordsRequest.Topic(name=name))
        topic.partitions.append(DeleteRecordsRequest.Partition(partition_index=partition, offset=offset))
    return DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=int(cluster.timeout * 1000))


def _take_left(response: DeleteRecordsResponse, left: dict[TopicPartition, int]) -> str:
    """Add the first offsets left; return why one is still missing, or ""."""
    cause = ""
    for topic in response.topics:
        for row in topic.partitions:
            partition, code = TopicPartition(topic.name, row.partition_index), error_code(row.error_code)
            if code is ErrorCode.NONE:
                left[partition] = row.low_watermark
            elif code in STALE_LEADER:
                cause = f"{partition}: {code.name}"
            elif code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise AuthorizationError(
                    f"this client may not delete records of {topic.name}; grant it DELETE", code=code
                )
            else:
                raise BrokerError(
                    f"records of {partition} could not be deleted: {_WHY.get(code, code.name)}", code=code
                )
    return cause
