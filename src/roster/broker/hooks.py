"""Hooks: a test kit observes requests and coordinator steps, metrics count."""

from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from roster.broker.call import Call
from roster.coordinator import Coordinator
from roster.coordinator.events import Effects, Event
from roster.model.timers import Durations
from roster.wire import Message


@dataclass(slots=True)
class Measures:
    """Counted in the broker's event loop, if it was given them: see `Hooks.measures`."""

    requests: defaultdict[int, Durations] = field(default_factory=lambda: defaultdict(Durations))
    """By api key: from a request that was read to its response, with whatever it waits for."""
    syncs: Durations = field(default_factory=Durations)
    """Rounds of fsync, each for all logs that waited."""
    transactions: Counter[bool] = field(default_factory=Counter)
    """Transactions that ended, by whether they were committed."""

    def begin(self, call: Call[Message]) -> None:
        """Note that a request was read."""
        call.began = perf_counter()

    def end(self, call: Call[Message]) -> None:
        """Count a request that was answered, or given up."""
        self.requests[call.header.api_key].add(perf_counter() - call.began)


@dataclass(slots=True)
class Hooks:
    """Used in the broker's event loop; while they are None they cost one comparison."""

    intercept: Callable[[Call[Any]], Callable[..., Coroutine[None, None, Message | None]] | None] | None = None
    """Given each request; returns what handles it instead of its usual handler (`dispatch.Handler`), or None.

    What it returns may be cancelled when the client disconnects or the broker stops.
    """
    observe: Callable[[Coordinator, Event, Effects], None] | None = None
    """Given each event of the group coordinator, once it has been handled, with its effects."""
    measures: Measures | None = None
    """Counts requests, syncs and transactions."""
