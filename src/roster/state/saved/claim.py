"""The claim of an export to its folder: a file, locked where files can be, so that it ends with its process."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from roster._files import sync_path
from roster.state.saved.folder import Folder, FolderError

CLAIM = ".exporting"
"""What the name of the file begins with."""


@contextlib.contextmanager
def claimed(folder: Folder) -> Iterator[tuple[str, bool]]:
    """Claim a folder; yield the name of the file, and True if an export that was killed has left it.

    Raises FolderError if another export works there, or may work where files cannot be locked.
    """
    with _claim_file(folder) if folder.local is None else _locked(folder, folder.local / CLAIM) as claim:
        yield claim


@contextlib.contextmanager
def _locked(folder: Folder, path: Path) -> Iterator[tuple[str, bool]]:
    try:
        file, is_left = _lock(folder, path)
    except OSError as error:
        raise FolderError(f"{folder.shown}: {path.name}: {error}") from None
    try:
        yield path.name, is_left
    finally:
        # Before the lock ends: who locks the file later sees that it is gone.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(file)


def _lock(folder: Folder, path: Path) -> tuple[int, bool]:
    import fcntl  # noqa: PLC0415 - Unix only

    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file, is_left = _opened(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(file).st_ino:
                sync_path(path.parent)
                return file, is_left
        except FileNotFoundError:
            pass  # removed just now
        except BlockingIOError:
            os.close(file)
            fix = "Wait until it has ended, or name another folder"
            raise FolderError(f"another export works in {folder.shown}. {fix}") from None
        except OSError:  # the file system has no locks
            if not is_left:
                return file, False
            os.close(file)
            raise _doubtful(folder, path.name) from None
        os.close(file)


def _opened(path: Path) -> tuple[int, bool]:
    """Return the open file, and True if it was there."""
    while True:
        with contextlib.suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644), False
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR), True


@contextlib.contextmanager
def _claim_file(folder: Folder) -> Iterator[tuple[str, bool]]:
    name = f"{CLAIM}-{uuid.uuid4().hex}"
    folder.write(name, b"")
    try:
        for other in folder.names():
            if other.startswith(CLAIM) and other != name:
                raise _doubtful(folder, other)
        yield name, False
    finally:
        with contextlib.suppress(FolderError):
            folder.remove([name])


def _doubtful(folder: Folder, name: str) -> FolderError:
    fix = f"Wait until it has ended, name another folder, or delete {name} and what else is there if it was killed"
    return FolderError(f"another export works in {folder.shown}, or was killed there. {fix}")
