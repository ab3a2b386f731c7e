"""What every assignor is: a name, the rebalance protocols it can run under, where it reads claims, and a pure
function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum

from roster.model import Plan, Problem


class RebalanceProtocol(IntEnum):
    """Kafka's two client protocols; a group's members must have one in common, the highest wins."""

    EAGER = 0
    COOPERATIVE = 1


class ClaimSource(Enum):
    """Which part of a subscription says what a member owned, and since which generation."""

    NONE = "none"
    STICKY_USER_DATA = "sticky user data"
    """StickyAssignor: always its user data, never the subscription's own fields."""
    FIELDS = "fields"
    """CooperativeStickyAssignor: the fields; the generation from user data if the fields have none."""


@dataclass(frozen=True, slots=True)
class Assignor:
    """A policy under its Kafka name; `wants_lag`: it looks at `Problem.lag`, so the leader should fetch offsets."""

    name: str
    supported_protocols: tuple[RebalanceProtocol, ...]
    claim_source: ClaimSource
    assign: Callable[[Problem], Plan]
    wants_lag: bool = False
