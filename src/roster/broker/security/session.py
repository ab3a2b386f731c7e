"""Login and rights of one connection: the shell of `ServerLogin`, with clock, chance and threads."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Any

from roster.broker.errors import CloseConnection
from roster.broker.security.access import Access
from roster.broker.security.authorizer import Authorizer
from roster.broker.security.login import ServerLogin
from roster.broker.security.principals import ANONYMOUS
from roster.broker.security.store import SecurityStore
from roster.wire import ApiKey, ErrorCode
from roster.wire.messages import SaslAuthenticateResponse, SaslHandshakeResponse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from roster.broker.security.config import BrokerSecurity
    from roster.wire import Message
    from roster.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest

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
        self.rules = config.principal_rules
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
        principal = ANONYMOUS if security.config.uses_sasl else security.rules.principal(certificate)
        self.access = Access(principal, host, security.authorizer)

    @property
    def is_lasting(self) -> bool:
        """True if the client may send any request, and need not log in again."""
        return self.is_open and self._expires_at is None and not self.expects_raw_token

    @property
    def expects_raw_token(self) -> bool:
        """True if the next frame is a message of the mechanism without Kafka's headers (SaslHandshake v0)."""
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
