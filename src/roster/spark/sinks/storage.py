"""File operations of the commit log, on the local file system and through the JVM on HDFS and its kin."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from typing_extensions import override

from roster._files import sync_path, write_synced
from roster.spark.errors import PipelineError


class Storage(Protocol):
    """Files below one root; names are relative, with `/`."""

    uri: str
    """URI of the root, as passed to Spark."""
    beside: str
    """Staging folder in the root's parent, relative to the root; "" if the root has no parent."""

    def can_publish_from(self, folder: str) -> bool:
        """Create a folder if it is missing; return True if files can be renamed from there to below the root."""

    def prepare(self, folder: str) -> None:
        """Create a folder if it is missing. Raise OSError, or Py4JError on Hadoop, if nothing can be written there."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a file atomically and durably; return False if the name is taken."""

    def replace(self, name: str, data: bytes) -> None:
        """Write a file atomically, in place of an existing one."""

    def read(self, name: str) -> bytes | None:
        """Return the file's bytes, None if it is missing."""

    def files(self, folder: str) -> list[str]:
        """Return the files anywhere below a folder, relative to it and sorted; [] if it is missing."""

    def children(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; [] if it is missing."""

    def publish(self, source: str, target: str) -> None:
        """Rename a file; do nothing if the source is missing."""

    def sync(self, name: str) -> None:
        """Make a file's content durable."""

    def remove(self, name: str) -> None:
        """Remove a file or a folder with its content; do nothing if it is missing."""


class LocalStorage(Storage):
    """POSIX files: `link` creates a file only if the name is free, `fsync` makes file and name durable."""

    def __init__(self, root: str) -> None:
        # Resolved: `..` of a link is its target's parent.
        self.root = Path(root).resolve()
        # Spark takes a path as it is, without escapes.
        self.uri = f"file://{self.root.as_posix()}"
        self.beside = f"../.{self.root.name}.staging" if self.root.name else ""

    @override
    def can_publish_from(self, folder: str) -> bool:
        source, target = (self.root / place / f".{uuid.uuid4().hex}" for place in (folder, ""))
        try:
            self.prepare("")
            self.prepare(folder)
            source.touch()
            source.rename(target)
        except OSError:
            with contextlib.suppress(OSError):
                source.unlink()
            return False
        target.unlink()
        return True

    @override
    def prepare(self, folder: str) -> None:
        path = self.root / folder
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "it is not writable", str(path))

    @override
    def create(self, name: str, data: bytes) -> bool:
        path = self.root / name
        draft = self._draft(path, data)
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        sync_path(path.parent)
        return True

    @override
    def replace(self, name: str, data: bytes) -> None:
        path = self.root / name
        self._draft(path, data).replace(path)
        sync_path(path.parent)

    @override
    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    @override
    def files(self, folder: str) -> list[str]:
        found = (Path(at) / name for at, _, names in os.walk(self.root / folder) for name in names)
        return sorted(path.relative_to(self.root / folder).as_posix() for path in found)

    @override
    def children(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))  # noqa: PTH208 - names are wanted, not paths
        except FileNotFoundError:
            return []

    @override
    def publish(self, source: str, target: str) -> None:
        path = self.root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (self.root / source).rename(path)

    @override
    def sync(self, name: str) -> None:
        sync_path(self.root / name)

    @override
    def remove(self, name: str) -> None:
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    @staticmethod
    def _draft(path: Path, data: bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        write_synced(draft, data)
        return draft


class HadoopStorage(Storage):
    """A Hadoop file system whose rename is atomic and refuses an existing target (HDFS and kin), through the JVM."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri = uri.rstrip("/")
        jvm: Any = spark._jvm
        jsc: Any = spark.sparkContext._jsc
        settings = jsc.hadoopConfiguration()
        hadoop = jvm.org.apache.hadoop.fs
        self._path = hadoop.Path
        root = self._path(self.uri)
        self._files = root.getFileSystem(settings)
        self._context = hadoop.FileContext.getFileContext(root.toUri(), settings)
        option = jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename")
        self._rename_options = {}
        for name in ("NONE", "OVERWRITE"):
            self._rename_options[name] = jvm.java.lang.reflect.Array.newInstance(option, 1)
            constant = jvm.java.lang.Enum.valueOf(option, name)
            jvm.java.lang.reflect.Array.set(self._rename_options[name], 0, constant)

        name = root.getName()
        self.beside = f"../.{name}.staging" if name else ""

    @override
    def can_publish_from(self, folder: str) -> bool:
        probe, target = f"{folder}/.{uuid.uuid4().hex}", f".{uuid.uuid4().hex}"
        try:
            self._files.mkdirs(self._at(folder))
            self._files.create(self._at(probe), False).close()
            self._rename(self._at(probe), self._at(target), overwrite=False)
        except Py4JError:
            with contextlib.suppress(Py4JError):
                self._files.delete(self._at(probe), False)
            return False
        self._files.delete(self._at(target), False)
        return True

    @override
    def prepare(self, folder: str) -> None:
        self._files.mkdirs(self._at(folder))

    @override
    def create(self, name: str, data: bytes) -> bool:
        draft, target = self._draft(name, data), self._at(name)
        if self._files.exists(target):
            self._files.delete(draft, False)
            return False
        try:
            self._rename(draft, target, overwrite=False)
        except Exception as error:
            self._files.delete(draft, False)
            if "FileAlreadyExistsException" in str(error):
                return False
            raise
        return True

    @override
    def replace(self, name: str, data: bytes) -> None:
        self._rename(self._draft(name, data), self._at(name), overwrite=True)

    @override
    def read(self, name: str) -> bytes | None:
        path = self._at(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    @override
    def files(self, folder: str) -> list[str]:
        path = self._at(folder)
        if not self._files.exists(path):
            return []
        found, names = self._files.listFiles(path, True), []
        base = self._files.makeQualified(path).toUri().getPath()
        while found.hasNext():
            names.append(found.next().getPath().toUri().getPath()[len(base) + 1 :])
        return sorted(names)

    @override
    def children(self, folder: str) -> list[str]:
        path = self._at(folder)
        if not self._files.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._files.listStatus(path))

    @override
    def publish(self, source: str, target: str) -> None:
        start, path = self._at(source), self._at(target)
        self._files.mkdirs(path.getParent())
        if self._files.exists(start):
            try:
                self._rename(start, path, overwrite=True)
            except Exception:
                if self._files.exists(start):
                    raise

    @override
    def sync(self, name: str) -> None:
        pass  # closing a file has made it as durable as the file system makes it

    @override
    def remove(self, name: str) -> None:
        self._files.delete(self._at(name), True)

    def _at(self, name: str) -> Any:
        return self._path(f"{self.uri}/{name}")

    def _draft(self, name: str, data: bytes) -> Any:
        folder, _, last = name.rpartition("/")
        draft = self._at(f"{folder}/.{last}.{uuid.uuid4().hex}")
        stream = self._files.create(draft, False)
        try:
            stream.write(data)
            stream.hsync()
        finally:
            stream.close()
        return draft

    def _rename(self, source: Any, target: Any, *, overwrite: bool) -> None:
        self._context.rename(source, target, self._rename_options["OVERWRITE" if overwrite else "NONE"])


ATOMIC_RENAME = {"hdfs", "viewfs", "abfs", "abfss"}
"""Schemes whose rename is atomic and refuses an existing target; in object stores it copies."""


def storage(path: str, spark: SparkSession | None = None) -> Storage:
    """Return the storage for a path or URI. Raise PipelineError for one that cannot create a file only if absent."""
    parts = urlsplit(path)
    if parts.scheme in {"", "file"}:
        return LocalStorage(unquote(parts.path) if parts.scheme else path)
    if parts.scheme not in ATOMIC_RENAME:
        others = ", ".join(sorted(ATOMIC_RENAME))
        raise PipelineError(
            f"{parts.scheme}:// cannot create a file only if it is absent, so two writers could both win",
            field="path",
            fix=f"Use DeltaSink or IcebergSink for object stores; or a local path, or {others}",
        )
    if spark is None:
        raise PipelineError(f"{path} needs Spark's file systems", field="path", fix="Pass spark=")
    return HadoopStorage(spark, path)
