"""OAUTHBEARER (RFC 7628): a bearer token, with the SASL extensions of KIP-342."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from roster._json import loads
from roster.wire.sasl.mechanism import SaslError

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
    _refusal: str = field(default="", init=False)

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
        if self._refusal:
            raise SaslError(self._refusal)
        self._refusal = _reason(challenge)
        return _SEPARATOR.encode()

    def finish(self) -> None:
        """Raise SaslError if the server has refused the token."""
        if self._refusal:
            raise SaslError(self._refusal)

    @property
    def refusal(self) -> str:
        """The server's message about the token, "" if none."""
        return self._refusal


def _reason(challenge: bytes) -> str:
    try:
        answer = loads(challenge)
        parts = [f"{key} {answer[key]}" for key in ("status", "scope", "openid-configuration") if answer.get(key)]
    except (ValueError, AttributeError, TypeError):
        parts = []
    return "the server refused the token" + (f": {', '.join(parts)}" if parts else "")
