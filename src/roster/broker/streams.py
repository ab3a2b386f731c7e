"""The socket of one client: streams that end with it, and probes of the kernel."""

import asyncio
import socket
from collections.abc import Callable, Coroutine

from roster.broker.log.record_range import PIECE_BYTES

_KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds of silence before the first probe and between two, and the number of probes."""


class ClientReader(asyncio.StreamReader):
    """A reader that knows what it holds: a frame that is there needs no timeout to be read."""

    def holds(self, size: int) -> bool:
        """Return True if this many bytes can be read without waiting."""
        return len(self._buffer) >= size  # type: ignore[attr-defined]


class ClientProtocol(asyncio.StreamReaderProtocol):
    """Streams that end when the client stops sending, as with Apache Kafka: there are no half-closed connections."""

    def __init__(
        self, connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]
    ) -> None:
        super().__init__(ClientReader(limit=PIECE_BYTES // 2), connected)
        self.on_lost: Callable[[], None] | None = None
        self.on_data: Callable[[bytes], bool] | None = None
        """Called with data when the buffer is empty; False passes it to the reader."""
        self.transport: asyncio.BaseTransport | None = None
        """Set once the connection is made: after the TLS handshake, if there is one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve the client."""
        self.transport = transport
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Have a request that is there as a whole handled at once, else pass the data on."""
        if self.on_data is None or not self.on_data(data):
            super().data_received(data)

    def eof_received(self) -> bool:
        """Close the transport: the client has stopped sending."""
        super().eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the connection that its client is gone."""
        if exc is not None:
            exc.__traceback__ = None  # the reader keeps the exception, and its frames the data being sent
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel close the connection of a machine that is gone, so that nothing waits for its requests."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):  # not on every platform
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
