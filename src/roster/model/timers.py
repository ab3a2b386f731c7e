"""Timer effects of the state machines; their shells carry them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

NameT = TypeVar("NameT")


@dataclass(frozen=True, slots=True)
class SetTimer(Generic[NameT]):
    """Emit the event `TimerExpired` for `name` once the clock reaches `deadline` (ms); replaces an earlier deadline."""

    name: NameT
    deadline: int


@dataclass(frozen=True, slots=True)
class CancelTimer(Generic[NameT]):
    """Cancel the timer `name`; an unknown name is ignored."""

    name: NameT
