"""A store in LMDB: many processes read a consistent snapshot while one writes.

A fork must not use a store that its parent has open. The directory must be on a local disk: LMDB maps its file into
memory, which network file systems do not support. Keys of more than 510 bytes are replaced by a hash, and stored with
the value; a scan orders keys with the same first 479 bytes by hash. The file never shrinks.
`roster.state.lmdb_snapshot` describes the damage that reads detect.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from roster._extras import missing_error
from roster.state.byte_slices import FEW, ascends, large_binary, last_places, listed
from roster.state.checksums import seal, sealed
from roster.state.lmdb_snapshot import EMPTY_KEY, HEAD, PENDING, LmdbSnapshot, are_plain, head_of, packed, stored_key
from roster.state.pending import Pending
from roster.state.store import (
    Keys,
    PendingError,
    Position,
    StateError,
    StoreDamagedError,
    StoreFullError,
    StoreMissingError,
    Value,
    disk_error,
)
from roster.state.store_files import StoreFiles

if TYPE_CHECKING:
    import lmdb
else:
    try:
        import lmdb
    except ModuleNotFoundError as missing:
        raise missing_error("A store of state", "state", ["lmdb"]) from missing

log = logging.getLogger(__name__)

MAP_SIZE = 1 << 40
"""Limit of a store's file, in bytes; the file itself is only as large as its contents."""
Column: TypeAlias = Sequence[Value] | pa.Array | pa.ChunkedArray
_AT_ONCE = 1 << 14
"""Entries that are objects of Python at the same time."""
_MOST_KEPT, _MOST_KEPT_BYTES = 2_000, 1 << 20
"""Most changes of a pending batch that stay in memory too, and their bytes."""
_DAMAGED = (
    *(lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, lmdb.PanicError),
    *(lmdb.MapResizedError, lmdb.NotFoundError, lmdb.BadValsizeError),
)


