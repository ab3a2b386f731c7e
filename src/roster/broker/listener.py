"""The listening sockets: accepts connections up to the limits, does TLS handshakes, and hands streams on.

A connection is being set up until its first request, with SASL until its login. That has a deadline; and where all
places are taken, the connection that has been set up for longest makes room. So clients that connect and say nothing
keep no others out.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TypeAlias

from roster.broker.config import BrokerConfig
from roster.broker.errors import BrokerStartError, CloseConnection
from roster.broker.refusals import Refusals
from roster.broker.security.tls import ALERT_UNEXPECTED_MESSAGE, HANDSHAKE, handshake_problem
from roster.broker.streams import ClientProtocol

_Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter, "Slot"], Coroutine[None, None, None]]

BACKLOG = 1_024
_ACCEPTED_AT_ONCE = 32
"""Connections accepted between two turns of the others."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_SECONDS = 0.5
_LINGER_SECONDS = 1.0
"""How long a refused client has to read why before its connection is reset."""
_LINGER_BYTES = 1 << 16

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Slot:
    """A connection's place among those that the limits allow."""

    host: str
    name: str
    deadline: float
    """Event loop time by which the connection must be set up."""
    end: Callable[[], object]
    """Ends the connection to make room; another one while it is served."""
    is_settled: bool = False


class Admission:
    """Counts connections, all and by address. Pure: what it decides, the listener does."""

    def __init__(self, max_connections: int, max_per_ip: int) -> None:
        self._max_connections = max_connections
        self._max_per_ip = max_per_ip
        self._by_host: Counter[str] = Counter()
        self._settling: dict[Slot, None] = {}
        self.count = 0
        """Connections that have a place."""

    def admit(self, slot: Slot) -> Slot | None:
        """Give a connection a place; return the one that has to make room for it, if any.

        Raises:
            CloseConnection: no slot is free.
        """
        if self._by_host[slot.host] >= self._max_per_ip:
            raise CloseConnection(f"its address has {self._max_per_ip} connections already (max.connections.per.ip)")
        victim = None
        if self.count >= self._max_connections:
            victim = next(iter(self._settling), None)
            if victim is None:
                raise CloseConnection(f"there are {self._max_connections} connections already (max.connections)")
            self.release(victim)
        self.count += 1
        self._by_host[slot.host] += 1
        self._settling[slot] = None
        return victim

    def settle(self, slot: Slot) -> None:
        """Note that a connection is set up: it makes room for no other."""
        if slot in self._settling:
            slot.is_settled = True
            del self._settling[slot]

    def release(self, slot: Slot) -> None:
        """Free a connection's slot; idempotent."""
        if not slot.host:
            return
        self._settling.pop(slot, None)
        self.count -= 1
        self._by_host[slot.host] -= 1
        if not self._by_host[slot.host]:
            del self._by_host[slot.host]
        slot.host = ""


