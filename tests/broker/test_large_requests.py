"""Requests of a few MB that ask for very much: refused, or answered in slices between which others have a turn."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from roster.broker import connection, request_limits, topics
from roster.broker.coordinator_shell import AT_ONCE, offset_fetch_parts, topic_parts
from roster.broker.request_limits import DEFAULT_MAX_BYTES, MAX_BYTES, MAX_ITEMS, SLICE, count_items, in_slices
from roster.broker.transaction_shell import TransactionShell
from roster.wire import ApiKey, ErrorCode
from roster.wire.frames import encode_request
from roster.wire.messages import (
    CreateTopicsRequest,
    DescribeGroupsRequest,
    DescribeTransactionsRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from tests.broker.batches import batch
from tests.broker.rawclient import RawClient
from tests.broker.test_restart import commit, create

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.broker import Broker

TOPIC = CreateTopicsRequest.Topic
ONE_FETCH = FetchRequest.Topic.Partition(partition=0, fetch_offset=0, partition_max_bytes=1)


def create_topics_of(count: int) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[TOPIC(name="x")] * count)


def metadata_of(count: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequest.Topic(name="")] * count)


def describe_groups_of(count: int) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=[""] * count)


def fetch_of(count: int) -> FetchRequest:
    topics = [FetchRequest.Topic(topic="t", partitions=[ONE_FETCH] * count)]
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=topics)


def offset_fetch_of(topics: int) -> OffsetFetchRequest:
    return OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequest.Topic(name="", partition_indexes=[])] * topics)


def produce_of(partitions: int) -> ProduceRequest:
    data = [ProduceRequest.Topic.Partition(index=0, records=b"")] * partitions
    return ProduceRequest(acks=1, timeout_ms=0, topic_data=[ProduceRequest.Topic(name="t", partition_data=data)])


def frame_of(request_of: Callable[[int], Any], count: int, version: int) -> bytes:
    """The frame of `request_of(count)`, made of two short ones: an item's bytes are what the second has more."""
    one, two = (encode_request(request_of(number), version, 1, "raw") for number in (1, 2))
    size = len(two) - len(one)
    end = next(at for at in range(4, len(one)) if one[at] != two[at]) + 1  # of the int32 that counts the items
    item = one[end : end + size]
    body = one[4 : end - 4] + struct.pack(">i", count) + item * count + one[end + size :]
    return struct.pack(">i", len(body)) + body


LARGE = [
    pytest.param(create_topics_of, 200_000, 2, id="CreateTopics, one name"),
    pytest.param(metadata_of, 1_000_000, 1, id="Metadata, 2 MB"),
    pytest.param(metadata_of, 4_000_000, 1, id="Metadata, 8 MB"),
    pytest.param(metadata_of, 500_000, 1, id="Metadata, 1 MB"),
    pytest.param(describe_groups_of, 1_000_000, 0, id="DescribeGroups"),
    pytest.param(describe_groups_of, 500_000, 0, id="DescribeGroups, 1 MB"),
    pytest.param(fetch_of, 200_000, 4, id="Fetch"),
    pytest.param(offset_fetch_of, 300_000, 1, id="OffsetFetch"),
    pytest.param(produce_of, 60_000, 3, id="Produce, half a MB"),
]


@pytest.mark.parametrize(("request_of", "count", "version"), LARGE)
def test_a_request_with_more_items_than_any_client_needs_is_refused(
    broker: Broker, request_of: Callable[[int], Any], count: int, version: int
) -> None:
    assert frame_of(request_of, 3, version) == encode_request(request_of(3), version, 1, "raw")
    with RawClient(broker.address) as client, RawClient(broker.address) as bystander:
        try:
            client.socket.sendall(frame_of(request_of, count, version))
        except ConnectionError:
            pass  # closed at the header
        else:
            assert client.is_closed()
        assert bystander.ask(MetadataRequest(topics=[]), 1).brokers


