"""Checks of a batch in a log; a batch that fails them is damage."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from roster.wire import WireError
from roster.wire.records import BatchHeader, read_header, verify_crc

LEADER_EPOCH = 0
"""Single broker: the leader epoch never changes."""
NO_END = 1 << 63
EPOCH_AND_MAGIC = b"\0\0\0\0\2"
"""Bytes 12 to 16 of every batch here."""
_LENGTH = slice(8, 12)
_MOST_CANDIDATES = 1_000


class CorruptSegmentError(WireError):
    """Damage in a segment: bytes that are not the batch expected there; they begin at `position`, -1 if unknown."""

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
    """The next undamaged offset."""
    resumes_at: int = NO_END
    """The position of that offset's batch."""

    def __str__(self) -> str:
        return f"{self.path} is damaged at position {self.position} (offset {self.offset}): {self.reason}"

    @property
    def advice(self) -> str:
        """Consequence for readers, and the remedy."""
        last = self.offset if self.readable_from is None else self.readable_from - 1
        what = f"offset {last}" if last <= self.offset else f"offsets {self.offset} to {last}"
        return (
            f"readers of {what} get CORRUPT_MESSAGE; restore the file from a backup, or let consumers go on at offset "
            f"{last + 1}"
        )

    def error(self) -> CorruptSegmentError:
        """Return the damage as an exception."""
        return CorruptSegmentError(str(self), self.position)


def check_batch(
    data: memoryview, due: int, before: int = NO_END, *, left: int | None = None, gaps: bool = False
) -> BatchHeader:
    """Return the header of the batch that `data` begins with; raise WireError naming the fault.

    Base offset, batch length and leader epoch are outside the CRC, and so are checked against what is known: the
    batch begins at offset `due` (with `gaps`, as compaction leaves them: at it or later), ends before offset `before`,
    and has the one leader epoch. `left` is the number of bytes in the file, if `data` is only the front.
    """
    header = read_header(data)
    size = header.size
    left = len(data) if left is None else left
    if size > left:
        raise WireError(f"a batch of {size} bytes where {left} are left")
    if header.base_offset != due and not (gaps and header.base_offset > due):
        raise WireError(f"a batch at offset {header.base_offset} where {due}{' or more' if gaps else ''} was due")
    if header.last_offset >= before:
        raise WireError(f"a batch up to offset {header.last_offset} where {before} begins behind it")
    if header.partition_leader_epoch != LEADER_EPOCH:
        raise WireError(f"leader epoch {header.partition_leader_epoch} where {LEADER_EPOCH} was due")
    if not verify_crc(data[:size]):
        raise WireError(f"the batch at offset {header.base_offset} fails its CRC")
    return header


def find_rest(data: memoryview, damaged: int, due: int, before: int, *, gaps: bool) -> tuple[int, int] | None:
    """Find the first batch behind a damaged one from which on all are whole: position and offset, or None.

    They have to reach the end of `data` and offset `before`, since their base offsets are outside their CRCs.
    """
    for start in _candidates(bytes(data), damaged):
        position, offset, first = start, due, None
        try:
            while position < len(data):
                header = check_batch(data[position:], offset, before, gaps=gaps or first is None)
                first = header.base_offset if first is None else first
                position, offset = position + header.size, header.last_offset + 1
        except WireError:
            continue
        if first is not None and (gaps or offset == before):
            return start, first
    return None


def _candidates(data: bytes, damaged: int) -> Iterator[int]:
    """Yield possible starts of a batch behind a damaged one: its stated end, then all that look like one."""
    length = int.from_bytes(data[damaged:][_LENGTH], "big", signed=True)
    if length > 0:
        yield damaged + _LENGTH.stop + length
    position = damaged + _LENGTH.stop
    for _ in range(_MOST_CANDIDATES):
        position = data.find(EPOCH_AND_MAGIC, position + 1)
        if position < 0:
            return
        yield position - _LENGTH.stop
