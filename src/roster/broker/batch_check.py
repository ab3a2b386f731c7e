"""What a batch in a log must be; anything else there is damage."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from roster.wire import WireError
from roster.wire.records import read_header, verify_crc

if TYPE_CHECKING:
    from pathlib import Path

    from roster.wire.records import BatchHeader

LEADER_EPOCH = 0
"""There is one broker and it leads for ever."""
NO_END = 1 << 63


class CorruptSegmentError(WireError):
    """Bytes in a segment that are not the batch that belongs there; `position` is where they begin, -1 if unknown."""

    def __init__(self, message: str, position: int = -1) -> None:
        super().__init__(message)
        self.position = position


class Damage(NamedTuple):
    """Bytes of a file from `position` on that cannot be read as the records from `offset` on."""

    path: Path
    position: int
    offset: int
    reason: str
    readable_from: int | None = None
    """The next offset that is not hit."""

    def __str__(self) -> str:
        return f"{self.path} is damaged at position {self.position} (offset {self.offset}): {self.reason}"

    @property
    def advice(self) -> str:
        """What it means to readers, and what can be done."""
        last = self.offset if self.readable_from is None else self.readable_from - 1
        what = f"offset {last}" if last <= self.offset else f"offsets {self.offset} to {last}"
        return (
            f"readers of {what} get CORRUPT_MESSAGE; restore the file from a backup, or let consumers go on at offset "
            f"{last + 1}"
        )

    def error(self) -> CorruptSegmentError:
        """An exception that says so."""
        return CorruptSegmentError(str(self), self.position)


def check_batch(
    data: memoryview, due: int, before: int = NO_END, *, left: int | None = None, gaps: bool = False
) -> BatchHeader:
    """Return the header of the batch that `data` begins with; raise WireError saying what is wrong with it.

    Base offset, batch length and leader epoch are outside the CRC, and so are held against what is known of them: the
    batch begins at offset `due` (with `gaps`, as compaction leaves them: at it or later), ends before offset `before`,
    and is the work of the one leader there is. `left` is the number of bytes in the file, if `data` is only the front.
    """
    header = read_header(data)
    left = len(data) if left is None else left
    if header.size > left:
        raise WireError(f"a batch of {header.size} bytes where {left} are left")
    if header.base_offset != due and not (gaps and header.base_offset > due):
        raise WireError(f"a batch at offset {header.base_offset} where {due}{' or more' if gaps else ''} was due")
    if header.last_offset >= before:
        raise WireError(f"a batch up to offset {header.last_offset} where {before} begins behind it")
    if header.partition_leader_epoch != LEADER_EPOCH:
        raise WireError(f"leader epoch {header.partition_leader_epoch} where {LEADER_EPOCH} was due")
    if not verify_crc(data[: header.size]):
        raise WireError(f"the batch at offset {header.base_offset} fails its CRC")
    return header
