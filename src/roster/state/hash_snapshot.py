"""The parts of a hash store and reads of them. A read checks each slot and each entry that it uses.

`head` says what the other files mean. `heap` has the entries, one after the other, in segments; nothing is written over
an entry that the index has. `index.N` has a slot for each entry. `segments` has two numbers for each segment: up to
where it is filled, with a checksum, and how many bytes of its entries the index has.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.byte_slices import Bytes, Numbers, as_bytes, large_binary, listed, sorted_places
from roster.state.pending import Pending
from roster.state.store import Keys, Position, StateError, StoreDamagedError, Value
from roster.wire.columns.hash_layout import BAD, BLOCK, FULL, HEAD, KEY, SEGMENT_BITS, UNIT_BITS, VALUE
from roster.wire.columns.kernel import Kernel

Pieces: TypeAlias = Sequence[tuple[int, int]]
"""Parts of the heap, from an offset up to before another one."""
_AT_ONCE = 1 << 16
"""Slots or entries that are read at once."""
SEGMENT = 1 << SEGMENT_BITS
_VALUE_BYTES = 64
"""Bytes of room for each value that is read, at first."""


_loops: Kernel | None = None


def use(loops: Kernel) -> None:
    """Use these loops in this process from now on."""
    global _loops  # noqa: PLW0603 - of the process, like the code itself
    _loops = loops


def hash_loops() -> Kernel:
    """Return the loops of this process."""
    if _loops is None:
        raise StateError("a hash store needs compiled loops: call roster.state.hash_snapshot.use first")
    return _loops


def has_loops() -> bool:
    """Return True if this process has loops."""
    return _loops is not None


class Noted(NamedTuple):
    """A batch whose transaction has not ended, in the heap, not in the index."""

    token: str
    position: Position
    pieces: Pieces


class Head(NamedTuple):
    """What the files mean.

    used: slots that are not free. bits: the index has 2**bits slots. index_number: of its file. seed: of the hash.
    tail: the segment that entries are written to. applying: what the index has in part, if a process died meanwhile.
    """

    seed: int
    bits: int
    position: Position
    entries: int = 0
    used: int = 0
    index_number: int = 0
    tail: int = 0
    applying: Pieces | None = None
    pending: Noted | None = None

    def encode(self) -> bytes:
        """Return it as JSON."""
        pending = None
        if self.pending is not None:
            pending = [self.pending.token, _position(self.pending.position), self.pending.pieces]
        numbers = self.seed, self.bits, self.entries, self.used, self.index_number, self.tail
        return json.dumps([numbers, _position(self.position), self.applying, pending]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Head:
        """Read the bytes of `encode`."""
        (seed, bits, entries, used, index, tail), position, applying, pending = json.loads(data)
        if pending is not None:
            token, at, pieces = pending
            pending = Noted(token, Position(*at), pieces)
        return cls(seed, bits, Position(*position), entries, used, index, tail, applying, pending)


def _position(position: Position) -> list[object]:
    return [position.changelog, dict(position.inputs)]


def mapped(path: Path, *, writable: bool) -> Bytes:
    """Return the bytes of a file, which is open as long as they are used."""
    with path.open("r+b" if writable else "rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    return np.frombuffer(pages, np.uint8)


def _binary(ends: Numbers, data: Bytes, is_there: Bytes) -> pa.Array:
    """Return binary values that end there, null where there is none."""
    has_all = bool(is_there.all())
    valid = None if has_all else pa.array(is_there.astype(bool)).buffers()[1]
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(is_there), buffers, 0 if has_all else -1)


class HashSnapshot:
    """Reads of one state of the files. Raises StoreDamagedError, as its methods do."""

    def __init__(self, path: Path, head: Head, heap: Bytes, slots: Numbers, segments: Numbers) -> None:
        self.head, self.heap, self.slots, self.segments = head, heap, slots, segments
        self._path, self._loops = path, hash_loops()
        self.scratch = np.empty(3 * BLOCK, np.int64)

    @property
    def position(self) -> Position:
        """The position that the values belong to."""
        return self.head.position

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.head.entries

    @property
    def disk_bytes(self) -> int:
        """Bytes of the entries, and of the slots in use."""
        return int(self.segments[1::2].sum()) + 8 * self.head.used

    def pending(self) -> Pending | None:
        """Return the batch whose transaction had not ended when it was written."""
        noted = self.head.pending
        if noted is None:
            return None
        where = self.entries_of(noted.pieces)[0]
        keys, values = (pa.chunked_array([self.column(where, part)]) for part in (KEY, VALUE))
        return Pending(noted.token, keys, values, noted.position)

    def multi_get(self, keys: Keys) -> Sequence[Value]:
        """Return the value of each key."""
        column = large_binary(keys)
        rows, (data, key_ends) = len(column), as_bytes(column)
        ends, is_there, state = np.zeros(rows + 1, np.int64), np.empty(rows, np.uint8), np.zeros(2, np.int64)
        out, result = np.empty(rows * _VALUE_BYTES, np.uint8), FULL
        while result == FULL:
            done = int(state[0])
            result = self._loops.hash_get(
                done, rows, key_ends, data, *self.index, self.scratch, ends, is_there, out, len(out), state
            )
            if result == BAD:
                raise self.damaged("a slot or an entry does not have its checksum")
            if result == FULL:
                larger = np.empty(max(2 * len(out), int(state[1])), np.uint8)
                larger[: ends[state[0]]] = out[: ends[state[0]]]
                out = larger
        values = _binary(ends, out[: ends[-1]], is_there)
        return listed(values) if isinstance(keys, Sequence) else values

    def scan(
        self, start: bytes = b"", stop: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return entries from `start` up to before `stop`, in the order of keys, at most `limit`. Reads all keys."""
        parts: list[tuple[Numbers, pa.Array]] = []
        count = 0
        for where in self.live() if self.head.entries else ():
            count += len(where)
            keys = self.column(where, KEY)
            is_within = pc.greater_equal(keys, pa.scalar(start, keys.type))
            if stop is not None:
                is_within = pc.and_(is_within, pc.less(keys, pa.scalar(stop, keys.type)))
            parts.append((where[is_within.to_numpy(zero_copy_only=False)], keys.filter(is_within)))
        if count != self.head.entries:
            raise self.damaged("entries are missing")
        if not parts:
            return []
        keys = pa.concat_arrays([keys for _, keys in parts])
        places = sorted_places(keys)[:limit] if len(keys) else np.zeros(0, np.int64)
        values = self.column(np.concatenate([where for where, _ in parts])[places], VALUE)
        return list(zip(keys.take(pa.array(places)).to_pylist(), values.to_pylist(), strict=True))

    @property
    def index(self) -> tuple[Any, ...]:
        """What the loops need of the index and of the heap."""
        return self.slots, self.head.bits, self.head.seed, self.heap, len(self.heap)

    def live(self) -> Iterator[Numbers]:
        """Yield the offsets of all entries, in parts."""
        where = np.empty(_AT_ONCE, np.int64)
        for begin in range(0, len(self.slots), _AT_ONCE):
            end = min(begin + _AT_ONCE, len(self.slots))
            count = self._loops.hash_live(begin, end, self.slots, self.head.seed, self.heap, len(self.heap), where)
            yield where[: self._sound(count)].copy()

    def entries_of(self, pieces: Pieces) -> Numbers:
        """Return the offsets of the entries of pieces, and the hashes of their keys."""
        parts = [np.zeros((2, 0), np.int64)]
        for begin, end in pieces:
            both = np.empty((2, (end - begin) // HEAD + 1), np.int64)
            count = self._loops.hash_walk(begin, end, self.head.seed, self.heap, len(self.heap), *both)
            parts.append(both[:, : self._sound(count)])
        return np.concatenate(parts, axis=1)

    def _sound(self, count: int) -> int:
        if count == BAD:
            raise self.damaged("a slot or an entry does not have its checksum")
        return count

    def column(self, where: Numbers, part: int) -> pa.Array:
        """Return the keys or the values of entries, which have been checked; null where there is none."""
        rows = len(where)
        ends, is_there = np.empty(rows + 1, np.int64), np.empty(rows, np.uint8)
        out = np.empty(self._loops.hash_sizes(rows, self.heap, where, part, ends, is_there), np.uint8)
        self._loops.hash_copy(rows, self.heap, where, part, ends, out)
        return _binary(ends, out, is_there)

    def sizes(self, where: Numbers) -> npt.NDArray[np.int64]:
        """Return the bytes that entries take in the heap."""
        is_there = np.empty(len(where), np.uint8)
        both = np.full(len(where), HEAD + (1 << UNIT_BITS) - 1, np.int64)
        for part in (KEY, VALUE):
            ends = np.empty(len(where) + 1, np.int64)
            self._loops.hash_sizes(len(where), self.heap, where, part, ends, is_there)
            both += np.diff(ends)
        return both >> UNIT_BITS << UNIT_BITS

    def damaged(self, reason: str) -> StoreDamagedError:
        """Return the error for damaged files."""
        return StoreDamagedError(self._path, f"the files are damaged ({reason})")
