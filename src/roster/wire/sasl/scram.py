"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding, as in Kafka.

User name and password are used as their UTF-8 bytes. Apache Kafka does not apply SASLprep when it stores or checks
them, so a client that applied it could not log in with a password that SASLprep changes.
"""

from __future__ import annotations

import base64
import hmac
import re
from dataclasses import dataclass, field
from enum import Enum

from roster.wire.sasl.mechanism import SaslError
from roster.wire.sasl.scram_keys import (
    GS2_HEADER,
    HASHES,
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    PRINTABLE,
    client_key,
    decoded,
    salted_password,
    server_key,
    signature,
    stored_key,
    text_of,
    xor,
)

_NUMBER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


class _State(Enum):
    NEW = "new"
    FIRST_SENT = "client-first sent"
    FINAL_SENT = "client-final sent"
    DONE = "done"


@dataclass(slots=True)
class Scram:
    """One exchange.

    `nonce`: printable ASCII without commas, made of at least 16 random bytes, never used before.

    Raises SaslError if the mechanism or the nonce is not valid.
    """

    mechanism: str
    username: str
    password: str = field(repr=False)
    nonce: str = field(repr=False)
    _state: _State = field(default=_State.NEW, init=False)
    _first_bare: str = field(default="", init=False, repr=False)
    _server_signature: bytes = field(default=b"", init=False, repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in HASHES:
            raise SaslError(f"no SCRAM mechanism {self.mechanism!r}")
        if not PRINTABLE.fullmatch(self.nonce):
            raise SaslError("a nonce is printable ASCII without commas")

    def first(self) -> bytes:
        """Return the client-first message."""
        name = self.username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self.nonce}"
        self._state = _State.FIRST_SENT
        return (GS2_HEADER + self._first_bare).encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the client-final message for the server-first one, None for a correct server-final one."""
        if self._state is _State.FIRST_SENT:
            return self._final(challenge)
        if self._state is _State.FINAL_SENT:
            self._verify(challenge)
            return None
        raise SaslError("the server sent more messages than SCRAM has")

    def finish(self) -> None:
        """Raise SaslError unless the server has proved that it knows the password's keys."""
        if self._state is not _State.DONE:
            raise SaslError("the server ended the SCRAM exchange before it proved itself")

    def _final(self, challenge: bytes) -> bytes:
        server_first = text_of(challenge, "server")
        nonce, salt, iterations = self._parse_first(server_first)
        bare = f"c={base64.b64encode(GS2_HEADER.encode()).decode()},r={nonce}"
        signed = ",".join((self._first_bare, server_first, bare)).encode()
        salted = salted_password(self.mechanism, self.password, salt, iterations)
        key = client_key(self.mechanism, salted)
        proof = xor(key, signature(self.mechanism, stored_key(self.mechanism, key), signed))
        self._server_signature = signature(self.mechanism, server_key(self.mechanism, salted), signed)
        self._state = _State.FINAL_SENT
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def _parse_first(self, message: str) -> tuple[str, bytes, int]:
        parts = message.split(",")
        if parts[0].startswith("e="):
            raise SaslError(f"the server refused: {parts[0][2:]}")
        if parts[0].startswith("m="):
            raise SaslError("the server demands a SCRAM extension, and none is supported")
        if [part[:2] for part in parts[:3]] != ["r=", "s=", "i="]:
            raise SaslError("the server's first message is not one of SCRAM")
        nonce, salt, iterations = (part[2:] for part in parts[:3])
        if not nonce.startswith(self.nonce) or len(nonce) == len(self.nonce) or not PRINTABLE.fullmatch(nonce):
            raise SaslError("the server's nonce does not continue the client's")
        if not _NUMBER.fullmatch(iterations) or not LEAST_ITERATIONS <= int(iterations) <= MOST_ITERATIONS:
            raise SaslError(
                f"the server asks for {iterations[:20]} SCRAM iterations; from {LEAST_ITERATIONS} to"
                f" {MOST_ITERATIONS} are accepted"
            )
        salted = decoded(salt, "server")
        if not salted:
            raise SaslError("the server's salt is empty")
        return nonce, salted, int(iterations)

    def _verify(self, challenge: bytes) -> None:
        final = text_of(challenge, "server").split(",")[0]
        if final.startswith("e="):
            raise SaslError(f"the server refused: {final[2:]}")
        if not final.startswith("v="):
            raise SaslError("the server's final message is not one of SCRAM")
        if not hmac.compare_digest(decoded(final[2:], "server"), self._server_signature):
            raise SaslError("the server's signature is wrong: it does not know this user's password")
        self._state = _State.DONE
