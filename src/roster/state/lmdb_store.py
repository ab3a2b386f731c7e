"""A store in LMDB: many processes read a consistent snapshot while one writes.

A fork must not use a store that its parent has open. The directory must be on a local disk: LMDB maps its file into
memory, which network file systems do not support. Keys of more than 510 bytes are replaced by a hash, and stored with
the value; a scan orders keys with the same first 479 bytes by hash. The file never shrinks.
`roster.state.lmdb_snapshot` describes the damage that reads detect.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from roster._extras import missing_error
from roster.state.byte_slices import FEW, ascends, large_binary, last_places, listed
from roster.state.file_store import Column, FileStore
from roster.state.lmdb_snapshot import (
    EMPTY_KEY,
    HEAD,
    PENDING,
    LmdbSnapshot,
    are_plain,
    head_of,
    packed,
    seal,
    sealed,
    stored_key,
)
from roster.state.pending import Pending
from roster.state.store import PendingError, Position, StoreDamagedError, StoreFullError, Value, disk_error

if TYPE_CHECKING:
    import lmdb
else:
    try:
        import lmdb
    except ModuleNotFoundError as missing:
        raise missing_error("A store of state", "state", ["lmdb"]) from missing

MAP_SIZE = 1 << 40
"""Limit of a store's file, in bytes; the file itself is only as large as its contents."""
_AT_ONCE = 1 << 14
"""Entries that are objects of Python at the same time."""
_DAMAGED = (
    *(lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, lmdb.PanicError),
    *(lmdb.MapResizedError, lmdb.NotFoundError, lmdb.BadValsizeError),
)


