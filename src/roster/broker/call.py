"""One request on its way through the broker."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar, cast

from roster.broker.security.access import Access
from roster.broker.security.session import Session
from roster.wire import Message
from roster.wire.frames import RequestHeader

M_co = TypeVar("M_co", bound=Message, covariant=True)
Answer: TypeAlias = "Callable[[], Coroutine[None, None, Message | None]]"
"""Waits for the response of a request that was begun; one whose connection is torn is never called."""


class ResponseMemory(Protocol):
    """Counts the memory of responses that are not sent yet; `Services` does."""

    unsent_bytes: int


@dataclass(slots=True)
class Call(Generic[M_co]):
    """One request."""

    header: RequestHeader
    message: M_co
    client_host: str
    is_large: bool = False
    """True if the response may have very many items because the request has."""
    session: Session = field(default=cast("Session", None), repr=False)
    """Login and rights of the connection."""
    began: float = 0.0
    """When it was read (`time.perf_counter`); only set where requests are counted."""
    held_bytes: int = 0
    """Bytes of its response counted in `Services.unsent_bytes`, until `release`."""

    def hold(self, memory: ResponseMemory, size: int) -> None:
        """Count bytes that are about to be read for the response."""
        memory.unsent_bytes += size
        self.held_bytes += size

    def release(self, memory: ResponseMemory) -> None:
        """Stop counting the response, which was sent or dropped."""
        memory.unsent_bytes -= self.held_bytes
        self.held_bytes = 0

    @property
    def access(self) -> Access:
        """Rights of the client."""
        return self.session.access

    @property
    def version(self) -> int:
        """The api version the request was sent in, and so the response's."""
        return self.header.api_version
