"""What all stores in files have in common: who writes, which files are trusted, reads within one view."""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar

import pyarrow as pa

from roster.state.pending import Pending
from roster.state.store import (
    Keys,
    Position,
    Snapshot,
    StateError,
    StoreDamagedError,
    StoreMissingError,
    Value,
)
from roster.state.store_files import StoreFiles

log = logging.getLogger(__name__)

Column: TypeAlias = Sequence[Value] | pa.Array | pa.ChunkedArray
_MOST_KEPT, _MOST_KEPT_BYTES = 2_000, 1 << 20
"""Most changes of a pending batch that stay in memory too, and their bytes."""


class StoredSnapshot(Snapshot, Protocol):
    """A consistent view of a store in files."""

    @property
    def entries(self) -> int:
        """The number of entries."""

    @property
    def disk_bytes(self) -> int:
        """Bytes that the entries take on the disk."""

    def pending(self) -> Pending | None:
        """Return the batch whose transaction had not ended when it was written."""


Reading_co = TypeVar("Reading_co", bound=StoredSnapshot, covariant=True)


TaskStore: TypeAlias = "FileStore[StoredSnapshot]"
"""A store with whatever engine."""


class FileStore(ABC, Generic[Reading_co]):
    """A store of one task in files of one host; each read is consistent, `snapshot` makes several so.

    discarded: why existing files were discarded, None if they were not. written_at: wall-clock seconds of
    the last write when it was opened, 0 for a new one. Raises StoreInUseError if another
    process writes it, StoreMissingError and StoreDamagedError if it cannot be read.
    """

    layout: ClassVar[int]
    """Version of the files' layout, another one for each engine."""
    is_ordered: ClassVar[bool]
    """True if the entries lie in the order of keys: it scans a part without reading all, and loads in that order."""
    main_file: ClassVar[str]
    """The file without which there is no store, and which changes with each write."""
    sorted_bytes: int = 8 << 20
    entries_at_once: int = 5_000_000

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self.discarded: str | None = None
        self.written_at = 0.0
        self.kept: Pending | None = None
        """The pending batch, if `keep` wrote it here and it is small; no other process has written since."""
        self._paused: tuple[object, object, object] = None, None, None
        self._read_only = read_only
        self._files = StoreFiles(Path(path), self.layout)
        if read_only:
            if not self._main.exists():
                raise StoreMissingError(f"store {path}: there is none")
            if reason := self._files.reason_to_distrust():
                raise StoreDamagedError(Path(path), reason)
        try:
            with self._translated():
                if not read_only:
                    self._files.lock_for_writing()
                self._open_sound()
        except BaseException:
            self._files.close()
            raise

    @abstractmethod
    def _open(self) -> None:
        """Open the files, or make them."""

    @abstractmethod
    def _close(self) -> None:
        """Close the files."""

    @property
    @abstractmethod
    def _lengths(self) -> list[int]:
        """The lengths of the files. Raises FileNotFoundError."""

    @property
    def _known_lengths(self) -> list[int]:
        """The lengths of the files while no other process writes them."""
        return self._lengths

    @property
    @abstractmethod
    def _version(self) -> object:
        """What every write changes."""

    @abstractmethod
    def _translated(self) -> AbstractContextManager[None]:
        """Raise the engine's errors as the store's."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Reading_co]:
        """Hold one consistent view for several reads; a writer waits for its end, so it must be short."""

    @abstractmethod
    def load(self, batches: Iterable[tuple[Column, Column]], position: Position | Callable[[], Position]) -> None:
        """Write many batches in one transaction, see `Store.load`; reads wait for its end."""

    @abstractmethod
    def keep(self, pending: Pending, before: Position | None = None) -> tuple[int, int]:
        """Keep a batch until it is known how its transaction ended; return the number of entries, and their bytes.

        before: the position with the batch `kept`, which was committed and is applied by the same write; else None.
        Raises PendingError if one is kept already.
        """

    @abstractmethod
    def settle(self, token: str | None, position: Position | None = None) -> bool:
        """Apply the pending batch if `token` names it, else drop it; True if applied.

        A committed batch that is dropped here is restored from the changelog. position: of the store with the batch;
        None: the pending one.
        """

    @abstractmethod
    def clear(self) -> None:
        """Remove all values, the pending batch and the position, as in a new store."""

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self._files.path

    @property
    def file_bytes(self) -> int:
        """Bytes of the files, all of which are mapped into memory."""
        return sum(self._known_lengths)

    @property
    def sorted_runs(self) -> Path:
        """The directory of what `roster.state.sorted_load` has not written to the store yet."""
        return self._files.data / "sorted"

    @property
    def _main(self) -> Path:
        return self._files.file(self.main_file)

    def _open_sound(self) -> None:
        """Open the files; a writer replaces files that cannot be trusted."""
        if not self._read_only and (reason := self._files.reason_to_distrust()):
            self._remove(reason)
        try:
            self._open_marked()
        except StoreDamagedError as error:
            if self._read_only:
                raise
            self._remove(error.reason)
            self._open_marked()

    def _open_marked(self) -> None:
        self.kept = None
        for path in (self._main, self.sorted_runs):
            with contextlib.suppress(FileNotFoundError):
                self.written_at = max(self.written_at, path.stat().st_mtime)
        if not self._read_only:
            self._files.mark()
            self._files.data.mkdir(exist_ok=True)
        with self._files.access(write=not self._read_only), self._translated():
            self._open()
            self._inode = self._main.stat().st_ino

    def pause(self) -> None:
        """Let others write the store until `resume`."""
        self._paused = self._inode, self._known_lengths, self._version
        self._files.unlock()

    def resume(self) -> bool:
        """Become the only writer again, or return False, closed, if another process has written it or has replaced its
        files. Raises StoreInUseError.
        """
        with contextlib.ExitStack() as unfit, contextlib.suppress(FileNotFoundError):
            unfit.callback(self.close)
            self._files.lock_for_writing()
            status, (inode, lengths, version) = self._main.stat(), self._paused
            self.written_at = status.st_mtime
            # The lengths first: reading past the end of a file cut short would kill the process.
            if status.st_ino == inode and self._lengths == lengths and self._version == version:
                unfit.pop_all()
                return True
        return False

    def discard(self, reason: str) -> None:
        """Discard the files and start with new ones, outside a snapshot; `discarded` says why."""
        self._close()
        self._remove(reason)
        self._open_marked()

    def _remove(self, reason: str) -> None:
        self.discarded, self.written_at = reason, 0.0
        log.warning("store %s: %s; it is made anew from its changelog", self._files.path, reason)
        with self._files.access(write=True):
            self._files.discard()

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

    def count(self) -> int:
        """Return the number of entries."""
        with self.snapshot() as snapshot:
            return snapshot.entries

    def close(self) -> None:
        """Close the files."""
        self._close()
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_writable(self) -> None:
        if self._read_only:
            raise StateError(f"store {self._files.path}: it is open for reading only")
        self.kept = None

    def _remember(self, pending: Pending, size: int) -> None:
        """Let a pending batch stay in memory if it is small; size: its bytes."""
        is_small = len(pending.keys) <= _MOST_KEPT and size <= _MOST_KEPT_BYTES
        self.kept = pending if is_small else None

    def _reopen_if_replaced(self) -> None:
        """Open the new file if a writer has replaced the open one."""
        if not self._read_only:
            return
        try:
            inode = self._main.stat().st_ino
        except FileNotFoundError:
            inode = 0
        if inode != self._inode:
            self._close()
            if not inode:
                raise StoreMissingError(f"store {self._files.path}: it is gone")
            self._open_marked()
