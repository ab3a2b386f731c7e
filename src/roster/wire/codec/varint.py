"""Variable-length integers of the flexible encoding (KIP-482) and of records (zig-zag)."""

from typing import TypeAlias

from roster.wire.errors import WireError

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_UINT32 = 0xFFFFFFFF
MAX_UINT64 = 0xFFFFFFFFFFFFFFFF

SHORT = tuple(bytes((n,)) for n in range(128))
"""The one-byte encodings of 0..127."""


def encode_uvarint(n: int) -> bytes:
    """Encode seven bits per byte, lowest first; the high bit is set in all bytes except the last."""
    if n < 128:
        return SHORT[n]
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def read_uvarint(data: Buffer, pos: int, end: int, where: str) -> tuple[int, int]:
    """Read an unsigned 32-bit varint at `pos`; return it and the position after it."""
    if pos + 1 < end:  # nearly all are of one or two bytes
        low = data[pos]
        if low < 128:
            return low, pos + 1
        high = data[pos + 1]
        if high < 128:
            return low & 127 | high << 7, pos + 2
    return _read(data, pos, end, where, MAX_UINT32, 35)


def read_varint(data: Buffer, pos: int, end: int, where: str) -> tuple[int, int]:
    """Read a zig-zag 32-bit varint."""
    if pos < end and (n := data[pos]) < 128:
        return (n >> 1) ^ -(n & 1), pos + 1
    n, pos = read_uvarint(data, pos, end, where)
    return (n >> 1) ^ -(n & 1), pos


def read_varlong(data: Buffer, pos: int, end: int, where: str) -> tuple[int, int]:
    """Read a zig-zag 64-bit varint."""
    if pos + 1 < end and (data[pos] < 128 or data[pos + 1] < 128):  # nearly all are of one or two bytes
        return read_varint(data, pos, end, where)
    n, pos = _read(data, pos, end, where, MAX_UINT64, 70)
    return (n >> 1) ^ -(n & 1), pos


def encode_varint(n: int) -> bytes:
    """Encode `n` (32 or 64 bits, signed) as a zig-zag varint. Raises ValueError if it has more bits."""
    if not -(1 << 63) <= n < 1 << 63:
        raise ValueError(f"{n} is beyond 64 bits")
    return encode_uvarint(n << 1 if n >= 0 else (-n << 1) - 1)


def _read(data: Buffer, pos: int, end: int, where: str, maximum: int, bits: int) -> tuple[int, int]:
    n = 0
    for shift in range(0, bits, 7):
        if pos >= end:
            raise WireError(f"{where}: the bytes end inside a varint")
        byte = data[pos]
        pos += 1
        n |= (byte & 127) << shift
        if byte < 128:
            if n > maximum:
                break
            return n, pos
    raise WireError(f"{where}: a varint above {maximum:#x}")
