"""Read side of a segment: finds batches, reads them, and checks those not checked yet."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from roster.broker.log.batch_check import CorruptSegmentError, Damage, check_batch, find_rest
from roster.broker.log.files import read_cached
from roster.broker.log.open_files import LogFile
from roster.broker.log.segment_index import SegmentIndex
from roster.wire import WireError
from roster.wire.records import HEADER_SIZE, BatchHeader, read_header

SCAN_BYTES = 1 << 20
_PREFIX = 12  # base offset and batch length, which give the size of a batch

logger = logging.getLogger(__name__)


class SegmentReader:
    """Batches of one file, found by its index; safe to use from any thread.

    With `gaps` batches may be missing, as compaction leaves it.
    """

    __slots__ = ("_index", "_reported", "file", "gaps")

    def __init__(self, file: LogFile, index: SegmentIndex, *, gaps: bool) -> None:
        self.gaps = gaps
        self.file = file
        """The file."""
        self._index = index
        self._reported: frozenset[int] = frozenset()

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.file.path

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return self._index.size

    @property
    def max_timestamp(self) -> int:
        """The newest timestamp of all batches, else BEFORE_ALL_TIME."""
        return self._index.max_timestamp

    # Reading

    def read(self, start: int, end: int) -> bytes | bytearray:
        """The whole batches from one position to another, or to the first damage, waiting for the disk if need be.

        Raise CorruptSegmentError if the damage is at `start`.
        """
        return self._bytes(start, self.good_end(start, end))

    def read_without_waiting(self, start: int, end: int) -> bytes | bytearray | None:
        """Like `read`, but None when the bytes are not in memory or were not checked yet."""
        if not self.is_checked(start, end):
            return None
        with self.file as fd:
            return read_cached(fd, end - start, start)

    def batches(self, position: int = 0) -> Iterator[tuple[BatchHeader, int, memoryview]]:
        """Every batch from a position on: header, position, bytes; raise CorruptSegmentError where one is damaged."""
        while position < self.size:
            whole = self._index.position(self._index.block_at(position + SCAN_BYTES))
            end = whole if whole > position else self._index.end(self._index.block_at(position)).position
            window = memoryview(self.read(position, end))
            scanned = 0
            while scanned < len(window):
                size = batch_size(window, scanned)
                batch = window[scanned : scanned + size]
                yield read_header(batch), position + scanned, batch
                scanned += size
            position += scanned

    def _bytes(self, start: int, end: int) -> bytes:
        with self.file as fd:
            return os.pread(fd, end - start, start)

    # Looking up

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch with this offset or a later one, else `size`."""
        return self._find(
            self._index.block_of_offset(offset),
            lambda header, _: header.last_offset >= offset,
            lambda damage: damage.readable_from is not None and offset >= damage.readable_from,
        )

    def offset_behind(self, position: int) -> int:
        """Return an offset behind every batch before a position, at most one block behind."""
        return self._index.end(self._index.block_at(max(position - 1, 0))).offset if len(self._index) else 0

    def cut(self, start: int, limit: int) -> int:
        """The last batch boundary that is neither before `start`, itself one, nor after `limit`."""
        if limit >= self.size:
            return self.size
        try:
            boundary = self._find(
                self._index.block_at(limit),
                lambda header, position: position + header.size > limit,
                lambda damage: start >= damage.resumes_at,
            )
        except CorruptSegmentError as error:
            boundary = error.position
        return max(start, boundary)

    def first_batch_end(self, start: int) -> int:
        """Return the end of the batch that begins at `start`."""
        return start + batch_size(memoryview(self._bytes(start, start + _PREFIX)))

    def position_of_time(self, timestamp: int) -> int:
        """Return the position of the first batch whose newest record is at or after a time, else `size`."""
        return self._find(self._index.block_of_time(timestamp), lambda header, _: header.max_timestamp >= timestamp)

    def _find(
        self,
        first: int,
        is_wanted: Callable[[BatchHeader, int], bool],
        is_past: Callable[[Damage], bool] = lambda _: False,
    ) -> int:
        """Position of the first batch, from the first block on, for which `is_wanted` is true; else `size`.

        Raise CorruptSegmentError if damage comes first, except damage that `is_past`.
        """
        for block in range(first, len(self._index)):
            damage = None if self._index.is_checked(block) else self.check(block)
            position, end = self._index.position(block), self._index.end(block).position
            if damage is not None and not is_past(damage):
                place = self._find_batch(position, damage.position, is_wanted)
                if place is None:
                    raise damage.error()
            else:
                place = self._find_batch(position if damage is None else damage.resumes_at, end, is_wanted)
            if place is not None:
                return place
        return self.size

    def _find_batch(self, position: int, end: int, is_wanted: Callable[[BatchHeader, int], bool]) -> int | None:
        """Position of the first batch between two boundaries for which `is_wanted` is true."""
        while position < end:
            # All batches of a block begin within one interval.
            window = memoryview(self._bytes(position, min(position + self._index.interval_bytes + HEADER_SIZE, end)))
            scanned = 0
            while len(window) - scanned >= HEADER_SIZE:
                header = read_header(window[scanned:])
                if is_wanted(header, position + scanned):
                    return position + scanned
                scanned += header.size
            position += scanned
        return None

    # Checking

    @property
    def blocks(self) -> int:
        """The number of blocks, to be checked one by one."""
        return len(self._index)

    def check(self, block: int) -> Damage | None:
        """Read a block and check its batches; return what is wrong, which goes to the log the first time."""
        start, due = self._index.position(block), self._index.offset(block)
        end, before = self._index.end(block)
        data = memoryview(self._bytes(start, end))
        scanned = 0
        try:
            while scanned < end - start:
                header = check_batch(data[scanned:], due, before, gaps=self.gaps and scanned > 0)
                scanned += header.size
                due = header.last_offset + 1
            if due != before and not self.gaps:
                raise WireError(f"the batches end at offset {due} where {before} was due")
        except WireError as error:
            rest, readable_from = find_rest(data, scanned, due, before, gaps=self.gaps) or (end - start, before)
            damage = Damage(self.path, start + scanned, due, str(error), readable_from, start + rest)
            self._index.set_checked(block, False)
            self._report(damage)
            return damage
        self._index.set_checked(block, True)
        return None

    def _report(self, damage: Damage) -> None:
        if damage.position not in self._reported:
            self._reported |= {damage.position}
            logger.error("%s; %s", damage, damage.advice)

    def is_checked(self, start: int, end: int) -> bool:
        """Return True if everything from one position to another was checked."""
        return self._index.are_checked(start, end)

    def good_end(self, start: int, end: int) -> int:
        """`end`, or where the first damage before it begins; raise CorruptSegmentError if that is at `start`."""
        for block in range(self._index.block_at(start), self._index.block_at(end - 1) + 1):
            damage = None if self._index.is_checked(block) else self.check(block)
            if damage is not None and damage.position < end and start < damage.resumes_at:
                if damage.position <= start:
                    raise damage.error()
                return damage.position
        return end


def batch_size(window: memoryview, position: int = 0) -> int:
    """Return the whole size of the batch that begins at a position of the window."""
    return _PREFIX + int.from_bytes(window[position + 8 : position + 12], "big", signed=True)
