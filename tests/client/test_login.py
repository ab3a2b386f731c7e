"""Logins on a connection: before the first request, again when due, refused; requests wait meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from roster.client import AuthenticationError, ClientError, UnreachableError, UnsupportedError
from roster.client.connection import Connection
from roster.security import Security, login, parse_security
from roster.wire import ApiKey, ErrorCode, Message
from roster.wire.frames import RequestHeader
from roster.wire.messages import (
    ApiVersionsRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.client.scripted_broker import scripted_broker, send, versions

KNOWN = versions(
    (ApiKey.API_VERSIONS, 0, 4),
    (ApiKey.HEARTBEAT, 0, 4),
    (ApiKey.SASL_HANDSHAKE, 0, 1),
    (ApiKey.SASL_AUTHENTICATE, 0, 2),
)


def plain(password: str = "right") -> Security:
    return parse_security(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": password,
        }
    )


class Broker:
    """Knows one user; closes a connection that asks for more than versions before a login."""

    def __init__(self, lifetime_ms: int = 0) -> None:
        self.lifetime_ms, self.password = lifetime_ms, "right"
        self.asked: list[str] = []

    async def __call__(self, header: RequestHeader, message: Message, writer: asyncio.StreamWriter) -> None:
        self.asked.append(type(message).__name__.removesuffix("Request"))
        match message:
            case ApiVersionsRequest():
                send(writer, header, KNOWN)
            case SaslHandshakeRequest(mechanism=mechanism):
                assert header.api_version == 1
                code = ErrorCode.NONE if mechanism == "PLAIN" else ErrorCode.UNSUPPORTED_SASL_MECHANISM
                send(writer, header, SaslHandshakeResponse(error_code=code, mechanisms=["PLAIN"]))
            case SaslAuthenticateRequest(auth_bytes=sent):
                right = sent == f"\0u\0{self.password}".encode()
                code = ErrorCode.NONE if right else ErrorCode.SASL_AUTHENTICATION_FAILED
                reply = SaslAuthenticateResponse(
                    error_code=code, error_message="go away", session_lifetime_ms=self.lifetime_ms
                )
                send(writer, header, reply)
            case HeartbeatRequest():
                send(writer, header, HeartbeatResponse())


async def beat(connection: Connection) -> None:
    assert isinstance(await connection.request(HeartbeatRequest(group_id="g"), 5), HeartbeatResponse)


async def test_a_session_without_end_logs_in_once() -> None:
    broker = Broker()
    async with scripted_broker(broker) as (host, port):
        connection = await Connection.open(host, port, "me", 5, plain())
        await beat(connection)
        await beat(connection)
        connection.close()
    assert broker.asked == ["ApiVersions", "SaslHandshake", "SaslAuthenticate", "Heartbeat", "Heartbeat"]


@pytest.fixture
def due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "RENEW_AFTER", 0)


@pytest.mark.usefixtures("due_at_once")
async def test_a_login_that_is_due_is_renewed_once_before_the_requests_that_wait() -> None:
    broker = Broker(lifetime_ms=1)
    async with scripted_broker(broker) as (host, port):
        connection = await Connection.open(host, port, "me", 5, plain())
        broker.lifetime_ms = 0
        await asyncio.gather(*(beat(connection) for _ in range(3)))
        connection.close()
    logins = ["SaslHandshake", "SaslAuthenticate"]
    assert broker.asked == ["ApiVersions", *logins, *logins, "Heartbeat", "Heartbeat", "Heartbeat"]


@pytest.mark.usefixtures("due_at_once")
async def test_a_renewal_that_is_refused_ends_the_connection() -> None:
    broker = Broker(lifetime_ms=1)
    async with scripted_broker(broker) as (host, port):
        connection = await Connection.open(host, port, "me", 5, plain())
        broker.password = "changed"
        with pytest.raises(AuthenticationError, match=r"refused user 'u'.*\(it said: go away\)"):
            await beat(connection)
        assert connection.closed


@pytest.mark.parametrize(
    ("security", "error", "said"),
    [
        (plain("wrong-one"), AuthenticationError, "check sasl.username, sasl.password"),
        (
            Security("SASL_PLAINTEXT", "SCRAM-SHA-256", "u", "wrong-one"),
            AuthenticationError,
            "does not offer sasl.mechanism=SCRAM-SHA-256; it offers PLAIN",
        ),
    ],
)
async def test_a_refused_login_is_one_error(security: Security, error: type[ClientError], said: str) -> None:
    async with scripted_broker(Broker()) as (host, port):
        with pytest.raises(error, match=said) as caught:
            await Connection.open(host, port, "me", 5, security)
        assert "wrong-one" not in str(caught.value)


async def test_a_broker_without_sasl_authenticate_is_too_old() -> None:
    async def answer(header: RequestHeader, message: Message, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, ApiVersionsRequest):
            send(writer, header, versions((ApiKey.API_VERSIONS, 0, 2), (ApiKey.SASL_HANDSHAKE, 0, 0)))
        else:
            send(writer, header, SaslHandshakeResponse(mechanisms=["PLAIN"]))

    async with scripted_broker(answer) as (host, port):
        with pytest.raises(UnsupportedError, match="does not know SASL_AUTHENTICATE requests; use a newer broker"):
            await Connection.open(host, port, "me", 5, plain())


def bearer(function: Callable[[], object]) -> Security:
    return parse_security(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.function": function,
        }
    )


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (lambda: 5, AuthenticationError, "token.function: returned int; return the token as text"),
        (lambda: 1 // 0, UnreachableError, "token.function failed: ZeroDivisionError"),
    ],
)
async def test_a_token_function_that_fails(function: Callable[[], object], error: type[ClientError], said: str) -> None:
    async with scripted_broker(Broker()) as (host, port):
        with pytest.raises(error, match=said):
            await Connection.open(host, port, "me", 5, bearer(function))


async def test_a_listener_that_speaks_tls_is_named() -> None:
    async def answer(_: RequestHeader, __: Message, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex("15030300020250"))
        writer.close()

    async with scripted_broker(answer) as (host, port):
        with pytest.raises(AuthenticationError, match=r"it speaks TLS; set security\.protocol=SSL, or SASL_SSL"):
            await Connection.open(host, port, "me", 5)


def test_no_message_shows_what_it_carries() -> None:
    shown = repr([SaslAuthenticateRequest(auth_bytes=b"hidden"), SaslAuthenticateResponse(auth_bytes=b"hidden")])
    assert "hidden" not in shown
