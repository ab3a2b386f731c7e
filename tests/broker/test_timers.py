"""Named timers: the latest deadline counts, and each fires once."""

from __future__ import annotations

import asyncio
import random

from roster.broker.shell import Timers


async def test_timers_fire_in_order_at_their_latest_deadline_and_never_when_cancelled() -> None:
    fired: list[str] = []
    timers = Timers(lambda name: fired.append(name[0]))
    now = timers.now()
    numbers = list(range(20))
    random.Random(7).shuffle(numbers)
    for n in numbers:
        timers.set((f"{n:02d}",), now + 10_000)
        timers.set((f"{n:02d}",), now + 2 * n + (5 if n % 3 else 60_000))
    for n in range(0, 20, 5):
        timers.cancel((f"{n:02d}",))
    timers.cancel(("unknown",))
    wanted = [f"{n:02d}" for n in range(20) if n % 3 and n % 5]
    while len(fired) < len(wanted):
        await asyncio.sleep(0.005)
    assert fired == wanted
    timers.stop()


async def test_a_timer_cancelled_by_one_that_is_due_at_the_same_time_does_not_fire() -> None:
    fired: list[str] = []

    def expired(name: tuple[str, ...]) -> None:
        fired.append(name[0])
        timers.cancel(("a",) if name[0] == "b" else ("b",))

    timers = Timers(expired)
    timers.set(("a",), timers.now())
    timers.set(("b",), timers.now())
    while not fired:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.005)
    assert len(fired) == 1


async def test_timers_that_come_and_go_leave_nothing_behind() -> None:
    """Sessions of members that joined and left would wait in memory for the end of their timeouts."""
    fired: list[int] = []
    timers = Timers(lambda name: fired.append(name[0]))
    soon = timers.now() + 50
    timers.set((-1,), soon)
    for n in range(20_000):
        timers.set((n,), timers.now() + 600_000 + n)
        timers.set((-2,), timers.now() + 1_200_000 - n)
        timers.cancel((n,))
    assert len(timers._handles) == 2
    await asyncio.sleep(0)
    assert len(asyncio.get_running_loop()._scheduled) < 100  # type: ignore[attr-defined]
    while not fired:
        await asyncio.sleep(0.005)
    assert fired == [-1]
    timers.stop()
