"""The last heartbeat of a connection, read once: a member's next one has another correlation id and the same bytes.

Frames with their sizes: 4 bytes of size, 2 each of api key and version, 4 of correlation id; a response has the
correlation id behind its size (Kafka's protocol guide, "Request and Response Headers").
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from roster.wire import ErrorCode
from roster.wire.frames import encode_response
from roster.wire.messages import HeartbeatResponse

if TYPE_CHECKING:
    from roster.wire.messages import HeartbeatRequest

_CORRELATION = slice(8, 12)
_ANSWERED_CORRELATION = slice(4, 8)


class RepeatedHeartbeat:
    """A request as it came and as it was read; at first there is none, which no frame is the same as."""

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
        """Return True if a frame differs from the one that is kept by its correlation id at most."""
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
