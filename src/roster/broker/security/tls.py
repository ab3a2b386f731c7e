"""The TLS context of the listener, and what a failed handshake means."""

import ssl
from pathlib import Path

from roster.broker.errors import BrokerStartError
from roster.broker.security.config import BrokerSecurity
from roster.security import SettingError, parse_security
from roster.security.tls import reason_of, server_tls_context

ALERT_UNEXPECTED_MESSAGE = b"\x15\x03\x01\x00\x02\x02\x0a"
"""The TLS alert for a client that does not speak TLS: Kafka's clients know by it what is wrong."""
HANDSHAKE = 0x16
"""First byte of a TLS connection."""
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_OPTIONS = {
    "ssl.key.location": "--ssl-keystore-location",
    "ssl.keystore.location": "--ssl-keystore-location",
    "ssl.key.password": "--ssl-key-password-file",
    "ssl.ca.location": "--ssl-truststore-location",
    "ssl.truststore.location": "--ssl-truststore-location",
}
"""Options of the broker by the settings of a connection that they stand for."""


def server_context(security: BrokerSecurity) -> ssl.SSLContext | None:
    """Return the context of the listener, TLS 1.2 or newer; None without TLS.

    Raises:
        BrokerStartError: a file cannot be used; the message names the option.
    """
    keystore, truststore = security.ssl_keystore_location, security.ssl_truststore_location
    if not security.uses_tls or keystore is None:
        return None
    settings = {"security.protocol": "SSL", "ssl.keystore.location": str(keystore)}
    if truststore is not None:
        settings["ssl.truststore.location"] = str(truststore)
    if security.ssl_key_password_file is not None:
        settings["ssl.key.password"] = _password(security.ssl_key_password_file)
    try:
        return server_tls_context(parse_security(settings), _CLIENT_AUTH[security.ssl_client_auth])
    except SettingError as error:
        raise BrokerStartError(f"{_OPTIONS[error.key]}: {error.problem}; {error.fix}") from None


def _password(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise BrokerStartError(f"--ssl-key-password-file: {path} cannot be read ({reason})") from None


def handshake_problem(error: BaseException) -> str:
    """Say in one line why a handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed: {reason_of(error)}"
    if isinstance(error, (TimeoutError, ConnectionAbortedError)):
        return "the TLS handshake was not complete in time"
    return "the client ended the TLS handshake"
