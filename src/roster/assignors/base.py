"""`Assignor`: a name, the rebalance protocols it supports, the source of claims it reads, and a pure function."""

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
    """Part of a subscription that claims partitions, and the generation of the claims."""

    NONE = "none"
    STICKY_USER_DATA = "sticky user data"
    """StickyAssignor: always its user data, never the subscription's own fields."""
    FIELDS = "fields"
    """CooperativeStickyAssignor: the fields; the generation from user data if the fields have none."""


@dataclass(frozen=True, slots=True)
class Assignor:
    """An assignor.

    name: protocol name in JoinGroup. supported_protocols: rebalance protocols, the preferred first. claim_source: where
    claims are read from. assign: the decision. wants_lag: it uses `Problem.lag`, so the leader fetches offsets.
    """

    name: str
    supported_protocols: tuple[RebalanceProtocol, ...]
    claim_source: ClaimSource
    assign: Callable[[Problem], Plan]
    wants_lag: bool = False