def test_a_frame_is_refused_by_its_size_before_it_is_received(broker: Broker) -> None:
    for key, limit in [(ApiKey.METADATA, DEFAULT_MAX_BYTES), *MAX_BYTES.items()]:
        with RawClient(broker.address) as client:
            client.socket.sendall(struct.pack(">ih", limit + 1, key))
            assert client.is_closed()


def test_large_requests_that_clients_need_are_answered(broker: Broker, client: RawClient) -> None:
    """A group with as many partitions as one request makes commits and fetches all its offsets in one request."""
    most = 9_999
    create(client, "wide", most)
    parts = [
        OffsetCommitRequest.Topic.Partition(partition_index=n, committed_offset=n, committed_metadata="")
        for n in range(most)
    ]
    topics = [OffsetCommitRequest.Topic(name="wide", partitions=parts)]
    (answer,) = merged(client.ask(OffsetCommitRequest(group_id="wide", topics=topics), 8).topics)
    assert answer == ("wide", [(n, 0) for n in range(most)])
    for version in (7, 8):
        wanted = [OffsetFetchRequest.Topic(name="wide", partition_indexes=list(range(most)))]
        if version < 8:
            found = client.ask(OffsetFetchRequest(group_id="wide", topics=wanted), version).topics
        else:
            groups = [OffsetFetchRequest.Group(group_id=name, topics=wanted) for name in ("wide", "other")]
            found, other = [group.topics for group in client.ask(OffsetFetchRequest(groups=groups), version).groups]
            assert [p.committed_offset for topic in other for p in topic.partitions] == [-1] * most
        assert [p.committed_offset for topic in found for p in topic.partitions] == list(range(most))


