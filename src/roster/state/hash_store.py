"""A store in a hash index and a heap of entries, for state that needs no order of keys; made for batches.

Entries are written behind each other. A batch is first only written; then `head` says that it counts, and the index
gets its slots, which a process that dies in between leaves to the next one. A pending batch is one that the index does
not get yet. Whatever is written may be written again, so nothing is locked or copied for it: `head` has two halves, and
one word, written at once, says which of them counts. Segments that are mostly of entries written anew since are freed,
a few with each batch. The files are mapped into memory, on a local disk; they do not shrink.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import google_crc32c
import numpy as np
from typing_extensions import override

from roster.state.byte_slices import Bytes, Numbers, as_bytes, large_binary
from roster.state.file_store import Column, FileStore
from roster.state.hash_snapshot import SEGMENT, HashSnapshot, Head, Noted, Pieces, hash_loops, mapped
from roster.state.pending import Pending
from roster.state.store import (
    PendingError,
    Position,
    StateError,
    StoreDamagedError,
    StoreFullError,
    StoreMissingError,
    disk_error,
)
from roster.wire.columns.hash_layout import (
    BAD,
    CHECK_BITS,
    FULL,
    HEAD,
    MOST_BYTES,
    NONE,
    SEGMENT_BITS,
    UNIT_BITS,
    checked,
)

_FIRST = 1 << UNIT_BITS
"""Offset of the first entry: a slot has none of 0."""
_LEAST_BITS, _PAGE = 9, 1 << 12
_STEP, _MOST_STEP = 1 << 16, 64 << 20
"""Bytes by which the heap grows at least and at most, if a batch needs no more."""
_FULL, _FILLED = 0.6, 0.45
"""Share of slots in use at which an index is replaced, and at most in the new one."""
_LEAST_GARBAGE = 4 * SEGMENT
_AREA = struct.Struct("<II")
"""Length and checksum of half of the head."""
_WORD_BYTES = 64
_NONE = np.empty((2, 0), np.int64)
"""No entries."""


class HashStore(FileStore[HashSnapshot]):
    """A store of one task; see `roster.state.file_store.FileStore`."""

    layout = 4
    is_ordered = False
    main_file = "head"
    entries_at_once = 1 << 16  # what is written is still in the processor's cache as the index gets it
    _at: HashSnapshot
    """The files as they are mapped now."""
    _slots: Numbers
    _unsettled: dict[int, Numbers]
    """Offsets and hashes of the pending batch that was written here, by the version of the head with it."""

    @property
    @override
    def _lengths(self) -> list[int]:
        names = ("head", "heap", "segments", f"index.{self._at.head.index_number}")
        return [self._files.file(name).stat().st_size for name in names]

    @property
    @override
    def _known_lengths(self) -> list[int]:
        return [each.nbytes for each in (self._head_bytes, self._at.heap, self._at.segments, self._slots)]

    @property
    @override
    def _version(self) -> object:
        return int(self._words[0])

    @override
    def _close(self) -> None:
        for name in ("_at", "_slots", "_words", "_head_bytes"):
            self.__dict__.pop(name, None)

    @override
    def _open(self) -> None:
        hash_loops()
        self._unsettled = {}
        if not self._main.exists():
            self._make()
        self._map_head()
        self._refresh()
        if not self._read_only:
            self._free_reserved()
            for path in self._files.data.glob("index.*"):  # of a process that died as it made one
                if path.name != f"index.{self._at.head.index_number}":
                    path.unlink()

    def _make(self) -> None:
        """Make the files of an empty store; the head comes last."""
        data = self._files.data
        for path in data.iterdir():
            path.unlink()
        head = Head(seed=int.from_bytes(os.urandom(7), "big"), bits=_LEAST_BITS, position=Position())
        for name, size in (("heap", _STEP), ("segments", _PAGE), ("index.0", 8 << _LEAST_BITS)):
            _grow(data / name, size)
        self._word = 0
        self._write_head_file(head.encode())

    def _map_head(self) -> None:
        self._head_bytes = self._map(self.main_file)
        if len(self._head_bytes) < _WORD_BYTES + 2 * _AREA.size:
            raise self._damaged(f"its head has {len(self._head_bytes)} bytes")
        self._words = self._head_bytes[:8].view(np.int64)
        self._word = -1

    def _damaged(self, reason: str) -> StoreDamagedError:
        return StoreDamagedError(self._files.path, f"the files are damaged ({reason})")

    def _refresh(self) -> None:
        """Read the head if it was written since, and map what it says."""
        word, is_new = int(self._words[0]), self._word < 0
        if word == self._word:
            return
        number = word >> CHECK_BITS
        if not 0 < number < 1 << 57 or checked(number) != word:
            raise self._damaged("its head does not have its checksum")
        begin, room = self._area(number)
        size, crc = _AREA.unpack(self._head_bytes[begin : begin + _AREA.size].tobytes())
        content = self._head_bytes[begin + _AREA.size : begin + _AREA.size + min(size, room)].tobytes()
        if size > room or google_crc32c.value(content) != crc:
            raise self._damaged("its head does not have its checksum")
        head = Head.decode(content)
        if is_new or head.index_number != self._at.head.index_number:
            self._map_index(head)
        heap_bytes = self._files.file("heap").stat().st_size
        heap = self._map("heap") if is_new or heap_bytes != len(self._at.heap) else self._at.heap
        segments = self._map("segments").view(np.int64)
        if len(segments) < 2 * max(-(-len(heap) // SEGMENT), head.tail + 1):
            raise self._damaged(f"it has {len(segments) // 2} segments for {len(heap)} bytes")
        self._at = HashSnapshot(self._files.path, head, heap, self._slots, segments)
        used = (head.tail << SEGMENT_BITS) + self._fill_of(head.tail)
        if used > max(len(heap), (head.tail << SEGMENT_BITS) + _FIRST):
            raise self._damaged(f"its heap has {len(heap)} bytes, {used} are in use")
        self._word = word

    def _map(self, name: str) -> Bytes:
        path = self._files.data / name
        if not path.exists() or not path.stat().st_size:
            raise self._damaged(f"{name} is missing")
        return mapped(path, writable=not self._read_only)

    def _map_index(self, head: Head) -> None:
        data = self._map(f"index.{head.index_number}")
        if len(data) != 8 << head.bits:
            raise self._damaged(f"its index has {len(data)} bytes, {8 << head.bits} are in use")
        self._slots = data.view(np.int64)

    def _area(self, number: int) -> tuple[int, int]:
        """Return where half of the head begins, and the most bytes of its content."""
        size = (len(self._head_bytes) - _WORD_BYTES) // 2
        return _WORD_BYTES + (number & 1) * size, size - _AREA.size

    def _note(self, head: Head) -> None:
        """Write the head: all that was written before counts with it."""
        content, number = head.encode(), (self._word >> CHECK_BITS) + 1
        begin, room = self._area(number)
        if len(content) > room:
            self._write_head_file(content)
            self._map_head()
            self._word, self._inode = int(self._words[0]), self._main.stat().st_ino
        else:
            whole = _AREA.pack(len(content), google_crc32c.value(content)) + content
            self._head_bytes[begin : begin + len(whole)] = np.frombuffer(whole, np.uint8)
            self._words[0] = self._word = checked(number)
            if head.applying is None:  # else it is written again at once
                os.utime(self._main)  # a write to mapped memory need not say when
        self._at.head = head

    def _write_head_file(self, content: bytes) -> None:
        """Replace the file of the head by one with room for this content and more."""
        size = max(_PAGE, 1 << (2 * len(content)).bit_length())
        number = (self._word >> CHECK_BITS) + 1
        whole = bytearray(_WORD_BYTES + 2 * size)
        whole[:8] = checked(number).to_bytes(8, "little")
        begin = _WORD_BYTES + (number & 1) * size
        area = _AREA.pack(len(content), google_crc32c.value(content)) + content
        whole[begin : begin + len(area)] = area
        scratch = self._files.data / "head.new"
        scratch.write_bytes(whole)
        scratch.replace(self._main)

    @override
    @contextlib.contextmanager
    def snapshot(self) -> Iterator[HashSnapshot]:
        while True:
            self._reopen_if_replaced()
            with self._files.access(), self._translated():
                self._refresh()
                if self._at.head.applying is None:
                    yield self._at
                    return
            self._complete()

    def _complete(self) -> None:
        """Let the index have what a process that died in the middle, or had an error, has left."""
        with self._files.access(write=True), self._translated(), self._writable():
            self._refresh()
            self._recover()

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        """Map the files for writing, in a reader too."""
        if not self._read_only:
            yield
            return
        if not self._main.exists():
            raise StoreMissingError(f"store {self._files.path}: it is gone")
        self._read_only = False
        try:
            self._open()
            yield
        finally:
            self._read_only = True
            self._open()

    def _recover(self) -> None:
        pieces = self._at.head.applying
        if pieces is None:
            return
        slots, segments, entries = self._at.slots, self._at.segments, 0
        segments[1::2] = 0
        for where in self._at.live():
            np.add.at(segments, 2 * (where >> SEGMENT_BITS) + 1, self._at.sizes(where))
            entries += len(where)
        self._at.head = self._at.head._replace(entries=entries, used=int(np.count_nonzero(slots)))
        self._index(self._at.entries_of(pieces))
        self._note(self._at.head)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self._check_writable()
        with self._files.access(write=True), self._translated():
            self._refresh()
            self._recover()
            try:
                yield
            except BaseException:
                self._word = -1  # what was not noted does not count
                raise

    @override
    def load(self, batches: Iterable[tuple[Column, Column]], position: Position | Callable[[], Position]) -> None:
        with self._writing():
            appended = [self._append(keys, values) for keys, values in batches]
            pieces = [piece for some, _ in appended for piece in some]
            reached = position() if callable(position) else position
            self._apply(pieces, np.hstack([_NONE, *(each for _, each in appended)]), reached, self._at.head.pending)
            self._free_segments(pieces)
            self._note(self._at.head)

    @override
    def keep(self, pending: Pending, before: Position | None = None) -> tuple[int, int]:
        kept = self.kept
        with self._writing():
            noted = self._at.head.pending
            if before is not None and kept is not None and noted is not None:
                self._apply(noted.pieces, self._kept_entries(noted), before, None)
                self._free_segments(noted.pieces)
            elif noted is not None:
                raise PendingError(f"store {self._files.path}: settle the pending batch before the next one")
            pieces, entries = self._append(pending.keys, pending.values)
            self._note(self._at.head._replace(pending=Noted(pending.token, pending.position, pieces)))
            self._unsettled = {self._word: entries}
            sizes = self._at.entries, self._at.disk_bytes
        self._remember(pending, sum(end - begin for begin, end in pieces))
        return sizes

    @override
    def settle(self, token: str | None, position: Position | None = None) -> bool:
        with self.snapshot() as snapshot:
            noted = snapshot.head.pending
        if noted is None:
            return False
        is_committed = noted.token == token
        with self._writing():
            if is_committed:
                reached = noted.position if position is None else position
                self._apply(noted.pieces, self._kept_entries(noted), reached, None)
                self._free_segments(noted.pieces)
                self._note(self._at.head)
            else:
                self._note(self._at.head._replace(pending=None))
        return is_committed

    @override
    def clear(self) -> None:
        self._check_writable()
        with self._files.access(write=True), self._translated():
            self._close()
            self._main.unlink()
            self._open()
            self._inode = self._main.stat().st_ino

    def _kept_entries(self, noted: Noted) -> Numbers:
        """Return the entries of the pending batch; this store still has them if nothing was written since."""
        entries = self._unsettled.pop(self._word, None)
        return self._at.entries_of(noted.pieces) if entries is None else entries

    def _append(self, keys: Column, values: Column) -> tuple[list[tuple[int, int]], Numbers]:
        """Write entries behind the last ones, which the index does not have yet.

        Return where they are, and the offset of each with the hash of its key.
        """
        keys, values = large_binary(keys), large_binary(values)
        rows = len(keys)
        is_there = np.ones(rows, np.uint8)
        if values.null_count:
            is_there = values.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
        (key_bytes, key_ends), (data, ends) = as_bytes(keys), as_bytes(values)
        sizes = HEAD + np.diff(key_ends) + np.diff(ends)
        if rows and sizes.max() >= NONE:
            raise StateError(f"store {self._files.path}: a key with its value has more than 4 GiB")
        left = np.concatenate([[0], np.cumsum((sizes + _FIRST - 1) >> UNIT_BITS << UNIT_BITS)])
        pieces: list[tuple[int, int]] = []
        entries = np.empty((2, rows), np.int64)
        state, row, given = np.zeros(1, np.int64), 0, (key_ends, key_bytes, ends, data, is_there)
        room = np.empty(SEGMENT if left[-1] > _STEP else 0, np.uint8)
        while row < rows:
            pos, limit = self._room(int(left[row + 1] - left[row]))
            limit = min(limit, pos + int(left[-1] - left[row]))
            self._extend_heap(limit)
            is_large = _STEP < limit - pos <= SEGMENT
            out, begin = (room, pos) if is_large else (self._at.heap, 0)
            to = self._at.head.seed, out, begin, pos, limit, *entries, state
            end = hash_loops().hash_append(row, rows, *given, *to)
            if is_large:  # which costs less than a fault of each page
                with self._files.file("heap").open("r+b", buffering=0) as file:
                    os.pwrite(file.fileno(), out.data[: end - pos], pos)
            row = int(state[0])
            self._note_piece(pieces, pos, end)
        return pieces, entries

    def _room(self, size: int) -> tuple[int, int]:
        """Return where an entry of so many bytes may be written, others behind it, and where the room there ends."""
        tail = self._at.head.tail
        begin, limit = self._fill_of(tail), SEGMENT
        if size > SEGMENT - _FIRST:
            tail, begin, limit = self._free_run(size), _FIRST, _FIRST + size
        elif begin + size > SEGMENT:
            tail = self._free_segment()
            begin = self._begin_of(tail)
        if tail != self._at.head.tail:
            self._at.head = self._at.head._replace(tail=tail)
        return (tail << SEGMENT_BITS) + begin, (tail << SEGMENT_BITS) + limit

    def _note_piece(self, pieces: list[tuple[int, int]], pos: int, end: int) -> None:
        """Note that the tail has entries in [pos, end)."""
        tail = self._at.head.tail
        self._at.segments[2 * tail] = checked(end - (tail << SEGMENT_BITS))
        if pieces and pieces[-1][1] == pos:
            pieces[-1] = pieces[-1][0], end
        else:
            pieces.append((pos, end))

    @staticmethod
    def _begin_of(segment: int, fill: int = 0) -> int:
        """Return where the entries of a segment begin; one that goes on in others begins where it may in the first."""
        return _FIRST if segment == 0 or fill > SEGMENT else 0

    def _fill_of(self, segment: int) -> int:
        """Return up to where a segment is filled, more than its size if others behind it belong to it."""
        word = int(self._at.segments[2 * segment])
        if checked(word >> CHECK_BITS) != word:
            raise self._damaged("a segment does not have its checksum")
        return max(word >> CHECK_BITS, self._begin_of(segment))

    @property
    def _count(self) -> int:
        """How many segments the heap has, the last one maybe in part."""
        return -(-len(self._at.heap) // SEGMENT)

    def _free_segment(self) -> int:
        """Return a segment that has nothing, for new entries; the file grows only if there is none."""
        whole = len(self._at.heap) // SEGMENT
        free = np.flatnonzero(self._at.segments[: 2 * whole : 2] == 0)
        segment = int(free[0]) if len(free) else whole
        self._reserve(segment + 2)
        return segment if self._at.segments[2 * segment] == 0 else segment + 1

    def _free_run(self, size: int) -> int:
        """Return the first one of free segments for one large entry, and mark those behind it."""
        run = _segments_of(_FIRST + size)
        free = np.flatnonzero(self._at.segments[: 2 * self._count : 2] == 0)
        starts = free[: max(len(free) - run + 1, 0)]
        together = starts[free[run - 1 :] - starts == run - 1]
        first = int(together[0]) if len(together) else self._count
        self._reserve(first + run)
        self._at.segments[2 * (first + 1) : 2 * (first + run) : 2] = checked(1)
        return first

    def _reserve(self, segments: int) -> None:
        """Let the table have this many segments."""
        if segments << SEGMENT_BITS > MOST_BYTES:
            raise StoreFullError(f"store {self._files.path}: it has reached its limit of {MOST_BYTES} bytes")
        if len(self._at.segments) < 2 * segments:
            _grow(self._files.data / "segments", 2 * self._at.segments.nbytes + 16 * segments)
            self._at.segments = mapped(self._files.data / "segments", writable=True).view(np.int64)

    def _extend_heap(self, size: int) -> None:
        if size <= len(self._at.heap):
            return
        self._reserve(-(-size // SEGMENT))
        ample = max(size, len(self._at.heap) + min(max(len(self._at.heap) // 4, _STEP), _MOST_STEP))
        self._reserve(-(-ample // SEGMENT))
        path = self._files.data / "heap"
        _grow(path, -(-ample // _STEP) * _STEP)
        self._at.heap = mapped(path, writable=True)

    def _apply(self, pieces: Pieces, entries: Numbers, position: Position, pending: Noted | None) -> None:
        """Let the index have written entries; all of them count from the first moment on."""
        head = self._at.head._replace(position=position, pending=pending)
        if pieces:
            self._note(head._replace(applying=pieces))
            self._index(entries)
        else:
            self._at.head = head

    def _index(self, entries: Numbers) -> None:
        state = np.array([self._at.head.used, self._at.head.entries, 0], np.int64)
        result = FULL
        while result == FULL:
            room = int(len(self._at.slots) * _FULL)
            into = *self._at.index, room, self._at.segments, self._at.scratch, state
            result = hash_loops().hash_apply(int(state[2]), entries.shape[1], *entries, *into)
            if result == BAD:
                raise self._damaged("a slot or an entry does not have its checksum")
            if result == FULL:
                self._rebuild(int(state[1]))
                state[0] = state[1]
        self._at.head = self._at.head._replace(used=int(state[0]), entries=int(state[1]), applying=None)

    def _rebuild(self, entries: int) -> None:
        """Write an index with room for more, and use it from now on."""
        head = self._at.head
        bits = max(_LEAST_BITS, math.ceil(math.log2((entries + 1) / _FILLED)))
        head = head._replace(bits=bits, index_number=head.index_number + 1, used=entries, entries=entries)
        path, before = (
            self._files.data / f"index.{head.index_number}",
            self._files.data / f"index.{head.index_number - 1}",
        )
        path.unlink(missing_ok=True)  # of a process that died here
        _grow(path, 8 << bits)
        old = self._at.slots
        self._map_index(head)
        rebuilt = hash_loops().hash_rebuild(
            *(old, len(old), self._slots, bits, head.seed, self._at.heap, len(self._at.heap))
        )
        if rebuilt != entries:
            raise self._damaged("entries are missing")
        self._at.slots = self._slots
        self._note(head)
        before.unlink()

    def _free_segments(self, written: Pieces) -> None:
        """Free segments with few entries of the index, as much as a batch has written; no batch may be pending."""
        if self._at.head.pending is not None:
            return
        numbers = self._at.segments[: 2 * self._count]
        fills, live = numbers[::2] >> CHECK_BITS, numbers[1::2]
        garbage = np.where(fills > 1, fills - live, 0)
        garbage[self._at.head.tail] = 0
        excess = int(garbage.sum()) - max(_LEAST_GARBAGE, int(live.sum()))
        budget, emptied = SEGMENT + 2 * sum(end - begin for begin, end in written), list[int]()
        for segment in np.argsort(-garbage).tolist() if excess > 0 else ():
            if excess <= 0 or budget <= 0:
                break
            excess, budget = excess - int(garbage[segment]), budget - _STEP - int(live[segment])
            emptied.append(segment)
        if not emptied:
            return
        moved = [self._moved(segment) for segment in emptied]
        if pieces := [piece for some, _ in moved for piece in some]:
            self._apply(pieces, np.hstack([_NONE, *(each for _, each in moved)]), self._at.head.position, None)
        # The entries of a batch that the index has in part may be in these segments.
        self._note(self._at.head)
        for segment in emptied:
            self._at.segments[2 * segment : 2 * (segment + _segments_of(self._fill_of(segment))) : 2] = 0

    def _moved(self, segment: int) -> tuple[Pieces, Numbers]:
        """Write the entries of a segment anew that the index has; return where they are."""
        fill, live = self._fill_of(segment), int(self._at.segments[2 * segment + 1])
        begin, end = ((segment << SEGMENT_BITS) + part for part in (self._begin_of(segment, fill), fill))
        state, size, pieces = np.array([begin, 0, 0], np.int64), HEAD, list[tuple[int, int]]()
        entries = np.empty((2, live // HEAD), np.int64)
        while state[0] < end:
            pos, limit = self._room(size) if live else (0, 0)
            limit = min(limit, pos + live - int(state[1]))
            self._extend_heap(limit)
            to = pos, limit, self._at.scratch, *entries, state
            upto = hash_loops().hash_move(int(state[0]), end, *self._at.index, *to)
            if upto == BAD:
                raise self._damaged("an entry does not have its checksum")
            if upto > pos:
                self._note_piece(pieces, pos, upto)
            size = int(self._at.sizes(state[:1])[0]) if state[0] < end else 0
            if state[1] + size > live:
                break
        if state[0] < end or state[1] != live:
            raise self._damaged("entries are missing")
        return pieces, entries[:, : state[2]]

    def _free_reserved(self) -> None:
        """Free segments that a process had reserved for a large entry and died before it was written."""
        owned = 0
        is_marked = (self._at.segments[::2] == checked(1)).any()
        for segment in range(len(self._at.segments) // 2 if is_marked else 0):
            fill = self._fill_of(segment)
            if fill > SEGMENT:
                owned = segment + _segments_of(fill)
            elif fill == 1 and segment >= owned:
                self._at.segments[2 * segment] = 0

    @override
    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk_error(self._files.path, error) from error


def _segments_of(fill: int) -> int:
    """Return how many segments those have that are filled up to here, counted from the first one."""
    return max(-(-fill // SEGMENT), 1)


def _grow(path: Path, size: int) -> None:
    """Let a file have this size, with room on the disk for all of it, or leave it as it is."""
    with path.open("ab") as file:
        before = file.tell()
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), before, size - before)
            else:
                for _ in range(before, size, _STEP):
                    file.write(bytes(min(_STEP, size - file.tell())))
                file.flush()
        except OSError:
            file.truncate(before)
            raise
