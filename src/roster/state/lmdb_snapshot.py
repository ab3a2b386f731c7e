"""Reads of a store in LMDB. LMDB trusts its pages, so every read is checked here.

Each entry has a checksum. A flipped bit can also hide an entry, so for a missing key both neighbours are checked, and
in a scan the order. Each commit also stores the number of entries, and the first and last one, with a checksum. Two
kinds of damage are not detected: a flipped bit in a page's header that hides entries at the page's end from reads by
key, and a flipped bit in another page that makes an old version of a page current again.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import add
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.state.byte_slices import (
    FEW,
    Numbers,
    as_bytes,
    ascends,
    cut,
    large_binary,
    listed,
    loops_for,
    sorted_places,
)
from roster.state.pending import Pending
from roster.state.store import Keys, Position, StoreDamagedError, Value

_crc, _pack = google_crc32c.value, struct.Struct("<I").pack
SIZE = 4
"""Bytes of an entry's checksum, the CRC-32C of key and value, which lies behind the value.

A flipped bit in either is always found, as is a value that belongs to another key. Where a process has compiled loops,
checksums are computed by columns, in a tenth of the time.
"""
_RESIDUE = 0x48674BC7
"""The CRC-32C of any bytes that end with their own."""


def seal(key: bytes, value: bytes) -> bytes:
    """Return a value with its checksum."""
    return value + _pack(_crc(key + value))


def sealed(keys: pa.Array, values: pa.Array, places: Numbers) -> list[bytes]:
    """Return the values at these places with their checksums; `keys` are theirs, both columns large binary."""
    if (loops := loops_for(len(keys))) is None:
        return list(map(seal, keys.to_pylist(), values.take(pa.array(places)).to_pylist()))
    (key_bytes, key_ends), (data, ends) = as_bytes(keys), as_bytes(values)
    offsets = np.concatenate([[0], np.cumsum(ends[places + 1] - ends[places] + SIZE)])
    out = np.empty(offsets[-1], np.uint8)
    loops.seal(len(keys), key_ends, key_bytes, ends, data, places, out)
    result: list[bytes] = cut(out, offsets).to_pylist()
    return result


def are_sound(keys: Sequence[bytes] | pa.Array, data: Sequence[bytes] | pa.Array) -> bool:
    """Return True if each is a value of its key with its checksum."""
    if (loops := loops_for(len(keys))) is None:
        lists = (column.to_pylist() if isinstance(column, pa.Array) else column for column in (keys, data))
        return set(map(_crc, map(add, *lists))) <= {_RESIDUE}
    arrays = (
        column if isinstance(column, pa.Array) else pa.array(column, pa.large_binary()) for column in (keys, data)
    )
    (key_bytes, key_ends), (values, ends) = map(as_bytes, arrays)
    return loops.unsound(len(keys), key_ends, key_bytes, ends, values, _RESIDUE) == 0


LONGEST_KEY = 510
"""Longest key that is stored unchanged; one byte below LMDB's limit, so a hashed key is recognised by its length."""

_HASHED_PREFIX = LONGEST_KEY + 1 - hashlib.sha256().digest_size
_LENGTH = struct.Struct("<I")
_COUNTS = struct.Struct("<QHH")
_ORDER = "its keys are not in order"
HEAD, PENDING, EMPTY_KEY = b"head", b"pending", b"empty key"


class Head(NamedTuple):
    """Summary of a store's entries: the first and the last one by their stored keys."""

    position: Position = Position()
    entries: int = 0
    first: bytes = b""
    last: bytes = b""

    def encode(self) -> bytes:
        """Bytes of it."""
        counts = _COUNTS.pack(self.entries, len(self.first), len(self.last))
        return counts + self.first + self.last + self.position.encode()

    @classmethod
    def decode(cls, data: bytes) -> Head:
        """Read the bytes of `encode`."""
        entries, first, last = _COUNTS.unpack_from(data)
        begin, end = _COUNTS.size + first, _COUNTS.size + first + last
        return cls(Position.decode(data[end:]), entries, data[_COUNTS.size : begin], data[begin:end])


def head_of(
    transaction: lmdb.Transaction[bytes], values: lmdb._Database, meta: lmdb._Database, position: Position
) -> Head:
    """Return the head of the current entries, at this position."""
    cursor = transaction.cursor(db=values)
    first = cursor.key() if cursor.first() else b""
    last = cursor.key() if cursor.last() else b""
    has_empty_key = transaction.get(EMPTY_KEY, db=meta) is not None
    return Head(position, transaction.stat(values)["entries"] + has_empty_key, first, last)


