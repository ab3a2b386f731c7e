"""One file of a partition's log: record batches one after another, as clients sent them, and a sparse index.

The file has the layout of an Apache Kafka log segment, so Kafka's own tools can read it. A sealed segment has a sidecar
(`.index`): proof that every byte of it reached the disk, and an index that saves reading it all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import google_crc32c

from roster.broker.log.batch_check import NO_END, CorruptSegmentError, Damage, check_batch, find_rest
from roster.broker.log.files import read_cached, sync_directory, write_at, write_atomically
from roster.broker.log.open_files import LogFile
from roster.broker.log.producer_state import ProducerTable
from roster.wire import WireError
from roster.wire.records import HEADER_SIZE, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from roster.wire.records import BatchHeader

LOG_SUFFIX = ".log"
SIDECAR_SUFFIX = ".index"
BEFORE_ALL_TIME = -(1 << 63)
_PREFIX = 12  # base offset and batch length, which give the size of a batch
_SCAN_BYTES = 1 << 20
_PLACED = struct.Struct(">qii")  # base offset, batch length, leader epoch
_SIDECAR = struct.Struct(">4sHqqqqii")
_SIDECAR_MAGIC = b"RSTR"
_SIDECAR_VERSION = 1

logger = logging.getLogger(__name__)


class Segment:
    """Batches from `base_offset` up to, not including, `next_offset`.

    The index divides the file into blocks. A block that was neither written nor scanned since the broker's start is
    checked before it is read; the index itself has a checksum. With `gaps` batches may be missing, as
    compaction leaves it.
    """

    __slots__ = (
        "_checked",
        "_file",
        "_interval",
        "_loaded",
        "_new_block",
        "_offsets",
        "_positions",
        "_reported",
        "_times",
        "base_offset",
        "gaps",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "size",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        index_interval_bytes: int,
        *,
        gaps: bool = False,
        suffix: str = LOG_SUFFIX,
    ) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.gaps = gaps
        self.max_timestamp = BEFORE_ALL_TIME
        self.max_timestamp_offset = -1
        """Base offset of the first batch that has `max_timestamp`."""
        self._file = LogFile(directory / f"{base_offset:020d}{suffix}")
        self._interval = index_interval_bytes
        self._offsets = array("q")
        self._positions = array("q")
        self._times = array("q")
        """For each index entry the newest timestamp of all batches before it: never decreasing."""
        self._checked = bytearray()
        """For each index entry, True if its block was checked."""
        self._loaded = (0, 0, 0)
        """Contents of the sidecar: number of entries, size, next offset."""
        self._new_block = False
        """True if the next batch begins a block whatever its position."""
        self._reported: frozenset[int] = frozenset()

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._file.path

    @property
    def sidecar_path(self) -> Path:
        """Path of the sidecar of a sealed segment."""
        return self.path.with_suffix(SIDECAR_SUFFIX)

    @property
    def is_sealed(self) -> bool:
        """True if there is a sidecar."""
        return self.sidecar_path.exists()

    def create(self) -> None:
        """Create the file if it is not there."""
        self._file.create()

    def move(self, path: Path) -> None:
        """Rename the file, replacing the one that has the name."""
        self.path.rename(path)
        self._file.path = path

    def retire(self, *, keep_open: bool = False) -> None:
        """Another file may take this one's name: read on from the one that is open, never open the other."""
        self._file.retire(keep_open=keep_open)

    def close(self) -> None:
        """Close the file; a later use opens it again."""
        self._file.close()

    def __del__(self) -> None:
        # A deleted or rewritten segment stays open for the reads under way and goes with the last of them.
        self.close()

    # Writing

    def append(self, header: BatchHeader, batch: memoryview, base_offset: int, leader_epoch: int) -> None:
        """Write a batch under the offset it gets; on OSError the segment is as it was before.

        Base offset and leader epoch lie outside the CRC, so the rest of the batch goes to the file as it came.
        """
        placed = _PLACED.pack(base_offset, header.batch_length, leader_epoch)
        with self._file as fd:
            self._file.dirty = True
            try:
                written = write_at(fd, [placed, batch[_PLACED.size :]], self.size)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, self.size)
                raise
        self._note(header, base_offset, self.size)
        self.size += written

    def _note(self, header: BatchHeader, base_offset: int, position: int) -> None:
        if self._new_block or not self._positions or position - self._positions[-1] >= self._interval:
            self._begin_block(base_offset, position, checked=True)
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = base_offset
        self.next_offset = base_offset + header.last_offset_delta + 1

    def _begin_block(self, offset: int, position: int, *, checked: bool) -> None:
        self._new_block = not checked
        self._offsets.append(offset)
        self._times.append(self.max_timestamp)
        self._checked.append(checked)
        self._positions.append(position)  # the last, since threads look here whether there is a block

    def sync(self) -> None:
        """Return once every byte written so far is on the disk."""
        self._file.sync()

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
        with self._file as fd:
            return read_cached(fd, end - start, start)

    def batches(self, position: int = 0) -> Iterator[tuple[BatchHeader, int, memoryview]]:
        """Every batch from a position on: header, position, bytes; raise CorruptSegmentError where one is damaged."""
        while position < self.size:
            whole = self._positions[self._block(position + _SCAN_BYTES)]
            end = whole if whole > position else self._block_end(self._block(position))[0]
            window = memoryview(self.read(position, end))
            taken = 0
            while taken < len(window):
                size = _size_at(window, taken)
                batch = window[taken : taken + size]
                yield read_header(batch), position + taken, batch
                taken += size
            position += taken

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch with this offset or a later one, else `size`."""
        entry = max(bisect_right(self._offsets, offset) - 1, 0)
        return self._walk(
            entry,
            lambda header, _: header.last_offset >= offset,
            lambda damage: damage.readable_from is not None and offset >= damage.readable_from,
        )

    def cut(self, start: int, limit: int) -> int:
        """The last batch boundary that is neither before `start`, itself one, nor after `limit`."""
        if limit >= self.size:
            return self.size
        try:
            boundary = self._walk(
                self._block(limit),
                lambda header, position: position + header.size > limit,
                lambda damage: start >= damage.resumes_at,
            )
        except CorruptSegmentError as error:
            boundary = error.position
        return max(start, boundary)

    def first_batch_end(self, start: int) -> int:
        """Return the end of the batch that begins at `start`."""
        return start + _size_at(memoryview(self._bytes(start, start + _PREFIX)), 0)

    def position_of_time(self, timestamp: int) -> int:
        """Return the position of the first batch whose newest record is at or after a time, else `size`."""
        entry = max(bisect_left(self._times, timestamp) - 1, 0)
        return self._walk(entry, lambda header, _: header.max_timestamp >= timestamp)

    def _walk(
        self,
        entry: int,
        found: Callable[[BatchHeader, int], bool],
        is_past: Callable[[Damage], bool] = lambda _: False,
    ) -> int:
        """Position of the first batch at or after an index entry for which `found` is true.

        Raise CorruptSegmentError if damage comes first, except damage that `is_past`.
        """
        for block in range(entry, len(self._positions)):
            damage = None if self._checked[block] else self.check(block)
            position, end = self._positions[block], self._block_end(block)[0]
            if damage is not None and not is_past(damage):
                place = self._walk_batches(position, damage.position, found)
                if place is None:
                    raise damage.error()
            else:
                place = self._walk_batches(position if damage is None else damage.resumes_at, end, found)
            if place is not None:
                return place
        return self.size

    def _walk_batches(self, position: int, end: int, found: Callable[[BatchHeader, int], bool]) -> int | None:
        """Position of the first batch between two boundaries for which `found` is true."""
        while position < end:
            # All batches of a block begin within one interval.
            window = memoryview(self._bytes(position, min(position + self._interval + HEADER_SIZE, end)))
            taken = 0
            while len(window) - taken >= HEADER_SIZE:
                header = read_header(window[taken:])
                if found(header, position + taken):
                    return position + taken
                taken += header.size
            position += taken
        return None

    def _bytes(self, start: int, end: int) -> bytes:
        with self._file as fd:
            return os.pread(fd, end - start, start)

    # Checking

    @property
    def blocks(self) -> int:
        """The number of blocks, to be checked one by one."""
        return len(self._positions)

    @property
    def settled_blocks(self) -> int:
        """The number of blocks that do not change even if the segment is appended to."""
        return max(self._loaded[0], len(self._positions) - 1)

    def block_size(self, block: int) -> int:
        """The bytes of a block."""
        return self._block_end(block)[0] - self._positions[block]

    def _block(self, position: int) -> int:
        """The block a position is in."""
        return max(bisect_right(self._positions, position) - 1, 0)

    def _block_end(self, block: int) -> tuple[int, int]:
        """The position and the offset behind a block."""
        if block + 1 == self._loaded[0]:
            return self._loaded[1:]
        if block + 1 < len(self._positions):
            return self._positions[block + 1], self._offsets[block + 1]
        return self.size, self.next_offset

    def check(self, block: int) -> Damage | None:
        """Read a block and check its batches; return what is wrong, which goes to the log the first time."""
        start, due = self._positions[block], self._offsets[block]
        end, before = self._block_end(block)
        data = memoryview(self._bytes(start, end))
        taken = 0
        try:
            while taken < end - start:
                header = check_batch(data[taken:], due, before, gaps=self.gaps and taken > 0)
                taken += header.size
                due = header.last_offset + 1
            if due != before and not self.gaps:
                raise WireError(f"the batches end at offset {due} where {before} was due")
        except WireError as error:
            rest, readable_from = find_rest(data, taken, due, before, gaps=self.gaps) or (end - start, before)
            damage = Damage(self.path, start + taken, due, str(error), readable_from, start + rest)
            self._checked[block] = False
            self._report(damage)
            return damage
        self._checked[block] = True
        return None

    def _report(self, damage: Damage) -> None:
        if damage.position not in self._reported:
            self._reported |= {damage.position}
            logger.error("%s; %s", damage, damage.advice)

    def is_checked(self, start: int, end: int) -> bool:
        """Return True if everything from one position to another was checked."""
        return self._checked.find(0, self._block(start), self._block(end - 1) + 1) < 0

    def good_end(self, start: int, end: int) -> int:
        """`end`, or where the first damage before it begins; raise CorruptSegmentError if that is at `start`."""
        for block in range(self._block(start), self._block(end - 1) + 1):
            damage = None if self._checked[block] else self.check(block)
            if damage is not None and damage.position < end and start < damage.resumes_at:
                if damage.position <= start:
                    raise damage.error()
                return damage.position
        return end

    # Sealing and recovery

    def seal(self, producers: bytes) -> None:
        """Sync the file and write its sidecar; `producers` is the producer table as of this segment's end.

        Meant for a thread of its own: the segment must not be appended to any more.
        """
        self.sync()
        count = len(self._offsets)
        head = _SIDECAR.pack(
            _SIDECAR_MAGIC,
            _SIDECAR_VERSION,
            self.size,
            self.next_offset,
            self.max_timestamp,
            self.max_timestamp_offset,
            count,
            len(producers),
        )
        columns = struct.pack(f">{3 * count}q", *self._offsets, *self._positions, *self._times)
        body = head + columns + producers
        write_atomically(self.sidecar_path, body + struct.pack(">I", google_crc32c.value(body)))

    def load_sidecar(self) -> ProducerTable | None:
        """Take index and `size` from the sidecar and return its producers; None if there is no valid one.

        The file may have grown since. Raise CorruptSegmentError if it has shrunk: those bytes were on the disk once.
        """
        try:
            data = self.sidecar_path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            (crc,) = struct.unpack_from(">I", data, len(data) - 4)
            magic, version, size, next_offset, newest, newest_offset, count, table = _SIDECAR.unpack_from(data)
            if (magic, version, crc) != (_SIDECAR_MAGIC, _SIDECAR_VERSION, google_crc32c.value(data[:-4])):
                return None
            columns = array("q", struct.unpack_from(f">{3 * count}q", data, _SIDECAR.size))
            start = _SIDECAR.size + 24 * count
            producers = ProducerTable.decode(data[start : start + table])
        except struct.error:
            return None
        there = self.path.stat().st_size
        if there < size:
            raise CorruptSegmentError(
                f"{self.path} lost its end: it once held {size} bytes, now {there}; restore it from a backup, or "
                f"delete {self.sidecar_path.name} beside it to go on with what is left"
            )
        self._offsets, self._positions, self._times = columns[:count], columns[count : 2 * count], columns[2 * count :]
        self._checked = bytearray(count)
        self._loaded = (count, size, next_offset)
        self._new_block = True
        self.size, self.next_offset = size, next_offset
        self.max_timestamp, self.max_timestamp_offset = newest, newest_offset
        return producers

    def unseal(self) -> None:
        """Forget the sidecar, durably: the segment is about to change."""
        if self.is_sealed:
            self.sidecar_path.unlink()
            sync_directory(self.path.parent)

    def scan(self, seen: Callable[[BatchHeader], None], before: int = NO_END, *, gaps: bool = False) -> Damage | None:
        """Read and check every batch from `size` on, index it and call `seen`; return what is wrong after them, if any.

        `size` is then the end of the last valid batch; the file itself is not touched.
        """
        file_size = self.path.stat().st_size
        if file_size == self.size:
            return None
        window = memoryview(b"")
        window_start = 0
        with self._file as fd:
            while self.size < file_size:
                left = file_size - self.size
                data = window[self.size - window_start :]
                there = len(data)
                need = _size_at(data, 0) if there >= HEADER_SIZE else min(HEADER_SIZE, left)
                if there < need <= left:  # at most twice: for the header, then for a batch larger than the window
                    window_start = self.size
                    window = memoryview(os.pread(fd, max(need, _SCAN_BYTES), window_start))
                    continue
                try:
                    header = check_batch(data, self.next_offset, before, left=left, gaps=gaps)
                except WireError as error:
                    return Damage(self.path, self.size, self.next_offset, str(error))
                self._note(header, header.base_offset, self.size)
                self.size += header.size
                seen(header)
        return None

    def skip(self, end: int, next_offset: int) -> None:
        """Skip damage: `size` to `end` becomes a block that is never read, up to an offset."""
        self._begin_block(self.next_offset, self.size, checked=False)
        self._reported |= {self.size}
        self.size, self.next_offset = end, next_offset

    def truncate(self) -> None:
        """Cut the file to `size`, durably."""
        with self._file as fd:
            os.ftruncate(fd, self.size)
        self._file.dirty = True
        self.sync()


def _size_at(window: memoryview, position: int) -> int:
    """The whole size of the batch that begins at a position of the window."""
    return _PREFIX + int.from_bytes(window[position + 8 : position + 12], "big", signed=True)
