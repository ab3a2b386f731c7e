"""Frames of requests and responses: a 4-byte size, a header, a body.

A request has header v2 if its body is flexible, else v1; a response has v1 if flexible, else v0. The ApiVersions
response always has header v0, so a client that requested an unknown version can read it (KIP-511).
"""

from collections.abc import Callable, Iterator, Mapping
from struct import Struct as Packing
from typing import NamedTuple, TypeVar

from roster.wire import messages
from roster.wire.api import ApiKey
from roster.wire.codec.codec import decode_from, encode_framed, encode_parts
from roster.wire.codec.fields import ZERO_UUID, Versions
from roster.wire.codec.runtime import skip_tags
from roster.wire.codec.table import Message
from roster.wire.codec.varint import Buffer, read_uvarint
from roster.wire.errors import ErrorCode, WireError
from roster.wire.messages import ApiVersionsResponse, MetadataRequest, ProduceRequest

M = TypeVar("M", bound=Message)

_REQUEST = Packing(">hhih")
_CORRELATION = Packing(">i")
_NAMES = {int(key): key.label for key in ApiKey}


class _Classes(dict[int, type[Message]]):
    """Classes by api key, imported on first use: a process needs only a few of them."""

    def __init__(self, ending: str) -> None:
        super().__init__()
        self._ending = ending

    def __missing__(self, key: int) -> type[Message]:
        kind: type[Message] = getattr(messages, _NAMES[key] + self._ending)
        self[key] = kind
        return kind


_REQUESTS, _RESPONSES = _Classes("Request"), _Classes("Response")


class _Spoken(Mapping[ApiKey, Versions]):
    def __getitem__(self, key: ApiKey) -> Versions:
        return _REQUESTS[key].__table__.versions

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(sorted(ApiKey))

    def __len__(self) -> int:
        return len(ApiKey)


API_VERSIONS: Mapping[ApiKey, Versions] = _Spoken()
"""The versions that Roster supports of each request and its response."""

LOWEST_ADVERTISED_PRODUCE = 0
"""Produce 0-2 are not supported, but without them librdkafka assumes that the broker cannot compress (KIP-896)."""


class RequestHeader(NamedTuple):
    """The header of a request; `api_key` and `api_version` are as sent, known or not."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class UnsupportedVersion(WireError):  # named after the error code
    """A request whose api key or version Roster does not support; `header` has the fields that can be read."""

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"request header: no api key {header.api_key} version {header.api_version}")
        self.header = header


def request_class(key: int) -> type[Message]:
    """Return the class of requests with this api key. Raises WireError for an unknown key."""
    return _look_up(_REQUESTS, key)


def response_class(key: int) -> type[Message]:
    """Return the class of responses to this api key. Raises WireError for an unknown key."""
    return _look_up(_RESPONSES, key)


def _look_up(classes: _Classes, key: int) -> type[Message]:
    try:
        return classes[key]
    except KeyError:
        raise WireError(f"no api key {key}") from None


def encode_request(message: Message, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Return the whole frame, including its size."""
    table = message.__table__
    if table.key is None:
        raise WireError(f"{table.name}: not a request")
    try:
        client = b"" if client_id is None else client_id.encode()
        size = -1 if client_id is None else len(client)
        head = [_REQUEST.pack(table.key, version, correlation_id, size), client]
    except Exception as error:
        raise WireError(f"request header: {error}") from error
    if version in table.flexible:
        head.append(b"\0")
    return encode_framed(head, message, version)


def decode_request(frame: Buffer, on_rest: Callable[[str], object] = lambda _: None) -> tuple[RequestHeader, Message]:
    """Decode a frame without its size. Raises UnsupportedVersion if only the header is readable, else WireError.

    Bytes behind the last field, which some clients send, are ignored as in Apache Kafka; `on_rest` is told of them.
    """
    header, pos = decode_request_header(frame)
    try:
        cls, is_flexible = _SPOKEN_REQUESTS[header[:2]]
    except KeyError:
        cls, is_flexible = _spoken_request(header)
    if is_flexible:
        pos = skip_tags(frame, pos, len(frame), "request header: tagged fields")
    message, end = decode_from(cls, header.api_version, frame, pos)
    if end == len(frame):
        return header, message
    if len(frame) - end == _WIDER and cls is MetadataRequest and bytes(frame[pos : pos + 4]) == _WIDE_NULL:
        message, end = decode_from(cls, header.api_version, frame, pos + _WIDER)
    if end != len(frame):
        on_rest(_rest(cls, header.api_version, end, frame))
    return header, message


_SPOKEN_REQUESTS: dict[tuple[int, int], tuple[type[Message], bool]] = {}
"""Class by api key and version, and whether that is flexible."""


def _spoken_request(header: RequestHeader) -> tuple[type[Message], bool]:
    cls = _REQUESTS[header.api_key] if header.api_key in _NAMES else None
    if cls is None or header.api_version not in cls.__table__.versions:
        raise UnsupportedVersion(header)
    spoken = cls, header.api_version in cls.__table__.flexible
    _SPOKEN_REQUESTS[header[:2]] = spoken
    return spoken


