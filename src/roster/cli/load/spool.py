"""Copies standard input and pipes to files, so that rows can be checked before they are sent."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from roster.cli.errors import Failure, UserError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

STDIN = Path("-")


@contextlib.contextmanager
def readable_twice(path: Path, form: str | None) -> Iterator[tuple[Path, str]]:
    """Open the file, or a copy of a pipe's content; with its name for errors.

    The copy lies in the directory for temporary files (TMPDIR) as long as the context is open.

    Args:
        path: a file, a pipe, or `-` for standard input.
        form: the format given; a pipe has no name to tell it by.

    Raises:
        UserError: a pipe without a format.
        Failure: the copy cannot be written.

    """
    if path != STDIN and (not path.exists() or path.is_file() or path.is_dir()):
        yield path, str(path)
        return
    name = "standard input" if path == STDIN else str(path)
    if form is None:
        raise UserError(f"--format: {name} has no name to tell the format by; add --format csv, jsonl or parquet")
    with contextlib.ExitStack() as stack:
        try:
            copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="roster-load-"))
            source: BinaryIO = sys.stdin.buffer if path == STDIN else stack.enter_context(path.open("rb"))
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
        except OSError as error:
            raise Failure(f"{name} cannot be copied to {tempfile.gettempdir()} (TMPDIR): {one_line(error)}") from error
        yield Path(copy.name), name
