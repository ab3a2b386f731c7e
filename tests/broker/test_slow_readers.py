"""Clients that ask for much and read little: what they cost, and that it goes back when they are gone."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from roster.broker import connection
from roster.broker.log.record_range import PIECE_BYTES
from roster.testing.broker import running_broker
from roster.wire import ErrorCode
from roster.wire.messages import FetchRequest, MetadataRequest
from tests.broker.batches import base_offsets, batch
from tests.broker.rawclient import RawClient
from tests.broker.test_protocol import produce
from tests.broker.test_restart import create
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from roster.broker import Broker

MB = 1 << 20
BATCHES = 24


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Path]]:
    """A broker with 24 MB in one partition."""
    data_dir = tmp_path_factory.mktemp("big")
    with running_broker(data_dir) as broker:
        with RawClient(broker.address) as client:
            create(client, "t", 2)
            for n in range(BATCHES):
                assert produce(client, "t", batch([b"%02d" % n * (MB // 2 - 100)])).error_code == ErrorCode.NONE
            for n in range(3):
                assert produce(client, "t", batch([b"%d" % n]), partition=1).error_code == ErrorCode.NONE
        yield broker, data_dir


def asked(*partitions: int, **limits: Any) -> FetchRequest:
    wanted = [
        FetchRequest.Topic.Partition(partition=partition, fetch_offset=0, partition_max_bytes=55 * MB)
        for partition in partitions
    ]
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 55 * MB, **limits}
    return FetchRequest(**limits, topics=[FetchRequest.Topic(topic="t", partitions=wanted)])


def unsent(broker: Broker) -> int:
    assert broker._services is not None
    return broker._services.unsent_bytes


def test_a_response_much_larger_than_a_piece_has_the_bytes_of_the_log(big: tuple[Broker, Path]) -> None:
    broker, data_dir = big
    with RawClient(broker.address) as client:
        small, large = client.ask(asked(1, 0), 12).responses[0].partitions
    assert bytes(large.records) == (data_dir / "topics/t/0/00000000000000000000.log").read_bytes()
    assert base_offsets(bytes(small.records)) == [0, 1, 2]
    until(lambda: unsent(broker) == 0)


@pytest.mark.parametrize("waits", [False, True])
def test_readers_that_do_not_read_hold_two_pieces_each(big: tuple[Broker, Path], waits: bool) -> None:
    """Also those whose fetch waited, when all of them wake up at once."""
    broker, _ = big
    limits = {"min_bytes": 2**31 - 1, "max_wait_ms": 50} if waits else {}
    clients = [RawClient(broker.address) for _ in range(20)]
    for client in clients:
        client.send(asked(0, **limits), 12)
    until(lambda: unsent(broker) > 0)
    with RawClient(broker.address) as client:
        for _ in range(20):
            client.ask(MetadataRequest(topics=[]), 12)
            assert unsent(broker) < (len(clients) * 2 + 1) * PIECE_BYTES
    for client in clients:
        client.socket.close()
    until(lambda: unsent(broker) == 0)


def test_beyond_the_limit_a_fetch_gets_one_batch_also_if_it_had_to_wait(tmp_path: Path) -> None:
    with running_broker(tmp_path, max_buffered_bytes=4 * PIECE_BYTES) as broker, RawClient(broker.address) as client:
        create(client, "t")
        for _ in range(32):
            assert produce(client, "t", batch([b"x" * (MB // 2)])).error_code == ErrorCode.NONE
        slow = [RawClient(broker.address) for _ in range(4)]
        with RawClient(broker.address) as waiting:
            waiting.send(asked(0, min_bytes=2**31 - 1, max_wait_ms=1_500), 12)
            for other in slow:
                other.send(asked(0), 12)
            until(lambda: unsent(broker) >= 3 * PIECE_BYTES)
            _, answer = waiting.receive(asked(0), 12)
        assert base_offsets(bytes(answer.responses[0].partitions[0].records)) == [0]
        for other in slow:
            other.socket.close()
        until(lambda: unsent(broker) == 0)


def test_a_connection_that_ended_is_free_without_the_cyclic_collector(
    big: tuple[Broker, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client leaves while a response is being sent: nothing that was raised keeps the connection alive."""
    broker, _ = big
    seen: list[weakref.ref[connection.Connection]] = []
    serve = connection.Connection.serve

    async def watched(self: connection.Connection) -> None:
        seen.append(weakref.ref(self))
        await serve(self)

    monkeypatch.setattr(connection.Connection, "serve", watched)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            client = RawClient(broker.address)
            client.send(asked(0), 12)
            client.socket.recv(100)
            client.socket.close()
        until(lambda: not broker._connections and len(seen) == 5)
        with RawClient(broker.address) as client:
            client.ask(MetadataRequest(topics=[]), 12)
        until(lambda: not any(ref() for ref in seen[:5]), 5)
    finally:
        gc.enable()
