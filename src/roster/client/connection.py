"""One connection to one broker: versions agreed on, requests pipelined, answers matched by correlation id."""

import asyncio
from collections.abc import Mapping
from copy import copy
from typing import Self

from roster._version import __version__
from roster.client.errors import (
    AuthenticationError,
    BrokerError,
    ClientError,
    InvalidRequestError,
    RequestTimeoutError,
    UnreachableError,
    UnsupportedError,
)
from roster.model import Address
from roster.security import PLAINTEXT, AuthenticationFailed, Security, SettingError
from roster.security.begin_login import TokenError, begin_login
from roster.security.login import Login
from roster.security.tls import cut_off, is_cut_off, is_tls_alert, tls_context, tls_problem
from roster.wire import API_VERSIONS, ApiKey, ErrorCode, Message, Versions, WireError, response_class
from roster.wire.frames import FIRST_API_VERSIONS, decode_response, encode_request
from roster.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DeleteTopicsRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    LeaveGroupRequest,
    MetadataRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)


def choose_version(message: Message, spoken: Mapping[int, Versions], broker: str, highest: int | None = None) -> int:
    """Choose the highest version of the request that both sides support; UnsupportedError if no version is common.

    `highest` limits it for a request whose later versions mean something else.
    """
    key = message.__table__.key
    assert key is not None  # only requests come here
    name = ApiKey(key).name
    theirs, ours = spoken.get(key), API_VERSIONS[key]
    if theirs is None:
        raise UnsupportedError(f"the broker at {broker} does not know {name} requests; use a newer broker")
    version = min(ours.high, theirs.high, ours.high if highest is None else highest)
    if version < max(ours.low, theirs.low):
        raise UnsupportedError(
            f"the broker at {broker} speaks {name} in versions {theirs}, this client in {ours}; use a matching release"
        )
    return version


def to_version(message: Message, version: int) -> Message:
    """Fold a request into the shape that `version` has."""
    match message:
        case FindCoordinatorRequest() if version < 4:
            return FindCoordinatorRequest(key=message.coordinator_keys[0], key_type=message.key_type)
        case LeaveGroupRequest() if version < 3:
            return LeaveGroupRequest(group_id=message.group_id, member_id=message.members[0].member_id)
        case MetadataRequest() if version < 4 and not message.allow_auto_topic_creation:
            folded = copy(message)
            folded.allow_auto_topic_creation = True
            return folded
        case OffsetFetchRequest() if version < 8:
            group, stable = message.groups[0], message.require_stable and version >= 7
            return OffsetFetchRequest(group_id=group.group_id, topics=group.topics, require_stable=stable)
        case DeleteTopicsRequest() if version < 6:
            names = [topic.name or "" for topic in message.topics]
            return DeleteTopicsRequest(topic_names=names, timeout_ms=message.timeout_ms)
    return message


def from_version(request: Message, response: Message, version: int) -> Message:
    """Unfold a response into its newest shape."""
    match request, response:
        case FindCoordinatorRequest(), FindCoordinatorResponse() if version < 4:
            coordinator = FindCoordinatorResponse.Coordinator(
                key=request.coordinator_keys[0],
                node_id=response.node_id,
                host=response.host,
                port=response.port,
                error_code=response.error_code,
                error_message=response.error_message,
            )
            return FindCoordinatorResponse(throttle_time_ms=response.throttle_time_ms, coordinators=[coordinator])
        case OffsetFetchRequest(), OffsetFetchResponse() if version < 8:
            group_id, code = request.groups[0].group_id, response.error_code
            answer = OffsetFetchResponse.Group(group_id=group_id, topics=response.topics, error_code=code)
            return OffsetFetchResponse(throttle_time_ms=response.throttle_time_ms, groups=[answer])
    return response


MAX_FRAME = 1 << 30
"""A larger response is not one of a Kafka broker."""

SOFTWARE = ("roster", __version__)
_readers: set[asyncio.Task[None]] = set()
"""Tasks of open connections: event loops hold tasks weakly, so a waiting task could be collected."""


