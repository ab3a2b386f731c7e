"""Values over time: rates, and whether lag grows."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from math import isnan, nan

KEPT = 120
"""Values kept per series."""
RATE_WINDOW_S = 10.0
"""Seconds a rate is averaged over: batches commit in bursts."""
TREND_WINDOW_S = 15.0
"""Seconds over which lag is judged to grow or shrink."""
_PARTS = 3
_LEAST_LOOKS = 6


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

    def floors(self, window: float = TREND_WINDOW_S) -> Sequence[float]:
        """The least value of each third of the window; () before the window is full.

        Commits come in bursts, so lag is a saw; its floors show whether it grows.
        """
        points = zip(self._times, self._values, strict=True)
        known = [point for point in points if not isnan(point[1])]
        if not known or known[-1][0] - known[0][0] < window:
            return ()
        newest = known[-1][0]
        within = [(at, value) for at, value in known if newest - at <= window]
        if len(within) < _LEAST_LOOKS:
            within = known[-_LEAST_LOOKS:]
        if len(within) < _LEAST_LOOKS:
            return ()
        size = len(within) / _PARTS
        cuts = [round(size * part) for part in range(_PARTS + 1)]
        return [min(value for _, value in within[a:b]) for a, b in itertools.pairwise(cuts)]
