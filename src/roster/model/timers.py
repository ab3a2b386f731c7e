"""Timer effects of the state machines, which their shells carry out; durations in classes, for histograms."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Generic, TypeVar

NameT = TypeVar("NameT")


@dataclass(frozen=True, slots=True)
class SetTimer(Generic[NameT]):
    """Emit the event `TimerExpired` for `name` once the clock reaches `deadline` (ms); replaces an earlier deadline."""

    name: NameT
    deadline: int


@dataclass(frozen=True, slots=True)
class CancelTimer(Generic[NameT]):
    """Cancel the timer `name`; an unknown name is ignored."""

    name: NameT


BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of the classes, in seconds; what is longer is in one more class."""


class Durations:
    """`counts` has one number for each of BOUNDS and one beyond, `seconds` is the sum."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Add a duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds
