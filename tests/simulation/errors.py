"""`BrokenInvariant`, which ends a simulation."""

from __future__ import annotations

from typing import NoReturn


class BrokenInvariant(Exception):
    """An invariant does not hold; `sentence` is the invariant, the text says what was seen."""

    def __init__(self, sentence: str, seen: str) -> None:
        super().__init__(f"{sentence}: {seen}")
        self.sentence = sentence
        self.seen = seen

    def __reduce__(self) -> tuple[type[BrokenInvariant], tuple[str, str]]:
        """Travel between processes."""
        return BrokenInvariant, (self.sentence, self.seen)


def broken(sentence: str, seen: str) -> NoReturn:
    """Raise BrokenInvariant."""
    raise BrokenInvariant(sentence, seen)
