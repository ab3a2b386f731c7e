"""PLAIN (RFC 4616): user name and password in one message, so it needs TLS."""

from __future__ import annotations

from dataclasses import dataclass, field

from roster.wire.sasl.errors import SaslError


@dataclass(frozen=True, slots=True)
class Plain:
    """The exchange of one user. Raises SaslError if a part contains U+0000, which separates the parts."""

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
