"""Named timers on one heap, for a state machine that resets them far more often than they expire."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import TYPE_CHECKING, Generic, TypeVar

from roster.model import CancelTimer, SetTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SPARE_ENTRIES = 64
N = TypeVar("N")
"""Name of a timer, hashable."""


class Timers(Generic[N]):
    """Calls `expired(name)` once the loop's clock reaches a timer's deadline, in milliseconds.

    Putting a deadline off costs no heap operation: the entry is moved when it comes up. Entries of cancelled timers are
    removed once they are the most of the heap, so that members that come and go leave nothing behind.
    """

    def __init__(self, expired: Callable[[N], None]) -> None:
        self._expired = expired
        self._deadlines: dict[N, int] = {}
        self._queued: dict[N, int] = {}
        self._heap: list[tuple[int, int, N]] = []
        self._entries = itertools.count()
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def now(self) -> int:
        """Milliseconds of the event loop's monotonic clock."""
        if self._loop is None:  # kept, as to find it costs a system call
            self._loop = asyncio.get_running_loop()
        return int(self._loop.time() * 1000)

    def apply(self, effects: Iterable[SetTimer[N] | CancelTimer[N]]) -> None:
        """Set and cancel the timers that a state machine asks for, in order."""
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.set(effect.name, effect.deadline)
            else:
                self.cancel(effect.name)

    def set(self, name: N, deadline: int) -> None:
        """Set or replace a timer."""
        self._deadlines[name] = deadline
        self._queue(name, deadline)
        self._arm()

    def cancel(self, name: N) -> None:
        """Forget a timer, if there is one."""
        self._deadlines.pop(name, None)
        self._shrink()

    def _shrink(self) -> None:
        if len(self._heap) <= 2 * len(self._deadlines) + _SPARE_ENTRIES:
            return
        self._queued = dict(self._deadlines)
        self._heap = [(deadline, next(self._entries), name) for name, deadline in self._deadlines.items()]
        heapq.heapify(self._heap)

    def stop(self) -> None:
        """Forget all timers."""
        self._deadlines.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _queue(self, name: N, deadline: int) -> None:
        queued = self._queued.get(name)
        if queued is None or deadline < queued:
            self._queued[name] = deadline
            heapq.heappush(self._heap, (deadline, next(self._entries), name))  # names have no order
            self._shrink()

    def _arm(self) -> None:
        if not self._heap:
            return
        when = self._heap[0][0] / 1000
        if self._handle is not None:
            if self._handle.when() <= when:
                return
            self._handle.cancel()
        self._handle = asyncio.get_running_loop().call_at(when, self._come_up)

    def _come_up(self) -> None:
        self._handle = None
        now = self.now()
        due = []
        while self._heap and self._heap[0][0] <= now:
            queued, _, name = heapq.heappop(self._heap)
            if self._queued.get(name) != queued:  # a nearer deadline was queued after this one
                continue
            del self._queued[name]
            deadline = self._deadlines.get(name)
            if deadline is None:
                continue
            if deadline > now:
                self._queue(name, deadline)
            else:
                due.append((name, deadline))
        self._arm()
        for name, deadline in due:
            if self._deadlines.get(name) == deadline:  # not cancelled or put off by one before it
                del self._deadlines[name]
                self._expired(name)
