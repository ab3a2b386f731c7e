"""Types that all packages share: addresses, topics, offsets, Problem, Plan."""

from typing import TYPE_CHECKING

from roster._on_demand import on_demand

if TYPE_CHECKING:
    from roster.model.address import Address, AddressError, parse_address, parse_addresses
    from roster.model.offsets import AutoOffsetReset, GroupPosition, OffsetAndMetadata, OffsetSpec, PartitionOffsets
    from roster.model.plan import LagBalance, Move, Plan
    from roster.model.problem import NO_GENERATION, NO_OWNER, Claims, MemberInfo, Problem, Racks
    from roster.model.timers import CancelTimer, SetTimer
    from roster.model.topics import TopicPartition
else:
    __getattr__ = on_demand(__name__, ("address", "topics", "offsets", "timers", "problem", "plan"))

__all__ = [
    "NO_GENERATION",
    "NO_OWNER",
    "Address",
    "AddressError",
    "AutoOffsetReset",
    "CancelTimer",
    "Claims",
    "GroupPosition",
    "LagBalance",
    "MemberInfo",
    "Move",
    "OffsetAndMetadata",
    "OffsetSpec",
    "PartitionOffsets",
    "Plan",
    "Problem",
    "Racks",
    "SetTimer",
    "TopicPartition",
    "parse_address",
    "parse_addresses",
]
