"""An event loop whose clock a test may put forward."""

from __future__ import annotations

import asyncio


class ClockLoop(asyncio.SelectorEventLoop):
    """The loop of a broker under test: its clock is the system's, and whatever `advance` added."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0

    def time(self) -> float:
        """Seconds of the monotonic clock, with what was added."""
        return super().time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Put the clock forward; timers that are due then run at once, in the order of their deadlines."""
        self._ahead += seconds
