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
    """What responses that are not sent yet hold in memory, over all connections."""


@dataclass(slots=True)
class Call(Generic[M]):
    """One request."""

    header: RequestHeader
    message: M
    client_host: str
    held_bytes: int = 0
    """What its response is counted with in `Services.unsent_bytes`, until `release`."""

    def hold(self, services: Services, size: int) -> None:
        """Count bytes that are about to be read for the response."""
        services.unsent_bytes += size
        self.held_bytes += size

    def release(self, services: Services) -> None:
        """The response was sent or given up."""
        services.unsent_bytes -= self.held_bytes
        self.held_bytes = 0

    @property
    def version(self) -> int:
        """The api version the request was sent in, and so the response's."""
        return self.header.api_version


class CloseConnection(Exception):  # noqa: N818 (an instruction, not a failure)
    """A request that can only be answered by closing its connection; the text says why."""


def wall_ms() -> int:
    """The wall clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
