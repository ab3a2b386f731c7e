"""SaslHandshake and SaslAuthenticate: the frames a SASL exchange travels in (KIP-43, KIP-152, KIP-368)."""

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, bytes_, int16, int64, string
from roster.wire.codec.table import Message


class SaslHandshakeRequest(Message, key=ApiKey.SASL_HANDSHAKE, versions="0-1"):
    """Chooses the mechanism. After v0 the exchange follows without Kafka headers, after v1 in SaslAuthenticate."""

    mechanism: str = string()


class SaslHandshakeResponse(Message, key=ApiKey.SASL_HANDSHAKE, versions="0-1"):
    """The mechanisms of the listener, whether or not the one asked for is among them."""

    error_code: int = int16()
    mechanisms: list[str] = array(string())


class SaslAuthenticateRequest(Message, key=ApiKey.SASL_AUTHENTICATE, versions="0-2", flexible="2+"):
    """One message of the client, which may hold its password."""

    auth_bytes: bytes = bytes_()

    def __repr__(self) -> str:
        return "SaslAuthenticateRequest(auth_bytes=...)"


class SaslAuthenticateResponse(Message, key=ApiKey.SASL_AUTHENTICATE, versions="0-2", flexible="2+"):
    """One message of the broker; the last one says for how many ms the session lasts, 0 for ever (KIP-368)."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    auth_bytes: bytes = bytes_()
    session_lifetime_ms: int = int64("1+", ignorable=True)

    def __repr__(self) -> str:
        return f"SaslAuthenticateResponse(error_code={self.error_code}, error_message={self.error_message!r})"
