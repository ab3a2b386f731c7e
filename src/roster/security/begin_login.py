"""Start of a login, for the loops that hold sockets: draws the nonce and asks for the token."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from roster.security.errors import SettingError

if TYPE_CHECKING:
    from roster.security.login import Login
    from roster.security.settings import Security

_NONCE_BYTES = 24


class TokenError(Exception):
    """The token function failed: a later call may succeed."""


def begin_login(security: Security) -> Login:
    """Return a new exchange, with a nonce or a fresh token; blocks for as long as the token function does.

    Raises TokenError if the token function failed, and SettingError if the function does not exist or does not
    return text.
    """
    from roster.security.login import Login  # noqa: PLC0415 - with SASL only: tasks start faster without it

    if security.token is None:
        return Login(security, nonce=secrets.token_urlsafe(_NONCE_BYTES))
    try:
        return Login(security, token=security.token.token())
    except SettingError:
        raise
    except Exception as error:
        raise TokenError(f"sasl.oauthbearer.token.function failed: {type(error).__name__}: {error}") from error
