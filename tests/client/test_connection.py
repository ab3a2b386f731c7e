"""A connection: versions agreed on, answers matched, and whatever a peer may send told in one clear error."""

from __future__ import annotations

import asyncio

import pytest

from roster.client import (
    Admin,
    BrokerError,
    ClientError,
    InvalidRequestError,
    RequestTimeoutError,
    UnreachableError,
    UnsupportedError,
)
from roster.client.connection import Connection
from roster.wire import ApiKey, ErrorCode, Message
from roster.wire.frames import RequestHeader
from roster.wire.messages import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
)
from tests.client.scripted_broker import scripted_broker, send, versions

KNOWN = versions((ApiKey.API_VERSIONS, 0, 4), (ApiKey.HEARTBEAT, 0, 4), (ApiKey.FIND_COORDINATOR, 0, 2))


async def test_answers_find_their_requests_in_a_pipeline() -> None:
    held: list[RequestHeader] = []

    async def answer(header: RequestHeader, message: Message, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, ApiVersionsRequest):
            send(writer, header, KNOWN)
            return
        held.append(header)
        if len(held) == 3:
            for number, waiting in enumerate(held):
                send(writer, waiting, HeartbeatResponse(throttle_time_ms=number))

    async with scripted_broker(answer) as (host, port):
        connection = await Connection.open(host, port, "me", 5)
        answers = await asyncio.gather(*(connection.request(HeartbeatRequest(group_id="g"), 5) for _ in range(3)))
        assert [a.throttle_time_ms for a in answers if isinstance(a, HeartbeatResponse)] == [0, 1, 2]
        assert {header.client_id for header in held} == {"me"}
        connection.close()


async def test_a_broker_that_does_not_know_our_apiversions_is_asked_in_the_version_it_offers() -> None:
    """KIP-511: the refusal comes in v0 and says what is spoken."""
    asked = []

    async def answer(header: RequestHeader, message: Message, writer: asyncio.StreamWriter) -> None:
        asked.append((header.api_key, header.api_version))
        if isinstance(message, HeartbeatRequest):
            send(writer, header, HeartbeatResponse())
        elif header.api_version > 2:
            refusal = versions((ApiKey.API_VERSIONS, 0, 2), error=ErrorCode.UNSUPPORTED_VERSION)
            send(writer, header, refusal, version=0)
        else:
            send(writer, header, versions((ApiKey.HEARTBEAT, 0, 1)))

    async with scripted_broker(answer) as (host, port):
        connection = await Connection.open(host, port, "me", 5)
        await connection.request(HeartbeatRequest(group_id="g"), 5)
        connection.close()
    assert asked == [(ApiKey.API_VERSIONS, 4), (ApiKey.API_VERSIONS, 2), (ApiKey.HEARTBEAT, 1)]


async def test_requests_are_folded_into_the_version_both_sides_speak() -> None:
    async def answer(header: RequestHeader, message: Message, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, ApiVersionsRequest):
            send(writer, header, KNOWN)
            return
        assert isinstance(message, FindCoordinatorRequest)
        assert (header.api_version, message.key) == (2, "g")
        send(writer, header, FindCoordinatorResponse(node_id=7, host="h", port=1))

    async with scripted_broker(answer) as (host, port):
        connection = await Connection.open(host, port, "me", 5)
        response = await connection.request(FindCoordinatorRequest(coordinator_keys=["g"]), 5)
        assert isinstance(response, FindCoordinatorResponse)
        (found,) = response.coordinators
        assert (found.key, found.node_id, found.host, found.port) == ("g", 7, "h", 1)
        connection.close()


async def test_what_a_broker_does_not_speak_is_unsupported_and_named() -> None:
    async def answer(header: RequestHeader, message: Message, writer: asyncio.StreamWriter) -> None:
        send(writer, header, versions((ApiKey.HEARTBEAT, 20, 30), (ApiKey.JOIN_GROUP, 0, 4)))

    async with scripted_broker(answer) as (host, port):
        connection = await Connection.open(host, port, "me", 5)
        with pytest.raises(UnsupportedError, match="does not know FIND_COORDINATOR"):
            await connection.request(FindCoordinatorRequest(coordinator_keys=["g"]), 5)
        with pytest.raises(UnsupportedError, match="speaks HEARTBEAT in versions 20-30, this client in 0-4"):
            await connection.request(HeartbeatRequest(group_id="g"), 5)
        with pytest.raises(UnsupportedError, match="group_instance_id"):
            await connection.request(JoinGroupRequest(group_id="g", group_instance_id="i"), 5)
        connection.close()


