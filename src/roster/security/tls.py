"""TLS contexts of the standard library from settings, and what a failed handshake means."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from roster.security.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roster.security.settings import Security

_TLS_ALERT = b"\x15\x03"
"""First bytes of the alert with which a TLS listener answers what is not TLS."""


@lru_cache(maxsize=16)
def tls_context(security: Security) -> ssl.SSLContext:
    """Return the context for connections with these settings, TLS 1.2 or newer; the same for the same settings.

    Raises SettingError if the certificate, its key or the CAs cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = security.check_hostname and security.verify
    context.verify_mode = ssl.CERT_REQUIRED if security.verify else ssl.CERT_NONE
    if security.ca:
        _load_authorities(context, security)
    elif security.verify:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if security.certificate:
        _load_certificate(context, security)
    return context


def server_tls_context(security: Security, client_auth: ssl.VerifyMode) -> ssl.SSLContext:
    """Return the context of a server with these settings, TLS 1.2 or newer.

    client_auth: whether clients show a certificate of `security.ca`. Raises SettingError as `tls_context` does.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, security)
    if client_auth:
        _load_authorities(context, security)
    context.verify_mode = client_auth
    return context


def _load_authorities(context: ssl.SSLContext, security: Security) -> None:
    try:
        context.load_verify_locations(cadata=security.ca)
    except ssl.SSLError as error:
        raise SettingError("ssl.ca.location", f"cannot be used ({reason_of(error)})", "give PEM of the CAs") from None


def _load_certificate(context: ssl.SSLContext, security: Security) -> None:
    with _file_of(security.certificate + security.key) as path:
        try:
            context.load_cert_chain(path, password=lambda: security.key_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                problem, fix = "is not the key of the certificate", "give the two that belong together"
                raise SettingError("ssl.key.location", problem, fix) from None
            key = "ssl.key.password" if security.key_password else "ssl.key.location"
            raise SettingError(key, f"does not open the key ({reason_of(error)})", "correct key or password") from None
        except ValueError as error:  # a password of more than 1023 bytes
            raise SettingError("ssl.key.password", str(error), "use a shorter password") from None


@contextlib.contextmanager
def _file_of(text: str) -> Iterator[str]:
    """A file only this user may read, for OpenSSL, which takes a client's key from a file alone."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii", errors="replace") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


def is_tls_alert(head: bytes) -> bool:
    """Return True if a peer's first bytes are an alert of TLS, in answer to a client that does not speak it."""
    return head.startswith(_TLS_ALERT)


def tls_problem(error: OSError, security: Security) -> str | None:
    """Say what a TLS error means and what to do; None if trying again may help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unverified(error)
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return "it does not speak TLS; use a TLS listener, or security.protocol without SSL"
    if "ALERT" not in reason:
        return None
    if any(name in reason for name in ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "ACCESS_DENIED")):
        if not security.certificate:
            return "it asks for a client certificate; set ssl.certificate.location and ssl.key.location"
        return f"it refuses the client certificate ({reason_of(error)}); use a valid one of a CA that the broker trusts"
    return f"the TLS handshake failed ({reason_of(error)})"


def _unverified(error: ssl.SSLCertVerificationError) -> str:
    text = error.verify_message
    if "ostname mismatch" in text or "IP address mismatch" in text:
        return (
            f"its certificate is for another name ({text.rstrip('.')}); connect by a name in the certificate, or set"
            " ssl.endpoint.identification.algorithm to nothing if it cannot be had"
        )
    if "expired" in text:
        return "its certificate has expired; renew it on the broker"
    if "not yet valid" in text:
        return "its certificate is not valid yet; check the clocks"
    return f"its certificate is not of a CA that is trusted ({text}); set ssl.ca.location to the CA that signed it"


def is_cut_off(error: OSError) -> bool:
    """Return True if a peer ended the connection in the middle of the handshake."""
    return isinstance(error, ssl.SSLEOFError | ConnectionResetError | ConnectionAbortedError | BrokenPipeError)


def cut_off(security: Security) -> str:
    """Say what an end of the connection in the TLS handshake may mean."""
    return (
        f"it ended the TLS handshake; is it a listener without TLS? Then security.protocol={security.protocol} is wrong"
    )


def reason_of(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in words."""
    return (error.reason or str(error)).replace("_", " ").lower()
