"""Waiting for what another process or thread does."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.05
LONGEST_OF_DEAR = 0.25
"""The longest pause of a question that takes time itself: a fifth of the wait at most goes into asking."""


def until(condition: Callable[[], T], seconds: float = 180.0, what: Callable[[], object] | str = "") -> T:
    """Ask until the answer is true, then return it; AssertionError that says what was waited for after `seconds`."""
    deadline, pause = monotonic() + seconds, FIRST_PAUSE
    asked = monotonic()
    while not (answer := condition()):
        if (answered := monotonic()) > deadline:
            told = what() if callable(what) else what or condition
            raise AssertionError(f"not within {seconds} s: {told}; the last answer: {answer!r}")
        sleep(max(pause, min(4 * (answered - asked), LONGEST_OF_DEAR)))
        asked = monotonic()
        pause = min(1.2 * pause, LONGEST_PAUSE)
    return answer