class LmdbStore:
    """A store of one task; see `roster.state.Store` for the methods' contracts.

    discarded: why existing files were discarded, None if they were not. written_at: wall-clock seconds of
    the last write when it was opened, 0 for a new one. Raises StoreInUseError if another
    process writes it, StoreMissingError and StoreDamagedError if it cannot be read.
    """

    sorted_bytes = 32 << 20
    """Larger runs dirty fewer pages twice."""

    def __init__(self, path: str | Path, *, read_only: bool = False, map_size: int = MAP_SIZE) -> None:
        self.discarded: str | None = None
        self.written_at = 0.0
        self.kept: Pending | None = None
        """The pending batch, if `keep` wrote it here and it is small; no other process has written since."""
        self._paused: tuple[object, object] = None, None
        self._read_only = read_only
        self._map_size = map_size
        self._files = StoreFiles(Path(path))
        if read_only:
            if not self._files.data.exists():
                raise StoreMissingError(f"store {path}: there is none")
            if reason := self._files.distrust():
                raise StoreDamagedError(Path(path), reason)
        try:
            with self._translated():
                if not read_only:
                    self._files.lock_for_writing()
                self._open_sound()
        except BaseException:
            self._files.close()
            raise

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self._files.path

    @property
    def sorted_runs(self) -> Path:
        """The directory of what `roster.state.sorted_load` has not written to the store yet."""
        return self._files.data / "sorted"

    def _open_sound(self) -> None:
        """Open the files; a writer replaces files that cannot be trusted."""
        if not self._read_only and (reason := self._files.distrust()):
            self._remove(reason)
        try:
            self._open()
        except StoreDamagedError as error:
            if self._read_only:
                raise
            self._remove(error.reason)
            self._open()

    def pause(self) -> None:
        """Let others write the store until `resume`."""
        self._paused = self._file(), self._environment.info()["last_txnid"]
        self._files.unlock()

    def resume(self) -> bool:
        """Become the only writer again, or return False, closed, if another process has written it or has replaced its
        files. Raises StoreInUseError.
        """
        with contextlib.ExitStack() as unfit:
            unfit.callback(self.close)
            self._files.lock_for_writing()
            # The file first: reading past the end of one cut short would kill the process.
            current, (file, last) = self._file(), self._paused
            if current is not None and current == file and self._environment.info()["last_txnid"] == last:
                unfit.pop_all()
                return True
        return False

    def _file(self) -> tuple[int, int] | None:
        """Return the inode of the file and its size, None if it is gone; note when it was written."""
        with contextlib.suppress(FileNotFoundError):
            status = (self._files.data / "data.mdb").stat()
            self.written_at = status.st_mtime
            return status.st_ino, status.st_size
        return None

    def discard(self, reason: str) -> None:
        """Discard the files and start with new ones, outside a snapshot; `discarded` says why."""
        self._environment.close()
        self._remove(reason)
        self._open()

    def _remove(self, reason: str) -> None:
        self.discarded, self.written_at = reason, 0.0
        log.warning("store %s: %s; it is made anew from its changelog", self._files.path, reason)
        with self._files.access(write=True):
            self._files.discard()

    def _open(self) -> None:
        data, self.kept = self._files.data, None
        for path in (data / "data.mdb", self.sorted_runs):
            with contextlib.suppress(FileNotFoundError):
                self.written_at = max(self.written_at, path.stat().st_mtime)
        if not self._read_only:
            self._files.mark()
            data.mkdir(exist_ok=True)
        with self._files.access(write=not self._read_only), self._translated():
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
                self._inode = (data / "data.mdb").stat().st_ino
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

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[LmdbSnapshot]:
        """Hold one consistent view for several reads; a writer waits for its end, so it must be short."""
        self._reopen_if_replaced()
        with self._files.access(), self._translated(), self._environment.begin() as transaction:
            yield self._reading(transaction)

    def _reading(self, transaction: lmdb.Transaction[bytes]) -> LmdbSnapshot:
        return LmdbSnapshot(transaction, self._values, self._meta, self._files.path)

    def position(self) -> Position:
        """Return the position; `Position()` of a new store."""
        with self.snapshot() as snapshot:
            return snapshot.position

    def multi_get(self, keys: Keys) -> Sequence[Value]:
        """Return the value of each key."""
        with self.snapshot() as snapshot:
            return snapshot.multi_get(keys)

    def scan(
        self, start: bytes = b"", stop: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return entries from `start` up to before `stop`, in the order of keys, at most `limit`."""
        with self.snapshot() as snapshot:
            return snapshot.scan(start, stop, limit)

    def pending(self) -> Pending | None:
        """Return the batch whose transaction had not ended when it was written."""
        with self.snapshot() as snapshot:
            return snapshot.pending()

    def commit(self, keys: Sequence[bytes], values: Sequence[Value], position: Position) -> None:
        """Write values and position together: all or nothing, whenever the process dies."""
        self.load([(keys, values)], position)

    def load(self, batches: Iterable[tuple[Column, Column]], position: Position | Callable[[], Position]) -> None:
        """Write many batches in one transaction, see `Store.load`; reads wait for its end."""
        with self._writing() as transaction:
            for keys, values in batches:
                self._put(transaction, keys, values)
            reached = position() if callable(position) else position
            self._put_head(transaction, reached)

    def keep(self, pending: Pending, before: Position | None = None) -> tuple[int, int]:
        """Keep a batch until it is known how its transaction ended; return the number of entries, and their bytes.

        before: the position with the batch `kept`, which was committed and is applied by the same write; else None.
        Raises PendingError if one is kept already.
        """
        kept, encoded = self.kept, pending.encode()
        with self._writing() as transaction:
            if before is not None and kept is not None:
                self._apply(transaction, kept, before)
            elif transaction.get(PENDING, db=self._meta) is not None:
                raise PendingError(f"store {self._files.path}: settle the pending batch before the next one")
            self._note(transaction, PENDING, encoded)
            snapshot = self._reading(transaction)
            sizes = snapshot.entries, snapshot.disk_bytes
        is_small = len(pending.keys) <= _MOST_KEPT and len(encoded) <= _MOST_KEPT_BYTES
        self.kept = pending if is_small else None
        return sizes

    def settle(self, token: str | None, position: Position | None = None) -> bool:
        """Apply the pending batch if `token` names it, else drop it; True if applied.

        A committed batch that is dropped here is restored from the changelog. position: of the store with the batch;
        None: the pending one.
        """
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

    def clear(self) -> None:
        """Remove all values, the pending batch and the position, as in a new store."""
        with self._writing() as transaction:
            transaction.drop(self._values, delete=False)
            transaction.drop(self._meta, delete=False)
        shutil.rmtree(self.sorted_runs, ignore_errors=True)

    def count(self) -> int:
        """Return the number of entries."""
        with self.snapshot() as snapshot:
            return snapshot.entries

    def close(self) -> None:
        """Close the files."""
        self._environment.close()
        self._files.close()

    def __enter__(self) -> LmdbStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

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
        if self._read_only:
            raise StateError(f"store {self._files.path}: it is open for reading only")
        self.kept = None
        with self._translated(), self._files.access(write=True), self._environment.begin(write=True) as transaction:
            yield transaction

    def _reopen_if_replaced(self) -> None:
        """Open the new file if a writer has replaced the open one."""
        if not self._read_only:
            return
        try:
            inode = (self._files.data / "data.mdb").stat().st_ino
        except FileNotFoundError:
            inode = 0
        if inode != self._inode:
            self._environment.close()
            if not inode:
                raise StoreMissingError(f"store {self._files.path}: it is gone")
            self._open()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise the engine's errors as the store's."""
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
