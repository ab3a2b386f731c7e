"""Hooks: a test kit observes requests and coordinator steps, metrics count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from roster.broker.call import Call
    from roster.broker.measures import Measures
    from roster.coordinator import Coordinator
    from roster.coordinator.events import Effects, Event
    from roster.wire import Message


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
