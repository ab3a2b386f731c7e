"""What a request handler can reach, and what it is given."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from roster.wire import Message

if TYPE_CHECKING:
    from roster.broker.config import BrokerConfig
    from roster.broker.group_commit import GroupCommit
    from roster.broker.groups import Groups
    from roster.broker.identity import Identity
    from roster.broker.topics import TopicCatalogue
    from roster.wire.frames import RequestHeader


M = TypeVar("M", bound=Message)


@dataclass(slots=True)
class Services:
    """The parts of a running broker."""

    config: BrokerConfig
    identity: Identity
    topics: TopicCatalogue
    commit: GroupCommit
    groups: Groups
    host: str = ""
    """Where clients are told to connect."""
    port: int = 0
    unsent_bytes: int = 0
    """Responses that slow readers have not taken yet, over all connections."""


@dataclass(frozen=True, slots=True)
class Call(Generic[M]):
    """One request."""

    header: RequestHeader
    message: M
    client_host: str

    @property
    def version(self) -> int:
        """The api version the request was sent in, and so the response's."""
        return self.header.api_version


class CloseConnection(Exception):  # noqa: N818 (an instruction, not a failure)
    """A request that can only be answered by closing its connection; the text says why."""


def wall_ms() -> int:
    """The wall clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
