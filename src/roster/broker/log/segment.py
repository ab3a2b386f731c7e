"""One file of a partition's log: record batches one after another, as clients sent them, and a sparse index.

The file has the layout of an Apache Kafka log segment, so Kafka's own tools can read it. A sealed segment has a sidecar
(`.index`): proof that every byte of it reached the disk, and an index that saves reading it all.
"""

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

from roster._files import write_atomically
from roster.broker.log.batch_check import NO_END, CorruptSegmentError, Damage, check_batch
from roster.broker.log.files import write_at
from roster.broker.log.open_files import LogFile
from roster.broker.log.producer_state import ProducerTable
from roster.broker.log.segment_index import BlockEnd, SegmentIndex
from roster.broker.log.segment_reader import SCAN_BYTES, SegmentReader, batch_size
from roster.broker.log.sidecar import SIDECAR_SUFFIX, decode_sidecar, encode_sidecar
from roster.broker.log.swap import swap
from roster.wire import WireError
from roster.wire.records import HEADER_SIZE, BatchHeader, read_header

LOG_SUFFIX = ".log"
_PLACED = struct.Struct(">qii")  # base offset, batch length, leader epoch


class Segment(SegmentReader):
    """Batches from `base_offset` up to, not including, `next_offset`.

    A block of the index that was neither written nor scanned since the broker's start is checked before it is read;
    the index itself has a checksum.
    """

    __slots__ = ("_first_timestamp", "base_offset")

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        index_interval_bytes: int,
        *,
        gaps: bool = False,
        suffix: str = LOG_SUFFIX,
    ) -> None:
        file = LogFile(directory / f"{base_offset:020d}{suffix}")
        super().__init__(file, SegmentIndex(base_offset, index_interval_bytes), gaps=gaps)
        self.base_offset = base_offset
        self._first_timestamp: int | None = None

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch, or behind what compaction left out there."""
        return self._index.next_offset

    def first_timestamp(self) -> int:
        """Return the newest timestamp of the first batch, from which `segment.ms` counts; -1 if it has none."""
        if self._first_timestamp is None:
            with self.file as fd:
                head = os.pread(fd, HEADER_SIZE, 0)
            self._first_timestamp = read_header(head).newest if len(head) == HEADER_SIZE else -1
        return self._first_timestamp

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
        self.file.create()

    def take_place(self, old: "Segment", producers: bytes) -> None:
        """Become the file of another segment, durably, with a sidecar; `producers` is as for `seal`."""
        self.sync()
        swap(self.path, old.path, old.sidecar_path, encode_sidecar(self._index, producers))
        self.file.path = old.path

    def retire(self, *, keep_open: bool = False) -> None:
        """Another file may take this one's name: keep reading from the open file, never open the other one."""
        self.file.retire(keep_open=keep_open)

    def close(self) -> None:
        """Close the file; a later use opens it again."""
        self.file.close()

    def __del__(self) -> None:
        # A deleted or rewritten segment stays open for the reads under way and goes with the last of them.
        self.close()

    # Writing

    def append(self, header: BatchHeader, batch: memoryview, base_offset: int, leader_epoch: int) -> None:
        """Write a batch under the offset it gets; on OSError the segment is as it was before.

        Base offset and leader epoch lie outside the CRC, so the rest of the batch goes to the file as it came.
        """
        placed = _PLACED.pack(base_offset, header.batch_length, leader_epoch)
        with self.file as fd:
            try:
                write_at(fd, [placed, batch[_PLACED.size :]], self.size)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, self.size)
                raise
            finally:
                self.file.dirty = True  # behind the write, which a sync meanwhile may have missed
        if not self.size:
            self._first_timestamp = header.newest
        self._index.add(header, base_offset)

    def extend(self, next_offset: int) -> None:
        """Raise `next_offset`: compaction left out the last records."""
        self._index.next_offset = next_offset

    def sync(self) -> None:
        """Return once every byte written so far is on the disk."""
        self.file.sync()

    # Sealing and recovery

    def seal(self, producers: bytes) -> None:
        """Sync the file and write its sidecar; `producers` is the producer table as of this segment's end.

        Meant for a thread of its own: the segment must not be appended to any more.
        """
        self.sync()
        write_atomically(self.sidecar_path, encode_sidecar(self._index, producers))

    def load_sidecar(self) -> ProducerTable | None:
        """Take index and `size` from the sidecar and return its producers; None without a valid sidecar.

        The file may have grown since. Raise CorruptSegmentError if it has shrunk: those bytes were on the disk once.
        """
        try:
            data = self.sidecar_path.read_bytes()
        except FileNotFoundError:
            return None
        sidecar = decode_sidecar(data)
        if sidecar is None:
            return None
        stored, there = sidecar.end.position, self.path.stat().st_size
        if there < stored:
            raise CorruptSegmentError(
                f"{self.path} lost its end: it once held {stored} bytes, now {there}; restore it from a backup, or "
                f"delete {self.sidecar_path.name} beside it to go on with what is left"
            )
        sidecar.load_into(self._index)
        return sidecar.producers

    def scan(
        self, seen: Callable[[BatchHeader, memoryview], None], before: int = NO_END, *, gaps: bool = False
    ) -> Damage | None:
        """Read and check every batch from `size` on, index it, call `seen`; return what is wrong after them, if any.

        `size` is then the end of the last valid batch; the file itself is not touched.
        """
        file_size = self.path.stat().st_size
        if file_size == self.size:
            return None
        window = memoryview(b"")
        window_start = 0
        with self.file as fd:
            while self.size < file_size:
                left = file_size - self.size
                data = window[self.size - window_start :]
                there = len(data)
                need = batch_size(data) if there >= HEADER_SIZE else min(HEADER_SIZE, left)
                if there < need <= left:  # at most twice: for the header, then for a batch larger than the window
                    window_start = self.size
                    window = memoryview(os.pread(fd, max(need, SCAN_BYTES), window_start))
                    continue
                try:
                    header = check_batch(data, self.next_offset, before, left=left, gaps=gaps)
                except WireError as error:
                    return Damage(self.path, self.size, self.next_offset, str(error))
                self._index.add(header, header.base_offset)
                seen(header, data[: header.size])
        return None

    def skip(self, end: int, next_offset: int) -> None:
        """Skip damage: `size` to `end` becomes a block that is never read, up to an offset."""
        self._reported |= {self.size}
        self._index.add_damaged(BlockEnd(end, next_offset))

    def truncate(self) -> None:
        """Cut the file to `size`, durably."""
        with self.file as fd:
            os.ftruncate(fd, self.size)
        self.file.dirty = True
        self.sync()
