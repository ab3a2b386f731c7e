"""`BrokenInvariant`, which ends a simulation."""

from __future__ import annotations


class BrokenInvariant(Exception):  # noqa: N818 - what happened, not what went wrong in the simulator
    """An invariant does not hold; `sentence` is the invariant, the text says what was seen."""

    def __init__(self, sentence: str, seen: str) -> None:
        super().__init__(f"{sentence}: {seen}")
        self.sentence = sentence
        self.seen = seen
