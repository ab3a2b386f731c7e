"""Durable writes of small files, and of the names of all files."""

import contextlib
import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Make the contents of a file durable; of a directory: creations, renames and removals in it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_synced(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file whose contents are durable; its name is only after `sync_path` of its directory.

    `mode`: permissions of a new file, of which the process's umask takes away.
    """
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace the file durably: after a crash it holds the old bytes or the new ones. `mode` as of `write_synced`.

    An OSError names the file, and leaves it as it was.
    """
    scratch = path.with_name(path.name + ".tmp")
    try:
        write_synced(scratch, data, mode=mode)
        scratch.replace(path)
        sync_path(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
