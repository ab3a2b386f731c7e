"""Records that brokers send as soon as they arrive: what is taken begins where it is to be read, without a gap."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.client import arrivals as module
from roster.client.arrivals import Arrivals
from roster.client.cluster import Topic
from roster.member.types import Channel
from roster.model import TopicPartition
from roster.wire.messages import FetchRequest, FetchResponse
from roster.wire.records import Record, build_batch, read_batch, split_batches
from tests.examples_tried import examples

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from roster.model.offsets import Arrival

LEADERS = [1, 1, 2]
PARTITIONS = [TopicPartition("t", number) for number in range(len(LEADERS))]
LONG = 600.0


class Brokers:
    """In place of a cluster: each broker holds a Fetch until one of its partitions has records."""

    def __init__(self, most: int = 1000) -> None:
        """`most` bytes of a partition in an answer, after which the last batch is cut off; the first one is whole."""
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.asked: list[FetchRequest] = []
        self._most = most
        self._logs: dict[TopicPartition, list[bytes]] = {p: [] for p in PARTITIONS}
        self._grown = asyncio.Event()

    async def topics(self, names: object) -> dict[str, Topic]:
        return {"t": Topic("t", b"", internal=False, leaders=LEADERS)}

    def address(self, broker: int) -> tuple[str, int]:
        return "b", broker

    def append(self, partition: TopicPartition, count: int) -> None:
        first = self.ends[partition]
        records = [Record(value=b"%d" % offset) for offset in range(first, first + count)]
        self._logs[partition].append(build_batch(records, base_offset=first))
        self.ends[partition] += count
        self._grown.set()
        self._grown = asyncio.Event()

    async def request(self, address: object, request: FetchRequest, channel: Channel, highest: int) -> FetchResponse:
        assert (channel, highest) == (Channel.RECORDS, 12)
        self.asked.append(request)
        while True:
            grown = self._grown
            rows = [self._row(TopicPartition(t.topic, p.partition), p) for t in request.topics for p in t.partitions]
            if any(row.records for row in rows):
                return FetchResponse(responses=[FetchResponse.Topic(topic="t", partitions=rows)])
            await grown.wait()

    def _row(self, partition: TopicPartition, asked: Any) -> Any:
        batches = [b for b in self._logs[partition] if split_batches(b)[0][0].last_offset >= asked.fetch_offset]
        data = b"".join(batches)[: max(self._most, len(batches[0]))] if batches else b""
        end = self.ends[partition]
        return FetchResponse.Partition(partition_index=partition.partition, high_watermark=end, records=data)


def offsets(parts: Sequence[Arrival]) -> list[int]:
    """The offsets of all records of these parts, each of which must hold what it says."""
    found: list[int] = []
    for part in parts:
        size = 0
        while len(part.records) - size >= 12 and (behind := _end(part.records, size)) <= len(part.records):
            size = behind
        records = [r for _, b in split_batches(part.records[:size]) for r in read_batch(b)]
        assert all(record.value == b"%d" % record.offset for record in records)
        found += [record.offset for record in records if part.start <= record.offset]
        assert found[-1] + 1 == part.next <= part.end
    return found


def _end(data: bytes, start: int) -> int:
    return start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")


async def settle() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_BETWEEN", 0)
        asyncio.run(scenario())  # type: ignore[arg-type]


moves = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(PARTITIONS), st.integers(1, 4)),
    st.tuples(st.just("turns"), st.integers(1, 5)),
    st.tuples(st.just("batch"), st.integers(0, 6)),
    st.just(("abort",)),
)


@given(st.lists(moves, max_size=25), st.sampled_from([1, 150, 1000]))
@settings(max_examples=examples(200))
def test_a_batch_takes_all_that_came_at_any_moment_of_the_one_before(moves: list[Any], most: int) -> None:
    async def scenario() -> None:
        brokers, positions = Brokers(most), dict.fromkeys(PARTITIONS, 0)
        arrivals: Any = Arrivals(brokers, threading.Condition())  # type: ignore[arg-type]
        committed = dict(positions)

        def taken(at: Mapping[TopicPartition, int]) -> dict[TopicPartition, list[int]]:
            found = {p: [o for o in offsets(parts) if o >= at[p]] for p, parts in arrivals.take(at).items()}
            assert all(each == [*range(at[p], at[p] + len(each))] for p, each in found.items())
            return found

        arrivals.watch(positions, LONG, is_committed=False)
        for move, *more in moves:
            if move == "append":
                brokers.append(*more)
            elif move == "turns":
                for _ in range(more[0]):
                    await asyncio.sleep(0)
            elif move == "batch":  # of at most so many records of each partition: it may end amid a part
                committed = dict(positions)
                positions = {p: at + min(more[0], len(taken(positions).get(p, ()))) for p, at in positions.items()}
                arrivals.watch(positions, LONG, is_committed=False)
            else:
                positions = dict(committed)
                taken(positions)
                arrivals.watch(positions, LONG, is_committed=False)
        await settle()
        assert taken(positions) == {
            p: [*range(at, brokers.ends[p])] for p, at in positions.items() if at < brokers.ends[p]
        }

    run(scenario)


def test_nothing_more_is_asked_once_what_came_is_taken_until_the_next_watch() -> None:
    async def scenario() -> None:
        brokers, positions = Brokers(), dict.fromkeys(PARTITIONS[:2], 0)
        arrivals: Any = Arrivals(brokers, threading.Condition())  # type: ignore[arg-type]
        arrivals.watch(positions, LONG, is_committed=False)
        for _ in range(3):
            brokers.append(PARTITIONS[0], 1)
            await settle()
        assert [part[2:5] for part in arrivals.take(positions)[PARTITIONS[0]]] == [(0, 1, 1), (1, 2, 2), (2, 3, 3)]
        for _ in range(3):
            brokers.append(PARTITIONS[0], 1)
            await settle()
        assert len(brokers.asked) == 4, "the last question was under way"
        assert arrivals.has({PARTITIONS[0]: 3})
        arrivals.watch({PARTITIONS[0]: 3}, LONG, is_committed=False)
        await settle()
        assert offsets(arrivals.take({PARTITIONS[0]: 3})[PARTITIONS[0]]) == [3, 4, 5]
        assert arrivals.take({PARTITIONS[0]: 7}) == {}, "it is to go on elsewhere"
        assert not arrivals.has({PARTITIONS[0]: 0})

    run(scenario)


def test_nothing_is_asked_in_a_pause_unless_the_next_watch_has_none() -> None:
    async def scenario() -> None:
        brokers, positions = Brokers(), dict.fromkeys(PARTITIONS, 0)
        arrivals: Any = Arrivals(brokers, threading.Condition())  # type: ignore[arg-type]
        brokers.append(PARTITIONS[0], 2)
        arrivals.watch(positions, LONG, is_committed=False, pause=LONG / 2)
        await settle()
        assert brokers.asked == []
        arrivals.watch(positions, LONG, is_committed=False)
        await settle()
        assert offsets(arrivals.take(positions)[PARTITIONS[0]]) == [0, 1]

    run(scenario)


def test_what_is_kept_of_a_leader_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 500)

    async def scenario() -> None:
        brokers, positions = Brokers(), dict.fromkeys(PARTITIONS[:2], 0)
        arrivals: Any = Arrivals(brokers, threading.Condition())  # type: ignore[arg-type]
        for _ in range(2):
            arrivals.watch(positions, LONG, is_committed=False)
            for _ in range(20):
                brokers.append(PARTITIONS[0], 1)
                await settle()
            parts = arrivals.take(positions)[PARTITIONS[0]]
            assert 500 <= sum(len(part.records) for part in parts) < 1500
            positions = {PARTITIONS[0]: parts[-1].next}

    run(scenario)


def test_a_log_in_an_old_format_is_left_to_those_who_read_it() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        arrivals: Any = Arrivals(brokers, threading.Condition())  # type: ignore[arg-type]
        brokers.append(PARTITIONS[0], 1)
        batch = bytearray(brokers._logs[PARTITIONS[0]][0])
        batch[16] = 1  # magic
        brokers._row = lambda *_: FetchResponse.Partition(records=bytes(batch))  # type: ignore[method-assign]
        for asked in (1, 2):
            arrivals.watch({PARTITIONS[0]: 0}, LONG, is_committed=False)
            await settle()
            assert (len(brokers.asked), arrivals.take({PARTITIONS[0]: 0})) == (asked, {})

    run(scenario)
