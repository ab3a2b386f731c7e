"""Logins of a task's connections against a scripted broker: before the first request, again when due, refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from roster.model import Address
from roster.records.connections import Connections, Reply
from roster.security import PLAINTEXT, Security, login
from roster.wire.messages import HeartbeatRequest, HeartbeatResponse
from tests.client.scripted_broker import scripted_broker
from tests.client.test_login import Broker, bearer, plain


@contextmanager
def serving(broker: Broker) -> Iterator[Address]:
    """The scripted broker on a thread of its own, for connections that block."""
    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    where: list[Address] = []

    async def serve() -> None:
        async with scripted_broker(broker) as (host, port):
            where.append(Address(host, port))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    started.wait()
    try:
        yield where[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def ask(connections: Connections, address: Address) -> Reply:
    connections.send(1, address, HeartbeatRequest(group_id="g"))
    while not (replies := connections.poll(1.0)):
        pass
    (reply,) = replies
    return reply


@contextmanager
def connected(security: Security) -> Iterator[Connections]:
    connections = Connections("me", 5.0, security)
    yield connections
    connections.close()


LOGIN = ["SaslHandshake", "SaslAuthenticate"]


def test_a_session_without_end_logs_in_once() -> None:
    broker = Broker()
    with serving(broker) as address, connected(plain()) as connections:
        for _ in range(2):
            assert isinstance(ask(connections, address).response, HeartbeatResponse)
    assert broker.asked == ["ApiVersions", *LOGIN, "Heartbeat", "Heartbeat"]


def test_a_login_that_is_due_is_renewed_before_the_next_request() -> None:
    broker = Broker(lifetime_ms=1_000)
    with serving(broker) as address, connected(plain()) as connections:
        assert isinstance(ask(connections, address).response, HeartbeatResponse)
        (connection,) = connections._connections.values()
        connection.renew_at, broker.lifetime_ms = 0.0, 0
        for _ in range(2):
            assert isinstance(ask(connections, address).response, HeartbeatResponse)
    assert broker.asked == ["ApiVersions", *LOGIN, "Heartbeat", *LOGIN, "Heartbeat", "Heartbeat"]


@pytest.mark.parametrize(
    ("security", "is_refused", "said"),
    [
        (plain("wrong-one"), True, "check sasl.username, sasl.password"),
        (Security("SASL_PLAINTEXT", "SCRAM-SHA-256", "u", "wrong-one"), True, "it offers PLAIN"),
        (bearer(lambda: 5), True, "returned int"),
        (bearer(lambda: 1 // 0), False, "ZeroDivisionError"),
    ],
)
def test_a_refused_login_is_a_reply_that_says_so(security: Security, is_refused: bool, said: str) -> None:
    with serving(Broker()) as address, connected(security) as connections:
        reply = ask(connections, address)
    assert reply.response is None
    assert reply.is_refused is is_refused
    assert said in reply.problem
    assert "wrong-one" not in reply.problem


def test_without_security_nothing_is_sent_before_the_request() -> None:
    broker = Broker()
    with serving(broker) as address, connected(PLAINTEXT) as connections:
        assert isinstance(ask(connections, address).response, HeartbeatResponse)
    assert broker.asked == ["ApiVersions", "Heartbeat"]


def test_a_session_is_renewed_after_most_of_its_life() -> None:
    exchange = login.Login(plain())
    exchange.session_lifetime_ms = 10_000
    assert exchange.renew_after == pytest.approx(8.5)
