"""Values over time, and rates."""

from __future__ import annotations

from array import array
from math import isnan, nan

KEPT = 120
"""Values kept per series."""
RATE_WINDOW_S = 10.0
"""Seconds a rate is averaged over: batches commit in bursts."""


class Series:
    """The newest values of one figure with their times in seconds; None stands for a look that did not find it."""

    __slots__ = ("_times", "_values")

    def __init__(self) -> None:
        self._times, self._values = array("d"), array("d")

    def add(self, at: float, value: float | None) -> None:
        """Add the value of a snapshot."""
        if len(self._times) == KEPT:
            del self._times[0], self._values[0]
        self._times.append(at)
        self._values.append(nan if value is None else value)

    @property
    def values(self) -> tuple[float | None, ...]:
        """Values kept, oldest first."""
        return tuple(None if isnan(value) else value for value in self._values)

    @property
    def times(self) -> tuple[float, ...]:
        """Their times."""
        return tuple(self._times)

    def rate(self, window: float = RATE_WINDOW_S) -> float | None:
        """The increase a second over the window, or since the look before where looks are rarer; None after one look.

        After a decrease counting restarts from the lower value.
        """
        points = zip(reversed(self._times), reversed(self._values), strict=True)
        known = (point for point in points if not isnan(point[1]))
        last = next(known, None)
        if last is None:
            return None
        first, looks = last, 1
        for point in known:
            looks += 1
            if point[1] > first[1] or (last[0] - point[0] > window and first is not last):
                break
            first = point
        if looks == 1:
            return None
        seconds = last[0] - first[0]
        return (last[1] - first[1]) / seconds if seconds > 0 else 0.0
