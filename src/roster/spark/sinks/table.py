"""Common part of sinks into tables with their own commits: files from tasks, one commit by the driver, the fence."""

from __future__ import annotations

import contextlib
import json
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.types import StructType
from typing_extensions import override

from roster._errors import one_line
from roster._json import loads
from roster.spark.batch import Batch
from roster.spark.errors import PipelineError, SinkFencedError
from roster.spark.options import as_columns
from roster.spark.sinks.positions import PositionedSink
from roster.spark.sinks.upsert import TARGET_FILE_BYTES, DataFile, Merge
from roster.spark.tasks.write.parquet import ParquetWriter, WrittenFile
from roster.spark.tasks.write.partitions import check_partition_by, is_supported
from roster.spark.tasks.write.task import Writer
from roster.spark.tasks.write.updates import UpdateWriter, collected

_ATTEMPTS = 100
_LONGEST_PAUSE = 0.5
KEYS = "roster.keys"
"""The property of a table that names the columns of which it has one row for each value, as a JSON list."""
_APPENDED_FILE_BYTES = 256 << 20
LONGEST_ERROR = 300
"""Characters of a library's message that an error repeats."""


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Files that no version of the table references yet."""

    writer: ParquetWriter
    files: Sequence[WrittenFile]
    removed: Sequence[DataFile] = ()
    """Files of the table that these replace."""


class CommitLostError(Exception):
    """Another commit came first, or it is unknown whether this one succeeded."""


class TableSink(PositionedSink):
    """Sink into a table whose commits are atomic and refused if another one came first.

    Positions are part of the commit that names the files. A commit is tried on the newest version read: if a
    partition's position there is not the start of its range, another owner has moved it, and the batch is dropped.

    In upsert mode tasks return updates, and `commit` merges them into the newest version's files.
    """

    default_trigger_interval_ms = 10_000
    _empty_is_null = False
    """True if the table cannot tell "" from null in a partition column."""

    def __init__(
        self,
        mode: str,
        keys: str | Sequence[str],
        partition_by: str | Sequence[str],
        compression: str,
        target_file_bytes: int | None,
        row_group_bytes: int,
    ) -> None:
        super().__init__(mode, keys)
        self._partition_by = as_columns(partition_by)
        self._compression = compression
        self._target_file_bytes = target_file_bytes or (TARGET_FILE_BYTES if self._is_upsert else _APPENDED_FILE_BYTES)
        self._row_group_bytes = row_group_bytes
        self._files: ParquetWriter | None = None
        """Writer of the batch's files in upsert mode."""

    def _writer(self, schema: StructType, *, creates: bool) -> ParquetWriter:
        """Return a writer of the table's files; raise PipelineError if rows with these columns do not fit."""
        raise NotImplementedError

    def _try_commit(self, token: str, written: WrittenFiles, batch: Batch) -> None:
        """Commit to the version that `positions` has read. Raise CommitLostError if another one came first."""
        raise NotImplementedError

    def _has(self, token: str) -> bool:
        """Return True if the newest version, or one since the attempt, is the commit with this token."""
        raise NotImplementedError

    def _data_files(self, writer: ParquetWriter, keys: Sequence[str]) -> list[DataFile]:
        """Return the data files of the version that `positions` has read, with bounds of their keys."""
        raise NotImplementedError

    def _tidy(self) -> None:
        """Remove files that commits have replaced long ago; called after each commit in upsert mode."""

    @override
    def task_writer(self, batch: Batch | None, schema: StructType) -> ParquetWriter | UpdateWriter:
        writer = self._writer(schema, creates=batch is not None)
        if not self._is_upsert:
            return writer
        self._files = writer
        rest = (name for name in self._keys if name not in writer.partition_by)
        return UpdateWriter(writer.schema, (*writer.partition_by, *rest))

    @override
    def collect(self, writer: Writer, results: Sequence[Any], batch: Batch) -> WrittenFiles | Merge:
        if isinstance(writer, UpdateWriter):
            assert self._files is not None  # noqa: S101 - made with the writer
            of_text = self._files.partition_by if self._empty_is_null else ()
            updates = collected(writer, results, empty_is_null=of_text)
            return Merge(self._files, writer.keys, updates, self._target_file_bytes)
        assert isinstance(writer, ParquetWriter)  # noqa: S101 - made by task_writer
        return WrittenFiles(writer, [file for result in results for file in result if file.rows])

    @override
    def commit(self, written: WrittenFiles | Merge, batch: Batch) -> None:
        token, problem = uuid.uuid4().hex, ""
        for attempt in range(_ATTEMPTS):
            found = self.positions(batch.owner.group, batch.ranges)
            if attempt and self._has(token):
                break
            try:
                self._fence(found, batch)
                self._try_commit(token, self._merged(written), batch)
                break
            except SinkFencedError:
                self.abort(written, batch)
                raise
            except CommitLostError as error:
                problem = str(error)
                time.sleep(random.uniform(0, min(0.01 * 2**attempt, _LONGEST_PAUSE)))  # noqa: S311 - spreads retries
        else:
            raise PipelineError(
                f"{_ATTEMPTS} commits in a row failed or were overtaken, the last one with {problem}",
                field=self.name,
                fix="Let batches be larger (trigger_interval_ms), or fewer writers share the table",
            )
        self._starts.update(batch.next_offsets)
        if self._is_upsert:
            self._tidy()

    def _merged(self, written: WrittenFiles | Merge) -> WrittenFiles:
        """Return the files that the newest version is to get and to lose. Raises CommitLostError."""
        if isinstance(written, WrittenFiles):
            return written
        try:
            added, removed = written.over(self._data_files(written.writer, written.keys))
        except OSError as error:  # perhaps files of a version that is no longer the newest
            raise CommitLostError(one_line(error, LONGEST_ERROR)) from error
        return WrittenFiles(written.writer, added, removed)

    @override
    def abort(self, written: WrittenFiles | Merge | None, batch: Batch) -> None:
        if isinstance(written, Merge):
            written.drop()
            return
        for file in written.files if written is not None else ():
            with contextlib.suppress(OSError):
                written.writer.remove(file.name)  # type: ignore[union-attr]

    def _file_writer(self, path: str, columns: pa.Schema, names: tuple[str, ...], filesystem: Any) -> ParquetWriter:
        """Return a writer of files below `path`, partitioned by `names`; the log has their values and footers."""
        return ParquetWriter(
            path,
            columns,
            names,
            options={"coerce_timestamps": "us"},
            filesystem=filesystem,
            with_footers=True,
            value_folders=False,
            compression=self._compression,
            target_file_bytes=self._target_file_bytes,
            row_group_bytes=self._row_group_bytes,
        )

    def _refuse_columns(self, wrong: Sequence[str]) -> NoReturn:
        """Raise PipelineError for columns of the rows that are not the table's."""
        raise PipelineError(
            f"the rows and the table differ in {', '.join(wrong)}",
            field=self.name,
            fix="Give the rows the table's columns, or write to another table",
        )

    def _check_partitioning(self, names: tuple[str, ...]) -> None:
        """Raise PipelineError if the table's partition columns are not those asked for."""
        if self._partition_by and self._partition_by != names:
            raise PipelineError(
                f"the table is partitioned by {', '.join(names) or 'nothing'}",
                field="partition_by",
                fix="Leave it out, or write to another table",
            )
        self._check_moves(names)

    @override
    def _check_keys(self, schema: StructType) -> None:
        super()._check_keys(schema)
        self._check_moves(self._partition_by)

    def _check_declared(self, keys: str | None) -> None:
        """Raise PipelineError unless the keys that a table's property has are those of this sink."""
        if not self._is_upsert:
            if keys is not None:
                raise PipelineError(
                    f"the table has one row for each of {keys}", field="mode", fix="Use 'upsert', or another table"
                )
            return
        if keys is None or _names(keys) != set(self._keys):
            given = json.dumps(self._keys)
            raise PipelineError(
                f"the table has one row for each of {keys}, not of {given}" if keys else f"the table has no {KEYS}",
                field="keys",
                fix=f"Write to another table, or if it has one row for each of {given}, set {KEYS} to that",
            )

    def _check_moves(self, names: Sequence[str]) -> None:
        """Raise PipelineError if a key's rows may be in several of the partitions by these columns."""
        if self._is_upsert and (others := [name for name in names if name not in self._keys]):
            raise PipelineError(
                f"`{others[0]}` is none of the keys {', '.join(self._keys)}, so a key's row could change its partition",
                field="partition_by",
                fix="Partition by columns of the key, or by nothing",
            )

    @override
    def check(self, schema: StructType) -> None:
        check_partition_by(self._partition_by, schema)
        self._check_keys(schema)
        types = {field.name: field.dataType.typeName() for field in schema.fields}
        for name in self._partition_by:
            if not is_supported(types[name]):
                raise PipelineError(
                    f"column `{name}` is {types[name]}: only text, whole numbers, dates and booleans partition a table",
                    field="partition_by",
                    fix="Add such a column, for example the day of a timestamp",
                )


def _names(keys: str) -> set[str] | None:
    """Return the column names in the property of a table's keys; None if it is no list of names."""
    try:
        return set(loads(keys))
    except (ValueError, TypeError):
        return None
