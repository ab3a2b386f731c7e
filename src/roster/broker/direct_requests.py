"""Group requests answered where they arrive: in the callback of the socket, without a task, a future or a timer.

Members send little else than small requests one at a time, so most of what a heartbeat costs would be waking a task for
it. Whatever is out of the ordinary (a frame in pieces, several frames, a slow reader, a login, a large request) is left
to the connection's task, which answers the same way.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import cache
from time import perf_counter
from typing import TypeAlias, cast

from roster.broker.call import Call
from roster.broker.log.record_range import PIECE_BYTES
from roster.broker.request_limits import decode_small
from roster.broker.security.session import Session
from roster.broker.services import Services
from roster.wire import ApiKey, ErrorCode, Message, WireError
from roster.wire.frames import encode_response
from roster.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)

_DirectRequest: TypeAlias = (
    JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest | OffsetCommitRequest
)


_SIZE_BYTES = 4
_KEY = slice(4, 6)
MAX_BYTES = 16 * 1024
"""Larger frames could block the event loop, so they take the slow path."""
WAITING_KEYS = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""Requests that wait for others, given up when their client disconnects. A commit runs to its end."""
_KEYS = WAITING_KEYS | {ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.OFFSET_COMMIT}

logger = logging.getLogger(__name__)


class DirectRequests:
    """The group requests of one connection, one at a time.

    Args:
        services: the parts of the broker.
        transport: where responses go.
        session: login and rights of the connection.
        client: the client's host, and its name in the log.
        send: sends a large response in pieces.
        failed: called with the error that kept a request from being answered; the connection is useless then.
    """

    def __init__(
        self,
        services: Services,
        transport: asyncio.WriteTransport,
        session: Session,
        client: tuple[str, str],
        send: Callable[[bytes], Coroutine[None, None, None]],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._services = services
        self._transport = transport
        self._session = session
        self._host, self._name = client
        self._send = send
        self._failed = failed
        self._measures = services.hooks.measures
        self._time = asyncio.get_running_loop().time
        self._max_bytes = min(MAX_BYTES, services.config.max_request_bytes)
        self._token = 0
        self._beats = RepeatedHeartbeat()
        self._waiter: asyncio.Future[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self.under_way: int | None = None
        """The api key of the request that waits for its reply."""
        self.then: Callable[[], object] | None = None
        """Called when the request under way has ended."""
        self.last_at = 0.0
        """Event loop time of the last response."""

    @property
    def waits(self) -> bool:
        """True while a request is under way that may be given up."""
        return self.under_way in WAITING_KEYS

    def take(self, data: bytes) -> bool:
        """Handle what has arrived if it is exactly one request of the usual kind; return False if it is not."""
        if self._beats.is_same(data) and self._beat(data):
            return True
        size = len(data) - _SIZE_BYTES
        if size > self._max_bytes or int.from_bytes(data[:_SIZE_BYTES], "big") != size:
            return False
        if int.from_bytes(data[_KEY], "big") not in _KEYS or self._transport.get_write_buffer_size():
            return False
        try:
            header, message = decode_small(data[_SIZE_BYTES:])
        except WireError:
            return False  # read again and refused by the task
        call = Call(header, cast("_DirectRequest", message), self._host, session=self._session)
        if not self._is_plain(call):
            return False
        if isinstance(message, HeartbeatRequest):
            self._beats.remember(data, message, header.api_version)
        try:
            self._begin(call)
        except Exception as error:
            self._failed(error)
        return True

    def _beat(self, data: bytes) -> bool:
        """Answer the last heartbeat once more; return False if anything wants to see or to check each request."""
        session, services = self._session, self._services
        if (
            services.hooks.intercept is not None
            or services.group_coordinator.is_watched
            or session.access.is_checked
            or not session.is_lasting
            or self._transport.get_write_buffer_size()
            or logger.isEnabledFor(logging.DEBUG)
        ):
            return False
        began = perf_counter() if self._measures is not None else 0.0
        try:
            error = services.group_coordinator.beat(self._beats.request)
        except Exception as failure:
            self._failed(failure)
            return True
        self._transport.write(self._beats.reply(data, error))
        self.last_at = self._time()
        if self._measures is not None:
            self._measures.requests[ApiKey.HEARTBEAT].add(perf_counter() - began)
        return True

    def _is_plain(self, call: Call[_DirectRequest]) -> bool:
        """Return True for a request that is handled whole, and that the client may send."""
        if self._services.hooks.intercept is not None or not self._session.is_lasting:
            return False
        request = call.message
        if not call.access.may_be_member(request.group_id):
            return False
        if not isinstance(request, OffsetCommitRequest):
            return True
        return not call.access.is_checked and self._services.group_coordinator.is_plain_commit(request)

    def _begin(self, call: Call[Message]) -> None:
        header = call.header
        if logger.isEnabledFor(logging.DEBUG):
            kind = type(call.message).__name__
            logger.debug("%s asks %d: %s v%d", self._name, header.correlation_id, kind, header.api_version)
        if self._measures is not None:
            self._measures.begin(call)
        self.under_way = header.api_key
        self._token = self._services.group_coordinator.begin(call, lambda reply: self._answered(call, reply))

    def _answered(self, call: Call[Message], response: Message) -> None:
        """Send the response; one of many pieces is sent by a task."""
        if self.under_way is None:
            return
        header = call.header
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s is answered %d", self._name, header.correlation_id)
        try:
            data = encode_response(response, header.api_version, header.correlation_id)
        except Exception as error:
            self._end()
            self._failed(error)
            return
        if self._measures is not None:
            self._measures.end(call)
        if len(data) <= PIECE_BYTES:
            self._transport.write(data)
            self._end()
            return
        call.hold(self._services, len(data))
        self._sending = asyncio.get_running_loop().create_task(self._send_all(call, data))

    async def _send_all(self, call: Call[Message], data: bytes) -> None:
        try:
            await self._send(data)
        except Exception as error:
            self._failed(error)
        finally:
            call.release(self._services)
            self._sending = None
            self._end()

    def _end(self) -> None:
        self.under_way = None
        self.last_at = self._time()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self.then is not None:
            self.then()

    async def answered(self) -> None:
        """Wait until no request is under way."""
        while self.under_way is not None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def give_up(self) -> None:
        """Forget the request under way: its connection ends, or its client is gone."""
        self.then = None
        self._services.group_coordinator.give_up(self._token)
        if self._sending is not None:
            self._sending.cancel()
        else:
            self._end()


_CORRELATION = slice(8, 12)
_ANSWERED_CORRELATION = slice(4, 8)


class RepeatedHeartbeat:
    """The last heartbeat of a connection, as it came and as it was read; at first none, which no frame equals.

    A member's next one has another correlation id and the same bytes. Frames have 4 bytes of size, 2 each of api key
    and version, 4 of correlation id; a response has the correlation id behind its size (Kafka's protocol guide,
    "Request and Response Headers").
    """

    __slots__ = ("_head", "_size", "_tail", "_version", "request")

    request: HeartbeatRequest

    def __init__(self) -> None:
        self._size = -1
        self._head = self._tail = b""
        self._version = 0

    def remember(self, data: bytes, request: HeartbeatRequest, version: int) -> None:
        """Keep a heartbeat: its frame with the size, and the decoded request."""
        self._size, self._head, self._tail = len(data), data[: _CORRELATION.start], data[_CORRELATION.stop :]
        self.request, self._version = request, version

    def is_same(self, data: bytes) -> bool:
        """Return True if a frame equals the kept one, except for its correlation id."""
        return len(data) == self._size and data.endswith(self._tail) and data.startswith(self._head)

    def reply(self, data: bytes, error: ErrorCode) -> bytes:
        """Return the response to such a frame, with its correlation id."""
        head, tail = _response(self._version, error)
        return head + data[_CORRELATION] + tail


@cache
def _response(version: int, error: ErrorCode) -> tuple[bytes, bytes]:
    """Return the bytes of a response before its correlation id and behind it."""
    data = encode_response(HeartbeatResponse(error_code=error), version, 0)
    return data[: _ANSWERED_CORRELATION.start], data[_ANSWERED_CORRELATION.stop :]
