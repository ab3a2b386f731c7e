"""The error of a SASL exchange."""

from __future__ import annotations

from roster._errors import RosterError


class SaslError(RosterError):
    """The server refused the credentials or broke the protocol of the mechanism; the message has no secrets."""
