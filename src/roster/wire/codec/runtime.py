"""Functions that compiled readers and writers call at run time."""

from roster.wire.codec.fields import MAX_STRING_BYTES
from roster.wire.codec.varint import Buffer, encode_uvarint, read_uvarint
from roster.wire.errors import WireError

# Reading.


def cut_short(sizes: tuple[tuple[str, int], ...], left: int) -> WireError:
    """Return the error for bytes that end within a run of fixed-size fields; it names the field."""
    for where, size in sizes:
        if left < size:
            return WireError(f"{where}: needs {size} bytes, {left} are left")
        left -= size
    raise AssertionError("a run that fits was reported as cut short")


def ends_inside(where: str) -> WireError:
    """Return the error for bytes that end within a varint."""
    return WireError(f"{where}: the bytes end inside a varint")


def bad_length(where: str, size: int, left: int) -> WireError:
    """Return the error for a length that is negative, null in a non-nullable field, or more than the bytes left."""
    return WireError(f"{where}: length {size} with {left} bytes left")


def bad_count(where: str, count: int, left: int, least: int) -> WireError:
    """Return the error for a count of elements that cannot fit in the remaining bytes."""
    return WireError(f"{where}: {count} elements of at least {least} bytes with {left} bytes left")


def bad_text(where: str, error: UnicodeDecodeError) -> WireError:
    """Return the error for text that is not UTF-8."""
    return WireError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})")


def skip_tags(data: Buffer, pos: int, end: int, where: str) -> int:
    """Skip a section of unknown tagged fields; return the position after it."""
    count, pos = read_uvarint(data, pos, end, where)
    if count > (end - pos) // 2:
        raise bad_count(where, count, end - pos, 2)
    last = -1
    for _ in range(count):
        tag, pos = read_uvarint(data, pos, end, where)
        size, pos = read_uvarint(data, pos, end, where)
        if tag <= last:
            raise WireError(f"{where}: tag {tag} after {last}")
        if size > end - pos:
            raise bad_length(where, size, end - pos)
        last = tag
        pos += size
    return pos


# Writing.


def length_prefix(size: int) -> bytes:
    """Encode a compact length or count."""
    return encode_uvarint(size + 1)


def text_prefix(size: int) -> bytes:
    """Encode the compact length of a string, at most MAX_STRING_BYTES."""
    if size > MAX_STRING_BYTES:
        raise ValueError(f"a string of {size} bytes")
    return encode_uvarint(size + 1)


def exactly_16(value: bytes) -> bytes:
    """Check the size of a uuid, which `struct` would pad or truncate silently."""
    if len(value) != 16:
        raise ValueError(f"a uuid of {len(value)} bytes")
    return value
