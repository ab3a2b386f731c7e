"""File operations of the commit log."""

import contextlib
import errno
import os
import shutil
import uuid
from pathlib import Path
from urllib.parse import unquote, urlsplit

from roster._files import sync_path, write_synced
from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_types import SparkSession


class Storage:
    """Files below a root folder; names are relative, with `/`.

    `link` creates a file only if the name is free, `fsync` makes file and name durable.
    """

    def __init__(self, path: str) -> None:
        """`path` may be a `file:` URI. Raise PipelineError for any other URI."""
        parts = urlsplit(path)
        if parts.scheme not in {"", "file"}:
            fix = "Use DeltaSink or IcebergSink for HDFS and object stores"
            raise PipelineError(f"{path} is not a local path", field="path", fix=fix)
        # Resolved: `..` of a link is its target's parent.
        self.root = Path(unquote(parts.path) if parts.scheme else path).resolve()
        self.uri = f"file://{self.root.as_posix()}"
        """URI of the root for Spark, which takes a path as it is, without escapes."""

    def prepare(self, folder: str) -> None:
        """Create a folder if it is missing. Raise OSError if nothing can be written there."""
        path = self.root / folder
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "it is not writable", str(path))

    def create(self, name: str, data: bytes) -> bool:
        """Create a file atomically and durably; return False if the name is taken."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        write_synced(draft, data)
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        sync_path(path.parent)
        return True

    def read(self, name: str) -> bytes | None:
        """Return the file's bytes, None if it is missing."""
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def children(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; [] if it is missing."""
        try:
            return sorted(os.listdir(self.root / folder))  # noqa: PTH208 - names are wanted, not paths
        except FileNotFoundError:
            return []

    def publish(self, source: str, target: str) -> None:
        """Rename a file; do nothing if the source is missing."""
        path = self.root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (self.root / source).rename(path)

    def sync(self, name: str) -> None:
        """Make the content of a file, or the names in a folder, durable."""
        sync_path(self.root / name)

    def remove(self, name: str) -> None:
        """Remove a file or a folder with its content; do nothing if it is missing."""
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def runs_in_one_process(spark: SparkSession) -> bool:
    """Return True if tasks run in the driver's own JVM, and so see its disk."""
    master = spark.sparkContext.master or ""
    return master == "local" or master.startswith("local[")
