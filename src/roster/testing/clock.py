"""An event loop whose clock a test can advance."""

from __future__ import annotations

import asyncio


class ClockLoop(asyncio.SelectorEventLoop):
    """Event loop of a broker under test; its clock is the system's plus the seconds of all `advance` calls."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0

    def time(self) -> float:
        """Return the time of the advanced clock, in seconds."""
        return super().time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Advance the clock; timers that are then due run at once, in the order of their deadlines."""
        self._ahead += seconds
