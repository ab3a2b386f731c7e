"""A client that says exactly what it is told to."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any, Self

from roster.wire.frames import decode_response, encode_request, response_class

if TYPE_CHECKING:
    from roster.wire import Message


class RawClient:
    """One connection; responses are read when asked for."""

    def __init__(self, address: tuple[str, int], timeout: float = 60.0) -> None:
        self.socket = socket.create_connection(address, timeout=timeout)
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, message: Message, version: int) -> int:
        """Send a request; return its correlation id."""
        self._correlation += 1
        self.socket.sendall(encode_request(message, version, self._correlation, "raw"))
        return self._correlation

    def frame(self) -> bytes:
        """The next response frame, without its size; ConnectionError at the end of the connection."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def receive(self, request: Message, version: int) -> tuple[int, Any]:
        """The next response, which must be one to this kind of request: correlation id and message."""
        return decode_response(response_class(type(request).__table__.key), version, self.frame())

    def ask(self, request: Message, version: int) -> Any:
        """Send a request and return its response."""
        correlation = self.send(request, version)
        answered, response = self.receive(request, version)
        assert answered == correlation
        return response

    def is_closed(self) -> bool:
        """Wait until the broker closes the connection; False if it sends something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("closed by the broker")
            data += piece
        return bytes(data)
