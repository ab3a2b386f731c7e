"""The computations of SCRAM (RFC 5802, 3) for both client and server."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field

from roster.wire.sasl.mechanism import SaslError

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISM_NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Numbers of the mechanisms in requests about credentials (KIP-554)."""
SALT_BYTES = 24
DEFAULT_ITERATIONS = 8_192
MOST_STORED_ITERATIONS = 16_384
"""Apache Kafka's limit for stored credentials; a login with PLAIN computes as many iterations."""
LEAST_ITERATIONS = 4096
MOST_ITERATIONS = 1_000_000
"""Fewer iterations make a password easy to guess (RFC 7677); more would let a server waste a client's CPU time."""
GS2_HEADER = "n,,"
"""No channel binding, no other identity to act as."""
PRINTABLE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
"""Legal nonces: printable ASCII without commas."""


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return PBKDF2 of a password; takes milliseconds, without the interpreter's lock."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def client_key(mechanism: str, salted: bytes) -> bytes:
    """Return the key that proves the client."""
    return hmac.digest(salted, b"Client Key", HASHES[mechanism])


def server_key(mechanism: str, salted: bytes) -> bytes:
    """Return the key that proves the server."""
    return hmac.digest(salted, b"Server Key", HASHES[mechanism])


def stored_key(mechanism: str, key: bytes) -> bytes:
    """Return the hash of the client key; a server can check a client with it, but cannot act as the client."""
    return hashlib.new(HASHES[mechanism], key).digest()


def signature(mechanism: str, key: bytes, signed: bytes) -> bytes:
    """Return the signature of the exchange's messages."""
    return hmac.digest(key, signed, HASHES[mechanism])


def text_of(message: bytes, sender: str) -> str:
    """Return a message as text. Raises SaslError that names its sender, client or server."""
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise SaslError(f"a message of the {sender} is not UTF-8") from None


def decoded(text: str, sender: str) -> bytes:
    """Return the bytes of a value in base64. Raises SaslError that names its sender, client or server."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SaslError(f"a value of the {sender} is not base64") from None


def xor(left: bytes, right: bytes) -> bytes:
    """Return the exclusive or of two values of one length."""
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """A server's data about a password; `repr` shows none of it.

    Raises SaslError if the mechanism is not a SCRAM mechanism, or a value has the wrong size.
    """

    mechanism: str
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in HASHES:
            raise SaslError(f"no SCRAM mechanism {self.mechanism!r}")
        size = int(HASHES[self.mechanism][3:]) // 8
        if not self.salt or len(self.stored_key) != size or len(self.server_key) != size:
            raise SaslError(f"a credential of {self.mechanism} has a salt and two keys of {size} bytes")
        if not LEAST_ITERATIONS <= self.iterations <= MOST_ITERATIONS:
            raise SaslError(f"{self.iterations} iterations: must be {LEAST_ITERATIONS} to {MOST_ITERATIONS}")

    @classmethod
    def of_salted(cls, mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
        """Return the credential of a salted password, as in AlterUserScramCredentials."""
        if mechanism not in HASHES:
            raise SaslError(f"no SCRAM mechanism {mechanism!r}")
        stored = stored_key(mechanism, client_key(mechanism, salted))
        return cls(mechanism, iterations, salt, stored, server_key(mechanism, salted))

    @classmethod
    def of_password(
        cls, mechanism: str, password: str, salt: bytes, iterations: int = LEAST_ITERATIONS
    ) -> ScramCredential:
        """Return the credential of a password; `salt` must be random and new."""
        if mechanism not in HASHES:
            raise SaslError(f"no SCRAM mechanism {mechanism!r}")
        return cls.of_salted(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)

    def is_of(self, password: str) -> bool:
        """Return True if the credential belongs to a password; takes milliseconds."""
        salted = salted_password(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(stored_key(self.mechanism, client_key(self.mechanism, salted)), self.stored_key)
