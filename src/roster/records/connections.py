"""Non-blocking sockets of a task: one connection to each broker, with one request at a time.

Connections stay open in the worker process after a task. asyncio is not used: a task is a generator that its caller
resumes, and what a broker sends meanwhile waits in the socket. `roster.client` is not used either: importing it costs a
new worker process more than its first requests.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from roster._version import __version__
from roster.model import Address
from roster.security import PLAINTEXT, AuthenticationFailed, Security, SettingError
from roster.security.begin_login import TokenError, begin_login
from roster.wire import API_VERSIONS, ApiKey, ErrorCode, Message, Versions, WireError, response_class
from roster.wire.frames import FIRST_API_VERSIONS, decode_response, encode_request
from roster.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roster.records.tls_socket import TlsSocket
    from roster.security.login import Login

_PATIENCE = 30.0
"""Seconds to wait for a connection, and for a response in addition to the time that the request gives the broker."""
_MOST_FRAME = 1 << 30
_RECEIVE = 1 << 20
_NOTHING = memoryview(b"")
_TLS_ALERT = b"\x15\x03"
_LAST_BY_NAME = {ApiKey.FETCH: 12, ApiKey.PRODUCE: 12}
"""Highest versions used: later ones name topics by id."""


class BrokenError(Exception):
    """The connection can no longer be used; `is_final` if a new one would fail in the same way."""

    def __init__(self, problem: str, *, is_final: bool = False) -> None:
        super().__init__(problem)
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class Reply:
    """Result of a request: a response, or None if the connection broke, with the reason in `problem`.

    `is_refused`: the broker refused the login or certificate, or cannot be trusted; a retry would fail too.
    """

    broker: int
    request: Message
    response: Message | None
    problem: str = ""
    is_refused: bool = False


_Place: TypeAlias = "tuple[int, int, int, str, tuple[object, ...]]"
"""As `socket.getaddrinfo` returns it."""


@dataclass(slots=True, eq=False)
class _Connection:
    """One socket. `awaiting`: the request without a response. `outgoing`: bytes to send. `incoming`: bytes received.

    `login`: the exchange in progress. `renew_at`: from this time on, requests wait for a new login (KIP-368).
    """

    broker: int
    address: Address
    client_id: str
    security: Security
    sock: socket.socket | TlsSocket
    others: Sequence[_Place]
    tls: TlsSocket | None = None
    login: Login | None = None
    login_began: float = 0.0
    renew_at: float | None = None
    is_ready: bool = False
    has_answered: bool = False
    is_connected: bool = False
    spoken: dict[int, Versions] | None = None
    request: Message | None = None
    deadline: float = 0.0
    awaiting: tuple[Message, int, int] | None = None
    number: int = 0
    outgoing: memoryview = _NOTHING
    size: int = -1
    received: int = 0
    incoming: list[bytes] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, Address]:
        return self.broker, self.address

    def ask(self, message: Message, version: int) -> None:
        self.number = (self.number + 1) & 0x7FFFFFFF
        self.awaiting = (message, version, self.number)
        frame = encode_request(message, version, self.number, self.client_id)
        self.outgoing = memoryview(bytes(self.outgoing) + frame if self.outgoing else frame)

    def events(self) -> int:
        wants_to_write = bool(self.outgoing) or not self.is_connected
        if self.tls is not None and not self.tls.is_ready:
            wants_to_write = self.tls.wants_write
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if wants_to_write else 0)

    def write(self) -> None:
        """Send pending bytes; the first call checks that the connection was made."""
        if isinstance(self.sock, socket.socket) and not self.is_connected:
            if problem := self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(problem, os.strerror(problem))
            self.is_connected = True
            if self.security.uses_tls:
                from roster.records.tls_socket import TlsSocket  # noqa: PLC0415 - ssl only where it is needed

                self.sock = self.tls = TlsSocket(self.sock, self.address.host, self.security)
        if self.tls is not None and not self.tls.is_ready:
            self.tls.shake_hands()
        if self.outgoing:
            sent = self.sock.send(self.outgoing)
            self.outgoing = self.outgoing[sent:]

    def read(self) -> bytes | None:
        """Return a whole frame without its size, None if it has not arrived yet."""
        if self.size < 0:
            piece = self.sock.recv(4 - self.received)
            self._keep(piece)
            if self.received < 4:
                return None
            if not self.has_answered and b"".join(self.incoming).startswith(_TLS_ALERT):
                raise BrokenError("it speaks TLS; set security.protocol=SSL, or SASL_SSL", is_final=True)
            self.size = int.from_bytes(b"".join(self.incoming), "big", signed=True)
            self.incoming, self.received = [], 0
            if not 4 <= self.size <= _MOST_FRAME:
                raise BrokenError(f"a frame of {self.size} bytes announced; is this a Kafka broker?")
        while self.received < self.size:
            try:
                piece = self.sock.recv(min(_RECEIVE, self.size - self.received))
            except BlockingIOError:
                return None
            self._keep(piece)
        frame = self.incoming[0] if len(self.incoming) == 1 else b"".join(self.incoming)
        self.incoming, self.received, self.size = [], 0, -1
        return frame

    def _keep(self, piece: bytes) -> None:
        if not piece:
            raise BrokenError("the broker closed it")
        self.incoming.append(piece)
        self.received += len(piece)


class Connections:
    """Connections by broker id and address, each with at most one open request, logged in if `security` requires it.

    A login that has to be renewed is renewed before the next request.
    """

    def __init__(self, client_id: str, patience: float = _PATIENCE, security: Security = PLAINTEXT) -> None:
        self._client_id, self._patience, self._security = client_id, patience, security
        self._connections: dict[tuple[int, Address], _Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._replies: list[Reply] = []

    def send(self, broker: int, address: Address, request: Message) -> None:
        """Send `request` to a broker without an open request; `poll` will return one reply to it."""
        connection = self._connections.get((broker, address))
        try:
            if connection is None:
                connection = self._connect(broker, address)
            connection.request = request
            connection.deadline = time.monotonic() + self._patience
            if connection.is_ready:
                self._ask(connection)
        except BlockingIOError:
            pass  # the rest goes out in `poll`
        except (OSError, UnicodeError, BrokenError, WireError) as error:  # UnicodeError: not a host name for DNS
            is_refused = isinstance(error, BrokenError) and error.is_final
            self._replies.append(Reply(broker, request, None, str(error), is_refused))
            if connection is not None:
                self._close(connection)

    def poll(self, timeout: float) -> list[Reply]:
        """Serve the sockets for at most `timeout` seconds; return the replies received, perhaps none."""
        if not self._replies:
            for key, _ in self._selector.select(timeout):
                self._serve(key.data)
            now = time.monotonic()
            for connection in [c for c in self._connections.values() if c.request and now > c.deadline]:
                self._fail(connection, f"no answer within {self._patience:g} s")
        replies, self._replies = self._replies, []
        return replies

    def close_busy(self) -> None:
        """Close the connections with an open request: its response would reach the next task."""
        self._replies.clear()
        for connection in [c for c in self._connections.values() if c.request is not None]:
            self._close(connection)

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self._connections.values()):
            self._close(connection)
        self._selector.close()

    def _connect(self, broker: int, address: Address, others: Sequence[_Place] | None = None) -> _Connection:
        if others is None:
            others = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        sock, others = _begin_to_connect(others)
        connection = _Connection(broker, address, self._client_id, self._security, sock, others)
        software = ApiVersionsRequest(client_software_name="roster", client_software_version=__version__)
        connection.ask(software, FIRST_API_VERSIONS)
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
            text, is_final = (str(error), False) if connection.tls is None else connection.tls.explain(error)
            self._fail(connection, text, is_refused=is_final)
        except (BrokenError, WireError) as error:
            self._fail(connection, str(error), is_refused=isinstance(error, BrokenError) and error.is_final)
        if self._connections.get(connection.key) is connection:
            self._selector.modify(connection.sock, connection.events(), connection)

    def _connect_elsewhere(self, connection: _Connection) -> None:
        """Connect to the next address of the host name, if it has several."""
        self._close(connection)
        try:
            following = self._connect(connection.broker, connection.address, connection.others)
        except OSError as error:
            self._lose(connection, str(error))
            return
        following.request, following.deadline = connection.request, connection.deadline

    def _take(self, connection: _Connection, frame: bytes) -> None:
        if connection.awaiting is None or int.from_bytes(frame[:4], "big", signed=True) != connection.awaiting[2]:
            raise BrokenError("it answered a request that was not sent")
        request, version, _ = connection.awaiting
        connection.awaiting = None
        key = request.__table__.key
        assert key is not None  # it was sent
        _, response = decode_response(response_class(key), version, frame)
        if isinstance(response, ApiVersionsResponse):
            self._agree(connection, response, version)
            return
        connection.has_answered = True
        if isinstance(response, SaslHandshakeResponse | SaslAuthenticateResponse):
            self._go_on_logging_in(connection, response)
            return
        assert connection.request is not None  # this is its answer
        self._replies.append(Reply(connection.broker, connection.request, response))
        connection.request = None

    def _agree(self, connection: _Connection, response: ApiVersionsResponse, version: int) -> None:
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            highest = [e.max_version for e in response.api_keys if e.api_key == ApiKey.API_VERSIONS]
            lower = min([*highest, version - 1]) if highest else 0
            connection.ask(ApiVersionsRequest(), lower)
            return
        if response.error_code != ErrorCode.NONE:
            raise BrokenError(f"it did not say which versions it speaks (error {response.error_code})")
        spoken = {e.api_key: Versions(e.min_version, e.max_version) for e in response.api_keys}
        for api, last in _LAST_BY_NAME.items():
            offered = spoken.get(api, Versions(0, 0))
            spoken[api] = Versions(offered.low, min(offered.high, last))
        connection.spoken = spoken
        if self._security.uses_sasl:
            self._log_in(connection)
        else:
            self._become_ready(connection)

    def _become_ready(self, connection: _Connection) -> None:
        connection.is_ready = True
        if connection.request is not None:
            self._ask(connection)

    def _log_in(self, connection: _Connection) -> None:
        """Begin a login: requests wait until it is complete."""
        connection.is_ready, connection.login_began = False, time.monotonic()
        try:
            connection.login = begin_login(self._security)
        except SettingError as error:
            raise BrokenError(str(error), is_final=True) from None
        except TokenError as error:
            raise BrokenError(str(error)) from error
        self._write(connection, connection.login.start())

    def _go_on_logging_in(self, connection: _Connection, response: Message) -> None:
        assert connection.login is not None  # this answers its request
        try:
            following = connection.login.receive(response)
        except AuthenticationFailed as error:
            raise BrokenError(str(error), is_final=True) from None
        if following is not None:
            self._write(connection, following)
            return
        lasts = connection.login.renew_after
        connection.renew_at = None if lasts is None else connection.login_began + lasts
        connection.login = None
        self._become_ready(connection)

    def _ask(self, connection: _Connection) -> None:
        assert connection.request is not None  # the caller set it
        if connection.renew_at is not None and time.monotonic() >= connection.renew_at:
            self._log_in(connection)
        else:
            self._write(connection, connection.request)

    def _write(self, connection: _Connection, message: Message) -> None:
        assert connection.spoken is not None  # agreed on
        connection.ask(message, _version(message, connection.spoken))
        try:
            connection.write()
        finally:
            self._selector.modify(connection.sock, connection.events(), connection)

    def _fail(self, connection: _Connection, problem: str, *, is_refused: bool = False) -> None:
        self._close(connection)
        self._lose(connection, problem, is_refused=is_refused)

    def _lose(self, connection: _Connection, problem: str, *, is_refused: bool = False) -> None:
        if connection.request is None:
            return
        text = (
            f"{connection.address}: {problem}"
            if is_refused
            else f"the connection to {connection.address} broke: {problem}"
        )
        self._replies.append(Reply(connection.broker, connection.request, None, text, is_refused))

    def _close(self, connection: _Connection) -> None:
        if self._connections.get(connection.key) is connection:
            del self._connections[connection.key]
            self._selector.unregister(connection.sock)
        connection.sock.close()


def _begin_to_connect(places: Sequence[_Place]) -> tuple[socket.socket, Sequence[_Place]]:
    """Return a socket that connects to the first of `places` that does not fail at once, and the remaining places."""
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
    """Return the highest version of a request that both sides support."""
    key = message.__table__.key
    assert key is not None  # only requests come here
    ours, theirs = API_VERSIONS[ApiKey(key)], spoken.get(key, Versions(0, -1))
    version = min(ours.high, theirs.high)
    if version < max(ours.low, theirs.low):
        name = ApiKey(key).name
        raise BrokenError(
            f"it speaks {name} in versions {theirs}, Roster in {ours}; use a broker of a matching release"
        )
    return version
