"""Retries of requests: pauses that double, within a time limit."""

import asyncio

from roster.client.errors import RequestTimeoutError

FIRST_PAUSE = 0.1
MAX_PAUSE = 1.0
"""Pause (s) before the second attempt, and the longest pause between two."""


class Retry:
    """Attempts of one operation, for at most `seconds` from now; on the running event loop."""

    def __init__(self, seconds: float, first_pause: float = FIRST_PAUSE, max_pause: float = MAX_PAUSE) -> None:
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._seconds = seconds
        self._pause, self._max_pause = first_pause, max_pause

    @property
    def elapsed(self) -> float:
        """Seconds since the first attempt."""
        return self._clock() - self._started

    @property
    def expired(self) -> bool:
        """True once the time is up."""
        return self.elapsed >= self._seconds

    @property
    def is_last(self) -> bool:
        """True if the time would be up before another attempt."""
        return self.elapsed + self._pause > self._seconds

    async def pause(self) -> None:
        """Sleep before the next attempt."""
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, self._max_pause)

    async def pause_or_fail(self, what: str, cause: str) -> None:
        """Sleep before the next attempt; RequestTimeoutError if the time would be up by then."""
        if self.is_last:
            raise RequestTimeoutError(f"{what} did not succeed within {self._seconds:g} s: {cause}")
        await self.pause()
