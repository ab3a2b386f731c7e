"""The server's side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without I/O and randomness."""

from __future__ import annotations

import base64
import hmac
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from roster.wire.sasl.mechanism import SaslError
from roster.wire.sasl.scram_keys import PRINTABLE, decoded, signature, stored_key, text_of, xor

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.wire.sasl.scram_keys import ScramCredential

_FIRST = re.compile(r"n,(?:a=([^,]*))?,(n=([^,]+),r=([^,]+)(?:,.*)?)", re.DOTALL)
"""GS2 header without channel binding, then user name and nonce; extensions after them are ignored."""
_FINAL = re.compile(r"(c=([^,]*),r=([^,]*)(?:,.*)?),p=([^,]*)", re.DOTALL)


@dataclass(slots=True)
class ScramServer:
    """One exchange: `first` takes the client-first message and `final` the client-final one.

    `nonce`: printable ASCII without commas, made of at least 16 random bytes, never used before. `find` returns the
    credential of a user, None for an unknown user.
    """

    find: Callable[[str], ScramCredential | None] = field(repr=False)
    nonce: str = field(repr=False)
    username: str = field(default="", init=False)
    _credential: ScramCredential | None = field(default=None, init=False, repr=False)
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
        given, expected = decoded(proof, "client"), signature(mechanism, credential.stored_key, signed)
        if len(given) != len(expected):
            raise SaslError("the client's proof has the wrong size")
        if not hmac.compare_digest(stored_key(mechanism, xor(given, expected)), credential.stored_key):
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
