"""Group requests answered where they arrive: the same answers in the same order as those of the connection's task."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any

import pytest

from roster.broker import connection
from roster.broker.direct_requests import DirectRequests
from roster.testing.broker import running_broker
from roster.wire import ErrorCode
from roster.wire.frames import decode_response, encode_request, response_class
from roster.wire.messages import (
    ApiVersionsRequest,
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from tests.broker.batches import batch
from tests.broker.rawclient import RawClient
from tests.broker.test_protocol import produce
from tests.broker.test_restart import create
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from roster.broker import Broker
    from roster.wire import Message

MB = 1 << 20
PROTOCOL = JoinGroupRequest.Protocol(name="range", metadata=b"x" * 50)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"initial_rebalance_delay_ms": 0, "default_partitions": 2}
    with running_broker(tmp_path_factory.mktemp("direct"), **settings) as running:
        with RawClient(running.address) as client:
            create(client, "t", 2)
        yield running


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each piece of data that came while a connection awaited a request: was it handled directly?"""
    seen: list[bool] = []
    take = DirectRequests.take

    def watched(self: DirectRequests, data: bytes) -> bool:
        seen.append(take(self, data))
        return seen[-1]

    monkeypatch.setattr(DirectRequests, "take", watched)
    return seen


def join(group: str, member_id: str = "", **more: Any) -> JoinGroupRequest:
    times = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000}
    return JoinGroupRequest(
        group_id=group, member_id=member_id, protocol_type="consumer", protocols=[PROTOCOL], **times, **more
    )


def commit(group: str, member_id: str, *topics: tuple[str, int]) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=1,
        member_id=member_id,
        topics=[
            OffsetCommitRequest.Topic(
                name=name,
                partitions=[OffsetCommitRequest.Topic.Partition(partition_index=partition, committed_offset=5)],
            )
            for name, partition in topics
        ],
    )


def settled(broker: Broker) -> RawClient:
    """A client whose connection is set up."""
    client = RawClient(broker.address)
    client.ask(ApiVersionsRequest(), 0)
    return client


def a_member(client: RawClient, group: str) -> str:
    member_id: str = client.ask(join(group), 5).member_id
    assert client.ask(join(group, member_id), 5).generation_id == 1
    assert client.ask(SyncGroupRequest(group_id=group, generation_id=1, member_id=member_id), 3).error_code == 0
    return member_id


def life(group: str, member_id: str) -> list[tuple[Message, int]]:
    """Requests of all kinds, good and bad, by one member."""
    unknown: list[tuple[Message, int]] = [
        (HeartbeatRequest(group_id=group, generation_id=1, member_id="stranger"), 3),
        (HeartbeatRequest(group_id="", generation_id=1, member_id="stranger"), 4),
        (SyncGroupRequest(group_id=group, generation_id=9, member_id=member_id), 3),
        (LeaveGroupRequest(group_id=group, members=[LeaveGroupRequest.Member(member_id="stranger")]), 4),
        (commit(group, member_id), 7),
        (commit(group, member_id, ("t", 7), ("no", 0), ("t", 1)), 8),
    ]
    return [
        (HeartbeatRequest(group_id=group, generation_id=1, member_id=member_id), 3),
        (commit(group, member_id, ("t", 0)), 7),
        (ApiVersionsRequest(), 0),
        *unknown,
        (HeartbeatRequest(group_id=group, generation_id=2, member_id=member_id), 4),
        (SyncGroupRequest(group_id=group, generation_id=1, member_id=member_id), 3),
        (LeaveGroupRequest(group_id=group, members=[LeaveGroupRequest.Member(member_id=member_id)]), 4),
        (HeartbeatRequest(group_id=group, generation_id=1, member_id=member_id), 3),
    ]


def answers(client: RawClient, requests: list[tuple[Message, int]], pieces: Iterator[int] | None) -> list[str]:
    """Send requests whole, one at a time, or all of them cut into pieces; return what is answered, in order."""
    received = []
    if pieces is not None:
        frames = b"".join(encode_request(*each, number, "c") for number, each in enumerate(requests))
        while frames:
            size = next(pieces)
            client.socket.sendall(frames[:size])
            frames = frames[size:]
    for number, (request, version) in enumerate(requests):
        if pieces is None:
            client.socket.sendall(encode_request(request, version, number, "c"))
        correlation, response = decode_response(response_class(type(request).__table__.key), version, client.frame())
        assert correlation == number
        received.append(repr(response))
    return received


def test_requests_are_answered_alike_whole_in_pieces_and_at_once(broker: Broker, handled: list[bool]) -> None:
    chance = random.Random(7)
    ways: list[Iterator[int] | None] = [
        None,
        iter(lambda: 1 << 20, 0),
        iter(lambda: chance.randint(1, 9), 0),
        iter(lambda: chance.randint(30, 200), 0),
    ]
    seen = []
    for number, pieces in enumerate(ways):
        with settled(broker) as client:
            member_id = a_member(client, f"g{number}")
            assert any(handled), "nothing was handled directly"
            received = answers(client, life(f"g{number}", member_id), pieces)
            seen.append([each.replace(member_id, "me") for each in received])
    assert seen[1:] == seen[:1] * (len(ways) - 1)


