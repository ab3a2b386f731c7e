"""The same settings for a client of librdkafka's, where one is left."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roster.security.settings import Security

_ASSUMED_SECONDS = 300.0
"""Lifetime of a token that does not say when it expires."""


def librdkafka_settings(security: Security) -> dict[str, Any]:
    """Return the settings of a confluent-kafka client; empty for PLAINTEXT. They hold secrets and a function."""
    if not security.uses_tls and not security.uses_sasl:
        return {}
    settings: dict[str, Any] = {"security.protocol": security.protocol.lower()}
    if security.uses_tls:
        named = {
            "ssl.ca.pem": security.ca,
            "ssl.certificate.pem": security.certificate,
            "ssl.key.pem": security.key,
            "ssl.key.password": security.key_password,
        }
        settings |= {name: value for name, value in named.items() if value}
        settings["ssl.endpoint.identification.algorithm"] = "https" if security.check_hostname else "none"
        settings["enable.ssl.certificate.verification"] = security.verify
    if security.uses_sasl:
        settings["sasl.mechanism"] = security.mechanism
        if security.token is None:
            settings |= {"sasl.username": security.username, "sasl.password": security.password}
        else:
            settings["oauth_cb"] = _token_callback(security)
    return settings


def _token_callback(security: Security) -> Callable[[str], tuple[str, float, str, dict[str, str]]]:
    def fetch(_config: str) -> tuple[str, float, str, dict[str, str]]:
        assert security.token is not None  # noqa: S101 - the caller checked
        token = security.token.token()
        return token, _expires(token), "", dict(security.extensions)

    return fetch


def _expires(token: str) -> float:
    """Return when a JWT expires, in seconds since the epoch; librdkafka asks for the next before that."""
    try:
        body = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return time.time() + _ASSUMED_SECONDS
