"""The exchange that logs in on a connection, without I/O: SaslHandshake, then SaslAuthenticate until it is complete.

The same exchange on a connection in use renews the session (KIP-368).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.security.errors import AuthenticationFailed
from roster.wire.errors import ErrorCode, error_code
from roster.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from roster.wire.sasl.mechanism import Bearer, Mechanism, Plain, SaslError
from roster.wire.sasl.scram import Scram

if TYPE_CHECKING:
    from roster.security.settings import Security
    from roster.wire import Message

RENEW_AFTER = 0.85
"""Part of a session's lifetime after which it is renewed, as in Kafka's Java clients (0.85 to 0.95 there)."""


class Login:
    """One exchange: `start` and `receive` return requests to send, `receive` None when it is complete.

    Args:
        security: settings with SASL.
        nonce: for SCRAM, new and random each time, at least 16 bytes as printable ASCII.
        token: for OAUTHBEARER.
    """

    def __init__(self, security: Security, *, nonce: str = "", token: str = "") -> None:
        self._security = security
        self._mechanism = _mechanism(security, nonce, token)
        self.session_lifetime_ms = 0
        """For how long the broker accepts requests on the connection; 0: without limit."""

    @property
    def renew_after(self) -> float | None:
        """Seconds after which to log in again; None: never."""
        return self.session_lifetime_ms / 1000 * RENEW_AFTER if self.session_lifetime_ms > 0 else None

    def start(self) -> Message:
        """Return the first request."""
        return SaslHandshakeRequest(mechanism=self._security.mechanism)

    def receive(self, response: Message) -> Message | None:
        """Return the next request, or None once the broker has accepted the login.

        Raises AuthenticationFailed if the broker refused, or is not the one it should be.
        """
        try:
            if isinstance(response, SaslHandshakeResponse):
                self._check_handshake(response)
                return SaslAuthenticateRequest(auth_bytes=self._mechanism.first())
            assert isinstance(response, SaslAuthenticateResponse)  # decoded as such
            return self._authenticated(response)
        except SaslError as error:
            raise AuthenticationFailed(f"{self._name}: {error}") from None

    def _check_handshake(self, response: SaslHandshakeResponse) -> None:
        code = error_code(response.error_code)
        if code is ErrorCode.NONE:
            return
        if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(response.mechanisms) or "none"
            raise AuthenticationFailed(
                f"the listener does not offer sasl.mechanism={self._security.mechanism}; it offers {offered}"
            )
        if code is ErrorCode.ILLEGAL_SASL_STATE:
            without = "SSL" if self._security.uses_tls else "PLAINTEXT"
            raise AuthenticationFailed(f"the listener takes no SASL; use another port, or security.protocol={without}")
        raise AuthenticationFailed(f"{self._name}: the broker answered {code.name}")

    def _authenticated(self, response: SaslAuthenticateResponse) -> Message | None:
        code = error_code(response.error_code)
        if code is ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise AuthenticationFailed(self._refused(response.error_message or ""))
        if code is not ErrorCode.NONE:
            raise AuthenticationFailed(f"{self._name}: {code.name}, {response.error_message or 'without a reason'}")
        reply = self._mechanism.answer(response.auth_bytes)
        if reply is not None:
            return SaslAuthenticateRequest(auth_bytes=reply)
        self._mechanism.finish()
        self.session_lifetime_ms = response.session_lifetime_ms
        return None

    def _refused(self, message: str) -> str:
        if isinstance(self._mechanism, Bearer):
            reason = self._mechanism.refusal or "the broker refused the token"
            return f"{self._name}: {reason}; check what sasl.oauthbearer.token.function returns{_quoted(message)}"
        return (
            f"{self._name}: the broker refused user {self._security.username!r}; check sasl.username, sasl.password and"
            f" that the user exists for this mechanism{_quoted(message)}"
        )

    @property
    def _name(self) -> str:
        return f"login with {self._security.mechanism} failed"


def _quoted(message: str) -> str:
    return f" (it said: {' '.join(message.split())[:300]})" if message else ""


def _mechanism(security: Security, nonce: str, token: str) -> Mechanism:
    if security.mechanism == "PLAIN":
        return Plain(security.username, security.password)
    if security.mechanism == "OAUTHBEARER":
        return Bearer(token, dict(security.extensions))
    return Scram(security.mechanism, security.username, security.password, nonce)
