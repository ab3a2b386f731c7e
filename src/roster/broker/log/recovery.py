"""Recovery of a partition's log at start: segments with a valid sidecar are trusted, others checked batch by batch.

No bytes are deleted. Bytes that cannot stay in the log are set aside in a directory `cut-N` beside it, cut into the
damaged pieces (`OFFSET.damaged`) and the whole batches between them (`OFFSET.log`, a log segment like any other).
"""

import contextlib
import errno
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from roster._files import sync_path
from roster.broker.log.batch_check import EPOCH_AND_MAGIC, NO_END, CorruptSegmentError, Damage, check_batch
from roster.broker.log.files import names_in, sync_file
from roster.broker.log.log_start import LogStart, read_log_start
from roster.broker.log.producer_state import ProducerTable
from roster.broker.log.segment import LOG_SUFFIX, Segment
from roster.broker.log.sidecar import SIDECAR_SUFFIX
from roster.broker.log.swap import finish_swaps
from roster.wire import WireError
from roster.wire.control_records import read_marker
from roster.wire.records import HEADER_SIZE, NO_PRODUCER, BatchHeader, verify_crc

_CUT_NAME = re.compile(r"cut-([0-9]{1,9})")
_SEGMENT_NAME = re.compile(rf"([0-9]{{20}}){re.escape(LOG_SUFFIX)}")
_LENGTH = slice(8, 12)
_SEARCH_BYTES = 1 << 20
_MOST_PIECES = 100

logger = logging.getLogger(__name__)


class _Piece(NamedTuple):
    """A part of a file: consecutive whole batches, or the bytes between them."""

    start: int
    end: int
    offset: int
    batches: int
    last_offset: int


