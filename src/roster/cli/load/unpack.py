"""Files without their compression: .gz, or alone in a .zip."""

from __future__ import annotations

import contextlib
import gzip
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, cast

from roster.cli.errors import UserError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def archive_member(path: Path) -> str:
    """Return the name of the one file in a .zip; UserError if it holds none or several."""
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
            with zipfile.ZipFile(path) as archive, archive.open(archive_member(path)) as stream:
                yield stream
        elif path.suffix == ".gz":
            with gzip.open(path) as stream:
                yield cast("IO[bytes]", stream)
        else:
            with path.open("rb") as stream:
                yield stream
    except (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"FILE: {path} is damaged or cut short ({one_line(error)})") from error
