"""Where an export lies: a folder on a local or shared disk, or of any file system that pyarrow knows by a URI."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from typing_extensions import override

from roster._files import sync_path, write_atomically
from roster.state.store import StateError

_URI = re.compile(r"([a-z][a-z0-9+.-]*):/")


class FolderError(StateError):
    """A folder cannot be read or written, or a file in it is not what it was; the text names it."""


class Written(NamedTuple):
    """A file: its name below the folder, rows, bytes and SHA-256 in hexadecimal."""

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Folder:
    """A folder by its path or URI; can be pickled. Raises FolderError for a URI that pyarrow does not know."""

    place: str

    def __post_init__(self) -> None:
        self._found  # noqa: B018 - it is checked where it is parsed

    def __getstate__(self) -> dict[str, str]:
        return {"place": self.place}

    @cached_property
    def _found(self) -> tuple[Any, str]:
        scheme = _URI.match(self.place)
        if scheme is None:
            return pafs.LocalFileSystem(), str(Path(self.place).absolute())
        uri = self.place.replace("s3a:", "s3:", 1) if scheme[1] == "s3a" else self.place
        try:
            files, root = pafs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError, ImportError) as error:
            raise FolderError(f"{self.shown}: {_reason(error).replace(uri, self.shown)}") from None
        return files, root

    @property
    def shown(self) -> str:
        """The folder for people: without the password and the settings that a URI may have."""
        return re.sub("//[^/@]*@", "//", self.place).partition("?")[0] if _URI.match(self.place) else self.place

    @property
    def named(self) -> str:
        """One name for the folder, however it was given: its path without links, or its URI."""
        return str(Path(self._found[1]).resolve()) if self._is_local else self.shown.rstrip("/")

    @property
    def uri(self) -> str:
        """The folder as Spark reads it, which has credentials of its own."""
        files, root = self._found
        if isinstance(files, pafs.LocalFileSystem):
            return f"file://{root}"
        return self.shown.replace("s3:", "s3a:", 1) if self.shown.startswith("s3:") else self.shown

    @property
    def local(self) -> Path | None:
        """The path of a folder on a disk."""
        return Path(self._found[1]) if self._is_local else None

    @property
    def _is_local(self) -> bool:
        return isinstance(self._found[0], pafs.LocalFileSystem)

    def _path(self, name: str) -> str:
        return f"{self._found[1].rstrip('/')}/{name}"

    def names(self) -> list[str]:
        """Return the names of all files below the folder, sorted; [] if it is missing."""
        files, root = self._found
        selector = pafs.FileSelector(root, recursive=True, allow_not_found=True)
        try:
            paths = [file.path for file in files.get_file_info(selector) if file.type != pafs.FileType.Directory]
        except (OSError, pa.ArrowException) as error:
            raise FolderError(f"{self.shown}: {_reason(error)}") from None
        return sorted(path[len(root.rstrip("/")) + 1 :] for path in paths)

    def below(self, name: str) -> Folder:
        """Return a folder in this one."""
        path, mark, settings = self.place.partition("?") if _URI.match(self.place) else (self.place, "", "")
        return Folder(f"{path.rstrip('/')}/{name}{mark}{settings}")

    def folders(self) -> list[str]:
        """Return the names of the folders in this one, sorted; [] if it is missing."""
        files, root = self._found
        try:
            entries = files.get_file_info(pafs.FileSelector(root, allow_not_found=True))
        except (OSError, pa.ArrowException) as error:
            raise FolderError(f"{self.shown}: {_reason(error)}") from None
        return sorted(entry.base_name for entry in entries if entry.type == pafs.FileType.Directory)

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, None if it is missing."""
        try:
            (file,) = self._found[0].get_file_info([self._path(name)])
        except (OSError, pa.ArrowException) as error:
            raise FolderError(f"{self.shown}: {_reason(error)}") from None
        return file.size if file.type == pafs.FileType.File else None

    def write_table(self, name: str, tables: Iterable[pa.Table], schema: pa.Schema) -> Written:
        """Write a Parquet file, which is durable on return."""
        files, path = self._found[0], self._path(name)
        rows = 0
        try:
            files.create_dir(path.rpartition("/")[0], recursive=True)
            with files.open_output_stream(path) as stream:
                hashed = _Hashed(stream.write)
                # A large dictionary costs more than it saves: most columns of state have other values in each row.
                with pq.ParquetWriter(hashed, schema, compression="zstd", dictionary_pagesize_limit=1 << 16) as writer:
                    for table in tables:
                        writer.write_table(table)
                        rows += len(table)
            if self._is_local:
                sync_path(Path(path))
                sync_path(Path(path).parent)
        except (OSError, pa.ArrowException) as error:
            raise FolderError(f"{self.shown}: {name}: {_reason(error)}") from error
        return Written(name, rows, hashed.size, hashed.hash.hexdigest())

    def read_table(self, file: Written, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a file's table, or these columns. Raises FolderError if its bytes are not those that were written."""
        data = self.read(file.path)
        if len(data) != file.bytes or hashlib.sha256(data).hexdigest() != file.sha256:
            raise FolderError(f"{self.shown}: {file.path} is not the file that was written: its checksum differs")
        return pq.ParquetFile(pa.BufferReader(data)).read(columns)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file. Raises FolderError."""
        try:
            with self._found[0].open_input_stream(self._path(name)) as stream:
                return bytes(stream.read())
        except (OSError, pa.ArrowException) as error:
            raise FolderError(f"{self.shown}: {name}: {_reason(error)}") from None

    def write(self, name: str, data: bytes) -> None:
        """Write a small file in one step: after a crash it is whole or missing."""
        try:
            if self._is_local:
                Path(self._found[1]).mkdir(parents=True, exist_ok=True)
                write_atomically(Path(self._path(name)), data)
                return
            with self._found[0].open_output_stream(self._path(name)) as stream:
                stream.write(data)
        except (OSError, pa.ArrowException) as error:
            raise FolderError(f"{self.shown}: {name}: {_reason(error)}") from None

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, and on disks the folders that are empty then. Raises FolderError."""
        files = self._found[0]
        try:
            for name in names:
                files.delete_file(self._path(name))
        except (OSError, pa.ArrowException) as error:
            raise FolderError(f"{self.shown}: {_reason(error)}") from None
        if self._is_local:
            root = Path(self._found[1])
            for path in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
                if not any(path.iterdir()):
                    path.rmdir()


class _Hashed(io.RawIOBase):
    """Passes bytes on, counts them and computes their SHA-256."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self._write, self.size, self.hash = write, 0, hashlib.sha256()

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, data: Any, /) -> int:
        self._write(data)
        self.hash.update(data)
        self.size += len(data)
        return len(data)


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())