class Recovery:
    """Reads one partition's directory; afterwards `segments` and `producers` are what it holds.

    `gaps` says that the log is or was compacted, `now_ms` is the wall clock. `run` raises CorruptSegmentError for
    damage that cannot be worked around.
    """

    def __init__(self, directory: Path, index_interval_bytes: int, now_ms: int, *, gaps: bool) -> None:
        self.segments: list[Segment] = []
        self.producers = ProducerTable()
        self.start = LogStart()
        self._directory = directory
        self._interval = index_interval_bytes
        self._now_ms = now_ms
        self._gaps = gaps
        self._unsealed: list[tuple[Segment, bytes]] = []
        self._changed = False

    @property
    def end_offset(self) -> int:
        """The offset behind the last segment read so far."""
        return self.segments[-1].next_offset if self.segments else 0

    def run(self) -> None:
        """Read all segments; what is left afterwards is durable."""
        finish_swaps(self._directory, LOG_SUFFIX, SIDECAR_SUFFIX)
        self.start = read_log_start(self._directory)
        self.producers = self.start.table()
        bases = self._without_deleted(self._bases())
        while bases:
            base = bases.pop(0)
            if self.segments and base != self.end_offset and not self._follows(base):
                continue
            segment = Segment(self._directory, base, self._interval, gaps=self._gaps)
            self._read(segment, bases)
        self._make_durable()

    def _bases(self) -> list[int]:
        """The base offsets of the segments in the directory; leftovers of a crash are deleted, stray files named."""
        bases = []
        for entry in names_in(self._directory):
            name = _SEGMENT_NAME.fullmatch(entry)
            if name is not None:
                bases.append(int(name[1]))
            elif entry.endswith(".tmp"):
                (self._directory / entry).unlink()
            elif entry.endswith(LOG_SUFFIX):
                logger.warning(
                    "%s is ignored: a segment's name is its first offset in 20 digits", self._directory / entry
                )
        return bases

    def _without_deleted(self, bases: list[int]) -> list[int]:
        """Finish a deletion from the front that was cut off; return the segments that are left."""
        count = sum(following <= self.start.offset for following in bases[1:])
        for base in bases[:count]:
            self._path(base).with_suffix(SIDECAR_SUFFIX).unlink(missing_ok=True)
            self._path(base).unlink()
            self._changed = True
        return bases[count:]

    def _follows(self, base: int) -> bool:
        """Return True if a segment that does not begin at the end of the last one belongs to the log."""
        last = self.segments[-1]
        path = self._directory / f"{base:020d}{LOG_SUFFIX}"
        if self._gaps and base > last.next_offset:
            return True
        if self._gaps:  # compaction was interrupted: the segment before it has this file's records
            path.with_suffix(SIDECAR_SUFFIX).unlink(missing_ok=True)
            replaced = path.rename(path.with_suffix(".replaced"))
            self._changed = True
            logger.warning("%s can be deleted: %s took its place in a compaction that was cut off", replaced, last.path)
            return False
        if base > last.next_offset:
            raise CorruptSegmentError(
                f"{path}: offsets {last.next_offset} to {base - 1} are missing before it; restore {last.path} and what "
                f"follows it from a backup, or move {path.name} and all later segments away"
            )
        raise CorruptSegmentError(
            f"{path} begins before offset {last.next_offset}, where {last.path} ends; move the one away that does not "
            f"belong there"
        )

    def _read(self, segment: Segment, following: list[int]) -> None:
        """Take a segment's index and producers from its sidecar, or find them by reading it; deal with damage."""
        producers = segment.load_sidecar()
        proven = segment.size if producers is not None else -1
        if producers is not None:
            producers.aborted[:0] = self.producers.aborted
            self.producers = producers
        self.segments.append(segment)
        # Compaction rewrites several segments as one and deletes the others later; it never touches the last.
        before = NO_END if not following else following[-1 if self._gaps else 0]
        while True:
            damage = segment.scan(self._record, before, gaps=self._gaps and bool(following))
            if damage is None:
                break
            self._changed = True
            complete = proven == segment.size if self._gaps else segment.next_offset == before
            if following and complete:
                self._set_aside(damage, [])
                break
            if not any(self._path(base).with_suffix(SIDECAR_SUFFIX).exists() for base in following):
                self._set_aside(damage, following)
                following.clear()
                break
            self._skip(segment, damage, following)
        if not segment.is_sealed:
            self._unsealed.append((segment, self.producers.encode(segment.base_offset)))
            self._changed = True

    def _path(self, base: int) -> Path:
        return self._directory / f"{base:020d}{LOG_SUFFIX}"

    def _record(self, header: BatchHeader, batch: memoryview) -> None:
        self._changed = True
        if header.producer_id == NO_PRODUCER:
            return
        marker = read_marker(batch) if header.is_control else None
        if marker is not None:
            self.producers.end(header, marker, header.base_offset, self._now_ms)
        elif not header.is_control:
            self.producers.add(header, header.base_offset, self._now_ms)

    def _skip(self, segment: Segment, damage: Damage, bases: list[int]) -> None:
        """Keep damage in a segment that was on the disk as a whole once: later ones are sealed, and they go last."""
        following = next(base for base in bases if base > damage.offset)
        batch = _find_batch(segment.path, damage, following, is_followed=True)
        end, offset = (segment.path.stat().st_size, following) if batch is None else batch
        segment.skip(end, offset)
        damage = damage._replace(readable_from=offset)
        logger.error("%s; %s", damage, damage.advice)

    # Setting aside

    def _set_aside(self, damage: Damage, following: list[int]) -> None:
        """Move everything from the damage on out of the log, later segments included, and log what it was."""
        pieces = _pieces(damage)
        whole = [piece for piece in pieces if piece.batches]
        size = damage.path.stat().st_size - damage.position
        torn = not whole and not following and _is_torn(damage)
        try:
            cut = self._copy(damage, pieces)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or whole or following:
                raise CorruptSegmentError(f"{damage}: cannot set aside what follows: {error}") from error
            cut = None
        moved = [path for path in map(self._path, reversed(following)) if cut and self._move(path, cut)]
        self.segments[-1].truncate()
        if cut is None:
            logger.error("%s: the %d bytes from there on are cut off; no space to set them aside", damage, size)
        elif torn:
            logger.warning(
                "%s ended in the middle of a batch at offset %d, whose write a crash cut off before it was "
                "acknowledged; its %d bytes are set aside in %s, which can be deleted",
                damage.path,
                damage.offset,
                size,
                cut,
            )
        else:
            logger.error(
                "%s; the log now ends at offset %d. Set aside in %s: %s. kafka-dump-log.sh reads the .log files, and "
                "each is a partition if it is put into a data directory alone",
                damage,
                damage.offset,
                cut,
                _describe(pieces, moved),
            )

    def _copy(self, damage: Damage, pieces: list[_Piece]) -> Path:
        """Write each piece to its own file in a new directory; return the directory once all are durable."""
        taken = [_CUT_NAME.fullmatch(entry) for entry in names_in(self._directory)]
        cut = self._directory / f"cut-{max((int(name[1]) for name in taken if name), default=0) + 1}"
        cut.mkdir()
        try:
            with damage.path.open("rb") as log:
                for piece in pieces:
                    suffix = LOG_SUFFIX if piece.batches else ".damaged"
                    with (cut / f"{piece.offset:020d}{suffix}").open("wb") as file:
                        log.seek(piece.start)
                        left = piece.end - piece.start
                        while left:
                            left -= file.write(log.read(min(left, _SEARCH_BYTES)))
                        file.flush()
                        sync_file(file.fileno())
            sync_path(cut)
            sync_path(self._directory)
        except OSError:
            with contextlib.suppress(OSError):
                for path in cut.iterdir():
                    path.unlink()
                cut.rmdir()
            raise
        return cut

    def _move(self, path: Path, cut: Path) -> bool:
        """Move a later segment, from the last one on: a crash leaves a log without a hole. False if it was empty."""
        path.with_suffix(SIDECAR_SUFFIX).unlink(missing_ok=True)
        if path.stat().st_size == 0:
            path.unlink()
            return False
        path.rename(cut / path.name)
        sync_path(self._directory)
        return True

    def _make_durable(self) -> None:
        if not self.segments or not self._changed:
            return
        sync_path(self._directory)
        active = self.segments[-1]
        for segment, producers in self._unsealed:
            if segment is not active:
                segment.seal(producers)
        active.sync()


