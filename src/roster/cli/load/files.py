"""Files as `roster load` opens them: the format that a name promises, without .gz or .zip, pipes copied."""

import contextlib
import gzip
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

from roster.cli.errors import Failure, UserError, one_line

FORMATS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
STDIN = Path("-")


def format_of(path: Path) -> str:
    """Return the format that a file's name promises; for a .zip, the name of the file in it. Raises UserError."""
    inner = Path(_archive_member(path)) if path.suffix == ".zip" else path
    form = FORMATS.get((inner.with_suffix("") if path.suffix == ".gz" else inner).suffix.lower())
    if form is None:
        raise UserError(f"FILE: cannot tell the format of {path} by its name; add --format csv, jsonl or parquet")
    return form


def _archive_member(path: Path) -> str:
    """Return the name of the one file in a .zip."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    except zipfile.BadZipFile as error:
        raise UserError(f"FILE: {path} is not a zip archive ({one_line(error)})") from error
    if len(names) != 1:
        raise UserError(f"FILE: {path} holds {len(names)} files; expected exactly one")
    return names[0]


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Open the file's bytes as a stream, without its .gz or .zip; UserError if it is damaged."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(_archive_member(path)) as stream:
                yield stream
        else:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
                yield cast("IO[bytes]", stream)
    except (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"FILE: {path} is damaged or cut short ({one_line(error)})") from error


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
