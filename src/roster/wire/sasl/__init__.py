"""SASL mechanisms as state machines on bytes, without I/O and randomness: nonces are arguments.

The client's side of a mechanism has `first()`, the initial response, and `answer(challenge)`, the reply to a message of
the server, None once the exchange is complete. `ScramServer` and `read_plain` are the server's side.
"""

from roster.wire.sasl.mechanism import Bearer, Mechanism, Plain, SaslError
from roster.wire.sasl.scram import (
    DEFAULT_ITERATIONS,
    HASHES,
    LEAST_ITERATIONS,
    MECHANISM_NUMBERS,
    MOST_STORED_ITERATIONS,
    SALT_BYTES,
    Scram,
    ScramCredential,
    ScramServer,
    read_plain,
    salted_password,
)

__all__ = [
    "DEFAULT_ITERATIONS",
    "HASHES",
    "LEAST_ITERATIONS",
    "MECHANISM_NUMBERS",
    "MOST_STORED_ITERATIONS",
    "SALT_BYTES",
    "Bearer",
    "Mechanism",
    "Plain",
    "SaslError",
    "Scram",
    "ScramCredential",
    "ScramServer",
    "read_plain",
    "salted_password",
]
