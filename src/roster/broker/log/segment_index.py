"""Sparse index of a segment: one entry for each block of batches, searched by position, offset or time."""

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from roster.wire.records import BatchHeader

BEFORE_ALL_TIME = -(1 << 63)


class BlockEnd(NamedTuple):
    """End of a block: the position and the offset behind it."""

    position: int
    offset: int


class SegmentIndex:
    """Blocks of consecutive batches, of about `interval_bytes` each, and the end of them all.

    A block is checked before it is read, unless this process wrote or scanned it. One thread adds batches; others may
    look up and check what there is.
    """

    __slots__ = (
        "_block_is_due",
        "_checked",
        "_offsets",
        "_positions",
        "_stored",
        "_stored_end",
        "_times",
        "interval_bytes",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "size",
    )

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.interval_bytes = interval_bytes
        self.size = 0
        self.next_offset = base_offset
        self.max_timestamp = BEFORE_ALL_TIME
        self.max_timestamp_offset = -1
        """Base offset of the first batch that has `max_timestamp`."""
        self._offsets = array("q")
        self._positions = array("q")
        self._times = array("q")
        """For each block the newest timestamp of all batches before it: never decreasing."""
        self._checked = bytearray()
        """For each block, True if it was checked."""
        self._stored = 0
        """Number of blocks that came from a sidecar."""
        self._stored_end = BlockEnd(0, 0)
        self._block_is_due = False
        """True if the next batch begins a block whatever its position."""

    def __len__(self) -> int:
        return len(self._positions)

    # Adding

    def add(self, header: BatchHeader, base_offset: int) -> None:
        """Add the next batch, known to be good."""
        if self._block_is_due or not self._positions or self.size - self._positions[-1] >= self.interval_bytes:
            self._begin_block(base_offset, is_checked=True)
        if header.newest > self.max_timestamp:
            self.max_timestamp = header.newest
            self.max_timestamp_offset = base_offset
        self.next_offset = base_offset + header.last_offset_delta + 1
        self.size += header.size

    def add_damaged(self, end: BlockEnd) -> None:
        """Add the bytes that fail their check, from here to `end`, as one block."""
        self._begin_block(self.next_offset, is_checked=False)
        self.size, self.next_offset = end

    def _begin_block(self, offset: int, *, is_checked: bool) -> None:
        self._block_is_due = not is_checked
        self._offsets.append(offset)
        self._times.append(self.max_timestamp)
        self._checked.append(is_checked)
        self._positions.append(self.size)  # the last, since threads look here whether there is a block

    # Looking up

    def block_at(self, position: int) -> int:
        """Return the block that a position is in."""
        return max(bisect_right(self._positions, position) - 1, 0)

    def block_of_offset(self, offset: int) -> int:
        """Return the block to search for the first batch with this offset or a later one."""
        return max(bisect_right(self._offsets, offset) - 1, 0)

    def block_of_time(self, timestamp: int) -> int:
        """Return the block to search for the first batch whose newest record is at or after a time."""
        return max(bisect_left(self._times, timestamp) - 1, 0)

    def position(self, block: int) -> int:
        """Return the position at which a block begins."""
        return self._positions[block]

    def offset(self, block: int) -> int:
        """Return the offset at which a block begins."""
        return self._offsets[block]

    def end(self, block: int) -> BlockEnd:
        """Return the end of a block."""
        if block + 1 == self._stored:
            return self._stored_end
        if block + 1 < len(self._positions):
            return BlockEnd(self._positions[block + 1], self._offsets[block + 1])
        return BlockEnd(self.size, self.next_offset)

    # Checking

    def is_checked(self, block: int) -> bool:
        """Return True if a block was checked."""
        return bool(self._checked[block])

    def are_checked(self, start: int, end: int) -> bool:
        """Return True if every block from one position to another was checked."""
        return self._checked.find(0, self.block_at(start), self.block_at(end - 1) + 1) < 0

    def set_checked(self, block: int, is_good: bool) -> None:
        """Note the outcome of a check; a block that failed is checked again before it is read."""
        self._checked[block] = is_good

    # Storing

    @property
    def columns(self) -> "array[int]":
        """Offsets, positions and times of all blocks, one column after the other."""
        return self._offsets + self._positions + self._times

    def load(self, columns: "array[int]", end: BlockEnd, max_timestamp: int, max_timestamp_offset: int) -> None:
        """Take the blocks from `columns`, every one unchecked, in place of those there are."""
        count = len(columns) // 3
        self._offsets, self._positions, self._times = columns[:count], columns[count : 2 * count], columns[2 * count :]
        self._checked = bytearray(count)
        self._stored, self._stored_end = count, end
        self._block_is_due = True
        self.size, self.next_offset = end
        self.max_timestamp, self.max_timestamp_offset = max_timestamp, max_timestamp_offset