class Listener:
    """Listens on the addresses of a host; `connected` is called with the streams of each client.

    `most` is the number of connections for which there are files.
    """

    def __init__(
        self, config: BrokerConfig, context: ssl.SSLContext | None, connected: Connected, most: int = 2**31 - 1
    ) -> None:
        self._config = config
        self._context = context
        self._connected = connected
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusals: Refusals | None = None
        self.admission = Admission(min(config.max_connections, most), config.max_connections_per_ip)

    @property
    def port(self) -> int:
        """The port listened on."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def bind(self) -> None:
        """Take the port, without listening yet; BrokerStartError if that is impossible."""
        host, port = self._config.host, self._config.port
        try:
            addresses = await asyncio.get_running_loop().getaddrinfo(
                None if host in ("", "::") else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(addresses):
                self._bind(family, address)
        except (OSError, UnicodeError) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise BrokerStartError(f"cannot listen on {host}:{port}: {reason}") from error

    def _bind(self, family: int, address: _Address) -> None:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # an address family that this machine lacks
            return
        self._sockets.append(sock)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if address[1] == 0 and len(self._sockets) > 1:  # the same port on each address
            address = (address[0], self.port, *address[2:])
        sock.bind(address)

    def start(self, refusals: Refusals) -> None:
        """Listen and accept; BrokerStartError if the port was taken meanwhile."""
        self._refusals = refusals
        try:
            for sock in self._sockets:
                sock.listen(BACKLOG)
        except OSError as error:
            host, port = self._config.host, self._config.port
            raise BrokerStartError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        for sock in self._sockets:
            self._start(self._accept(sock))

    def close(self) -> None:
        """Stop accepting, and end connections that are in their TLS handshake."""
        for task in self._tasks:
            task.cancel()
        for sock in self._sockets:
            sock.close()

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _warn(self, name: str, reason: object) -> None:
        if self._refusals is not None:
            self._refusals.warn(name, reason)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        accepted = 0
        while True:
            try:
                client, peer = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    logger.error("cannot accept connections: %s", error.strerror)
                await asyncio.sleep(_RETRY_SECONDS if error.errno in _EXHAUSTED else 0)
                continue
            self._admit(client, peer)
            accepted += 1
            if accepted % _ACCEPTED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _admit(self, client: socket.socket, peer: tuple[str, int]) -> None:
        client.setblocking(False)
        name = f"{peer[0]}:{peer[1]}"
        deadline = asyncio.get_running_loop().time() + self._config.setup_seconds
        slot = Slot(str(peer[0]), name, deadline, lambda: None)
        try:
            victim = self.admission.admit(slot)
        except CloseConnection as refusal:
            self._warn(name, refusal)
            client.close()
            return
        if victim is not None:
            self._warn(victim.name, "it was not set up, and makes room for another connection (max.connections)")
            victim.end()
        task = self._start(self._set_up(client, slot))
        slot.end = task.cancel

    async def _set_up(self, client: socket.socket, slot: Slot) -> None:
        """Hand a connection on once its TLS handshake is done; give its place back if it fails."""
        handed_on = False
        try:
            protocol = ClientProtocol(lambda reader, writer: self._connected(reader, writer, slot))
            if self._context is None:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, client)
            elif not await self._is_secured(client, slot, protocol, self._context):
                return
            handed_on = True
        except (OSError, TimeoutError) as error:
            self._warn(slot.name, handshake_problem(error))
        finally:
            if not handed_on:
                self.admission.release(slot)
                client.close()

    async def _is_secured(
        self, client: socket.socket, slot: Slot, protocol: ClientProtocol, context: ssl.SSLContext
    ) -> bool:
        """Do the TLS handshake; return False, with the connection closed so that the client can read why, if it failed.

        Raises:
            TimeoutError: the client took too long.
        """
        async with asyncio.timeout_at(slot.deadline):
            first = await _first_byte(client)
        if not first:
            return False  # the client is gone
        if first[0] != HANDSHAKE:
            self._warn(slot.name, "it does not speak TLS, which this listener needs")
            with contextlib.suppress(OSError):
                client.send(ALERT_UNEXPECTED_MESSAGE)
            await _close_gently(client)
            return False
        spare = client.dup()  # outlives the transport, which closes its socket when the handshake fails
        try:
            await _secure(client, protocol, context, slot.deadline)
        except TimeoutError:
            raise
        except OSError as error:
            self._warn(slot.name, handshake_problem(error))
            await _close_gently(spare)
            return False
        finally:
            spare.close()
        return True


class _ServerTls(sslproto.SSLProtocol):
    """TLS of one connection that sends its last alert: clients learn by it why their certificate is refused."""

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        if handshake_exc is not None:
            self._process_outgoing()  # type: ignore[attr-defined]
        super()._on_handshake_complete(handshake_exc)


async def _secure(client: socket.socket, protocol: ClientProtocol, context: ssl.SSLContext, deadline: float) -> None:
    """Do the server's side of a TLS handshake; OSError or TimeoutError if it fails."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    tls = _ServerTls(
        loop,
        protocol,
        context,
        waiter,
        server_side=True,
        ssl_handshake_timeout=max(0.001, deadline - loop.time()),  # type: ignore[arg-type]
    )
    transport, _ = await loop.connect_accepted_socket(lambda: tls, client)
    try:
        await waiter
    except ConnectionAbortedError:
        raise TimeoutError from None
    except BaseException:
        transport.abort()
        raise
    if protocol.transport is None:
        raise ConnectionResetError("the client is gone")


async def _first_byte(client: socket.socket) -> bytes:
    """Wait for the first byte, and leave it where it is; b"" if the client is gone."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def is_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(client, is_ready)
    try:
        await ready
    finally:
        loop.remove_reader(client)
    try:
        return client.recv(1, socket.MSG_PEEK)
    except OSError:
        return b""


async def _close_gently(client: socket.socket) -> None:
    """Close so that the client reads what it was sent: unread bytes would make the system reset the connection."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, TimeoutError):
        client.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(_LINGER_SECONDS):
            left = _LINGER_BYTES
            while left > 0:
                read = len(await loop.sock_recv(client, _LINGER_BYTES))
                left -= read or left
