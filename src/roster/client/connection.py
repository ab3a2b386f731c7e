"""One connection to one broker: versions agreed on, requests pipelined, answers matched by correlation id."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Self

from roster._version import __version__
from roster.client.api_versions import choose_version, from_version, to_version
from roster.client.errors import (
    BrokerError,
    ClientError,
    InvalidRequestError,
    RequestTimeoutError,
    UnreachableError,
    UnsupportedError,
)
from roster.model import Address
from roster.wire import API_VERSIONS, ApiKey, ErrorCode, Message, Versions, WireError, response_class
from roster.wire.frames import decode_response, encode_request
from roster.wire.messages import ApiVersionsRequest, ApiVersionsResponse

MAX_FRAME = 1 << 30
"""A larger response is not one of a Kafka broker."""

SOFTWARE = ("roster", __version__)


class Connection:
    """An open connection, for one event loop.

    A request that times out closes the connection: nothing behind it would be answered before it. Every request in
    flight when the connection ends raises UnreachableError.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, client_id: str
    ) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._spoken: Mapping[int, Versions] = {ApiKey.API_VERSIONS: API_VERSIONS[ApiKey.API_VERSIONS]}
        self._next = 0
        self._waiting: dict[int, tuple[Message, int, asyncio.Future[Message]]] = {}
        self._end: str | None = None
        self._reading = asyncio.create_task(self._read(), name=f"roster reads {address}")

    @classmethod
    async def open(cls, host: str, port: int, client_id: str, timeout: float) -> Self:
        """Connect and agree on versions within `timeout` seconds; UnreachableError, or UnsupportedError."""
        address = str(Address(host, port))
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(host, port)
                connection = cls(reader, writer, address, client_id)
                try:
                    await connection._agree(timeout)
                except BaseException:
                    connection.close("no agreement on versions")
                    raise
        except TimeoutError:
            raise UnreachableError(f"no answer from {address} within {timeout:g} s") from None
        except OSError as error:
            raise UnreachableError(f"cannot connect to {address}: {error.strerror or error}") from None
        return connection

    @property
    def closed(self) -> bool:
        """True once the connection has ended."""
        return self._end is not None

    async def request(self, message: Message, timeout: float) -> Message:
        """Send a request and await its response, both in the newest shape of their message."""
        version = choose_version(message, self._spoken, self.address)
        return await self._request(message, version, timeout)

    async def _agree(self, timeout: float) -> None:
        request = ApiVersionsRequest(client_software_name=SOFTWARE[0], client_software_version=SOFTWARE[1])
        version = API_VERSIONS[ApiKey.API_VERSIONS].high
        response = await self._request(request, version, timeout)
        assert isinstance(response, ApiVersionsResponse)  # noqa: S101 - decoded as such
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = [entry.max_version for entry in response.api_keys if entry.api_key == ApiKey.API_VERSIONS]
            response = await self._request(request, min([*offered, version - 1]) if offered else 0, timeout)
            assert isinstance(response, ApiVersionsResponse)  # noqa: S101 - as above
        if response.error_code != ErrorCode.NONE:
            raise UnsupportedError(f"{self.address} did not say which versions it speaks (error {response.error_code})")
        self._spoken = {e.api_key: Versions(e.min_version, e.max_version) for e in response.api_keys}

    async def _request(self, message: Message, version: int, timeout: float) -> Message:
        if self._end is not None:
            raise UnreachableError(f"the connection to {self.address} is closed: {self._end}")
        self._next = (self._next + 1) & 0x7FFFFFFF
        number = self._next
        try:
            frame = encode_request(to_version(message, version), version, number, self._client_id)
        except WireError as error:
            raise _unwritable(message, version, self.address, error) from None
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (message, version, answer)
        self._writer.write(frame)
        try:
            async with asyncio.timeout(timeout):
                await self._writer.drain()
                return await answer
        except TimeoutError:
            name = type(message).__name__.removesuffix("Request")
            self.close(f"{name} was not answered within {timeout:g} s")
            raise RequestTimeoutError(f"{name} was not answered by {self.address} within {timeout:g} s") from None
        except OSError as error:
            self.close(str(error))
            raise UnreachableError(f"the connection to {self.address} broke: {error}") from None
        finally:
            if self._waiting.pop(number, None) is not None and answer.done() and not answer.cancelled():
                answer.exception()  # retrieved, so that nothing complains about it

    async def _read(self) -> None:
        reason = "the broker closed it"
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big", signed=True)
                if not 4 <= size <= MAX_FRAME:
                    reason = f"a frame of {size} bytes announced; is this a Kafka broker?"
                    return
                self._take(await self._reader.readexactly(size))
        except asyncio.IncompleteReadError:
            pass
        except (OSError, ClientError, WireError) as error:
            reason = str(error)
        finally:
            self.close(reason)

    def _take(self, frame: bytes) -> None:
        number = int.from_bytes(frame[:4], "big", signed=True)
        if number not in self._waiting:
            raise BrokerError(f"{self.address} answered a request that was not sent")
        request, version, answer = self._waiting[number]
        key = request.__table__.key
        assert key is not None  # noqa: S101 - it was sent
        _, response = decode_response(response_class(key), version, frame)
        if not answer.done():
            answer.set_result(from_version(request, response, version))

    def close(self, reason: str = "closed") -> None:
        """Close; requests in flight fail with `reason`."""
        if self._end is not None:
            return
        self._end = reason
        self._writer.close()
        if self._reading is not asyncio.current_task():
            self._reading.cancel()
        for _, _, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(UnreachableError(f"the connection to {self.address} ended: {reason}"))


def _unwritable(message: Message, version: int, address: str, error: WireError) -> ClientError:
    """Classify a request that cannot be written: the caller's error if its newest version cannot be written either."""
    newest = type(message).__table__.versions.high
    if version < newest:
        try:
            encode_request(message, newest, 0, "")
        except WireError:
            pass
        else:
            return UnsupportedError(f"the broker at {address} is too old for this request: {error}")
    return InvalidRequestError(f"no request can carry this value: {error}")
