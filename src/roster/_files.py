"""Durable writes of small files, and of the names of all files."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def sync_path(path: Path) -> None:
    """Make the contents of a file durable; of a directory: creations, renames and removals in it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file whose contents are durable; its name is only after `sync_path` of its directory."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file durably: after a crash it holds the old bytes or the new ones.

    An OSError names the file, and leaves it as it was.
    """
    scratch = path.with_name(path.name + ".tmp")
    try:
        write_synced(scratch, data)
        scratch.replace(path)
        sync_path(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
