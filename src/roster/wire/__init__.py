"""Bytes to messages and back: Kafka requests, record batches, the consumer protocol, __consumer_offsets records."""

from roster.wire.api import ApiKey
from roster.wire.codec import decode, encode
from roster.wire.errors import ErrorCode, WireError
from roster.wire.fields import ZERO_UUID, Versions
from roster.wire.frames import API_VERSIONS, UnsupportedVersion, request_class, response_class
from roster.wire.table import Message, Struct

__all__ = [
    "API_VERSIONS",
    "ZERO_UUID",
    "ApiKey",
    "ErrorCode",
    "Message",
    "Struct",
    "UnsupportedVersion",
    "Versions",
    "WireError",
    "decode",
    "encode",
    "request_class",
    "response_class",
]