def serving(broker: Broker) -> list[connection.Connection]:
    """The connections that have not ended."""
    return [each for each in list(broker._connections.values()) if hasattr(each, "_direct")]


def parked(broker: Broker, group: str) -> tuple[RawClient, str, RawClient]:
    """A member, and a client whose JoinGroup waits for that member to rejoin."""
    first, second = settled(broker), settled(broker)
    member_id = a_member(first, group)
    other: str = second.ask(join(group), 5).member_id
    second.send(join(group, other), 5)
    until(lambda: any(each._direct.waits for each in serving(broker)))
    return first, member_id, second


def test_a_request_behind_a_join_that_waits_is_answered_after_it(broker: Broker, handled: list[bool]) -> None:
    first, member_id, second = parked(broker, "waits")
    assert handled[-1]
    with first, second:
        second.send(ApiVersionsRequest(), 0)
        second.send(HeartbeatRequest(group_id="waits", generation_id=2, member_id="stranger"), 3)
        assert first.ask(join("waits", member_id), 5).generation_id == 2
        assert second.receive(join("waits"), 5)[1].generation_id == 2
        assert second.receive(ApiVersionsRequest(), 0)[1].error_code == 0
        refused = second.receive(HeartbeatRequest(group_id="waits"), 3)[1]
        assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_join_that_waits_is_given_up_when_its_client_leaves(broker: Broker) -> None:
    first, _, second = parked(broker, "leaves")
    with first:
        second.socket.close()
        until(lambda: not broker.services.group_coordinator._pending._waiting)
        until(lambda: len(broker._connections) == 1)


def test_a_connection_is_not_idle_while_a_join_waits(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[tuple[connection.Connection, Any]] = []
    time_to_begin = connection.Connection._time_to_begin

    def watched(self: connection.Connection, idle_since: float) -> Any:
        timeouts.append((self, time_to_begin(self, idle_since)))
        return timeouts[-1][1]

    monkeypatch.setattr(connection.Connection, "_time_to_begin", watched)
    first, member_id, second = parked(broker, "idle")
    with first, second:
        waiting = next(each for each in serving(broker) if each._direct.waits)
        own = [timeout for owner, timeout in timeouts if owner is waiting]
        expire(waiting, own[-1])
        until(lambda: len([1 for owner, _ in timeouts if owner is waiting]) > len(own))
        assert first.ask(join("idle", member_id), 5).generation_id == 2
        assert second.receive(join("idle"), 5)[1].generation_id == 2
        latest = len(timeouts)
        expire(waiting, next(timeout for owner, timeout in reversed(timeouts) if owner is waiting))
        until(lambda: len(timeouts) > latest)  # the answer counts as activity
        expire(waiting, next(timeout for owner, timeout in reversed(timeouts) if owner is waiting))
        assert second.is_closed()


def expire(owner: connection.Connection, timeout: Any) -> None:
    """Have a timeout expire now."""
    assert owner._task is not None
    loop = owner._task.get_loop()
    loop.call_soon_threadsafe(lambda: timeout.reschedule(loop.time()))


def test_a_commit_under_way_is_answered_when_the_broker_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that leaves without an answer would commit again; the offset is there once it is acknowledged."""
    with running_broker(tmp_path, initial_rebalance_delay_ms=0) as broker:
        with RawClient(broker.address) as client:
            create(client, "t", 1)
        client = settled(broker)
        member_id = a_member(client, "stops")
        flusher = broker.services.flusher
        run, release = type(flusher)._run, asyncio.Event()

        async def held(self: Any) -> None:
            await release.wait()
            await run(self)

        monkeypatch.setattr(type(flusher), "_run", held)
        client.send(commit("stops", member_id, ("t", 0)), 7)
        until(lambda: any(each._direct.under_way is not None for each in serving(broker)))
        task = next(iter(broker._connections))
        task.get_loop().call_soon_threadsafe(lambda: task.get_loop().call_later(0.1, release.set))
    with client:
        (topic,) = client.receive(commit("stops", member_id), 7)[1].topics
        assert topic.partitions[0].error_code == 0


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with running_broker(tmp_path, send_timeout_ms=200) as broker, RawClient(broker.address) as client:
        create(client, "t")
        for _ in range(48):
            assert produce(client, "t", batch([b"x" * (MB // 2)])).error_code == ErrorCode.NONE
        partition = FetchRequest.Topic.Partition(partition=0, fetch_offset=0, partition_max_bytes=55 * MB)
        topic = FetchRequest.Topic(topic="t", partitions=[partition])
        client.send(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=55 * MB, topics=[topic]), 12)
        until(lambda: "send timeout" in caplog.text)
        until(lambda: not broker._connections)
