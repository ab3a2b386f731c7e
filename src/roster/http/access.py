"""Who may use an HTTP server: TLS, client certificates, a token."""

import base64
import hmac
import ssl
from collections.abc import Mapping
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

    def admits(self, authorization: str) -> bool:
        """Return True if the header `Authorization` has the token; takes as long for any other text.

        Programs send it as a bearer token, browsers as the password of any user: they ask for one and keep it.
        """
        scheme, _, token = authorization.partition(" ")
        token = token.strip(" ")
        if scheme.lower() == "basic":
            try:
                token = base64.b64decode(token).decode(errors="replace").partition(":")[2]
            except ValueError:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(token.encode(errors="replace"), self.token.encode())

    def server_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of a server, None without TLS. Raises SettingError for unusable keys."""
        verify_mode = ssl.CERT_REQUIRED if self.client_auth else ssl.CERT_NONE
        return server_tls_context(self.security, verify_mode) if self.security.uses_tls else None

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
