"""What a kill would leave: a copy of a directory before each operation on its files, and one after the last."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = ("os.rename", "os.remove", "os.truncate", "os.link", "os.mkdir", "os.rmdir")


class _Watch:
    """The directory that is watched, if any; hooks of the interpreter cannot be removed."""

    directory: Path | None = None
    copies: list[tuple[Path, str]]
    is_hooked = False

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.directory is None or (event != "open" and event not in _CHANGES):
            return
        path = str(arguments[0])
        if (event != "open" or (arguments[2] or 0) & _WRITING) and path.startswith(f"{self.directory}{os.sep}"):
            self.copy(f"before {event} of {path}")

    def copy(self, what: str) -> None:
        directory, self.directory = self.directory, None  # copying opens files, too
        assert directory is not None
        copy = directory.with_name(f"{directory.name}-killed-{len(self.copies)}")
        shutil.copytree(directory, copy)
        self.copies.append((copy, what))
        self.directory = directory


_WATCH = _Watch()


@contextmanager
def copies_at_each_operation(directory: Path) -> Iterator[list[tuple[Path, str]]]:
    """Collect the copies, each with the operation it is from; they stand beside the directory."""
    if not _WATCH.is_hooked:
        sys.addaudithook(_WATCH.hook)
        _WATCH.is_hooked = True
    _WATCH.copies = []
    _WATCH.directory = directory
    try:
        yield _WATCH.copies
        _WATCH.copy("at the end")
    finally:
        _WATCH.directory = None
