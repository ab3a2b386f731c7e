"""The arithmetic of SCRAM (RFC 5802, 3) that client and server share."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field

from roster.wire.sasl.errors import SaslError

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISM_NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""In requests about credentials (KIP-554)."""
SALT_BYTES = 24
DEFAULT_ITERATIONS = 8_192
MOST_STORED_ITERATIONS = 16_384
"""Apache Kafka's limit of what may be set; logins with PLAIN compute as many."""
LEAST_ITERATIONS = 4096
MOST_ITERATIONS = 1_000_000
"""Fewer make a password easy to guess (RFC 7677), more are an attack on the time of who computes them."""
GS2_HEADER = "n,,"
"""No channel binding, no other identity to act as."""
PRINTABLE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
"""What a nonce may be: printable ASCII without commas."""


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return PBKDF2 of a password, which takes milliseconds; the interpreter's lock is free meanwhile."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def client_key(mechanism: str, salted: bytes) -> bytes:
    """Return the key that proves the client."""
    return hmac.digest(salted, b"Client Key", HASHES[mechanism])


def server_key(mechanism: str, salted: bytes) -> bytes:
    """Return the key that proves the server."""
    return hmac.digest(salted, b"Server Key", HASHES[mechanism])


def stored_key(mechanism: str, key: bytes) -> bytes:
    """Return the hash of the client key, with which a server checks a client without being able to act as one."""
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
    """What a server keeps of a password; `repr` shows none of it.

    Raises:
        SaslError: the mechanism is none of SCRAM's, or a value has the wrong size.

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
        """Return the credential of a salted password, as AlterUserScramCredentials brings it."""
        if mechanism not in HASHES:
            raise SaslError(f"no SCRAM mechanism {mechanism!r}")
        stored = stored_key(mechanism, client_key(mechanism, salted))
        return cls(mechanism, iterations, salt, stored, server_key(mechanism, salted))

    @classmethod
    def of_password(
        cls, mechanism: str, password: str, salt: bytes, iterations: int = LEAST_ITERATIONS
    ) -> ScramCredential:
        """Return the credential of a password; `salt` is random and new."""
        if mechanism not in HASHES:
            raise SaslError(f"no SCRAM mechanism {mechanism!r}")
        return cls.of_salted(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)

    def is_of(self, password: str) -> bool:
        """Return True if this is the credential of a password; takes milliseconds."""
        salted = salted_password(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(stored_key(self.mechanism, client_key(self.mechanism, salted)), self.stored_key)
