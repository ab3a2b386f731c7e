"""One file of a partition's log: record batches one after another, as clients sent them, and a sparse index.

The file has the layout of an Apache Kafka log segment, so Kafka's own tools can read it. A sealed segment has a sidecar
(`.index`): proof that every byte of it reached the disk, and what would otherwise have to be found by reading it all.
"""

from __future__ import annotations

import contextlib
import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import google_crc32c

from roster.broker.files import read_cached, sync_directory, sync_file, write_at, write_atomically
from roster.broker.producers import ProducerTable
from roster.wire.records import HEADER_SIZE, read_header, verify_crc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from roster.wire.records import BatchHeader

LOG_SUFFIX = ".log"
SIDECAR_SUFFIX = ".index"
BEFORE_ALL_TIME = -(1 << 63)
_PREFIX = 12  # base offset and batch length: what a batch's size takes to know
_SCAN_BYTES = 1 << 20
_PLACED = struct.Struct(">qii")  # base offset, batch length, leader epoch
_SIDECAR = struct.Struct(">4sHqqqqii")
_SIDECAR_MAGIC = b"RSTR"
_SIDECAR_VERSION = 1


class CorruptSegmentError(Exception):
    """Bytes in a segment that are not a valid batch."""


class Segment:
    """Batches from `base_offset` up to, not including, `next_offset`."""

    __slots__ = (
        "_fd",
        "_interval",
        "_offsets",
        "_positions",
        "_times",
        "base_offset",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "path",
        "size",
    )

    def __init__(self, directory: Path, base_offset: int, index_interval_bytes: int) -> None:
        self.path = directory / f"{base_offset:020d}{LOG_SUFFIX}"
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.max_timestamp = BEFORE_ALL_TIME
        self.max_timestamp_offset = -1
        """Base offset of the first batch that has `max_timestamp`."""
        self._interval = index_interval_bytes
        self._fd = -1
        self._offsets = array("q")
        self._positions = array("q")
        self._times = array("q")
        """For each index entry the newest timestamp of all batches before it: never decreasing."""

    @property
    def sidecar_path(self) -> Path:
        """Where the sidecar is, if the segment is sealed."""
        return self.path.with_suffix(SIDECAR_SUFFIX)

    def _file(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._fd

    def close(self) -> None:
        """Close the file; a later use opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # A deleted or rewritten segment stays open for the reads under way and goes with the last of them.
        self.close()

    # Writing

    def append(self, header: BatchHeader, batch: memoryview, base_offset: int, leader_epoch: int) -> None:
        """Write a batch under the offset it gets; on OSError the segment is as it was before.

        Base offset and leader epoch lie outside the CRC, so the rest of the batch goes to the file as it came.
        """
        fd = self._file()
        placed = _PLACED.pack(base_offset, header.batch_length, leader_epoch)
        try:
            written = write_at(fd, [placed, batch[_PLACED.size :]], self.size)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self.size)
            raise
        self._note(header, base_offset, self.size)
        self.size += written

    def _note(self, header: BatchHeader, base_offset: int, position: int) -> None:
        if not self._positions or position - self._positions[-1] >= self._interval:
            self._offsets.append(base_offset)
            self._positions.append(position)
            self._times.append(self.max_timestamp)
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = base_offset
        self.next_offset = base_offset + header.last_offset_delta + 1

    def sync(self) -> None:
        """Return once every byte written so far is on the disk."""
        sync_file(self._file())

    # Reading

    def read(self, start: int, end: int) -> bytes | bytearray:
        """The bytes from one position to another, waiting for the disk if need be."""
        return os.pread(self._file(), end - start, start)

    def read_without_waiting(self, start: int, end: int) -> bytes | bytearray | None:
        """Like `read`, but None when the bytes are not in memory."""
        return read_cached(self._file(), end - start, start)

    def batches(self, position: int = 0) -> Iterator[tuple[BatchHeader, int, memoryview]]:
        """Every batch from a position on: header, position, bytes."""
        while position < self.size:
            window = memoryview(self.read(position, min(position + _SCAN_BYTES, self.size)))
            taken = 0
            while len(window) - taken >= _PREFIX:
                size = _size_at(window, taken)
                if len(window) - taken < size:
                    break
                batch = window[taken : taken + size]
                yield read_header(batch), position + taken, batch
                taken += size
            if taken == 0:  # one batch larger than the window
                batch = memoryview(self.read(position, position + _size_at(window, 0)))
                yield read_header(batch), position, batch
                taken = len(batch)
            position += taken

    def position_of(self, offset: int) -> int:
        """Where the first batch begins that holds this offset or a later one; `size` if there is none."""
        entry = max(bisect_right(self._offsets, offset) - 1, 0)
        return self._walk(entry, lambda header, _: header.last_offset >= offset)

    def cut(self, start: int, limit: int) -> int:
        """The last batch boundary that is neither before `start`, itself one, nor after `limit`."""
        if limit >= self.size:
            return self.size
        entry = bisect_right(self._positions, limit) - 1
        boundary = self._walk(entry, lambda header, position: position + header.size > limit)
        return max(start, boundary)

    def first_batch_end(self, start: int) -> int:
        """Where the batch that begins at `start` ends."""
        return start + _size_at(memoryview(self.read(start, start + _PREFIX)), 0)

    def position_of_time(self, timestamp: int) -> int:
        """Where the first batch begins whose newest record is at or after a time; `size` if there is none."""
        entry = max(bisect_left(self._times, timestamp) - 1, 0)
        return self._walk(entry, lambda header, _: header.max_timestamp >= timestamp)

    def _walk(self, entry: int, found: Callable[[BatchHeader, int], bool]) -> int:
        """Position of the first batch at or after an index entry for which `found` is true."""
        if not self._positions:
            return 0
        position = self._positions[entry]
        while position < self.size:
            # All batches up to the next entry begin within one interval.
            end = min(position + self._interval + HEADER_SIZE, self.size)
            window = memoryview(self.read(position, end))
            taken = 0
            while len(window) - taken >= HEADER_SIZE:
                header = read_header(window[taken:])
                if found(header, position + taken):
                    return position + taken
                taken += header.size
            position += taken
        return self.size

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
        if self.path.stat().st_size < size:
            raise CorruptSegmentError(f"{self.path} lost its end: it once held {size} bytes")
        self._offsets, self._positions, self._times = columns[:count], columns[count : 2 * count], columns[2 * count :]
        self.size, self.next_offset = size, next_offset
        self.max_timestamp, self.max_timestamp_offset = newest, newest_offset
        return producers

    def unseal(self) -> None:
        """Forget the sidecar, durably: the segment is about to change."""
        if self.sidecar_path.exists():
            self.sidecar_path.unlink()
            sync_directory(self.path.parent)

    def scan(self, seen: Callable[[BatchHeader], None]) -> str | None:
        """Read and check every batch from `size` on, index it and tell `seen`; return what is wrong after them, if any.

        `size` is then the end of the last valid batch; the file itself is not touched.
        """
        fd = self._file()
        file_size = os.fstat(fd).st_size
        window = memoryview(b"")
        window_start = 0
        while self.size < file_size:
            left = file_size - self.size
            if left < HEADER_SIZE:
                return f"{left} bytes are too few for a batch header"
            need = HEADER_SIZE
            for _ in range(2):  # first enough for the header, then enough for the batch
                if self.size + need > window_start + len(window):
                    window_start = self.size
                    window = memoryview(os.pread(fd, max(need, _SCAN_BYTES), window_start))
                need = _size_at(window, self.size - window_start)
                if not HEADER_SIZE <= need <= left:
                    return f"a batch of {need} bytes does not fit the {left} that are there"
            begin = self.size - window_start
            batch = window[begin : begin + need]
            try:
                header = read_header(batch)
            except ValueError as error:
                return str(error)
            if header.base_offset < self.next_offset or header.last_offset_delta < 0:
                return f"offset {header.base_offset} where {self.next_offset} or more was due"
            if not verify_crc(batch):
                return f"the batch at offset {header.base_offset} fails its CRC"
            self._note(header, header.base_offset, self.size)
            self.size += need
            seen(header)
        return None

    def truncate(self) -> int:
        """Cut the file to `size`; return how many bytes that removed."""
        fd = self._file()
        removed = os.fstat(fd).st_size - self.size
        if removed:
            os.ftruncate(fd, self.size)
            sync_file(fd)
        return removed

    def remove(self) -> None:
        """Close and delete the files."""
        self.close()
        self.sidecar_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def _size_at(window: memoryview, position: int) -> int:
    """The whole size of the batch that begins at a position of the window."""
    return _PREFIX + int.from_bytes(window[position + 8 : position + 12], "big", signed=True)
