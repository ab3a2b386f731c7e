"""Long polls: brokers say at once that records have arrived, which nobody then has to look for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from roster.client.cluster import Cluster, expect
from roster.client.errors import ClientError
from roster.client.offsets import partitions_by_leader
from roster.member.types import Channel
from roster.model import TopicPartition
from roster.wire.messages import FetchRequest, FetchResponse

_BY_NAME = 12
"""Highest version of Fetch that names topics."""
_MOST_PARTITIONS = 1_000
"""Beyond it a Fetch costs more than looking does."""


class Arrivals:
    """Fetches that brokers answer once there are records; one at a time at each broker. For the loop's thread."""

    def __init__(self, cluster: Cluster, tell: Callable[[], None]) -> None:
        """`tell` is called when a broker has records; their bytes are dropped."""
        self._cluster, self._tell = cluster, tell
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._questions: dict[int, FetchRequest] = {}
        """What each leader is asked next: one that holds an earlier question answers that one first."""

    async def watch(self, positions: Mapping[TopicPartition, int], seconds: float, *, is_committed: bool) -> None:
        """Ask the leaders of these partitions, for so long, for records at the positions or behind.

        A leader that cannot be asked is left to those who look.
        """
        if len(positions) > _MOST_PARTITIONS:
            return
        try:
            by_leader = await partitions_by_leader(self._cluster, list(positions))
        except ClientError:
            return
        for leader, group in by_leader.items():
            asked = {partition: positions[partition] for partition in group}
            self._questions[leader] = _question(asked, seconds, is_committed=is_committed)
            if leader not in self._asking:
                self._asking[leader] = asyncio.create_task(self._ask(leader))

    async def _ask(self, leader: int) -> None:
        try:
            while (request := self._questions.pop(leader, None)) is not None:
                address = self._cluster.address(leader)
                if address is None:
                    return
                answer = await self._cluster.request(address, request, channel=Channel.RECORDS, highest=_BY_NAME)
                if any(row.records for topic in expect(answer, FetchResponse).responses for row in topic.partitions):
                    self._tell()
        except ClientError:
            return
        finally:
            del self._asking[leader]


def _question(positions: Mapping[TopicPartition, int], seconds: float, *, is_committed: bool) -> FetchRequest:
    topics: dict[str, list[FetchRequest.Topic.Partition]] = {}
    for (topic, partition), at in positions.items():
        asked = FetchRequest.Partition(partition=partition, fetch_offset=at, partition_max_bytes=1)
        topics.setdefault(topic, []).append(asked)
    return FetchRequest(
        max_wait_ms=round(seconds * 1000),
        min_bytes=1,
        max_bytes=1,
        isolation_level=int(is_committed),
        topics=[FetchRequest.Topic(topic=topic, partitions=each) for topic, each in topics.items()],
    )
