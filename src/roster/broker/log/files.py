"""File operations that durability depends on."""

import contextlib
import ctypes
import fcntl
import os
import re
import threading
from pathlib import Path
from typing import Any, Self

from roster.broker.errors import BrokerStartError

_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
_NO_WAIT = getattr(os, "RWF_NOWAIT", None)
_SYNCFS: Any = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
_TOLD_SINCE = (5, 8)
"""Release of Linux since which syncfs tells of writes that failed."""
_TELLING = frozenset({"ext4", "xfs"})
"""File systems that note each failed write where syncfs looks; one on top of another, as overlay, does not."""


def sync_file(fd: int) -> None:
    """Return once the file's data and size are on the disk; raise OSError if they are not."""
    if _FULL_SYNC is not None:  # macOS: fsync alone leaves the data in the drive's cache
        fcntl.fcntl(fd, _FULL_SYNC)
    else:
        os.fdatasync(fd)


class FileSystem:
    """A file system where one call syncs every file and name, and reports each write that failed."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._failure: OSError | None = None
        """Errors of syncs: the system reports each once, perhaps for a file that another caller waits for."""

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Return the file system of a path; None if it has no such call."""
        release = re.match(r"(\d+)\.(\d+)", os.uname().release)
        if _SYNCFS is None or release is None or tuple(map(int, release.groups())) < _TOLD_SINCE:
            return None
        device = path.stat().st_dev
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
                mount, _, source = line.partition(" - ")
                if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}" and source.split()[0] in _TELLING:
                    return cls(path)
        return None

    def sync(self) -> None:
        """Return once all that was written is on the disk; raise OSError if something is not."""
        with self._lock:
            if self._failure is None and _SYNCFS(self._fd):
                number = ctypes.get_errno()
                self._failure = OSError(number, os.strerror(number))
            if self._failure is not None:
                raise self._failure


def names_in(directory: Path) -> list[str]:
    """The names of a directory's entries, in order."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def read_cached(fd: int, size: int, position: int) -> bytes | bytearray | None:
    """Read from the page cache only; None if that would wait for the disk."""
    if _NO_WAIT is None:
        return os.pread(fd, size, position)
    buffer = bytearray(size)
    try:
        count = os.preadv(fd, [buffer], position, _NO_WAIT)
    except (BlockingIOError, OSError):  # not cached, or a file system without this flag
        return None
    return buffer if count == size else None


def write_at(fd: int, parts: list[bytes | memoryview], position: int) -> int:
    """Write all parts at a position, however many calls it takes; return the number of bytes."""
    total = sum(len(part) for part in parts)
    done = os.pwritev(fd, parts, position)
    if done < total:
        rest = memoryview(b"".join(parts))
        while done < total:
            done += os.pwrite(fd, rest[done:], position + done)
    return total


class DirectoryLock:
    """Holds a directory for one process; the system gives it back however the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._file = (-1, -1)

    def acquire(self) -> None:
        """Take the lock, or raise BrokerStartError naming the process that has it."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise BrokerStartError(
                f"data directory {self._path.parent} is in use by another broker (process {holder or 'unknown'})"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd
        status = os.fstat(fd)
        self._file = (status.st_dev, status.st_ino)

    def check(self) -> None:
        """Raise OSError if the path leads to another directory now, which another broker may hold.

        A process that was stopped for long may wake up when its directory was moved and a copy put in its place: what
        it writes then is lost.
        """
        try:
            status = os.stat(self._path)  # noqa: PTH116 (a call for every sync: half the cost)
            file = (status.st_dev, status.st_ino)
        except FileNotFoundError:
            file = None
        if file != self._file:
            raise OSError(f"data directory {self._path.parent} was moved or replaced under the running broker")

    def release(self) -> None:
        """Give the directory back; idempotent."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
