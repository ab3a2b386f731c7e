"""The client's side of the group protocol as a pure state machine, and the group leader's assignment."""

from roster.member.config import ConfigError, MemberConfig
from roster.member.member import Member
from roster.member.states import MemberState

__all__ = ["ConfigError", "Member", "MemberConfig", "MemberState"]
