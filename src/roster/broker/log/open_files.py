"""Bounded number of open files: a log may have more segments than a process may open files."""

import contextlib
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from roster._files import sync_path
from roster.broker.log.files import FileSystem, sync_file

T = TypeVar("T")

DEFAULT_LIMIT = 512
MANY = 128
"""Files from which on one sync of the whole file system is quicker than one of each."""
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)


class OpenFiles:
    """The descriptors that are open, least recently used first; safe to use from any thread."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.lock = threading.RLock()  # a collected LogFile may close itself while its thread holds the lock
        self._open: OrderedDict[int, LogFile] = OrderedDict()
        self._disks: dict[int, FileSystem | None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def touch(self, file: "LogFile") -> None:
        """Mark the file as most recently used."""
        self._open.move_to_end(id(file))

    def add(self, file: "LogFile") -> None:
        """Register an opened file; close others until there are no more than `limit`, except those in use."""
        self._open[id(file)] = file
        self._shrink(self.limit)

    def disk(self, fd: int, path: Path) -> FileSystem | None:
        """Return the file system of a file that was just opened, and is going to be written, if it has one sync."""
        device = os.fstat(fd).st_dev
        if device not in self._disks:
            self._disks[device] = FileSystem.of(path.parent)
        return self._disks[device]

    def sync_together(self, files: "Collection[LogFile]") -> bool:
        """Sync files, and the names of new ones, by one call; False if their file system has none. Raises OSError."""
        disk = next(iter(files)).disk
        if disk is None or any(file.disk is not disk for file in files):
            return False
        for file in files:
            if file.lost is not None:
                raise file.lost
            file.dirty = False
        try:
            disk.sync()
        except OSError as error:
            for file in files:
                file.lost = error
            raise
        return True

    def discard(self, file: "LogFile") -> None:
        """Unregister a closed file."""
        self._open.pop(id(file), None)

    def open(self, path: Path, flags: int) -> int:
        """`os.open`, closing files that nothing uses where the process has no descriptor left."""
        return self._with_descriptors(lambda: os.open(path, flags | os.O_CLOEXEC, 0o644))

    def sync_directory(self, path: Path) -> None:
        """`sync_path`, closing files as `open` does."""
        self._with_descriptors(lambda: sync_path(path))

    def _with_descriptors(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except OSError as error:
            if error.errno not in _OUT_OF_FILES:
                raise
        self.release(len(self._open) // 2)
        return act()

    def release(self, keep: int) -> None:
        """Close unused files to get down to this number, to free descriptors."""
        with self.lock:
            self._shrink(keep)

    def _shrink(self, limit: int) -> None:
        """Close what was not used for longest: an eighth more than needed, as each time looks at all."""
        if len(self._open) <= limit:
            return
        idle = [file for file in list(self._open.values()) if file.is_idle]
        dirty, gone = [file for file in idle if file.dirty], idle[: len(self._open) - limit + limit // 8]
        if len(dirty) >= MANY and any(file.dirty for file in gone):
            with contextlib.suppress(OSError):  # the next sync of each file raises it
                self.sync_together(dirty)
        for file in gone:
            file.close()


OPEN_FILES = OpenFiles()
"""Open files of this process, to which the system's limit applies."""


class LogFile:
    """A file by its path, opened when it is used: `with file as fd: ...`."""

    __slots__ = ("_fd", "_pinned", "_pool", "_retired", "_users", "dirty", "disk", "lost", "path")

    def __init__(self, path: Path, pool: OpenFiles = OPEN_FILES) -> None:
        self.path = path
        self.dirty = False
        """True if something was written since the last sync."""
        self.disk: FileSystem | None = None
        """Syncs the file together with others, once it was open."""
        self.lost: OSError | None = None
        """The error of a sync after which the contents are unknown."""
        self._pool = pool
        self._fd = -1
        self._users = 0
        self._pinned = False
        self._retired = False

    @property
    def is_idle(self) -> bool:
        """True if the file may be closed; a later use opens it again."""
        return self._users == 0 and not self._pinned

    def create(self) -> None:
        """Create the file if it is not there."""
        with self._pool.lock:
            if self._fd < 0:
                self._opened(self._pool.open(self.path, os.O_RDWR | os.O_CREAT))

    def __enter__(self) -> int:
        """Open the file if need be and keep it open; OSError if that fails, FileNotFoundError once it is retired."""
        with self._pool.lock:
            if self._fd >= 0:
                self._pool.touch(self)
            elif self._retired:
                raise FileNotFoundError(errno.ENOENT, "was deleted or replaced", str(self.path))
            else:
                self._opened(self._pool.open(self.path, os.O_RDWR))
            self._users += 1
            return self._fd

    def __exit__(self, *_: object) -> None:
        with self._pool.lock:
            self._users -= 1

    def _opened(self, fd: int) -> None:
        self._fd = fd
        self.disk = self.disk or self._pool.disk(fd, self.path)
        self._users += 1  # so that its own opening cannot close it
        self._pool.add(self)
        self._users -= 1

    def sync(self) -> None:
        """Return once every byte written so far is on the disk; OSError if one may not be."""
        with self as fd:
            if self.lost is not None:
                raise self.lost
            self.dirty = False
            sync_file(fd)

    def retire(self, *, keep_open: bool = False) -> None:
        """Forbid reopening: the path belongs, or will, to another file. Reads go on while the file is open.

        `keep_open` opens it now and keeps it so until the last reader is gone.
        """
        with self._pool.lock:
            if keep_open:
                with self:
                    self._pinned = True
            self._retired = True

    def close(self) -> None:
        """Close the file; a later use opens it again.

        Unsynced data is synced first, or the error of a failing disk could go unseen.
        """
        with self._pool.lock:
            if self._fd < 0:
                return
            fd, self._fd = self._fd, -1
            self._pool.discard(self)
            try:
                if self.dirty and not self._retired:
                    self.dirty = False
                    sync_file(fd)
            except OSError as error:
                self.lost = error
            finally:
                os.close(fd)
