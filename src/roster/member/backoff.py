"""Exponential back-off between retries (KIP-580)."""

from __future__ import annotations

from typing import Protocol


class RandomSource(Protocol):
    """A random number generator, seeded by the caller; `random.Random` is one."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...


JITTER = 0.2


def backoff_ms(failures: int, initial_ms: int, max_ms: int, random: RandomSource) -> int:
    """Return the pause in ms after `failures` failures: `initial_ms` doubled for each, ±20 %, at most `max_ms`."""
    pause = initial_ms * 2.0 ** min(failures, 30)
    pause *= 1 - JITTER + 2 * JITTER * random.random()
    return max(1, min(int(pause), max_ms))