async def test_a_request_without_an_answer_times_out_and_ends_the_connection() -> None:
    async def answer(header: RequestHeader, message: Message, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, ApiVersionsRequest):
            send(writer, header, KNOWN)

    async with scripted_broker(answer) as (host, port):
        connection = await Connection.open(host, port, "me", 5)
        with pytest.raises(RequestTimeoutError, match="Heartbeat was not answered"):
            await connection.request(HeartbeatRequest(group_id="g"), 0.05)
        assert connection.closed
        with pytest.raises(UnreachableError, match="is closed"):
            await connection.request(HeartbeatRequest(group_id="g"), 1)


GARBAGE = {
    "half a frame": b"\x00\x00\x00\x08\x00",
    "no bytes": b"",
    "a negative size": b"\xff\xff\xff\xff",
    "an enormous size": b"\x7f\xff\xff\xff",
    "a size too small": b"\x00\x00\x00\x02\x00\x00",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an unknown correlation id": b"\x00\x00\x00\x06\x00\x00\x00\x63\x00\x00",
    "a body that is none": b"\x00\x00\x00\x06\x00\x00\x00\x02\xff\xff",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_garbage_is_one_client_error_and_the_end_of_the_connection(garbage: bytes) -> None:
    async def answer(header: RequestHeader, message: Message, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, ApiVersionsRequest):
            send(writer, header, KNOWN)
        else:
            writer.write(garbage)
            writer.close()

    async with scripted_broker(answer) as (host, port):
        connection = await Connection.open(host, port, "me", 5)
        with pytest.raises(ClientError):
            await connection.request(HeartbeatRequest(group_id="g"), 5)
        assert connection.closed


async def test_nobody_listening_is_unreachable() -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(UnreachableError, match=f"cannot connect to 127.0.0.1:{port}"):
        await Connection.open("127.0.0.1", port, "me", 5)


async def test_a_peer_that_says_nothing_is_unreachable_within_the_timeout() -> None:
    async def answer(header: RequestHeader, message: Message, writer: asyncio.StreamWriter) -> None:
        """Say nothing."""

    async with scripted_broker(answer) as (host, port):
        with pytest.raises(ClientError, match=r"not answered|no answer"):
            await Connection.open(host, port, "me", 0.05)


def test_error_classes_form_one_family() -> None:
    assert issubclass(BrokerError, ClientError)
    assert UnreachableError("x").retriable
    assert not UnsupportedError("x").retriable


async def test_a_value_that_no_version_can_carry_is_not_the_fault_of_the_broker() -> None:
    async def answer(header: RequestHeader, _: Message, writer: asyncio.StreamWriter) -> None:
        send(writer, header, KNOWN)

    async with scripted_broker(answer) as (host, port):
        connection = await Connection.open(host, port, "me", 5)
        for request in (HeartbeatRequest(generation_id=2**40), HeartbeatRequest(group_id="\udcff")):
            with pytest.raises(InvalidRequestError, match="no request can carry this value"):
                await connection.request(request, 5)
        connection.close()


async def test_a_value_that_an_old_version_cannot_carry_is() -> None:
    async def answer(header: RequestHeader, _: Message, writer: asyncio.StreamWriter) -> None:
        send(writer, header, versions((ApiKey.API_VERSIONS, 0, 4), (ApiKey.HEARTBEAT, 0, 2)))

    async with scripted_broker(answer) as (host, port):
        connection = await Connection.open(host, port, "me", 5)
        with pytest.raises(UnsupportedError, match=f"the broker at {host}:{port} is too old for this request"):
            await connection.request(HeartbeatRequest(group_instance_id="static"), 5)
        connection.close()


async def test_the_sentence_about_an_unreachable_cluster_has_one_mark_at_its_end() -> None:
    async def answer(_: RequestHeader, __: Message, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with scripted_broker(answer) as (host, port):
        with (
            Admin(f"{host}:{port}", request_timeout_ms=5000) as admin,
            pytest.raises(UnreachableError, match=r"is this a Kafka broker\? Check the bootstrap address"),
        ):
            await asyncio.to_thread(admin.list_topics)
