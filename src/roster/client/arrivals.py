"""Long polls: brokers send records as soon as they arrive, so that nobody has to look for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from roster.client.cluster import Cluster, expect
from roster.client.errors import ClientError
from roster.client.offsets import partitions_by_leader
from roster.member.types import Channel
from roster.model import TopicPartition
from roster.model.offsets import Arrival
from roster.wire.messages import FetchRequest, FetchResponse

_BY_NAME = 12
"""Highest version of Fetch that names topics."""
MOST_WATCHED = 1_000
"""Most partitions that brokers are asked about: beyond it a Fetch costs more than looking does."""
_PARTITION_BYTES, _RESPONSE_BYTES = 64 << 10, 256 << 10
"""What a small batch may have; a larger one is read by those who process it."""


class _Question(NamedTuple):
    positions: Mapping[TopicPartition, int]
    until: float
    is_committed: bool


class Arrivals:
    """Fetches that brokers answer once there are records; one at a time at each broker. For the loop's thread."""

    def __init__(self, cluster: Cluster, tell: Callable[[list[Arrival]], None]) -> None:
        """`tell` is called with the records that a broker sent."""
        self._cluster, self._tell = cluster, tell
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._finding: set[asyncio.Task[None]] = set()
        self._questions: dict[int, _Question] = {}
        """What each leader is asked next: one that holds an earlier question answers that one first."""

    def watch(self, positions: Mapping[TopicPartition, int], seconds: float, *, is_committed: bool) -> None:
        """Ask the leaders of these partitions, for so long, for records at the positions or behind.

        A leader that cannot be asked is left to those who look.
        """
        if len(positions) <= MOST_WATCHED:
            question = _Question(positions, time.monotonic() + seconds, is_committed)
            finding = asyncio.create_task(self._watch(question))
            self._finding.add(finding)
            finding.add_done_callback(self._finding.discard)

    async def _watch(self, question: _Question) -> None:
        try:
            by_leader = await partitions_by_leader(self._cluster, list(question.positions))
        except ClientError:
            return
        for leader, group in by_leader.items():
            positions = {partition: question.positions[partition] for partition in group}
            self._questions[leader] = question._replace(positions=positions)
            if leader not in self._asking:
                self._asking[leader] = asyncio.create_task(self._ask(leader))

    async def _ask(self, leader: int) -> None:
        """Ask until nobody waits any more; what was answered is not asked again."""
        try:
            while (asked := self._questions.get(leader)) is not None:
                left, address = asked.until - time.monotonic(), self._cluster.address(leader)
                if left <= 0 or address is None:
                    return
                request = _request(asked, left)
                response = await self._cluster.request(address, request, channel=Channel.RECORDS, highest=_BY_NAME)
                answer = expect(response, FetchResponse)
                if arrived := _arrived(asked, answer):
                    self._tell(arrived)
                    if self._questions[leader].positions == asked.positions:
                        return
                elif answer.error_code or any(row.error_code for each in answer.responses for row in each.partitions):
                    return
        except ClientError:
            return
        finally:
            del self._asking[leader]
            self._questions.pop(leader, None)


def _request(asked: _Question, seconds: float) -> FetchRequest:
    topics: dict[str, list[FetchRequest.Topic.Partition]] = {}
    for (topic, partition), at in asked.positions.items():
        entry = FetchRequest.Partition(partition=partition, fetch_offset=at, partition_max_bytes=_PARTITION_BYTES)
        topics.setdefault(topic, []).append(entry)
    return FetchRequest(
        max_wait_ms=round(seconds * 1000),
        min_bytes=1,
        max_bytes=_RESPONSE_BYTES,
        isolation_level=int(asked.is_committed),
        topics=[FetchRequest.Topic(topic=topic, partitions=each) for topic, each in topics.items()],
    )


def _arrived(asked: _Question, answer: FetchResponse) -> list[Arrival]:
    return [
        Arrival(
            *(topic.topic, row.partition_index, start),
            row.last_stable_offset if asked.is_committed else row.high_watermark,
            asked.is_committed,
            bytes(row.records),
            tuple((each.producer_id, each.first_offset) for each in row.aborted_transactions or ()),
        )
        for topic in answer.responses
        for row in topic.partitions
        if row.records and (start := asked.positions.get(TopicPartition(topic.topic, row.partition_index))) is not None
    ]
