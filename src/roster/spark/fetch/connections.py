"""Sockets of a reading task: one connection a broker, one request at a time on each, none of them blocking.

Connections outlive a task in its worker process. asyncio is left out: a task is a plain generator whose caller decides
when it goes on, and everything a broker sends meanwhile waits in the socket. So is `roster.client`, whose import alone
costs a fresh worker process more than its first requests.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from roster._version import __version__
from roster.model import Address
from roster.wire import API_VERSIONS, ApiKey, ErrorCode, Message, Versions, WireError, response_class
from roster.wire.frames import decode_response, encode_request
from roster.wire.messages import ApiVersionsRequest, ApiVersionsResponse

_PATIENCE = 30.0
"""Seconds for a connection to be made, and for an answer behind the time a request allows the broker."""
_MOST_FRAME = 1 << 30
_RECEIVE = 1 << 20
_LAST_FETCH_BY_NAME = 12
"""Later versions name topics by id."""


class BrokenError(Exception):
    """A connection that cannot be used any more."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Result of a request: a response, or None if the connection broke, with the reason in `problem`."""

    broker: int
    request: Message
    response: Message | None
    problem: str = ""


@dataclass(slots=True, eq=False)
class _Connection:
    """One socket; `asked` is the request under way, `outgoing` bytes not sent yet, `incoming` those of an answer."""

    broker: int
    address: Address
    client_id: str
    sock: socket.socket
    others: list[Any]
    is_connected: bool = False
    spoken: dict[int, Versions] | None = None
    request: Message | None = None
    deadline: float = 0.0
    asked: tuple[Message, int, int] | None = None
    number: int = 0
    outgoing: bytes = b""
    size: int = -1
    held: int = 0
    incoming: list[bytes] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, Address]:
        return self.broker, self.address

    def ask(self, message: Message, version: int) -> None:
        self.number = (self.number + 1) & 0x7FFFFFFF
        self.asked = (message, version, self.number)
        self.outgoing += encode_request(message, version, self.number, self.client_id)

    def events(self) -> int:
        wants_to_write = bool(self.outgoing) or not self.is_connected
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if wants_to_write else 0)

    def write(self) -> None:
        """Send what is due; the first call finds out whether the connection was made."""
        if not self.is_connected:
            if problem := self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(problem, os.strerror(problem))
            self.is_connected = True
        if self.outgoing:
            sent = self.sock.send(self.outgoing)
            self.outgoing = self.outgoing[sent:]

    def read(self) -> bytes | None:
        """A whole frame without its size, if there is one by now."""
        if self.size < 0:
            piece = self.sock.recv(4 - self.held)
            self._keep(piece)
            if self.held < 4:
                return None
            self.size = int.from_bytes(b"".join(self.incoming), "big", signed=True)
            self.incoming, self.held = [], 0
            if not 4 <= self.size <= _MOST_FRAME:
                raise BrokenError(f"a frame of {self.size} bytes announced; is this a Kafka broker?")
        while self.held < self.size:
            try:
                piece = self.sock.recv(min(_RECEIVE, self.size - self.held))
            except BlockingIOError:
                return None
            self._keep(piece)
        frame = self.incoming[0] if len(self.incoming) == 1 else b"".join(self.incoming)
        self.incoming, self.held, self.size = [], 0, -1
        return frame

    def _keep(self, piece: bytes) -> None:
        if not piece:
            raise BrokenError("the broker closed it")
        self.incoming.append(piece)
        self.held += len(piece)


