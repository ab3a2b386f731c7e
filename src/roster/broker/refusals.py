"""Warnings about connections closed for what they sent: the first few of a minute in full, the others as one line."""

import asyncio
import logging

WARNINGS = 10
"""Warnings in full during one window."""
WINDOW_SECONDS = 60.0

logger = logging.getLogger(__name__)


class Refusals:
    """Logs at most WARNINGS + 1 lines a window, however many connections are closed."""

    def __init__(self) -> None:
        self.count = 0
        """Connections closed so far."""
        self._written = 0
        self._held_back = 0
        self._last = ""
        self._timer: asyncio.TimerHandle | None = None

    def warn(self, client: str, reason: object) -> None:
        """Log why a client's connection is closed, or count it."""
        self.count += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_SECONDS, self.flush)
        if self._written < WARNINGS:
            self._written += 1
            logger.warning("closed the connection to %s: %s", client, reason)
        else:
            self._held_back += 1
            self._last = f"{client}: {reason}"

    def flush(self) -> None:
        """End the window: log how many connections were only counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held_back:
            logger.warning("closed %d more connections for what they sent, the last to %s", self._held_back, self._last)
        self._written = self._held_back = 0
