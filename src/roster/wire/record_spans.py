"""Positions of a batch's records in its decompressed bytes, one record at a time, with only one piece in memory."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from roster.wire.codec.varint import read_varint, read_varlong
from roster.wire.errors import WireError

_LONGEST_VARINT = 5
"""Maximum size of a record's length field."""


class RecordSpan(NamedTuple):
    """A record in `data[start:end]`, its length included; offset and timestamp (ms) are relative to the batch's.

    A key or value of size -1 is null. The headers are in `data[headers_start:end]`.
    """

    data: bytes
    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key_start: int
    key_size: int
    value_start: int
    value_size: int

    @property
    def key(self) -> bytes | None:
        """The key."""
        return None if self.key_size < 0 else self.data[self.key_start : self.key_start + self.key_size]

    @property
    def value(self) -> bytes | None:
        """The value."""
        return None if self.value_size < 0 else self.data[self.value_start : self.value_start + self.value_size]

    @property
    def headers_start(self) -> int:
        """Position of the number of headers."""
        return self.value_start + max(self.value_size, 0)


def record_spans(pieces: Iterable[bytes], count: int) -> Iterator[RecordSpan]:
    """Yield the `count` records of a batch. Raises WireError, perhaps after some of them, if they are invalid.

    `pieces`: the decompressed records, divided at any position.
    """
    left = iter(pieces)
    data, pos = b"", 0
    for _ in range(count):
        if len(data) - pos < _LONGEST_VARINT:
            data, pos = _gathered(data, pos, left, _LONGEST_VARINT), 0
        length, body = read_varint(data, pos, len(data), "record: length")
        if length > len(data) - body:
            data, pos, body = _gathered(data, pos, left, body - pos + length), 0, body - pos
        end = body + length
        if not body <= end <= len(data):
            raise WireError(f"record: length {length} with {len(data) - body} bytes left")
        yield _span(data, pos, body, end)
        pos = end
    if _gathered(data, pos, left, 1):
        raise WireError(f"record batch: bytes behind the last record, number {count}")


def _gathered(data: bytes, pos: int, pieces: Iterator[bytes], size: int) -> bytes:
    """Return the bytes from `pos` on, with further pieces until there are `size` bytes or no more pieces."""
    parts = [data[pos:]]
    there = len(parts[0])
    while there < size and (piece := next(pieces, None)) is not None:
        parts.append(piece)
        there += len(piece)
    return b"".join(parts)


def _span(data: bytes, start: int, pos: int, end: int) -> RecordSpan:
    timestamp_delta, pos = read_varlong(data, pos + 1, end, "record: timestamp_delta")
    offset_delta, pos = read_varint(data, pos, end, "record: offset_delta")
    key_size, key_start = read_varint(data, pos, end, "record: key")
    pos = _behind(key_start, key_size, end, "key")
    value_size, value_start = read_varint(data, pos, end, "record: value")
    pos = _behind(value_start, value_size, end, "value")
    if pos + 1 != end or data[pos] != 0:
        _check_headers(data, pos, end)
    return RecordSpan(data, start, end, timestamp_delta, offset_delta, key_start, key_size, value_start, value_size)


def _behind(start: int, size: int, end: int, what: str) -> int:
    """Return where a key or value ends."""
    if not -1 <= size <= end - start:
        raise WireError(f"record: {what}: length {size} with {end - start} bytes left")
    return start + size if size > 0 else start


def _check_headers(data: bytes, pos: int, end: int) -> None:
    count, pos = read_varint(data, pos, end, "record: headers")
    if not 0 <= count <= (end - pos) // 2:
        raise WireError(f"record: headers: {count} with {end - pos} bytes left")
    for _ in range(count):
        size, pos = read_varint(data, pos, end, "record: header name")
        if size < 0:
            raise WireError("record: header name: null")
        pos = _behind(pos, size, end, "header name")
        size, pos = read_varint(data, pos, end, "record: header value")
        pos = _behind(pos, size, end, "header value")
    if pos != end:
        raise WireError(f"record: {end - pos} bytes behind its headers")
