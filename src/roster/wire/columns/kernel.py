"""What the loops of this package are called by."""

from collections.abc import Callable
from typing import Protocol


class Kernel(Protocol):
    """Loops of modules of this package by their names, compiled or as plain Python."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        """Return a loop."""
