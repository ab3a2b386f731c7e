"""A token for browsers, which cannot send one with each request: exchanged for a cookie."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable

from roster.http.access import Access

LIFETIME = 12 * 3600
"""Seconds until a browser asks for the token again."""


class Login:
    """Makes and checks cookies of a server. A cookie proves that its browser had the token, and is good for 12 hours.

    Browsers share cookies between the ports of a host, so that the name has the port.
    """

    def __init__(self, access: Access, port: int, now: Callable[[], float] = time.time) -> None:
        self._access, self._name, self._now = access, f"roster-{port}", now

    def is_token(self, given: str) -> bool:
        """Return True for the token; takes as long for any other text."""
        return hmac.compare_digest(given.encode(errors="replace"), self._access.token.encode())

    def set_cookie(self) -> str:
        """Return the header that gives a browser its cookie: no script sees it, no other site's page sends it."""
        until = str(int(self._now()) + LIFETIME)
        secure = "; Secure" if self._access.security.uses_tls else ""
        return (
            f"{self._name}={until}.{self._proof(until)}; Max-Age={LIFETIME}; Path=/; HttpOnly; SameSite=Strict{secure}"
        )

    def is_known(self, cookies: dict[str, str]) -> bool:
        """Return True if a request's cookies have one of this server that is still good."""
        until, _, proof = cookies.get(self._name, "").partition(".")
        if not hmac.compare_digest(proof.encode(errors="replace"), self._proof(until).encode()):
            return False
        return self._now() < int(until)

    def _proof(self, until: str) -> str:
        text = f"{self._name} {until}".encode(errors="replace")
        return hmac.new(self._access.token.encode(), text, hashlib.sha256).hexdigest()