_WIDE_NULL = bytes(4)
"""How librdkafka (2.16) writes "all topics" in flexible versions: a 4-byte count instead of the one byte of a compact
null. Apache Kafka ignores the extra bytes; here the request is read as "all topics"."""
_WIDER = len(_WIDE_NULL) - 1


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Read the fields that every header version has; return them and the position after them."""
    if len(frame) < _REQUEST.size:
        raise WireError(f"request header: needs {_REQUEST.size} bytes, there are {len(frame)}")
    key, version, correlation_id, size = _REQUEST.unpack_from(frame)
    pos = _REQUEST.size
    if size == -1:
        return RequestHeader(key, version, correlation_id, None), pos
    if not 0 <= size <= len(frame) - pos:
        raise WireError(f"request header: client_id: length {size} with {len(frame) - pos} bytes left")
    try:
        client_id = str(frame[pos : pos + size], "utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"request header: client_id: not UTF-8 ({error.reason})") from error
    return RequestHeader(key, version, correlation_id, client_id), pos + size


def produce_partitions(frame: Buffer) -> int | None:
    """Return the number of partitions of a Produce request to one topic, without reading them.

    None for any other number of topics, and for a frame that cannot be read.
    """
    header, pos = decode_request_header(frame)
    if header.api_version in ProduceRequest.__table__.flexible:
        try:
            return _compact_produce_partitions(frame, pos, header.api_version)
        except WireError:
            return None
    pos += 2 + max(_int(frame, pos, 2), 0) + _ACKS_AND_TIMEOUT
    if _int(frame, pos, 4) != 1:
        return None
    pos += 4
    pos += 2 + max(_int(frame, pos, 2), 0)
    return _int(frame, pos, 4) if pos + 4 <= len(frame) else None


def _compact_produce_partitions(frame: Buffer, pos: int, version: int) -> int | None:
    """Return the same for flexible versions, which send lengths and counts plus one."""
    end = len(frame)
    pos = skip_tags(frame, pos, end, "request header: tagged fields")
    size, pos = read_uvarint(frame, pos, end, "transactional_id")
    topics, pos = read_uvarint(frame, pos + max(size - 1, 0) + _ACKS_AND_TIMEOUT, end, "topic_data")
    if topics - 1 != 1:
        return None
    if version >= _PRODUCE_BY_TOPIC_ID_FROM:
        pos += len(ZERO_UUID)
    else:
        size, pos = read_uvarint(frame, pos, end, "name")
        pos += max(size - 1, 0)
    return read_uvarint(frame, pos, end, "partition_data")[0] - 1


def _int(frame: Buffer, pos: int, size: int) -> int:
    return int.from_bytes(frame[pos : pos + size], "big", signed=True)


_ACKS_AND_TIMEOUT = 6
_PRODUCE_BY_TOPIC_ID_FROM = 13


def encode_response(message: Message, version: int, correlation_id: int) -> bytes:
    """Return the whole frame, including its size."""
    return b"".join(encode_response_parts(message, version, correlation_id))


def encode_response_parts(message: Message, version: int, correlation_id: int) -> list[bytes]:
    """Return the frame in pieces; the values of bytes fields are not copied."""
    try:
        head = [_CORRELATION.pack(correlation_id)]
    except Exception as error:
        raise WireError(f"response header: correlation id: {error}") from error
    if _flexible_response_header(type(message), version):
        head.append(b"\0")
    return encode_parts(head, message, version)


def decode_response(cls: type[M], version: int, frame: Buffer) -> tuple[int, M]:
    """Decode a frame without its size; return the correlation id and the message.

    A broker that does not support the version of an ApiVersions request answers in v0.
    """
    if len(frame) < _CORRELATION.size:
        raise WireError(f"response header: needs {_CORRELATION.size} bytes, there are {len(frame)}")
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    pos = _CORRELATION.size
    if _flexible_response_header(cls, version):
        pos = skip_tags(frame, pos, len(frame), "response header: tagged fields")
    if issubclass(cls, ApiVersionsResponse) and frame[pos : pos + 2] == _UNSUPPORTED:
        version = 0
    message, end = decode_from(cls, version, frame, pos)
    if end != len(frame):
        raise WireError(_rest(cls, version, end, frame))
    return correlation_id, message


FIRST_API_VERSIONS = 4
"""The version of ApiVersions that clients ask in. Brokers before Kafka 4.4 refuse 5, which takes another round trip."""
_UNSUPPORTED = Packing(">h").pack(ErrorCode.UNSUPPORTED_VERSION)


def unsupported_api_versions() -> ApiVersionsResponse:
    """Return the response, sent in v0, to an ApiVersions request of an unsupported version; it has those supported."""
    spoken = API_VERSIONS[ApiKey.API_VERSIONS]
    entry = ApiVersionsResponse.ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=spoken.low, max_version=spoken.high)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[entry])


def advertised(spoken: Mapping[ApiKey, Versions] = API_VERSIONS) -> list[ApiVersionsResponse.ApiVersion]:
    """Return the `api_keys` of an ApiVersions response for a broker that supports `spoken`."""
    return [
        ApiVersionsResponse.ApiVersion(
            api_key=key,
            min_version=LOWEST_ADVERTISED_PRODUCE if key == ApiKey.PRODUCE else versions.low,
            max_version=versions.high,
        )
        for key, versions in spoken.items()
    ]


def _flexible_response_header(cls: type[Message], version: int) -> bool:
    return version in cls.__table__.flexible and not issubclass(cls, ApiVersionsResponse)


def _rest(cls: type[Message], version: int, end: int, frame: Buffer) -> str:
    return f"{cls.__table__.name} v{version}: {len(frame) - end} bytes behind the end of the message"
