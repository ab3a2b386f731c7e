"""Encodes and decodes bytes: Kafka requests, record batches, the consumer protocol, __consumer_offsets records."""

from roster.wire.api import ApiKey
from roster.wire.codec.codec import decode, encode
from roster.wire.codec.fields import ZERO_UUID, Versions
from roster.wire.codec.table import Message, Struct
from roster.wire.errors import ErrorCode, WireError
from roster.wire.frames import API_VERSIONS, UnsupportedVersion, request_class, response_class

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
