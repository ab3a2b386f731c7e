"""Parquet files written inside the tasks, with the content that Spark would write with the same settings."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from roster.pipeline.tasks.writer import conformed
from roster.sinks.tasks.partitions import folder, split

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_MOST_OPEN = 64
"""Files a task keeps open; with more partitions, the least recently used file is closed."""
SUFFIXES = {"none": "", "snappy": ".snappy", "gzip": ".gz", "zstd": ".zstd", "brotli": ".br", "lz4": ".lz4raw"}
"""{compression as named by pyarrow: the part that Spark puts in file names}."""


class WrittenFile(NamedTuple):
    """A file of one attempt of a task."""

    name: str
    """Path relative to the root."""
    rows: int
    size: int
    """Bytes."""
    values: tuple[object, ...] = ()
    """Values of the partition columns."""
    footer: bytes = b""
    """The file's Parquet metadata, if asked for."""


@dataclass(frozen=True)
class ParquetWriter:
    """Settings of the files of one batch.

    `root` is a folder in `filesystem`, or on the local disk with None. `schema` has all columns; those of
    `partition_by` become folders. A file ends at `target_file_bytes`, a row group at `row_group_bytes` of Arrow data.
    `options` go to `pyarrow.parquet.ParquetWriter`.
    """

    root: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    row_group_bytes: int = 64 << 20
    target_file_bytes: int = 256 << 20
    options: dict[str, object] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    """Key-value metadata of each file."""
    filesystem: FileSystem | None = None
    with_footers: bool = False
    value_folders: bool = True
    """True if files lie in folders named by the partition columns' values; table metadata has the values anyway."""
    folder: str = ""
    """The commit log's name for the batch's files."""
    ending: str = ""
    """End of the names of files."""

    def open(self) -> ParquetOutput:
        """Start the files of one attempt of a task."""
        return ParquetOutput(self)

    @property
    def file_schema(self) -> pa.Schema:
        """Columns of the files: all but the partition columns."""
        fields = [column for column in self.schema if column.name not in self.partition_by]
        return pa.schema(fields)

    @property
    def files(self) -> FileSystem:
        """The file system of `root`."""
        from pyarrow.fs import LocalFileSystem

        return self.filesystem or LocalFileSystem()

    def path(self, name: str) -> str:
        """Return a file's path in the file system."""
        return f"{self.root}/{name}" if self.root else name

    def remove(self, name: str) -> None:
        """Remove a file. Raises OSError."""
        self.files.delete_file(self.path(name))

    def write_empty(self) -> WrittenFile:
        """Write a file without rows, so that readers find the columns."""
        output = self.open()
        output.start_file(())
        (written,) = output.close()
        return written


class ParquetOutput:
    """Files of one attempt of a task."""

    def __init__(self, writer: ParquetWriter) -> None:
        import pyarrow.parquet  # noqa: F401 - a task that warms up a worker loads it

        self._writer = writer
        self._file_schema = writer.file_schema
        self._attempt = uuid.uuid4().hex
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._open: dict[tuple[object, ...], _File] = {}
        self._files: list[_File] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Buffer the rows, and write a row group once there are enough."""
        if not rows.num_rows:
            return
        rows = conformed(rows, self._writer.schema)
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= self._writer.row_group_bytes:
            self._flush()

    def close(self) -> list[WrittenFile]:
        """Write buffered rows; return the files."""
        self._flush()
        for file in list(self._open.values()):
            self._end(file)
        return [file.written for file in self._files]

    def abort(self) -> None:
        """Close and remove the files."""
        for file in self._files:
            file.discard()

    def _flush(self) -> None:
        if not self._held:
            return
        rows = pa.Table.from_batches(self._held)
        self._held, self._held_bytes = [], 0
        names = self._writer.partition_by
        for values, part in split(rows, names) if names else [((), rows)]:
            file = self._open.pop(values, None) or self.start_file(values)
            self._open[values] = file  # now the most recently used
            file.write(part)
            if file.size >= self._writer.target_file_bytes:
                self._end(file)

    def start_file(self, values: Sequence[object]) -> _File:
        """Start a file of the partition with these values."""
        if len(self._open) >= _MOST_OPEN:
            self._end(next(iter(self._open.values())))
        writer = self._writer
        parent = folder(writer.partition_by, values) if writer.value_folders else ""
        name = f"part-{len(self._files):05}-{self._attempt}{SUFFIXES[writer.compression]}.parquet{writer.ending}"
        file = _File(writer, self._file_schema, f"{parent}/{name}" if parent else name, tuple(values))
        self._files.append(file)
        self._open[file.values] = file
        return file

    def _end(self, file: _File) -> None:
        self._open.pop(file.values, None)
        file.close()


class _File:
    """One file being written."""

    def __init__(self, writer: ParquetWriter, schema: pa.Schema, name: str, values: tuple[object, ...]) -> None:
        # Imported by the first file: workers that write no Parquet do not need it.
        import pyarrow.parquet as pq

        self._filesystem = writer.files
        self._path, self._schema, self.name, self.values = writer.path(name), schema, name, values
        self._with_footer = writer.with_footers
        if parent := self._path.rpartition("/")[0]:
            self._filesystem.create_dir(parent, recursive=True)
        self._footers: list[pq.FileMetaData] = []
        self._sink = self._filesystem.open_output_stream(self._path)
        self._parquet = pq.ParquetWriter(
            self._sink,
            schema,
            compression=writer.compression,
            store_schema=False,
            metadata_collector=self._footers,
            **writer.options,
        )
        if writer.metadata:
            self._parquet.add_key_value_metadata(dict(writer.metadata))
        self.rows = 0

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return int(self._sink.tell())

    @property
    def written(self) -> WrittenFile:
        """The file, once it is closed."""
        footer = b""
        if self._with_footer:
            with pa.BufferOutputStream() as out:
                self._footers[0].write_metadata_file(out)
                footer = out.getvalue().to_pybytes()
        return WrittenFile(self.name, self.rows, self._size, self.values, footer)

    def write(self, rows: pa.Table) -> None:
        """Append a row group."""
        self._parquet.write_table(
            pa.Table.from_arrays(rows.columns, schema=self._schema), row_group_size=max(rows.num_rows, 1)
        )
        self.rows += rows.num_rows

    def close(self) -> None:
        """Write the footer."""
        self._parquet.close()
        self._size = self.size
        self._sink.close()

    def discard(self) -> None:
        """Remove the file, whatever its state."""
        with contextlib.suppress(Exception):
            self._parquet.close()
        with contextlib.suppress(Exception):
            self._sink.close()
        with contextlib.suppress(OSError):
            self._filesystem.delete_file(self._path)
