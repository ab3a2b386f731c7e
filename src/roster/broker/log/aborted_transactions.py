"""Aborted transactions of a partition: what a reader of committed records has to leave out (KIP-98)."""

import struct
from bisect import bisect_left
from typing import NamedTuple

_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qqq")


class AbortedTransaction(NamedTuple):
    """Records of a producer from its first one in the transaction up to the marker are aborted."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the marker."""


class AbortedTransactions(list[AbortedTransaction]):
    """The aborted transactions of one partition, in the order of their markers."""

    def overlapping(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return those with records from one offset up to, not including, another."""
        start = bisect_left(self, first_offset, key=lambda entry: entry.last_offset)
        return [entry for entry in self[start:] if entry.first_offset < end_offset]

    def forget_before(self, offset: int) -> None:
        """Forget transactions whose marker was before an offset: compaction has dropped their records and markers."""
        del self[: bisect_left(self, offset, key=lambda entry: entry.last_offset)]

    def encode(self, from_offset: int) -> bytes:
        """The transactions whose markers are at an offset or behind it, as bytes."""
        start = bisect_left(self, from_offset, key=lambda entry: entry.last_offset)
        entries = self[start:]
        return _COUNT.pack(len(entries)) + b"".join(_ENTRY.pack(*entry) for entry in entries)

    @classmethod
    def decode(cls, data: bytes, position: int) -> "AbortedTransactions":
        """Read what `encode` wrote; raise struct.error for anything else."""
        (count,) = _COUNT.unpack_from(data, position)
        start = position + _COUNT.size
        return cls([AbortedTransaction(*_ENTRY.unpack_from(data, start + n * _ENTRY.size)) for n in range(count)])
