"""The requests that the broker serves, and limits of one, so that none occupies the event loop for long.

Small requests are decoded where they arrive. Larger ones are decoded in a thread, and refused if they hold more items
than any client needs. Handlers answer many items in slices, between which other connections are served.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from roster.broker.errors import CloseConnection
from roster.wire import API_VERSIONS, ApiKey, Message, Struct, Versions
from roster.wire.codec.table import struct_of
from roster.wire.frames import RequestHeader, UnsupportedVersion, decode_request, produce_partitions

SERVED: Mapping[ApiKey, Versions] = MappingProxyType(
    # Groups of the other kind this broker has not got; clients ask for classic ones.
    {key: versions for key, versions in API_VERSIONS.items() if key != ApiKey.CONSUMER_GROUP_DESCRIBE}
)
"""The versions of each request that the broker serves."""


_PAIRS = frozenset((int(key), version) for key, versions in SERVED.items() for version in versions)


def is_served(api_key: int, version: int) -> bool:
    """Return True if the broker serves this version of a request."""
    return (api_key, version) in _PAIRS


T = TypeVar("T")
logger = logging.getLogger(__name__)

MIB = 1 << 20
MAX_ITEMS = 50_000
"""Array elements of one request, those inside others included."""
SLICE = 100
"""Items handled between two turns of the other connections."""
INLINE_BYTES = 32 * 1024
"""A frame up to this size is decoded at once: it cannot hold enough to matter."""
INLINE_PRODUCE_BYTES = MIB + 64 * 1024
"""The same for a Produce to at most INLINE_ITEMS partitions: one batch of the default size."""
INLINE_ITEMS = 100
"""Partitions of a Produce request, or items of its response, up to which it is decoded or encoded at once."""
DEFAULT_MAX_BYTES = MIB
_PARTITIONS_MAX_BYTES = 2 * MIB
_MEMBERS_MAX_BYTES = 16 * MIB
MAX_BYTES: dict[int, int] = {
    ApiKey.FETCH: _PARTITIONS_MAX_BYTES,
    ApiKey.LIST_OFFSETS: _PARTITIONS_MAX_BYTES,
    ApiKey.OFFSET_COMMIT: _PARTITIONS_MAX_BYTES,
    ApiKey.OFFSET_FETCH: _PARTITIONS_MAX_BYTES,
    ApiKey.OFFSET_DELETE: _PARTITIONS_MAX_BYTES,
    ApiKey.JOIN_GROUP: _MEMBERS_MAX_BYTES,
    ApiKey.SYNC_GROUP: _MEMBERS_MAX_BYTES,
}
"""The largest frame of a request other than Produce, where it is not DEFAULT_MAX_BYTES."""


def check_size(api_key: int, size: int) -> None:
    """Raise CloseConnection for a frame larger than its kind of request needs."""
    limit = MAX_BYTES.get(api_key, DEFAULT_MAX_BYTES)
    if api_key != ApiKey.PRODUCE and size > limit:
        raise CloseConnection(f"a request of {size} bytes that is not a Produce, at most {limit} are allowed here")


async def decode(frame: bytes) -> tuple[RequestHeader, Message]:
    """Read a frame; raise WireError as `decode_request` does, CloseConnection for more than MAX_ITEMS items."""
    if len(frame) <= INLINE_BYTES or (len(frame) <= INLINE_PRODUCE_BYTES and _is_small_produce(frame)):
        return decode_small(frame)
    return await asyncio.to_thread(_decode_counting, frame)


def _is_small_produce(frame: bytes) -> bool:
    """Return True for a Produce to few partitions of one topic: its bytes are nearly all records."""
    if int.from_bytes(frame[:2], "big") != ApiKey.PRODUCE:
        return False
    partitions = produce_partitions(frame)
    return partitions is not None and partitions <= INLINE_ITEMS


def decode_small(frame: bytes) -> tuple[RequestHeader, Message]:
    """Read a frame that is small enough to be decoded at once; raise WireError as `decode_request` does."""
    header, message = decode_request(frame, _warn_once)
    if not is_served(header.api_key, header.api_version):
        raise UnsupportedVersion(header)
    return header, message


_logged_kinds: set[str] = set()
"""Kinds of requests whose bytes behind the last field were logged before."""


def _warn_once(rest: str) -> None:
    kind = rest.partition(":")[0]
    if kind not in _logged_kinds:
        _logged_kinds.add(kind)
        logger.warning("%s; they are ignored, here and in later requests of this kind", rest)


def _decode_counting(frame: bytes) -> tuple[RequestHeader, Message]:
    header, message = decode_small(frame)
    if count_items(message, MAX_ITEMS) > MAX_ITEMS:
        raise CloseConnection(f"a {type(message).__name__} of more than {MAX_ITEMS} items")
    return header, message


def count_items(message: Message | Struct, enough: int) -> int:
    """The elements of all arrays of a message, or a number above `enough`."""
    total = 0
    for name, nested in _arrays(type(message)):
        items = getattr(message, name) or ()
        total += len(items)
        for item in items if nested else ():
            if total > enough:
                return total
            total += count_items(item, enough - total)
    return total


@cache
def _arrays(cls: Any) -> tuple[tuple[str, bool], ...]:
    """The array fields of a structure, and whether their elements have arrays too."""
    arrays = [(name, field.item) for name, field in cls.__table__.fields if field.kind == "array"]
    return tuple((name, item.kind == "struct" and bool(_arrays(struct_of(item)))) for name, item in arrays)


async def in_slices(items: Iterable[T], size: int = SLICE) -> AsyncIterator[T]:
    """The items, with a turn for other connections after every `size` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)
