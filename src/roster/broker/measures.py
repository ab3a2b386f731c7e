"""What a broker does, counted while it runs."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roster.broker.call import Call

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of the classes of durations, in seconds; what is longer is in one more class."""


class Durations:
    """Durations in classes: `counts` has one number for each of BOUNDS and one beyond, `seconds` is their sum."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add_since(self, began: float) -> None:
        """Add the time since `began` (`time.perf_counter`)."""
        spent = perf_counter() - began
        self.counts[bisect_left(BOUNDS, spent)] += 1
        self.seconds += spent


@dataclass(slots=True)
class Measures:
    """Counted in the broker's event loop, if it was given them: see `Hooks.measures`."""

    requests: defaultdict[int, Durations] = field(default_factory=lambda: defaultdict(Durations))
    """By api key: from a request that was read to its response, with whatever it waits for."""
    syncs: Durations = field(default_factory=Durations)
    """Rounds of fsync, each for all logs that waited."""
    transactions: Counter[bool] = field(default_factory=Counter)
    """Transactions that ended, by whether they were committed."""

    def begin(self, call: Call[Any]) -> None:
        """Note that a request was read."""
        call.began = perf_counter()

    def end(self, call: Call[Any]) -> None:
        """Count a request that was answered, or given up."""
        self.requests[call.header.api_key].add_since(call.began)
