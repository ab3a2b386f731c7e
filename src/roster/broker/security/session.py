"""Login and rights of one connection: the shell of `ServerLogin`, with clock, chance and threads."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from roster.broker.errors import CloseConnection
from roster.broker.security.access import Access
from roster.broker.security.authorizer import Authorizer
from roster.broker.security.config import BrokerSecurity
from roster.broker.security.principals import ANONYMOUS, certificate_principal, user
from roster.broker.security.store import SecurityStore
from roster.wire import ApiKey, ErrorCode, Message
from roster.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from roster.wire.sasl.mechanism import SaslError
from roster.wire.sasl.scram import DEFAULT_ITERATIONS, SALT_BYTES, ScramCredential, ScramServer, read_plain

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


FAILURE_DELAY_SECONDS = 0.1
"""How long a refused login waits for its answer (Kafka's `connection.failed.authentication.delay.ms`)."""
PASSWORD_CHECKS = 2
"""Passwords hashed at the same time: each occupies a thread for milliseconds."""
MAX_BYTES_BEFORE_LOGIN = 512 * 1024
"""The largest frame of a client that has not logged in (Kafka's `sasl.server.max.receive.size`)."""
_NONCE_BYTES = 24
_LOGIN_KEYS = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
_BEFORE_LOGIN = _LOGIN_KEYS | {ApiKey.API_VERSIONS}

logger = logging.getLogger(__name__)


class Security:
    """The settings, users and ACLs that all connections share."""

    def __init__(self, config: BrokerSecurity, data_dir: Path) -> None:
        self.config = config
        self.store = SecurityStore(data_dir)
        self.authorizer: Authorizer | None = None
        if config.authorizer:
            everyone = config.allow_everyone_if_no_acl_found
            self.authorizer = authorizer = Authorizer((), config.super_users, allow_everyone=everyone)
            self.store.on_change = lambda: authorizer.replace(self.store.acls)
        self.password_checks = asyncio.Semaphore(PASSWORD_CHECKS)

    def load(self) -> None:
        """Read users and ACLs; BrokerStartError if their file is damaged."""
        self.store.load()
        self.store.on_change()


class Session:
    """One connection's login, and what its client may do.

    Args:
        security: what all connections have in common.
        host: the client's address.
        certificate: the client's, as `ssl.SSLSocket.getpeercert` shows it.
    """

    def __init__(self, security: Security, host: str, certificate: Mapping[str, Any] | None = None) -> None:
        self._security = security
        self._host = host
        self._login: ServerLogin | None = None
        self._expires_at: float | None = None
        self._raw_tokens = False
        self._refusal = ""
        self.is_open = not security.config.uses_sasl
        """True once the client may send any request."""
        principal = ANONYMOUS if security.config.uses_sasl else certificate_principal(certificate)
        self.access = Access(principal, host, security.authorizer)

    @property
    def is_lasting(self) -> bool:
        """True if the client may send any request, and need not log in again."""
        return self.is_open and self._expires_at is None and not self.expects_raw_token

    @property
    def expects_raw_token(self) -> bool:
        """True if the next frame is a message of the mechanism without Kafka's headers.

        So it is after SaslHandshake v0, which kafka-python 2.0.2, aiokafka up to 0.12 and older Sarama send.
        """
        return self._raw_tokens and self._login is not None and self._login.expects_token

    def check(self, api_key: int) -> None:
        """Raise CloseConnection for a request that must not come now: before the login, or after it has expired."""
        if not self.is_open and api_key not in _BEFORE_LOGIN:
            raise CloseConnection(f"it sends {ApiKey(api_key).name} before it has logged in")
        if self._login is not None and self._login.expects_token and api_key in _BEFORE_LOGIN - _LOGIN_KEYS:
            raise CloseConnection(f"it sends {ApiKey(api_key).name} in the middle of a login")
        expired = self._expires_at is not None and asyncio.get_running_loop().time() > self._expires_at
        if expired and api_key not in _LOGIN_KEYS:
            raise CloseConnection("its login has expired and was not renewed")

    @property
    def is_refused(self) -> bool:
        """True once a login was refused."""
        return bool(self._refusal)

    def raise_if_refused(self) -> None:
        """Raise CloseConnection once a login was refused, and the client has its answer."""
        if self._refusal:
            raise CloseConnection(self._refusal)

    def handshake(self, request: SaslHandshakeRequest, version: int) -> Message:
        """Answer a SaslHandshake; on a listener without SASL as Apache Kafka does."""
        config = self._security.config
        if not config.uses_sasl:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        if self._login is not None and self._login.expects_token:
            raise CloseConnection("it begins a login in the middle of another")
        self._login = ServerLogin(
            config.sasl_enabled_mechanisms,
            self._security.store.find,
            secrets.token_urlsafe(_NONCE_BYTES),
            lifetime_ms=config.connections_max_reauth_ms,
            known_as=self.access.principal if self.is_open else None,
        )
        self._raw_tokens = version == 0
        response = self._login.handshake(request.mechanism)
        self._after(self._login)
        return response

    async def authenticate(self, request: SaslAuthenticateRequest) -> Message:
        """Answer a SaslAuthenticate."""
        if self._login is None or not self._login.expects_token:
            if not self.is_open:
                raise CloseConnection("it sends SASL_AUTHENTICATE before SASL_HANDSHAKE")
            text = "SaslAuthenticate request received after successful authentication"
            return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)
        return await self._next(self._login, request.auth_bytes)

    async def raw_token(self, token: bytes) -> bytes:
        """Answer a message without Kafka's headers; CloseConnection if the login is refused, which has no answer."""
        assert self._login is not None  # `expects_raw_token` was true
        response = await self._next(self._login, token)
        self.raise_if_refused()
        return response.auth_bytes

    async def _next(self, login: ServerLogin, token: bytes) -> SaslAuthenticateResponse:
        if login.is_slow:
            async with self._security.password_checks:
                response = await asyncio.to_thread(login.authenticate, bytes(token))
        else:
            response = login.authenticate(bytes(token))
        self._after(login)
        if login.failed:
            await asyncio.sleep(FAILURE_DELAY_SECONDS)
        return response

    def _after(self, login: ServerLogin) -> None:
        if login.failed:
            self._refusal = f"its login was refused: {login.reason}"
            return
        if login.principal is None:
            return
        lifetime_ms = self._security.config.connections_max_reauth_ms
        self._expires_at = asyncio.get_running_loop().time() + lifetime_ms / 1000 if lifetime_ms else None
        self.is_open = True
        self.access = Access(login.principal, self._host, self._security.authorizer)
        logger.debug("%s logged in as %s with %s", self._host, login.principal, login.mechanism)