class Connection:
    """An open connection, for one event loop.

    A request that times out closes the connection: a broker answers later requests only after it. Every request in
    flight when the connection ends raises UnreachableError, or AuthenticationError if that is why it ended. If the
    broker limits sessions, requests wait while the login is renewed (KIP-368).
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: str,
        client_id: str,
        security: Security = PLAINTEXT,
    ) -> None:
        self.address = address
        self._security = security
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._spoken: Mapping[int, Versions] = {ApiKey.API_VERSIONS: API_VERSIONS[ApiKey.API_VERSIONS]}
        self._next = 0
        self._waiting: dict[int, tuple[Message, int, asyncio.Future[Message]]] = {}
        self._end: str | None = None
        self._renewing = asyncio.Lock()
        self._renew_at: float | None = None
        self._is_known = False  # until it has answered more than the request that every listener answers
        self._reading = asyncio.create_task(self._read(), name=f"roster reads {address}")
        _readers.add(self._reading)
        self._reading.add_done_callback(_readers.discard)

    @classmethod
    async def open(cls, host: str, port: int, client_id: str, timeout: float, security: Security = PLAINTEXT) -> Self:
        """Connect, agree on versions and log in within `timeout` seconds.

        Raises UnreachableError, UnsupportedError, or AuthenticationError where another attempt would not help.
        """
        address = str(Address(host, port))
        context = tls_context(security) if security.uses_tls else None
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(host, port, ssl=context)
                connection = cls(reader, writer, address, client_id, security)
                try:
                    await connection._agree(timeout)
                    if security.uses_sasl:
                        await connection._login(timeout)
                except BaseException:
                    connection.close("no agreement on versions")
                    raise
        except TimeoutError:
            raise UnreachableError(f"no answer from {address} within {timeout:g} s") from None
        except OSError as error:
            raise _no_connection(error, address, security) from None
        return connection

    @property
    def closed(self) -> bool:
        """True once the connection has ended."""
        return self._end is not None

    async def request(self, message: Message, timeout: float, highest: int | None = None) -> Message:
        """Send a request, in version `highest` at most, and await its response, both in their newest shape."""
        if self._is_due():
            async with self._renewing:
                if self._is_due():
                    await self._login(timeout)
        version = choose_version(message, self._spoken, self.address, highest)
        return await self._request(message, version, timeout)

    async def _agree(self, timeout: float) -> None:
        request = ApiVersionsRequest(client_software_name=SOFTWARE[0], client_software_version=SOFTWARE[1])
        version = FIRST_API_VERSIONS
        response = await self._request(request, version, timeout)
        assert isinstance(response, ApiVersionsResponse)  # decoded as such
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = [entry.max_version for entry in response.api_keys if entry.api_key == ApiKey.API_VERSIONS]
            response = await self._request(request, min([*offered, version - 1]) if offered else 0, timeout)
            assert isinstance(response, ApiVersionsResponse)  # as above
        if response.error_code != ErrorCode.NONE:
            raise UnsupportedError(f"{self.address} did not say which versions it speaks (error {response.error_code})")
        self._spoken = {e.api_key: Versions(e.min_version, e.max_version) for e in response.api_keys}

    # Logging in.

    def _is_due(self) -> bool:
        return self._renew_at is not None and asyncio.get_running_loop().time() >= self._renew_at

    async def _login(self, timeout: float) -> None:
        """Log in, for the first time or again. Requests sent before are answered before: the broker keeps the order."""
        begun = asyncio.get_running_loop().time()
        try:
            login = await self._begin_login(timeout)
            message: Message | None = login.start()
            while message is not None:
                version = choose_version(message, self._spoken, self.address)
                message = login.receive(await self._request(message, version, timeout))
        except (AuthenticationFailed, SettingError) as error:
            self.close(str(error))
            raise AuthenticationError(f"{self.address}: {error}") from None
        except TokenError as error:
            self.close(str(error))
            raise UnreachableError(str(error)) from error
        self._renew_at = None if login.renew_after is None else begun + login.renew_after

    async def _begin_login(self, timeout: float) -> Login:
        """Begin the exchange; a token function may block, so it has a thread."""
        if self._security.token is None:
            return begin_login(self._security)
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.to_thread(begin_login, self._security)
        except TimeoutError:
            raise TokenError(f"sasl.oauthbearer.token.function returned nothing for {timeout:g} s") from None

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
        reason, refusal = "the broker closed it", None
        try:
            while True:
                head = await self._reader.readexactly(4)
                if not self._is_known and is_tls_alert(head):
                    refusal = reason = "it speaks TLS; set security.protocol=SSL, or SASL_SSL"
                    return
                size = int.from_bytes(head, "big", signed=True)
                if not 4 <= size <= MAX_FRAME:
                    reason = f"a frame of {size} bytes announced; is this a Kafka broker?"
                    return
                self._take(await self._reader.readexactly(size))
        except asyncio.IncompleteReadError:
            if not self._is_known:
                reason += self._hint()
        except (OSError, ClientError, WireError) as error:
            refusal = tls_problem(error, self._security) if isinstance(error, OSError) else None
            reason = refusal or str(error)
        finally:
            self.close(reason, is_refusal=refusal is not None)

    def _take(self, frame: bytes) -> None:
        number = int.from_bytes(frame[:4], "big", signed=True)
        if number not in self._waiting:
            raise BrokerError(f"{self.address} answered a request that was not sent")
        request, version, answer = self._waiting[number]
        key = request.__table__.key
        assert key is not None  # it was sent
        _, response = decode_response(response_class(key), version, frame)
        self._is_known = self._is_known or not isinstance(response, ApiVersionsResponse)
        if not answer.done():
            answer.set_result(from_version(request, response, version))

    def _hint(self) -> str:
        """Explain why a listener may close the connection on the first request."""
        if self._security.uses_sasl or not self._waiting:
            return ""
        better = "SASL_SSL" if self._security.uses_tls else "SASL_PLAINTEXT"
        return f" at the first request; if its listener asks for a login, set security.protocol={better}"

    def close(self, reason: str = "closed", *, is_refusal: bool = False) -> None:
        """Close; requests in flight fail with `reason`, as AuthenticationError if the broker refused this client."""
        if self._end is not None:
            return
        self._end = reason
        self._writer.close()
        if self._reading is not asyncio.current_task():
            self._reading.cancel()
        for _, _, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(
                    AuthenticationError(f"{self.address}: {reason}")
                    if is_refusal
                    else UnreachableError(f"the connection to {self.address} ended: {reason}")
                )


def _no_connection(error: OSError, address: str, security: Security) -> ClientError:
    problem = tls_problem(error, security) if security.uses_tls else None
    if problem is not None:
        return AuthenticationError(f"{address}: {problem}")
    text = error.strerror or str(error)
    if security.uses_tls and is_cut_off(error):
        text = cut_off(security)
    return UnreachableError(f"cannot connect to {address}: {text}")


def _unwritable(message: Message, version: int, address: str, error: WireError) -> ClientError:
    """Classify an encoding error: the caller's fault if the newest version fails too."""
    newest = type(message).__table__.versions.high
    if version < newest:
        try:
            encode_request(message, newest, 0, "")
        except WireError:
            pass
        else:
            return UnsupportedError(f"the broker at {address} is too old for this request: {error}")
    return InvalidRequestError(f"no request can carry this value: {error}")
