"""The client's side of a SASL mechanism: its interface, its error, PLAIN (RFC 4616), and OAUTHBEARER (RFC 7628)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from roster._errors import RosterError
from roster._json import loads


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


_SEPARATOR = "\x01"
_KEY = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]*")
_TOKEN = re.compile(r"[-A-Za-z0-9._~+/]+=*")


@dataclass(slots=True)
class Bearer:
    """The exchange that presents `token`, with `extensions`.

    Raises SaslError if the token or an extension has illegal characters.
    """

    token: str = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)
    refusal: str = field(default="", init=False)
    """The server's message about the token, "" if none."""

    def first(self) -> bytes:
        """Return the GS2 header, the token as an Authorization header, and the extensions."""
        if not _TOKEN.fullmatch(self.token):
            raise SaslError("the token is not one of RFC 6750: letters, digits and -._~+/ with = at the end only")
        for key, value in self.extensions.items():
            if not _KEY.fullmatch(key) or key == "auth" or not _VALUE.fullmatch(value):
                raise SaslError(
                    f"SASL extension {key!r}: the name must be letters, not auth, the value printable ASCII"
                )
        pairs = {"auth": f"Bearer {self.token}", **self.extensions}
        body = "".join(f"{key}={value}{_SEPARATOR}" for key, value in pairs.items())
        return f"n,,{_SEPARATOR}{body}{_SEPARATOR}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Handle the server's message: empty if it accepts, else JSON, which is answered with 0x01."""
        if not challenge:
            return None
        if self.refusal:
            raise SaslError(self.refusal)
        self.refusal = _reason(challenge)
        return _SEPARATOR.encode()

    def finish(self) -> None:
        """Raise SaslError if the server has refused the token."""
        if self.refusal:
            raise SaslError(self.refusal)


def _reason(challenge: bytes) -> str:
    try:
        answer = loads(challenge)
        parts = [f"{key} {answer[key]}" for key in ("status", "scope", "openid-configuration") if answer.get(key)]
    except (ValueError, AttributeError, TypeError):
        parts = []
    return "the server refused the token" + (f": {', '.join(parts)}" if parts else "")
