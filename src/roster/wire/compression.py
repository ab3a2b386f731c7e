"""Compression of record batches, and decompression within a limit.

Snappy is raw (librdkafka) or in the chunked framing of Java's snappy stream; LZ4 is the frame format. Compressed bytes
are untrusted, so their expanded size is bounded before or while it is allocated.
"""

import zlib
from collections.abc import Iterator
from enum import IntEnum
from struct import Struct as Packing
from typing import Any

from roster._extras import missing_error
from roster.wire.codec.varint import read_uvarint
from roster.wire.errors import WireError

_ALWAYS_EXPANDED = 64 << 20
_MOST_RATIO = 20
_STEP = 64 << 10
_LEAST_STEP = 4 << 10
_MOST_STEP = 4 << 20

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = 16
_CHUNK = Packing(">i")

_LZ4_BLOCK = 64 << 10
_LZ4_HEAD = bytes.fromhex("04224d18604082")
"""Magic, version 1 with independent blocks (the only kind Java reads), 64 KiB blocks, checksum of these two bytes."""
_LZ4_SIZE = Packing("<I")
_LZ4_STORED = 1 << 31


class Compression(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def most_expanded(size: int) -> int:
    """Return how many bytes a batch of `size` compressed bytes may expand to: 64 MiB, or 20-fold if that is more.

    Text compresses 5- to 20-fold, so only data that is made to fill a reader's memory exceeds the limit.
    """
    return max(_ALWAYS_EXPANDED, _MOST_RATIO * size)


def compress(kind: Compression, data: bytes) -> bytes:
    """Return `data` compressed in a format that every Kafka client can read."""
    match kind:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            deflate = zlib.compressobj(wbits=31)
            return deflate.compress(data) + deflate.flush()
        case Compression.LZ4:
            return _lz4_frame(data)
        case Compression.SNAPPY:
            return bytes(_arrow().compress(data, codec="snappy", asbytes=True))
        case Compression.ZSTD:
            return bytes(_arrow().compress(data, codec="zstd", asbytes=True))


def decompress(kind: Compression, data: bytes, limit: int | None = None) -> bytes:
    """Decompress data of any Kafka client. Raises WireError if it is damaged or expands to more than `limit` bytes.

    `limit` None: `most_expanded`. Snappy, LZ4 and ZSTD need pyarrow; raises MissingExtraError if it is not installed.
    """
    return data if kind is Compression.NONE else b"".join(expanded(kind, data, limit))


def expanded(kind: Compression, data: bytes, limit: int | None = None) -> Iterator[bytes]:
    """Yield the result of `decompress` in pieces of a few MiB; raw snappy cannot be divided and is one piece."""
    limit = most_expanded(len(data)) if limit is None else limit
    try:
        match kind:
            case Compression.NONE:
                yield data
            case Compression.GZIP:
                yield from _gunzip(data, limit)
            case Compression.SNAPPY:
                yield from _unsnappy(data, limit)
            case Compression.LZ4:
                yield from _stream("lz4", data, limit)
            case Compression.ZSTD:
                yield from _stream("zstd", data, limit)
    except (WireError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise WireError(f"records: damaged {kind.name.lower()} bytes ({error})") from error


def _arrow() -> Any:
    """Import pyarrow when it is first needed: most users of this module never decompress."""
    try:
        import pyarrow  # noqa: PLC0415
    except ModuleNotFoundError:
        raise missing_error("a batch compressed with snappy, lz4 or zstd", "cli", ["pyarrow"]) from None
    return pyarrow


def _gunzip(data: bytes, limit: int) -> Iterator[bytes]:
    """Read one gzip member after the other, in growing pieces, since zlib copies the bytes after a member's end."""
    pos = 0
    while pos < len(data):
        inflate = zlib.decompressobj(wbits=31)
        step = _LEAST_STEP
        while not inflate.eof:
            if pos >= len(data) and not inflate.unconsumed_tail:
                raise WireError("records: the gzip bytes end too early")
            fresh = b"" if inflate.unconsumed_tail else data[pos : pos + step]
            piece = inflate.decompress(inflate.unconsumed_tail or fresh, _MOST_STEP)
            limit = _less(limit, len(piece))
            yield piece
            pos += len(fresh)
            step = min(2 * step, _STEP)
        pos -= len(inflate.unused_data)


def _stream(codec: str, data: bytes, limit: int) -> Iterator[bytes]:
    step = max(_STEP, 4 * len(data))
    pa = _arrow()
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        while piece := stream.read(min(step, _MOST_STEP, limit + 1)):  # a read allocates the size that is requested
            limit = _less(limit, len(piece))
            yield piece
            step *= 2


def _unsnappy(data: bytes, limit: int) -> Iterator[bytes]:
    if not data.startswith(_XERIAL_MAGIC):
        yield _unsnappy_raw(data, limit)
        return
    pos = _XERIAL_HEADER
    while pos < len(data):
        (size,) = _CHUNK.unpack_from(data, pos)
        pos += _CHUNK.size
        if not 0 <= size <= len(data) - pos:
            raise WireError(f"records: a snappy chunk of {size} bytes with {len(data) - pos} bytes left")
        piece = _unsnappy_raw(data[pos : pos + size], limit)
        limit = _less(limit, len(piece))
        yield piece
        pos += size


def _unsnappy_raw(data: bytes, limit: int) -> bytes:
    expanded, _ = read_uvarint(data, 0, len(data), "records: snappy size")
    _less(limit, expanded)
    return bytes(_arrow().decompress(data, decompressed_size=expanded, codec="snappy", asbytes=True))


def _lz4_frame(data: bytes) -> bytes:
    out = [_LZ4_HEAD]
    for start in range(0, len(data), _LZ4_BLOCK):
        block = data[start : start + _LZ4_BLOCK]
        packed = bytes(_arrow().compress(block, codec="lz4_raw", asbytes=True))
        if len(packed) < len(block):
            out += (_LZ4_SIZE.pack(len(packed)), packed)
        else:
            out += (_LZ4_SIZE.pack(len(block) | _LZ4_STORED), block)
    out.append(_LZ4_SIZE.pack(0))
    return b"".join(out)


def _less(limit: int, size: int) -> int:
    if size > limit:
        raise WireError(f"records: compressed bytes expand to more than {limit} bytes")
    return limit - size