class LmdbStore(FileStore[LmdbSnapshot]):
    """A store of one task; see `roster.state.file_store.FileStore`."""

    layout = 2
    is_ordered = True
    sorted_bytes = 32 << 20
    """Larger runs dirty fewer pages twice."""
    main_file = "data.mdb"

    def __init__(self, path: str | Path, *, read_only: bool = False, map_size: int = MAP_SIZE) -> None:
        self._map_size = map_size
        super().__init__(path, read_only=read_only)

    @property
    @override
    def _lengths(self) -> list[int]:
        return [self._main.stat().st_size]

    @property
    @override
    def _version(self) -> object:
        return self._environment.info()["last_txnid"]

    @override
    def _close(self) -> None:
        self._environment.close()

    @override
    def _open(self) -> None:
        data = self._files.data
        self._environment = lmdb.open(
            str(data),
            map_size=self._map_size,
            max_dbs=2,
            lock=False,
            sync=False,
            metasync=False,
            readonly=self._read_only,
            create=not self._read_only,
        )
        try:
            self._check_length()
            create = not self._read_only
            self._values = self._environment.open_db(b"values", create=create)
            self._meta = self._environment.open_db(b"meta", create=create)
        except BaseException:
            self._environment.close()
            raise

    def _check_length(self) -> None:
        """Refuse a truncated file: reading past its end would kill the process."""
        size = (self._files.data / "data.mdb").stat().st_size
        page = self._environment.stat()["psize"]
        used = (self._environment.info()["last_pgno"] + 1) * page
        if size < min(used, 2 * page) or (used > 2 * page and size < used):
            raise StoreDamagedError(self._files.path, f"its file has {size} bytes, {used} are in use")

    @override
    @contextlib.contextmanager
    def snapshot(self) -> Iterator[LmdbSnapshot]:
        self._reopen_if_replaced()
        with self._files.access(), self._translated(), self._environment.begin() as transaction:
            yield self._reading(transaction)

    def _reading(self, transaction: lmdb.Transaction[bytes]) -> LmdbSnapshot:
        return LmdbSnapshot(transaction, self._values, self._meta, self._files.path)

    @override
    def load(self, batches: Iterable[tuple[Column, Column]], position: Position | Callable[[], Position]) -> None:
        with self._writing() as transaction:
            for keys, values in batches:
                self._put(transaction, keys, values)
            reached = position() if callable(position) else position
            self._put_head(transaction, reached)

    @override
    def keep(self, pending: Pending, before: Position | None = None) -> tuple[int, int]:
        kept, encoded = self.kept, pending.encode()
        with self._writing() as transaction:
            if before is not None and kept is not None:
                self._apply(transaction, kept, before)
            elif transaction.get(PENDING, db=self._meta) is not None:
                raise PendingError(f"store {self._files.path}: settle the pending batch before the next one")
            self._note(transaction, PENDING, encoded)
            snapshot = self._reading(transaction)
            sizes = snapshot.entries, snapshot.disk_bytes
        self._remember(pending, len(encoded))
        return sizes

    @override
    def settle(self, token: str | None, position: Position | None = None) -> bool:
        pending = self.pending()
        if pending is None:
            return False
        is_committed = pending.token == token
        with self._writing() as transaction:
            transaction.delete(PENDING, db=self._meta)
            if is_committed:
                self._apply(transaction, pending, pending.position if position is None else position)
        return is_committed

    def _apply(self, transaction: lmdb.Transaction[bytes], pending: Pending, position: Position) -> None:
        self._put(transaction, pending.keys, pending.values)
        self._put_head(transaction, position)

    @override
    def clear(self) -> None:
        with self._writing() as transaction:
            transaction.drop(self._values, delete=False)
            transaction.drop(self._meta, delete=False)
        shutil.rmtree(self.sorted_runs, ignore_errors=True)

    def _put(self, transaction: lmdb.Transaction[bytes], keys: Column, values: Column) -> None:
        if len(keys) <= FEW:
            self._put_few(transaction, dict(zip(listed(keys), listed(values), strict=True)))
            return
        keys, values = large_binary(keys), large_binary(values)
        if not are_plain(keys):
            keys, values = self._put_special(transaction, keys.to_pylist(), values.to_pylist())
        places, keys = (np.arange(len(keys)), keys) if ascends(keys) else last_places(keys)
        if values.null_count:
            is_there = values.is_valid().to_numpy(zero_copy_only=False)[places]
            for key in keys.filter(pa.array(~is_there)).to_pylist():
                transaction.delete(key, db=self._values)
            places, keys = places[is_there], keys.filter(pa.array(is_there))
        cursor = transaction.cursor(db=self._values)
        for start in range(0, len(places), _AT_ONCE):
            some = places[start : start + _AT_ONCE]
            ordered = keys.slice(start, len(some))
            # Behind all others, as in a restore, entries need no search, and leave no page half empty.
            is_behind = ordered[0].as_py() > (cursor.key() if cursor.last() else b"")
            entries = zip(ordered.to_pylist(), sealed(ordered, values, some), strict=True)
            cursor.putmulti(entries, append=is_behind)

    def _put_few(self, transaction: lmdb.Transaction[bytes], entries: Mapping[bytes, Value]) -> None:
        for key, value in entries.items():
            name = stored_key(key)
            if not key:
                self._put_special(transaction, [key], [value])
            elif value is None:
                transaction.delete(name, db=self._values)
            else:
                transaction.put(name, seal(name, packed(key, value)), db=self._values)

    def _put_special(
        self, transaction: lmdb.Transaction[bytes], keys: Sequence[bytes], values: Sequence[Value]
    ) -> tuple[Any, Any]:
        """Write the empty key; return the others as they are stored, in the order of these keys."""
        stored: list[tuple[bytes, Value]] = []
        for key, value in zip(keys, values, strict=True):
            if key:
                stored.append((stored_key(key), None if value is None else packed(key, value)))
            elif value is None:
                transaction.delete(EMPTY_KEY, db=self._meta)
            else:
                self._note(transaction, EMPTY_KEY, value)
        return large_binary([key for key, _ in stored]), large_binary([value for _, value in stored])

    def _put_head(self, transaction: lmdb.Transaction[bytes], position: Position) -> None:
        self._note(transaction, HEAD, head_of(transaction, self._values, self._meta, position).encode())

    def _note(self, transaction: lmdb.Transaction[bytes], name: bytes, value: bytes) -> None:
        """Write the metadata beside the entries."""
        transaction.put(name, seal(name, value), db=self._meta)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[lmdb.Transaction[bytes]]:
        self._check_writable()
        with self._translated(), self._files.access(write=True), self._environment.begin(write=True) as transaction:
            yield transaction

    @override
    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except lmdb.MapFullError as error:
            raise StoreFullError(
                f"store {self._files.path}: it has reached its limit of {self._map_size} bytes"
            ) from error
        except _DAMAGED as error:
            raise StoreDamagedError(self._files.path, f"the files are damaged ({error})") from error
        except (lmdb.Error, OSError) as error:
            raise disk_error(self._files.path, error) from error
