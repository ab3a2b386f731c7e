"""The client's half of the group protocol as a pure state machine, and the leader's duty."""

from roster.member.config import ConfigError, MemberConfig
from roster.member.core import Member
from roster.member.offsets import OffsetAndMetadata
from roster.member.transitions import State

__all__ = ["ConfigError", "Member", "MemberConfig", "OffsetAndMetadata", "State"]
