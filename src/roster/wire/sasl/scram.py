"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding, as in Kafka.

User name and password are used as their UTF-8 bytes. Apache Kafka does not apply SASLprep when it stores or checks
them, so a client that applied it could not log in with a password that SASLprep changes.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from roster.wire.sasl.mechanism import SaslError

_FIRST = re.compile(r"n,(?:a=([^,]*))?,(n=([^,]+),r=([^,]+)(?:,.*)?)", re.DOTALL)
"""GS2 header without channel binding, then user name and nonce; extensions after them are ignored."""
_FINAL = re.compile(r"(c=([^,]*),r=([^,]*)(?:,.*)?),p=([^,]*)", re.DOTALL)


@dataclass(slots=True)
class ScramServer:
    """One exchange: `first` takes the client-first message and `final` the client-final one.

    `nonce`: printable ASCII without commas, made of at least 16 random bytes, never used before. `find` returns the
    credential of a user, None for an unknown user.
    """

    find: "Callable[[str], ScramCredential | None]" = field(repr=False)
    nonce: str = field(repr=False)
    username: str = field(default="", init=False)
    _credential: "ScramCredential | None" = field(default=None, init=False, repr=False)
    _header: str = field(default="", init=False, repr=False)
    _nonces: str = field(default="", init=False, repr=False)
    _signed: str = field(default="", init=False, repr=False)

    def first(self, message: bytes) -> bytes:
        """Return the server-first message.

        Raises SaslError if the message is not a SCRAM message, or the user is unknown.
        """
        match = _FIRST.fullmatch(text_of(message, "client"))
        if match is None:
            raise SaslError("the client's first message is not one of SCRAM without channel binding")
        authzid, bare, name, nonce = match.groups()
        self.username = _unescaped(name)
        if authzid and _unescaped(authzid) != self.username:
            raise SaslError("the client asks to act as another user")
        if not PRINTABLE.fullmatch(nonce):
            raise SaslError("the client's nonce is not printable ASCII")
        credential = self._credential = self.find(self.username)
        if credential is None:
            raise SaslError(f"there is no user {self.username!r} for this mechanism")
        self._header = text_of(message, "client")[: -len(bare)]
        self._nonces = nonce + self.nonce
        salt = base64.b64encode(credential.salt).decode()
        reply = f"r={self._nonces},s={salt},i={credential.iterations}"
        self._signed = f"{bare},{reply}"
        return reply.encode()

    def final(self, message: bytes) -> bytes:
        """Return the server-final message if the client's proof is correct.

        Raises SaslError if the proof is wrong, or the message is not a SCRAM message.
        """
        match = _FINAL.fullmatch(text_of(message, "client"))
        credential = self._credential
        if match is None or credential is None:
            raise SaslError("the client's final message is not one of SCRAM")
        bare, header, nonces, proof = match.groups()
        if decoded(header, "client") != self._header.encode() or not hmac.compare_digest(
            nonces.encode(), self._nonces.encode()
        ):
            raise SaslError("the client's final message does not continue its first one")
        signed = f"{self._signed},{bare}".encode()
        mechanism = credential.mechanism
        received, expected = decoded(proof, "client"), signature(mechanism, credential.stored_key, signed)
        if len(received) != len(expected):
            raise SaslError("the client's proof has the wrong size")
        if not hmac.compare_digest(stored_key(mechanism, xor(received, expected)), credential.stored_key):
            raise SaslError("the client's proof is wrong: it does not know the password")
        return b"v=" + base64.b64encode(signature(mechanism, credential.server_key, signed))


def read_plain(message: bytes) -> tuple[str, str]:
    """Return user name and password of a PLAIN message (RFC 4616).

    Raises SaslError if the message is malformed, or the client wants to act as another user.
    """
    parts = text_of(message, "client").split("\0")
    if len(parts) != 3:
        raise SaslError("the message is not one of PLAIN: three parts with a zero byte between them")
    authzid, username, password = parts
    if not username or not password:
        raise SaslError("the message of PLAIN has no user name, or no password")
    if authzid not in ("", username):
        raise SaslError("the client asks to act as another user")
    return username, password


def _unescaped(name: str) -> str:
    if re.search("=(?!2C|3D)", name):
        raise SaslError("the user name has an = that is neither =2C nor =3D")
    return name.replace("=2C", ",").replace("=3D", "=")


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
    def of_salted(cls, mechanism: str, salted: bytes, salt: bytes, iterations: int) -> "ScramCredential":
        """Return the credential of a salted password, as in AlterUserScramCredentials."""
        if mechanism not in HASHES:
            raise SaslError(f"no SCRAM mechanism {mechanism!r}")
        stored = stored_key(mechanism, client_key(mechanism, salted))
        return cls(mechanism, iterations, salt, stored, server_key(mechanism, salted))

    @classmethod
    def of_password(
        cls, mechanism: str, password: str, salt: bytes, iterations: int = LEAST_ITERATIONS
    ) -> "ScramCredential":
        """Return the credential of a password; `salt` must be random and new."""
        if mechanism not in HASHES:
            raise SaslError(f"no SCRAM mechanism {mechanism!r}")
        return cls.of_salted(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)

    def is_of(self, password: str) -> bool:
        """Return True if the credential belongs to a password; takes milliseconds."""
        salted = salted_password(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(stored_key(self.mechanism, client_key(self.mechanism, salted)), self.stored_key)


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