def test_many_transactions_are_described_in_parts(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    handle = TransactionShell.handle

    async def watched(self: TransactionShell, call: Any) -> Any:
        parts.append(len(call.message.transactional_ids))
        return await handle(self, call)

    monkeypatch.setattr(TransactionShell, "handle", watched)
    ids = [f"tx-{n}" for n in range(1_100)]
    states = client.ask(DescribeTransactionsRequest(transactional_ids=ids), 0).transaction_states
    assert [(state.transactional_id, state.error_code) for state in states] == [
        (name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND) for name in ids
    ]
    assert parts == [250, 250, 250, 250, 100]
    assert client.ask(DescribeTransactionsRequest(transactional_ids=[]), 0).transaction_states == []


def merged(topics: list[Any]) -> list[tuple[str, list[tuple[int, int]]]]:
    answers: dict[str, list[tuple[int, int]]] = {}
    for topic in topics:
        answers.setdefault(topic.name, []).extend((p.partition_index, p.error_code) for p in topic.partitions)
    return list(answers.items())


def test_names_given_many_times_are_answered_once(client: RawClient) -> None:
    names = [MetadataRequest.Topic(name="no such topic!")] * 1_000
    assert len(client.ask(MetadataRequest(topics=names), 1).topics) == 1
    assert len(client.ask(DescribeGroupsRequest(groups=["g"] * 1_000), 0).groups) == 1
    (partition,) = client.ask(fetch_of(1_000), 4).responses[0].partitions
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_asked_for_twice_are_found_without_comparing_each_with_each(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are counted once, and every distinct one is looked at once."""
    looked_at: Counter[str] = Counter()
    check_name = topics.check_name

    def counted(name: str) -> None:
        looked_at[name] += 1
        check_name(name)

    monkeypatch.setattr(topics, "check_name", counted)
    names = [f"no such name {n}" for n in range(1_000)]
    answers = client.ask(CreateTopicsRequest(topics=[TOPIC(name=name) for name in [*names, *names[:10]]]), 5).topics
    assert Counter(answer.error_code for answer in answers) == {
        ErrorCode.INVALID_TOPIC_EXCEPTION: 990,
        ErrorCode.INVALID_REQUEST: 10,
    }
    assert looked_at == Counter(names[10:])


async def test_other_tasks_have_a_turn_after_every_slice() -> None:
    done = 0
    seen = []

    async def other() -> None:
        while True:
            seen.append(done)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    async for _ in in_slices(range(10 * SLICE)):
        done += 1
    task.cancel()
    assert len(seen) == 10
    assert all(after - before <= SLICE for before, after in pairwise(seen))


async def test_large_frames_are_decoded_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[Any] = []
    to_thread = asyncio.to_thread

    async def watched(function: Any, *arguments: Any) -> Any:
        threads.append(function)
        return await to_thread(function, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", watched)
    head = struct.pack(">hhih", ApiKey.METADATA, 1, 1, -1)
    await request_limits.decode(head + struct.pack(">i", 1_000) + b"\0\0" * 1_000)
    assert not threads
    await request_limits.decode(head + struct.pack(">i", 20_000) + b"\0\0" * 20_000)
    assert len(threads) == 1
    await request_limits.decode(encode_request(produce_of(10_000), 9, 1, "raw")[4:])
    assert len(threads) == 2
    one_batch = ProduceRequest.Topic.Partition(index=0, records=batch([bytes(900_000)]))
    topic = ProduceRequest.Topic(name="t", partition_data=[one_batch])
    await request_limits.decode(encode_request(ProduceRequest(topic_data=[topic]), 9, 1, "raw")[4:])
    assert len(threads) == 2


def test_large_produce_responses_are_encoded_off_the_loop(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    encode_response = connection.encode_response

    def watched(response: Any, version: int, correlation_id: int) -> bytes:
        threads.append(threading.current_thread().name.partition("_")[0])
        return encode_response(response, version, correlation_id)

    monkeypatch.setattr(connection, "encode_response", watched)
    for count in (3, 1_000, 2):
        (topic,) = client.ask(produce_of(count), 9).responses
        assert len(topic.partition_responses) == count
    assert [name == "asyncio" for name in threads] == [False, True, False]


def test_items_are_counted_no_further_than_needed() -> None:
    assert count_items(fetch_of(5), MAX_ITEMS) == 6
    assert count_items(MetadataRequest(topics=None), MAX_ITEMS) == 0
    many = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id="g", topics=None)] * 7)
    assert count_items(many, MAX_ITEMS) == 7
    assert 10 < count_items(offset_fetch_of(100), 10) <= 100


@pytest.mark.parametrize("topics", [1, 3, 5_000])
@pytest.mark.parametrize("partitions", [0, 1, 1_999, 2_000, 4_001])
def test_parts_hold_everything_once_and_no_more_than_fits(topics: int, partitions: int) -> None:
    if topics * partitions > 20_000:
        topics = 3
    asked = [OffsetFetchRequest.Topic(name=f"t{n}", partition_indexes=list(range(partitions))) for n in range(topics)]
    parts = list(topic_parts(asked, "partition_indexes"))
    assert all(sum(1 + len(topic.partition_indexes) for topic in part) <= AT_ONCE for part in parts)
    found: dict[str, list[int]] = {}
    for part in parts:
        for topic in part:
            found.setdefault(topic.name, []).extend(topic.partition_indexes)
    assert found == {topic.name: topic.partition_indexes for topic in asked}


def test_a_small_request_for_offsets_is_one_part() -> None:
    request = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id="g", topics=None)])
    assert list(offset_fetch_parts(request)) == [request]


def test_commits_of_unknown_topics_beside_known_ones_are_answered_apart(client: RawClient) -> None:
    create(client, "known")
    assert commit(client, "apart", "known", 3) == ErrorCode.NONE
    one = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=4, committed_metadata="")
    topics = [OffsetCommitRequest.Topic(name=name, partitions=[one]) for name in ("known", "a", "b")]
    answers = merged(client.ask(OffsetCommitRequest(group_id="apart", topics=topics), 8).topics)
    assert dict(answers) == {"a": [(0, 3)], "b": [(0, 3)], "known": [(0, 0)]}


def test_list_offsets_answers_a_partition_asked_for_twice_once(client: RawClient) -> None:
    create(client, "listed", 2)
    parts = [ListOffsetsRequest.Topic.Partition(partition_index=n, timestamp=-1) for n in (0, 1, 0)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequest.Topic(name="listed", partitions=parts)])
    (topic,) = client.ask(request, 5).topics
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [(0, ErrorCode.INVALID_REQUEST), (1, 0)]
