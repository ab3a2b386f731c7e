"""One JoinGroup request with what is derived from it."""

from __future__ import annotations

from typing import NamedTuple

from roster.coordinator.events import RequestReceived
from roster.coordinator.group import ParkedJoin, Protocols
from roster.wire.messages import JoinGroupRequest

MEMBER_ID_REQUIRED_FROM = 4
"""KIP-394: JoinGroup version from which a new dynamic member is given an id first and joins with it."""


class JoinCall(NamedTuple):
    """A JoinGroup request under way."""

    event: RequestReceived
    request: JoinGroupRequest
    protocols: Protocols

    @classmethod
    def of(cls, event: RequestReceived, request: JoinGroupRequest) -> JoinCall:
        """Take in a request; of a protocol named twice the first entry counts."""
        protocols: dict[str, bytes] = {}
        for protocol in request.protocols:
            protocols.setdefault(protocol.name, protocol.metadata)
        return cls(event, request, tuple(protocols.items()))

    @property
    def parked(self) -> ParkedJoin:
        """The parked request: kept while its response waits for the end of the join phase."""
        return ParkedJoin(self.event.token, self.event.api_version)

    @property
    def member_id(self) -> str:
        """Member id in the request; empty for a new member."""
        return self.request.member_id

    @property
    def instance_id(self) -> str | None:
        """`group.instance.id` of a static member, else None."""
        return self.request.group_instance_id

    @property
    def requires_known_member_id(self) -> bool:
        """True if a new dynamic member has to be given a member id first."""
        return self.event.api_version >= MEMBER_ID_REQUIRED_FROM

    @property
    def rebalance_timeout_ms(self) -> int:
        """Rebalance timeout; the session timeout where the request has none (v0) or none above zero."""
        timeout = self.request.rebalance_timeout_ms
        return timeout if timeout > 0 else self.request.session_timeout_ms
