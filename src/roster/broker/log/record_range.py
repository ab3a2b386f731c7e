"""Records of a Fetch response, read while they are sent: a slow client holds one piece in memory."""

import asyncio
from collections.abc import AsyncIterator

from roster.broker.errors import CloseConnection
from roster.broker.log.segment import Segment

PIECE_BYTES = 256 * 1024


class RecordRange:
    """Whole batches of a segment that were checked; stands for its bytes in a Fetch response."""

    __slots__ = ("_end", "_segment", "_start")

    def __init__(self, segment: Segment, start: int, end: int) -> None:
        self._segment = segment
        self._start = start
        self._end = end

    def __len__(self) -> int:
        return self._end - self._start

    async def pieces(self) -> AsyncIterator[bytes | bytearray]:
        """The bytes, at most PIECE_BYTES at a time; CloseConnection where the file cannot be read any more."""
        for start in range(self._start, self._end, PIECE_BYTES):
            end = min(start + PIECE_BYTES, self._end)
            try:
                piece = self._segment.read_without_waiting(start, end)
                if piece is None:
                    piece = await asyncio.get_running_loop().run_in_executor(None, self._segment.read, start, end)
            except OSError as error:
                raise CloseConnection(f"records cannot be read any more: {error}") from error
            if len(piece) != end - start:
                raise CloseConnection(f"records cannot be read any more: {self._segment.path} has become shorter")
            yield piece
