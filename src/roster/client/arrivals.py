"""Long polls: brokers send records as soon as they arrive, so that no driver polls for them."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
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
_MOST_BYTES = 1 << 20
"""Bytes that a Fetch may bring, and bytes kept of a leader before it is asked no more."""

_BETWEEN = 0.001
"""Seconds from an answer to the next question: records that come one by one need not be answers of their own."""

_LONGEST_WAIT = 0.2
"""Seconds after which a broker answers without records, so that the next question does not wait for long."""

_BATCH = Struct(">qi4xb6xi34x")
"""Header of a record batch: base offset, length behind these 12 bytes, magic, last offset delta."""


class _Question(NamedTuple):
    positions: Mapping[TopicPartition, int]
    begin: float
    until: float
    is_committed: bool


class Arrivals:
    """Fetches that brokers answer once there are records, one at a time at each broker, and what they have brought.

    `watch` is for the loop's thread, the other methods for any.
    """

    def __init__(self, cluster: Cluster, changed: threading.Condition) -> None:
        """`changed` guards what has arrived, and is notified of it."""
        self._cluster, self._changed = cluster, changed
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._finding: set[asyncio.Task[None]] = set()
        self._questions: dict[int, _Question] = {}
        """The next question to each leader; a leader that holds an earlier one answers that first."""
        self._is_new = asyncio.Event()
        """Set with each question."""
        self._held: dict[TopicPartition, list[Arrival]] = {}
        """Parts of each partition's log, one behind the other."""
        self._is_wanted = False
        """True if the next question follows each arrival."""

    def has(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Return True if one of these partitions has a record at its position or behind."""
        with self._changed:
            return any(arrivals[-1].end > positions.get(tp, arrivals[-1].end) for tp, arrivals in self._held.items())

    def take(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Sequence[Arrival]]:
        """Return what has arrived from these positions on, and forget the rest; nothing more is asked until `watch`."""
        with self._changed:
            self._is_wanted = False
            self._held = {
                p: left for p, position in positions.items() if (left := _behind(self._held.get(p, ()), position))
            }
            return {p: tuple(arrivals) for p, arrivals in self._held.items()}

    def watch(
        self, positions: Mapping[TopicPartition, int], seconds: float, *, is_committed: bool, pause: float = 0.0
    ) -> None:
        """Ask the leaders of these partitions, for so long, for records at the positions or behind.

        What arrives is followed by the next question, from its end on, until `take`. A leader that cannot be asked is
        left to those who look. pause: seconds in which nothing is asked, as records that come have to wait.
        """
        if len(positions) <= MOST_WATCHED:
            self._is_wanted = True
            now = time.monotonic()
            question = _Question(positions, now + pause, now + seconds, is_committed)
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
        self._is_new.set()

    async def _ask(self, leader: int) -> None:
        """Ask until no caller waits any more."""
        try:
            while (question := self._questions.get(leader)) is not None:
                if (pause := question.begin - time.monotonic()) > 0:
                    self._is_new.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._is_new.wait(), pause)
                    continue
                left, address = question.until - time.monotonic(), self._cluster.address(leader)
                positions, size = self._following(question.positions)
                if left <= 0 or address is None or size >= _MOST_BYTES:
                    return
                request = _request(positions, left, is_committed=question.is_committed)
                response = await self._cluster.request(address, request, channel=Channel.RECORDS, highest=_BY_NAME)
                answer = expect(response, FetchResponse)
                if arrived := _arrived(positions, answer, is_committed=question.is_committed):
                    self._keep(arrived)
                    if not self._is_wanted:
                        return
                    await asyncio.sleep(_BETWEEN)
                elif answer.error_code or any(
                    r.error_code or r.records for t in answer.responses for r in t.partitions
                ):
                    return  # whoever reads them tells of what is wrong
        except ClientError:
            return
        finally:
            del self._asking[leader]
            self._questions.pop(leader, None)

    def _following(self, positions: Mapping[TopicPartition, int]) -> tuple[dict[TopicPartition, int], int]:
        """Return where to go on, behind what has arrived from these positions on, and the bytes of that."""
        with self._changed:
            arrivals = {p: _behind(self._held.get(p, ()), position) for p, position in positions.items()}
        sizes = {p: sum(len(arrival.records) for arrival in waiting) for p, waiting in arrivals.items()}
        # Brokers fill a response in this order: a partition that has had none so far comes first.
        order = sorted(positions, key=sizes.__getitem__)
        return {p: arrivals[p][-1].next if arrivals[p] else positions[p] for p in order}, sum(sizes.values())

    def _keep(self, arrived: Iterable[Arrival]) -> None:
        with self._changed:
            for arrival in arrived:
                arrivals = self._held.setdefault(TopicPartition(arrival.topic, arrival.partition), [])
                if arrivals and arrivals[-1].next != arrival.start:
                    arrivals.clear()
                arrivals.append(arrival)
            self._changed.notify_all()


def _behind(arrivals: Sequence[Arrival], position: int) -> list[Arrival]:
    """Return what of a partition is at this position or behind; [] if the record at the position has not arrived."""
    left = [arrival for arrival in arrivals if arrival.next > position]
    return left if left and left[0].start <= position else []


def _request(positions: Mapping[TopicPartition, int], seconds: float, *, is_committed: bool) -> FetchRequest:
    topics: dict[str, list[FetchRequest.Topic.Partition]] = {}
    for (topic, partition), position in positions.items():
        entry = FetchRequest.Partition(partition=partition, fetch_offset=position, partition_max_bytes=_PARTITION_BYTES)
        topics.setdefault(topic, []).append(entry)
    return FetchRequest(
        max_wait_ms=round(min(seconds, _LONGEST_WAIT) * 1000),
        min_bytes=1,
        max_bytes=_RESPONSE_BYTES,
        isolation_level=int(is_committed),
        topics=[FetchRequest.Topic(topic=topic, partitions=wanted) for topic, wanted in topics.items()],
    )


def _arrived(positions: Mapping[TopicPartition, int], answer: FetchResponse, *, is_committed: bool) -> list[Arrival]:
    return [
        Arrival(
            *(topic.topic, row.partition_index, start, behind),
            row.last_stable_offset if is_committed else row.high_watermark,
            is_committed,
            bytes(row.records),
            tuple(
                (transaction.producer_id, transaction.first_offset) for transaction in row.aborted_transactions or ()
            ),
        )
        for topic in answer.responses
        for row in topic.partitions
        if row.records
        and (start := positions.get(TopicPartition(topic.topic, row.partition_index))) is not None
        and (behind := _offset_behind(row.records)) > start
    ]


def _offset_behind(records: bytes | memoryview) -> int:
    """Return the offset behind the last whole batch; -1 without one that can be read here.

    `roster.wire.records` needs a library that this package does without.
    """
    behind, pos = -1, 0
    while len(records) - pos >= _BATCH.size:
        base, length, magic, delta = _BATCH.unpack_from(records, pos)
        pos += 12 + length
        if magic != 2 or length < _BATCH.size - 12 or pos > len(records):
            break
        behind = base + delta + 1
    return behind
