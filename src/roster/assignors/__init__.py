"""The policies as pure functions: one file each, assign(problem) -> Plan."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from roster.assignors.base import Assignor, ClaimSource, RebalanceProtocol
from roster.assignors.lag import LAG, LAG_COOPERATIVE_STICKY, LAG_STICKY
from roster.assignors.range import RANGE
from roster.assignors.roundrobin import ROUNDROBIN
from roster.assignors.sticky import COOPERATIVE_STICKY, STICKY

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {
        assignor.name: assignor
        for assignor in (RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY, LAG, LAG_STICKY, LAG_COOPERATIVE_STICKY)
    }
)
"""Every assignor under its Kafka name."""

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
    "RebalanceProtocol",
]