def _describe(pieces: list[_Piece], moved: list[Path]) -> str:
    """Describe the bytes set aside."""
    whole = [piece for piece in pieces if piece.batches]
    words = [f"{sum(piece.end - piece.start for piece in pieces if not piece.batches)} damaged bytes"]
    if whole:
        count = sum(piece.batches for piece in whole)
        offsets = f"offsets {whole[0].offset} to {whole[-1].last_offset}"
        words.append(f"{count} whole batch{'es' * (count > 1)} behind them ({offsets})")
    if moved:
        words.append(f"the later segments {', '.join(path.name for path in reversed(moved))}")
    return ", ".join(words)


def _is_torn(damage: Damage) -> bool:
    """Return True if the bytes at the end of a file are a torn batch, not a whole one with a wrong length."""
    with damage.path.open("rb") as file:
        file.seek(damage.position)
        left = damage.path.stat().st_size - damage.position
        head = file.read(HEADER_SIZE)
        due = damage.offset.to_bytes(8, "big")
        placed = head[:8] == due[: len(head)] and head[12:17] == EPOCH_AND_MAGIC[: max(0, len(head) - 12)]
        if not placed or len(head) < HEADER_SIZE:
            return placed
        is_short = _LENGTH.stop + int.from_bytes(head[_LENGTH], "big", signed=True) > left
        return is_short and not verify_crc(head + file.read())


def _pieces(damage: Damage) -> list[_Piece]:
    """Cut what follows damage into whole batches and what is between them."""
    pieces: list[_Piece] = []
    size = damage.path.stat().st_size
    while damage.position < size:
        batch = _find_batch(damage.path, damage, NO_END) if len(pieces) < _MOST_PIECES else None
        start, offset = batch or (size, damage.offset)
        if start > damage.position:
            pieces.append(_Piece(damage.position, start, damage.offset, 0, -1))
        end, due, count = start, offset, 0
        with damage.path.open("rb") as file:
            while (header := _batch_at(file, end, size, due)) is not None:
                end, due, count = end + header.size, header.last_offset + 1, count + 1
        if count:
            pieces.append(_Piece(start, end, offset, count, due - 1))
        damage = damage._replace(position=end, offset=due)
    return pieces


def _find_batch(path: Path, damage: Damage, before: int, *, is_followed: bool = False) -> tuple[int, int] | None:
    """Find the first whole batch behind damage: position and offset, or None.

    With `is_followed` another one, or the file's end and offset `before`, has to come right behind it: its base offset
    is outside its CRC.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        for start in _candidates(file, damage.position, size):
            header = _batch_at(file, start, size, damage.offset, before, gaps=True)
            if header is None:
                continue
            end, due = start + header.size, header.last_offset + 1
            if not is_followed or (end == size and due == before) or _batch_at(file, end, size, due, before):
                return start, header.base_offset
    return None


def _candidates(file: BinaryIO, position: int, size: int) -> Iterator[int]:
    """Yield possible starts of a batch behind a position: the stated end of the one there, then any other."""
    file.seek(position)
    head = file.read(_LENGTH.stop)
    length = int.from_bytes(head[_LENGTH], "big", signed=True)
    if 0 < length < size - position:
        yield position + _LENGTH.stop + length
    place = position + 1 + _LENGTH.stop
    while place < size:
        file.seek(place)
        window = file.read(_SEARCH_BYTES + len(EPOCH_AND_MAGIC))
        index = window.find(EPOCH_AND_MAGIC)
        while index >= 0:
            yield place + index - _LENGTH.stop
            index = window.find(EPOCH_AND_MAGIC, index + 1)
        place += _SEARCH_BYTES


def _batch_at(
    file: BinaryIO, start: int, size: int, due: int, before: int = NO_END, *, gaps: bool = False
) -> BatchHeader | None:
    """The header of the whole batch that begins at a position, None if none does."""
    file.seek(start)
    head = file.read(HEADER_SIZE)
    if len(head) < HEADER_SIZE or not due <= int.from_bytes(head[:8], "big", signed=True) < before:
        return None
    rest = _LENGTH.stop + int.from_bytes(head[_LENGTH], "big", signed=True) - HEADER_SIZE
    if not 0 <= rest <= size - start - HEADER_SIZE:
        return None
    try:
        return check_batch(memoryview(head + file.read(rest)), due, before, gaps=gaps)
    except WireError:
        return None
