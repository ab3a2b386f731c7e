"""The broker's side of a login, without I/O and clock: SaslHandshake, then SaslAuthenticate until it is decided.

The same exchange on a connection in use renews the session (KIP-368).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from roster.broker.security.principals import user
from roster.wire import ErrorCode
from roster.wire.messages import SaslAuthenticateResponse, SaslHandshakeResponse
from roster.wire.sasl import DEFAULT_ITERATIONS, SALT_BYTES, SaslError, ScramCredential, ScramServer, read_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Find = Callable[[str, str], ScramCredential | None]
    """Returns the credential for a mechanism and a user."""

PLAIN_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256")
"""Credentials with which PLAIN checks a password, the stronger one first."""
_UNKNOWN = ScramCredential.of_salted("SCRAM-SHA-512", bytes(64), bytes(SALT_BYTES), DEFAULT_ITERATIONS)
"""Dummy credential for unknown users, so that timing does not reveal which exist."""


class _State(Enum):
    HANDSHAKE = "waits for SaslHandshake"
    TOKEN = "waits for SaslAuthenticate"  # noqa: S105 - no password
    PROOF = "waits for the second SaslAuthenticate of SCRAM"
    DONE = "logged in"
    FAILED = "refused"


class ServerLogin:
    """One exchange: `handshake`, then `authenticate` until `principal` is set or `failed` is true.

    Args:
        mechanisms: those that the listener offers.
        find: looks credentials up; may be called in a thread.
        nonce: for SCRAM, new and random each time, printable ASCII without commas of at least 16 random bytes.
        lifetime_ms: how long the login lasts, 0 for ever; told to the client.
        known_as: the principal so far, which a renewed session must keep.

    """

    def __init__(
        self, mechanisms: Sequence[str], find: Find, nonce: str, *, lifetime_ms: int = 0, known_as: str | None = None
    ) -> None:
        self._mechanisms = tuple(mechanisms)
        self._find = find
        self._nonce = nonce
        self._lifetime_ms = lifetime_ms
        self._known_as = known_as
        self._state = _State.HANDSHAKE
        self._scram: ScramServer | None = None
        self.mechanism = ""
        self.principal: str | None = None
        """Set once the login is complete."""
        self.reason = ""
        """Why it failed, for the broker's log."""

    @property
    def expects_token(self) -> bool:
        """True between SaslHandshake and the end of the exchange."""
        return self._state in (_State.TOKEN, _State.PROOF)

    @property
    def failed(self) -> bool:
        """True once the client was refused: the connection is to be closed."""
        return self._state is _State.FAILED

    @property
    def is_slow(self) -> bool:
        """True if the next `authenticate` takes milliseconds: it hashes a password."""
        return self.mechanism == "PLAIN"

    def handshake(self, mechanism: str) -> SaslHandshakeResponse:
        """Answer a SaslHandshake: the mechanisms offered, whether or not the one asked for is among them."""
        response = SaslHandshakeResponse(mechanisms=list(self._mechanisms))
        if mechanism not in self._mechanisms:
            self._fail(f"it asks for the SASL mechanism {mechanism[:40]!r}, which is not enabled")
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return response
        self.mechanism = mechanism
        self._state = _State.TOKEN
        if mechanism != "PLAIN":
            self._scram = ScramServer(lambda name: self._find(mechanism, name), self._nonce)
        return response

    def authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        """Answer one message of the mechanism."""
        try:
            return self._plain(token) if self._scram is None else self._next_of_scram(self._scram, token)
        except SaslError as error:
            self._fail(f"{self.mechanism}: {error}")
            what = "authentication" if self._known_as is None else "re-authentication"
            return _refused(
                "Authentication failed: Invalid username or password"
                if self._scram is None
                else f"Authentication failed during {what} due to invalid credentials with SASL mechanism"
                f" {self.mechanism}"
            )

    def _plain(self, token: bytes) -> SaslAuthenticateResponse:
        name, password = read_plain(token)
        credentials = (self._find(mechanism, name) for mechanism in PLAIN_MECHANISMS)
        credential = next((stored for stored in credentials if stored is not None), None)
        if not (credential or _UNKNOWN).is_of(password) or credential is None:
            raise SaslError(f"user {name!r}: no such user, or another password")
        return self._accept(name, b"")

    def _next_of_scram(self, scram: ScramServer, token: bytes) -> SaslAuthenticateResponse:
        if self._state is _State.TOKEN:
            reply = scram.first(token)
            self._state = _State.PROOF
            return SaslAuthenticateResponse(error_message=None, auth_bytes=reply)
        try:
            reply = scram.final(token)
        except SaslError as error:
            raise SaslError(f"user {scram.username!r}: {error}") from None
        return self._accept(scram.username, reply)

    def _accept(self, name: str, reply: bytes) -> SaslAuthenticateResponse:
        principal = user(name)
        if self._known_as is not None and principal != self._known_as:
            self._fail(f"it renews the login of {self._known_as} as {principal}")
            return _refused(
                f"Cannot change principals during re-authentication from {_java(self._known_as)}: {_java(principal)}"
            )
        self._state, self.principal = _State.DONE, principal
        return SaslAuthenticateResponse(error_message=None, auth_bytes=reply, session_lifetime_ms=self._lifetime_ms)

    def _fail(self, reason: str) -> None:
        self._state, self.reason = _State.FAILED, reason


def _refused(message: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message)


def _java(principal: str) -> str:
    return principal.replace(":", ".", 1)
