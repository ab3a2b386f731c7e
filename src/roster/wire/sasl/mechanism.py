"""The client's side of a SASL mechanism: its interface, its error, and PLAIN (RFC 4616)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from roster._errors import RosterError


class SaslError(RosterError):
    """The server refused the credentials or broke the protocol of the mechanism; the message has no secrets."""


class Mechanism(Protocol):
    """The client's side of one SASL exchange."""

    def first(self) -> bytes:
        """Return the client's initial response."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the reply to a message of the server, or None when there is nothing more to send.

        Raises SaslError if the server refuses the login or cannot be trusted.
        """

    def finish(self) -> None:
        """Check that the exchange is complete. Raises SaslError if the server ended it early."""


@dataclass(frozen=True, slots=True)
class Plain:
    """PLAIN of one user: name and password in one message, so it needs TLS.

    Raises SaslError if a part contains U+0000, which separates the parts.
    """

    username: str
    password: str = field(repr=False)

    def first(self) -> bytes:
        """Return `NUL username NUL password`."""
        parts = ("", self.username, self.password)
        if any("\0" in part for part in parts):
            raise SaslError("PLAIN cannot carry a user name or password with a zero byte")
        return "\0".join(parts).encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Accept the server's message, which is empty."""
        if challenge:
            raise SaslError("the server answered PLAIN with a challenge, which the mechanism does not have")
        return None

    def finish(self) -> None:
        """Accept the end of the exchange."""
