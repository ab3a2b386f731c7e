"""The one error of a SASL exchange."""

from __future__ import annotations

from roster._errors import RosterError


class SaslError(RosterError):
    """The server refused the credentials, or its messages are not those of the mechanism; holds no secret."""
