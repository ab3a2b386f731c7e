"""SASL mechanisms as state machines of bytes, without I/O and without chance: nonces are passed in.

Each has `first()`, the client's initial response, and `answer(challenge)`, the reply to a message of the server, None
once the exchange is complete.
"""

from roster.wire.sasl.bearer import Bearer
from roster.wire.sasl.errors import SaslError
from roster.wire.sasl.mechanism import Mechanism
from roster.wire.sasl.plain import Plain
from roster.wire.sasl.scram import Scram

__all__ = ["Bearer", "Mechanism", "Plain", "SaslError", "Scram"]
