"""The interface of the client's side of a mechanism."""

from __future__ import annotations

from typing import Protocol


class Mechanism(Protocol):
    """The client's side of one SASL exchange."""

    def first(self) -> bytes:
        """Return the client's initial response."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the reply to a message of the server, or None when there is nothing more to send.

        Raises SaslError if the server refuses the login or cannot be trusted.
        """

    def finish(self) -> None:
        """Check that the exchange is complete. Raises SaslError if the server ended it early."""
