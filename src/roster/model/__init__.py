"""Vocabulary shared by every room: addresses, topics, offsets, Problem, Plan."""

from roster.model.address import Address, AddressError, parse_address, parse_addresses
from roster.model.offsets import OffsetAndMetadata, PartitionOffsets
from roster.model.plan import LagBalance, Move, Plan
from roster.model.problem import NO_GENERATION, NO_OWNER, Claims, MemberInfo, Problem, Racks
from roster.model.topics import TopicPartition

__all__ = [
    "NO_GENERATION",
    "NO_OWNER",
    "Address",
    "AddressError",
    "Claims",
    "LagBalance",
    "MemberInfo",
    "Move",
    "OffsetAndMetadata",
    "PartitionOffsets",
    "Plan",
    "Problem",
    "Racks",
    "TopicPartition",
    "parse_address",
    "parse_addresses",
]
