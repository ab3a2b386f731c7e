"""Records of a batch where they lie in its expanded bytes, one after another: no more than a piece is in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from roster.wire.codec.varint import read_varint, read_varlong
from roster.wire.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LONGEST_VARINT = 5
"""Bytes of a record's length at most."""


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
        """Where the number of headers is."""
        return self.value_start + max(self.value_size, 0)


def record_spans(pieces: Iterable[bytes], count: int) -> Iterator[RecordSpan]:
    """Yield the `count` records that the pieces are; WireError, possibly after some of them, if they are not.

    `pieces` are the expanded records of a batch, cut anywhere.
    """
    window = _Window(iter(pieces))
    for _ in range(count):
        yield _span(*window.next_record())
    window.check_end(count)


class _Window:
    """The bytes of a few pieces, with at least one whole record."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._data = b""
        self._pos = 0

    def next_record(self) -> tuple[bytes, int, int, int]:
        """Return bytes with the next record in them, where it starts, where its length ends, and where it ends."""
        if len(self._data) - self._pos < _LONGEST_VARINT:
            self._gather(_LONGEST_VARINT)
        start = self._pos
        length, body = read_varint(self._data, start, len(self._data), "record: length")
        if length > len(self._data) - body:
            self._gather(body - start + length)
            start, body = 0, body - start
        if not 0 <= length <= len(self._data) - body:
            raise WireError(f"record: length {length} with {len(self._data) - body} bytes left")
        self._pos = body + length
        return self._data, start, body, self._pos

    def _gather(self, size: int) -> None:
        """Drop what was taken, and take pieces until there are `size` bytes or no more pieces."""
        parts = [self._data[self._pos :]]
        there = len(parts[0])
        while there < size and (piece := next(self._pieces, None)) is not None:
            parts.append(piece)
            there += len(piece)
        self._data, self._pos = b"".join(parts), 0

    def check_end(self, count: int) -> None:
        """Raise WireError unless all bytes were taken."""
        self._gather(1)
        if self._data:
            raise WireError(f"record batch: bytes behind the last record, number {count}")


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
