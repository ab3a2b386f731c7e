"""Virtual time: one queue of events for everything, and a monotonic clock with timers for each process."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar

from roster.model import CancelTimer, SetTimer

NameT = TypeVar("NameT")


class Scheduler:
    """Runs actions in the order of their times (ms); those of one time in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now = 0
        self.events = 0
        """Actions run so far."""
        self._queue: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = count()

    def at(self, time: int, action: Callable[..., object], *arguments: Any) -> None:
        """Run an action at `time`, or at once if that has passed."""
        time = max(time, self.now)
        heapq.heappush(self._queue, (time, next(self._order), action, arguments))

    def after(self, ms: int, action: Callable[..., object], *arguments: Any) -> None:
        """Run an action in `ms`."""
        heapq.heappush(self._queue, (self.now + ms, next(self._order), action, arguments))

    def run(self, until: int) -> None:
        """Run everything due up to `until`, and stop there."""
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= until:
            self.now, _, action, arguments = pop(queue)
            self.events += 1
            action(*arguments)
        self.now = until


class Timers(Generic[NameT]):
    """The monotonic clock of one process, and its timers by name.

    A process whose machine was suspended finds its clock ahead when it wakes up (`jump`).
    """

    def __init__(self, scheduler: Scheduler, expired: Callable[[NameT], None]) -> None:
        self._scheduler = scheduler
        self._expired = expired
        self._deadlines: dict[NameT, int] = {}
        self._ahead = 0

    @property
    def now(self) -> int:
        """The time of this process, ms."""
        return self._scheduler.now + self._ahead

    def apply(self, effect: SetTimer[NameT] | CancelTimer[NameT]) -> None:
        """Set or cancel a timer."""
        if isinstance(effect, SetTimer):
            self._deadlines[effect.name] = effect.deadline
            self._schedule(effect.name, effect.deadline)
        else:
            self._deadlines.pop(effect.name, None)

    def jump(self, ms: int) -> None:
        """Set the clock forward."""
        self._ahead += ms
        for name, deadline in self._deadlines.items():
            self._schedule(name, deadline)

    def clear(self) -> None:
        """Cancel every timer."""
        self._deadlines.clear()

    def __len__(self) -> int:
        return len(self._deadlines)

    def _schedule(self, name: NameT, deadline: int) -> None:
        self._scheduler.at(deadline - self._ahead, self._fire, name, deadline)

    def _fire(self, name: NameT, deadline: int) -> None:
        if self._deadlines.get(name) == deadline and self.now >= deadline:
            del self._deadlines[name]
            self._expired(name)
