"""Pauses between attempts."""

from __future__ import annotations

from typing import Protocol


class Chance(Protocol):
    """A seeded generator; `random.Random` is one."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


JITTER = 0.2


def backoff_ms(attempt: int, first_ms: int, most_ms: int, chance: Chance) -> int:
    """The pause before attempt `attempt` (0: the first retry): doubling, ±20 %, at most `most_ms` (KIP-580)."""
    pause = first_ms * 2.0 ** min(attempt, 30)
    pause *= 1 - JITTER + 2 * JITTER * chance.random()
    return max(1, min(int(pause), most_ms))
