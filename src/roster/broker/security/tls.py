"""The TLS context of the listener, and what a failed handshake means."""

import ssl
from pathlib import Path

from roster.broker.errors import BrokerStartError
from roster.broker.security.config import BrokerSecurity
from roster.security.tls import reason_of

ALERT_UNEXPECTED_MESSAGE = b"\x15\x03\x01\x00\x02\x02\x0a"
"""The TLS alert for a client that does not speak TLS: Kafka's clients know by it what is wrong."""
HANDSHAKE = 0x16
"""First byte of a TLS connection."""
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(security: BrokerSecurity) -> ssl.SSLContext | None:
    """Return the context of the listener, TLS 1.2 or newer; None without TLS.

    Raises:
        BrokerStartError: a file cannot be used; the message names the option.
    """
    if not security.uses_tls or security.ssl_keystore_location is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_key(context, security.ssl_keystore_location, security.ssl_key_password_file)
    if security.ssl_truststore_location is not None:
        path = _readable("--ssl-truststore-location", security.ssl_truststore_location)
        try:
            context.load_verify_locations(path)
        except ssl.SSLError as error:
            raise BrokerStartError(
                f"--ssl-truststore-location: {path} is not a PEM file of certificates ({reason_of(error)})"
            ) from None
    context.verify_mode = _CLIENT_AUTH[security.ssl_client_auth]
    return context


def _load_key(context: ssl.SSLContext, keystore: Path, password_file: Path | None) -> None:
    path = _readable("--ssl-keystore-location", keystore)
    password = ""
    if password_file is not None:
        password = _readable("--ssl-key-password-file", password_file).read_text(encoding="utf-8").rstrip("\r\n")
    try:
        context.load_cert_chain(path, password=lambda: password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = "its private key is not the one of its certificate"
        elif error.reason is not None and "PEM" in error.reason:
            problem = "it must hold a private key and a certificate chain in PEM"
        else:
            problem = f"its key cannot be read ({reason_of(error)}); is --ssl-key-password-file right?"
        raise BrokerStartError(f"--ssl-keystore-location: {path}: {problem}") from None
    except ValueError as error:  # a password of more than 1023 bytes
        raise BrokerStartError(f"--ssl-key-password-file: {error}") from None


def _readable(option: str, path: Path) -> Path:
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise BrokerStartError(f"{option}: {path} cannot be read ({error.strerror})") from None


def handshake_problem(error: BaseException) -> str:
    """Say in one line why a handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed: {reason_of(error)}"
    if isinstance(error, (TimeoutError, ConnectionAbortedError)):
        return "the TLS handshake was not complete in time"
    return "the client ended the TLS handshake"
