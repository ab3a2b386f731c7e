"""The policies as pure functions: one file each, assign(problem) -> Plan."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from roster.assignors.base import Assignor, ClaimSource, RebalanceProtocol
from roster.assignors.range import RANGE
from roster.assignors.roundrobin import ROUNDROBIN
from roster.assignors.sticky import COOPERATIVE_STICKY, STICKY

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {assignor.name: assignor for assignor in (RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY)}
)
"""Every assignor under its Kafka name."""

__all__ = [
    "ASSIGNORS",
    "COOPERATIVE_STICKY",
    "RANGE",
    "ROUNDROBIN",
    "STICKY",
    "Assignor",
    "ClaimSource",
    "RebalanceProtocol",
]
