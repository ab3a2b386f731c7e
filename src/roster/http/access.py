"""Who may use an HTTP server: TLS, client certificates, a token, and cookies for browsers."""

import hashlib
import hmac
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from roster.model.options import Option, by_name
from roster.security import PLAINTEXT, Security, SettingError, parse_security
from roster.security.parse import check_name
from roster.security.properties import read_properties
from roster.security.settings import SECURITY_OPTIONS
from roster.security.tls import server_tls_context, tls_context

_LEAST_TOKEN = 16
_CLIENT_AUTH = ("none", "required")

ACCESS_OPTIONS = by_name(
    [
        Option("ssl.keystore.location", "path", "PEM file with the server's private key and certificate chain", None),
        Option("ssl.key.password", "secret", "of that key", None),
        Option("ssl.truststore.location", "path", "PEM file of the CAs that sign the certificates of the others", None),
        Option("ssl.client.auth", " or ".join(_CLIENT_AUTH), "whether clients must show a certificate", "none"),
        Option("token", "secret", "what clients send as `Authorization: Bearer TOKEN`, but to the probes", None),
    ]
)
"""Settings of access by name. The other names of Kafka's clients for keys and certificates are understood too."""


@dataclass(frozen=True, slots=True)
class Access:
    """Checked settings of access. `security` has this application's key and the CAs of the others."""

    security: Security = PLAINTEXT
    client_auth: bool = False
    token: str = field(default="", repr=False)

    @property
    def is_limited(self) -> bool:
        """True if a client must prove who it is."""
        return self.client_auth or bool(self.token)

    @property
    def scheme(self) -> str:
        """Return `https` or `http`."""
        return "https" if self.security.uses_tls else "http"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of a request to a server with the same settings."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def server_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of a server, None without TLS. Raises SettingError for unusable keys."""
        return server_tls_context(self.security, client_auth=self.client_auth) if self.security.uses_tls else None

    def client_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of a client, None without TLS. Raises SettingError for unusable keys."""
        return tls_context(self.security) if self.security.uses_tls else None


OPEN = Access()
"""No TLS, and no question who asks."""


def parse_access(given: Mapping[str, object] | None) -> Access:
    """Check settings by name and return them; files are read here. Raises SettingError that names the wrong one."""
    values = dict(given or {})
    for name in values:
        if name not in SECURITY_OPTIONS:
            check_name(name, ACCESS_OPTIONS, "a setting of HTTP", f"use some of {', '.join(ACCESS_OPTIONS)}")
    token, auth = values.pop("token", ""), values.pop("ssl.client.auth", "none")
    _check_token(token)
    if auth not in _CLIENT_AUTH:
        raise SettingError("ssl.client.auth", f"{auth!r} is not understood", f"use {' or '.join(_CLIENT_AUTH)}")
    security = parse_security({"security.protocol": "SSL"} | values) if values else PLAINTEXT
    if security.uses_sasl:
        raise SettingError("security.protocol", "SASL is not for HTTP", "leave it out, and set token")
    if security.uses_tls and not security.certificate:
        raise SettingError("ssl.keystore.location", "is missing", "name a PEM file with the server's key and chain")
    if auth == "required" and not security.ca:
        raise SettingError("ssl.client.auth", "needs the CA of the clients", "set ssl.truststore.location")
    access = Access(security, auth == "required", str(token))
    access.server_context()
    return access


def read_access(text: str) -> Access:
    """Return the settings in the text of a properties file. Raises SettingError as `parse_access` does."""
    return parse_access(read_properties(text))


def _check_token(token: object) -> None:
    if token == "":
        return
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingError("token", "is not plain ASCII text", "use letters and digits")
    if len(token) < _LEAST_TOKEN:
        raise SettingError("token", "is short", f"use {_LEAST_TOKEN} characters or more, best at random")


LIFETIME = 12 * 3600
"""Seconds until a browser asks for the token again."""


class Login:
    """Makes and checks cookies of a server: browsers cannot send the token with each request.

    A cookie proves that its browser had the token, and is good for 12 hours.

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
