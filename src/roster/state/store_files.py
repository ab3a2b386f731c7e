"""The directory of a store: its locks, and the marker that says whether the files can be trusted.

`writer.lock` is held while a task has a store for writing. `access.lock` is held for a read (shared) or a write
(exclusive): LMDB's own locks are not used, as its robust mutexes do not work on every platform. flock locks end with
the process that holds them, even by kill -9.

A store is not synced to the disk, so it survives a crash of the process, but not of the machine. The marker has the id
of the machine's boot; a store of another boot is discarded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from roster._files import write_atomically
from roster._json import loads
from roster.state.store import StoreInUseError

LEAST_ROOM = 1 << 17
"""Least bytes that a store takes."""
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,200}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str:
    """Id of the machine's present boot."""
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    result = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True)  # noqa: S607
    return result.stdout.strip()


def state_directory(named: str | Path | None) -> Path:
    """Return the directory of this host's stores: the one given, else the default."""
    return Path(tempfile.gettempdir()) / "roster-state" if named is None else Path(named)


def unusable(named: str | None) -> str:
    """Explain why this host cannot keep stores in a directory, "" if it can; creates the directory."""
    path = state_directory(named)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(LEAST_ROOM))
    except OSError as error:
        return f"{path} cannot be used on host {platform.node()}: {error.strerror or error}"
    return ""


def directory_name(changelog: str) -> str:
    """Return the name of the subdirectory for the stores of a changelog topic."""
    return changelog if _PLAIN.fullmatch(changelog) else hashlib.sha256(changelog.encode()).hexdigest()


def check_unused(path: Path) -> None:
    """Raise StoreInUseError if a process writes the store."""
    files = StoreFiles(path)
    try:
        files.lock_for_writing()
    finally:
        files.close()


def remove_store(path: Path) -> None:
    """Remove a store. Raises StoreInUseError if a process writes it, and OSError."""
    files = StoreFiles(path)
    files.lock_for_writing()
    try:
        with files.access(write=True):
            shutil.rmtree(path)
    finally:
        files.close()


class StoreFiles:
    """Paths and locks of one store's directory. layout: of its files; those of another one are not trusted."""

    def __init__(self, path: Path, layout: int = 0) -> None:
        self.path, self._layout = path, layout
        self.data = path / "data"
        self._marker, self._lock = path / "store.json", path / "writer.lock"
        self._paths: dict[str, Path] = {}
        self._writer: int | None = None
        self._access: int | None = None

    def file(self, name: str) -> Path:
        """Return the path of a file of the data, which is made once: each batch asks for some."""
        if name not in self._paths:
            self._paths[name] = self.data / name
        return self._paths[name]

    def lock_for_writing(self) -> None:
        """Become the store's only writer. Raises StoreInUseError."""
        import fcntl  # noqa: PLC0415 - Unix only, and a pipeline without state needs none of it

        while self._writer is None:
            try:
                writer = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:  # it is new, or was removed just now
                self.path.mkdir(parents=True, exist_ok=True)
                continue
            try:
                fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(writer)
                raise StoreInUseError(
                    f"store {self.path}: another process writes it; a store has one writer at a time"
                ) from error
            if self._is_lock(writer):
                self._writer = writer
            else:
                os.close(writer)

    def _is_lock(self, writer: int) -> bool:
        """Return False if the locked store was removed meanwhile."""
        try:
            return self._lock.stat().st_ino == os.fstat(writer).st_ino
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def access(self, *, write: bool = False) -> Iterator[None]:
        """Hold the lock of a read or of a write, and wait for it."""
        import fcntl  # noqa: PLC0415 - as above

        if self._access is None:
            self._access = os.open(self.path / "access.lock", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._access, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self._access, fcntl.LOCK_UN)

    def reason_to_distrust(self) -> str | None:
        """Explain why the files cannot be trusted; None if they can or do not exist."""
        if not self.data.exists():
            return None
        try:
            marker = loads(self._marker.read_bytes())
            layout, boot = marker["format"], marker["boot"]
        except (OSError, ValueError, KeyError, TypeError):
            return "its marker store.json is missing or damaged"
        if layout != self._layout:
            return f"it has format {layout}, this release keeps such state in {self._layout}"
        if boot != boot_id():
            return "the machine was started anew since it was written"
        return None

    def discard(self) -> None:
        """Remove the data, so that the store starts empty."""
        shutil.rmtree(self.data, ignore_errors=True)

    def mark(self) -> None:
        """Write the marker durably, if it changes."""
        marker = json.dumps({"format": self._layout, "boot": boot_id()}).encode()
        with contextlib.suppress(OSError):
            if self._marker.read_bytes() == marker:
                return
        write_atomically(self._marker, marker)

    def unlock(self) -> None:
        """Let another process become the writer."""
        import fcntl  # noqa: PLC0415 - as above

        if self._writer is not None:
            fcntl.flock(self._writer, fcntl.LOCK_UN)  # a process that a function has forked may have it too
            os.close(self._writer)
        self._writer = None

    def close(self) -> None:
        """Release the locks."""
        self.unlock()
        if self._access is not None:
            os.close(self._access)
        self._access = None
