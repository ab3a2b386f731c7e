"""The policies as pure functions: one file each, assign(problem) -> Plan."""

from roster.assignors.base import Assignor, ClaimSource, RebalanceProtocol
from roster.assignors.choice import ASSIGNORS, choose, find_assignor, listed, protocol_of
from roster.assignors.lag import (
    LAG,
    LAG_COOPERATIVE_STICKY,
    LAG_STICKY,
    LagOptions,
    lag_cooperative_sticky,
    lag_sticky,
)
from roster.assignors.range import RANGE
from roster.assignors.roundrobin import ROUNDROBIN
from roster.assignors.sticky import COOPERATIVE_STICKY, STICKY

__all__ = [
    "ASSIGNORS",
    "COOPERATIVE_STICKY",
    "LAG",
    "LAG_COOPERATIVE_STICKY",
    "LAG_STICKY",
    "RANGE",
    "ROUNDROBIN",
    "STICKY",
    "Assignor",
    "ClaimSource",
    "LagOptions",
    "RebalanceProtocol",
    "choose",
    "find_assignor",
    "lag_cooperative_sticky",
    "lag_sticky",
    "listed",
    "protocol_of",
]