class LmdbSnapshot:
    """Reads within one transaction. Raises StoreDamagedError, as its methods do."""

    def __init__(
        self, transaction: lmdb.Transaction[bytes], values: lmdb._Database, meta: lmdb._Database, path: Path
    ) -> None:
        self._transaction, self._values, self._meta, self._path = transaction, values, meta, path
        data = self._metadata_of(HEAD)
        self._head = Head() if data is None else Head.decode(data)
        if self._head != head_of(transaction, values, meta, self._head.position):
            raise self._damaged("its entries are not those that were written last")

    @property
    def position(self) -> Position:
        """The position that the values belong to."""
        return self._head.position

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self._head.entries

    @property
    def disk_bytes(self) -> int:
        """Size of the pages that the entries take."""
        statistics = self._transaction.stat(self._values)
        pages: int = statistics["branch_pages"] + statistics["leaf_pages"] + statistics["overflow_pages"]
        return pages * int(statistics["psize"])

    def pending(self) -> Pending | None:
        """Return the batch whose transaction had not ended when it was written."""
        data = self._metadata_of(PENDING)
        return None if data is None else Pending.decode(data)

    def multi_get(self, keys: Keys) -> Sequence[Value]:
        """Return the value of each key."""
        if len(keys) <= FEW or not are_plain(column := large_binary(keys)):
            listed_values = self._each(listed(keys))
            return listed_values if isinstance(keys, Sequence) else large_binary(listed_values)
        values = self._found(column)
        return listed(values) if isinstance(keys, Sequence) else values

    def _each(self, keys: Sequence[bytes]) -> list[Value]:
        """Return the value of each key, one after the other."""
        get = self._transaction.cursor(db=self._values).get
        # In order, as in `_found`.
        stored = {key: stored_key(key) for key in sorted(filter(None, keys))}
        data = {key: get(name) for key, name in stored.items()}
        there = [key for key, value in data.items() if value is not None]
        self._check_sums([stored[key] for key in there], [data[key] for key in there])
        if len(there) < len(data):
            self._check_gaps(sorted(stored[key] for key in data.keys() - there))
        values = {key: None if value is None else _unpacked(key, value[:-SIZE]) for key, value in data.items()}
        return [values[key] if key else self._metadata_of(EMPTY_KEY) for key in keys]

    def scan(
        self, start: bytes = b"", stop: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return entries from `start` up to before `stop`, in the order of keys, at most `limit`."""
        read = self._read(start, stop, limit)
        keys = self._check(read)
        if are_plain(large_binary(keys)):
            end = len(keys) if stop is None else bisect_left(keys, stop)
            entries = [(key, data[:-SIZE]) for key, data in read[bisect_left(keys, start) : end]]
        else:
            entries = [entry for entry in _entries(read) if _is_within(entry[0], start, stop)]
        if not start and stop != b"" and (empty := self._metadata_of(EMPTY_KEY)) is not None:
            entries.insert(0, (b"", empty))
        return entries[:limit]

    def _read(self, start: bytes, stop: bytes | None, limit: int | None) -> list[tuple[bytes, bytes]]:
        """Return the stored entries with both neighbours; in order if none is missing.

        Entries of long keys do not count for `limit`, and some may be out of the range.
        """
        cursor = self._transaction.cursor(db=self._values)
        lowest = start[:_HASHED_PREFIX]
        is_there = cursor.set_range(lowest) if start else cursor.first()
        read = [cursor.item()] if start and (cursor.prev() if is_there else cursor.last()) else []
        if any(key >= lowest for key, _ in read):
            raise self._damaged(_ORDER)
        if start and is_there:
            cursor.set_range(lowest)
        left = limit
        rest: Iterator[tuple[bytes, bytes]] = iter(cursor if is_there else ())
        while limit is None and (some := list(islice(rest, 8 + len(read)))):
            read += some
            if stop is not None and some[-1][0][:_HASHED_PREFIX] > stop[:_HASHED_PREFIX]:
                return read
        for entry in rest:
            read.append(entry)
            key = entry[0]
            if left == 0 or (stop is not None and key[:_HASHED_PREFIX] > stop[:_HASHED_PREFIX]):
                return read
            if left is not None:
                left -= len(key) <= LONGEST_KEY and _is_within(key, start, stop)
        is_all = start or len(read) == self._transaction.stat(self._values)["entries"]
        if (read[-1][0] if read else b"") != self._head.last or not is_all:
            raise self._damaged("entries are missing")
        return read

    def _found(self, keys: pa.Array) -> pa.Array:
        """Return the values of keys as they are stored, without their checksums."""
        # In order: neighbours are on one page, which the cursor has at hand.
        if ascends(keys):
            return self._found_in_order(keys)
        places = sorted_places(keys)
        back = np.empty(len(places), np.int64)
        back[places] = np.arange(len(places))
        return self._found_in_order(keys.take(pa.array(places))).take(pa.array(back))

    def _found_in_order(self, keys: pa.Array) -> pa.Array:
        get = self._transaction.cursor(db=self._values).get
        data = pa.array(list(map(get, keys.to_pylist())), pa.large_binary())
        if data.null_count:
            self._check_sums(keys.filter(data.is_valid()), data.drop_null())
            self._check_gaps(keys.filter(data.is_null()).to_pylist())
        else:
            self._check_sums(keys, data)
        return pc.binary_slice(data, 0, -SIZE)

    def _check_gaps(self, missing: Sequence[bytes]) -> None:
        """Check the entries before and after each of these ascending keys: a hidden entry is next to one of them."""
        cursor = self._transaction.cursor(db=self._values)
        beside: list[tuple[bytes, bytes]] = []
        upto: bytes | None = b""
        for key in missing:
            if upto is None or key < upto:
                continue  # between the same two entries as the one before
            upto = None
            if is_behind := cursor.set_range(key):
                behind = cursor.item()
                beside.append(behind)
                upto = behind[0]
            before = cursor.item() if (cursor.prev() if is_behind else cursor.last()) else None
            if before is not None:
                beside.append(before)
            if (before is not None and before[0] >= key) or (upto is not None and upto <= key):
                raise self._damaged(_ORDER)
        self._check_sums([key for key, _ in beside], [data for _, data in beside])

    def _check(self, entries: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        """Check stored entries in sequence; return their keys."""
        keys = [key for key, _ in entries]
        if not all(map(bytes.__lt__, keys, keys[1:])):
            raise self._damaged(_ORDER)
        self._check_sums(keys, [data for _, data in entries])
        return keys

    def _check_sums(self, keys: Sequence[bytes] | pa.Array, data: Sequence[bytes] | pa.Array) -> None:
        if not are_sound(keys, data):
            raise self._damaged("an entry does not have its checksum")

    def _metadata_of(self, name: bytes) -> Value:
        """Return the metadata beside the entries."""
        data: Value = self._transaction.get(name, db=self._meta)
        if data is None:
            return None
        self._check_sums([name], [data])
        return data[:-SIZE]

    def _damaged(self, reason: str) -> StoreDamagedError:
        return StoreDamagedError(self._path, f"the files are damaged ({reason})")


def are_plain(keys: pa.Array) -> bool:
    """Return True if all keys are stored as they are."""
    shortest, longest = pc.min_max(pc.binary_length(keys)).as_py().values()
    return not len(keys) or 0 < shortest <= longest <= LONGEST_KEY


def stored_key(key: bytes) -> bytes:
    """Return a key as it is stored; not the empty one."""
    return key if len(key) <= LONGEST_KEY else key[:_HASHED_PREFIX] + hashlib.sha256(key).digest()


def packed(key: bytes, value: bytes) -> bytes:
    """Return a value as it is stored under its key, without checksum."""
    return value if len(key) <= LONGEST_KEY else _LENGTH.pack(len(key)) + key + value


def _entries(read: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of stored entries."""
    for key, data in read:
        if len(key) <= LONGEST_KEY:
            yield key, data[:-SIZE]
        else:
            end = _LENGTH.size + int(_LENGTH.unpack_from(data)[0])
            yield data[_LENGTH.size : end], data[end:-SIZE]


def _is_within(key: bytes, start: bytes, stop: bytes | None) -> bool:
    return start <= key and (stop is None or key < stop)


def _unpacked(key: bytes, data: Value) -> Value:
    """Return the value of a stored entry, None if it belongs to another key of the same hash."""
    if data is None or len(key) <= LONGEST_KEY:
        return data
    head = _LENGTH.pack(len(key)) + key
    return data[len(head) :] if data.startswith(head) else None