class Connections:
    """Connections by broker id and address, with at most one request each under way."""

    def __init__(self, client_id: str, patience: float = _PATIENCE) -> None:
        self._client_id, self._patience = client_id, patience
        self._connections: dict[tuple[int, Address], _Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._replies: list[Reply] = []

    def send(self, broker: int, address: Address, request: Message) -> None:
        """Send `request` to a broker that has none under way; `poll` will have one reply to it."""
        connection = self._connections.get((broker, address))
        try:
            if connection is None:
                connection = self._connect(broker, address)
            connection.request = request
            connection.deadline = time.monotonic() + self._patience
            if connection.spoken is not None:
                self._ask(connection)
        except (OSError, UnicodeError, BrokenError, WireError) as error:  # a name can be none for DNS
            self._replies.append(Reply(broker, request, None, str(error)))
            if connection is not None:
                self._close(connection)

    def poll(self, timeout: float) -> list[Reply]:
        """The replies that are there within `timeout` seconds."""
        if not self._replies:
            for key, _ in self._selector.select(timeout):
                self._serve(key.data)
            now = time.monotonic()
            for connection in [c for c in self._connections.values() if c.request and now > c.deadline]:
                self._fail(connection, f"no answer within {self._patience:g} s")
        replies, self._replies = self._replies, []
        return replies

    def close_busy(self) -> None:
        """Close what still owes an answer: it would come to the next task."""
        self._replies.clear()
        for connection in [c for c in self._connections.values() if c.request is not None]:
            self._close(connection)

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self._connections.values()):
            self._close(connection)
        self._selector.close()

    def _connect(self, broker: int, address: Address, others: list[Any] | None = None) -> _Connection:
        if others is None:
            others = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        sock, others = _begin_to_connect(others)
        connection = _Connection(broker, address, self._client_id, sock, others)
        software = ApiVersionsRequest(client_software_name="roster", client_software_version=__version__)
        connection.ask(software, API_VERSIONS[ApiKey.API_VERSIONS].high)
        self._connections[connection.key] = connection
        self._selector.register(sock, connection.events(), connection)
        return connection

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.outgoing or not connection.is_connected:
                connection.write()
            connection.deadline = time.monotonic() + self._patience  # a slow answer is one
            frame = connection.read()
            if frame is not None:
                self._take(connection, frame)
        except BlockingIOError:
            pass
        except OSError as error:
            if not connection.is_connected and connection.others:
                self._connect_elsewhere(connection)
                return
            self._fail(connection, str(error))
        except (BrokenError, WireError) as error:
            self._fail(connection, str(error))
        if self._connections.get(connection.key) is connection:
            self._selector.modify(connection.sock, connection.events(), connection)

    def _connect_elsewhere(self, connection: _Connection) -> None:
        """A host name may stand for several addresses, of which some answer."""
        self._close(connection)
        try:
            following = self._connect(connection.broker, connection.address, connection.others)
        except OSError as error:
            self._lose(connection, str(error))
            return
        following.request, following.deadline = connection.request, connection.deadline

    def _take(self, connection: _Connection, frame: bytes) -> None:
        if connection.asked is None or int.from_bytes(frame[:4], "big", signed=True) != connection.asked[2]:
            raise BrokenError("it answered a request that was not sent")
        asked, version, _ = connection.asked
        connection.asked = None
        key = asked.__table__.key
        assert key is not None  # noqa: S101 - it was sent
        _, response = decode_response(response_class(key), version, frame)
        if isinstance(response, ApiVersionsResponse):
            self._agree(connection, response, version)
            return
        assert connection.request is not None  # noqa: S101 - this is its answer
        self._replies.append(Reply(connection.broker, connection.request, response))
        connection.request = None

    def _agree(self, connection: _Connection, response: ApiVersionsResponse, version: int) -> None:
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            offered = [e.max_version for e in response.api_keys if e.api_key == ApiKey.API_VERSIONS]
            lower = min([*offered, version - 1]) if offered else 0
            connection.ask(ApiVersionsRequest(), lower)
            return
        if response.error_code != ErrorCode.NONE:
            raise BrokenError(f"it did not say which versions it speaks (error {response.error_code})")
        spoken = {e.api_key: Versions(e.min_version, e.max_version) for e in response.api_keys}
        fetch = spoken.get(ApiKey.FETCH, Versions(0, 0))
        spoken[ApiKey.FETCH] = Versions(fetch.low, min(fetch.high, _LAST_FETCH_BY_NAME))
        connection.spoken = spoken
        if connection.request is not None:
            self._ask(connection)

    def _ask(self, connection: _Connection) -> None:
        assert connection.request is not None  # noqa: S101 - the caller set it
        assert connection.spoken is not None  # noqa: S101 - agreed on
        connection.ask(connection.request, _version(connection.request, connection.spoken))
        connection.write()
        self._selector.modify(connection.sock, connection.events(), connection)

    def _fail(self, connection: _Connection, problem: str) -> None:
        self._close(connection)
        self._lose(connection, problem)

    def _lose(self, connection: _Connection, problem: str) -> None:
        if connection.request is not None:
            text = f"the connection to {connection.address} broke: {problem}"
            self._replies.append(Reply(connection.broker, connection.request, None, text))

    def _close(self, connection: _Connection) -> None:
        if self._connections.get(connection.key) is connection:
            del self._connections[connection.key]
            self._selector.unregister(connection.sock)
        connection.sock.close()


def _begin_to_connect(places: list[Any]) -> tuple[socket.socket, list[Any]]:
    """A socket on its way to the first of `places` that does not fail at once, and the places behind that."""
    problem = 0
    for index, (family, kind, protocol, _, place) in enumerate(places):
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        problem = sock.connect_ex(place)
        if problem in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            return sock, places[index + 1 :]
        sock.close()
    raise OSError(problem, os.strerror(problem))


def _version(message: Message, spoken: dict[int, Versions]) -> int:
    """The highest version of a request that both sides speak."""
    key = message.__table__.key
    assert key is not None  # noqa: S101 - only requests come here
    ours, theirs = API_VERSIONS[ApiKey(key)], spoken.get(key, Versions(0, -1))
    version = min(ours.high, theirs.high)
    if version < max(ours.low, theirs.low):
        name = ApiKey(key).name
        raise BrokenError(
            f"it speaks {name} in versions {theirs}, Roster in {ours}; use a broker of a matching release"
        )
    return version
