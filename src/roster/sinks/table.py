"""Common part of sinks into tables with their own commits: files from tasks, one commit by the driver, the fence."""

import contextlib
import json
import logging
import random
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

import pyarrow as pa
from typing_extensions import override

from roster._errors import one_line
from roster._json import loads
from roster.model import TopicPartition
from roster.pipeline.batch import Batch
from roster.pipeline.errors import PipelineError, RefusedRowsError, SinkFencedError
from roster.pipeline.options import as_columns
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.spark_types import StructType
from roster.pipeline.tasks.writer import Writer
from roster.sinks.positions import PositionedSink
from roster.sinks.tasks.parquet import ParquetWriter, WrittenFile
from roster.sinks.tasks.partitions import check_partition_by, check_partition_types
from roster.sinks.tasks.postgres import unknown_record
from roster.sinks.tasks.rules import CheckedWriter, Rules
from roster.sinks.tasks.upsert import UpdateWriter, collected
from roster.sinks.upsert import TARGET_FILE_BYTES, DataFile, Merge, file_rows

log = logging.getLogger("roster.spark")

_ATTEMPTS = 100
_LONGEST_PAUSE = 0.5
KEYS = "roster.keys"
"""A table's property: the columns that identify a row, as a JSON list."""
_APPENDED_FILE_BYTES = 256 << 20
_LONGEST_ERROR = 300
"""Characters of a library's message that an error repeats."""
_WARY_COMMITS = 50
"""Commits after a lost one that read the table first, as others are writing too."""
_RECENT_SECONDS = 1.0
"""Seconds until it is looked whether others have changed the table, unless a commit is lost to them."""

Table = TypeVar("Table")


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Files that no version of the table references yet."""

    writer: ParquetWriter
    files: Sequence[WrittenFile]
    removed: Sequence[DataFile] = ()
    """Files of the table that these replace."""
    refused: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
    """Why rows are not in them, by task and row."""


class CommitLostError(Exception):
    """Another commit came first, or it is unknown whether this one succeeded.

    is_told: the newest version tells which. Else the one of this commit may be there no more.
    """

    def __init__(self, problem: str, *, is_told: bool = True) -> None:
        super().__init__(problem)
        self.is_told = is_told


class TableSink(PositionedSink, Generic[Table]):
    """Sink into a table whose commits are atomic and refused if another one came first.

    Positions are part of the commit that names the files. A commit is tried on the newest version read, by
    `task_writer` unless others have been writing too: if a partition's position there is not the start of its range,
    another owner has moved it, and the batch is dropped.

    In upsert mode tasks return updates, and `commit` merges them into the newest version's files.
    """

    default_trigger_interval_ms = 10_000
    _empty_is_null = False
    """True if the table cannot tell "" from null in a partition column."""

    _has_folders = False
    """True if files lie in folders by partition, where some readers look for the columns' values."""

    _settings = ""
    """The argument that says how a table is reached."""

    def __init__(
        self,
        where: str,
        mode: str,
        keys: str | Sequence[str],
        partition_by: str | Sequence[str],
        compression: str,
        target_file_bytes: int | None,
        row_group_bytes: int,
    ) -> None:
        super().__init__(mode, keys)
        self._where = where
        self._table: Table | None = None
        self._read_at = float("-inf")
        self._wary = 0
        self._partition_by = as_columns(partition_by, "partition_by")
        self._compression = compression
        self._target_file_bytes = target_file_bytes or (TARGET_FILE_BYTES if self._is_upsert else _APPENDED_FILE_BYTES)
        self._row_group_bytes = row_group_bytes
        self._files: ParquetWriter | None = None
        """Writer of the batch's files in upsert mode."""
        self._asked: object = None
        """What the table asked of its writers when the tasks' writer was made."""

    def _writer(self, schema: StructType, *, creates: bool) -> tuple[ParquetWriter, Rules | None]:
        """Return a writer of the table's files, with what the table asks of rows.

        Raise PipelineError if rows with these columns do not fit, or the table asks what is not done here.
        """
        raise NotImplementedError

    def _asks(self) -> object:
        """Return what the version read last asks of its writers: files for another answer cannot be committed."""
        raise NotImplementedError

    def _read(self) -> Table | None:
        """Return the newest version of the table; None if there is none yet."""
        raise NotImplementedError

    def _try_create(self, columns: pa.Schema) -> None:
        """Create the table."""
        raise NotImplementedError

    def _stored(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the positions in the version read last. Raises PipelineError if they are damaged."""
        raise NotImplementedError

    @override
    def positions(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {} if self._newest() is None else self._stored(group, partitions)

    @property
    def _current(self) -> Table:
        """The version read last, of a table that `task_writer` has created. Raises PipelineError if it is gone."""
        if self._table is None:
            raise PipelineError(f"{self._where} is gone", field=self.name, fix="Do not drop it while it is written to")
        return self._table

    def _newest(self) -> Table | None:
        """Read the newest version of the table; None if there is none yet. Raises PipelineError if that fails."""
        try:
            self._table = self._read()
        except Exception as error:
            raise self._unusable("read", error) from error
        self._read_at = time.monotonic()
        return self._table

    def _recent(self) -> Table | None:
        """Return the version read last, or committed since, if no other writer has been seen; else read again."""
        if self._table is not None and not self._wary and time.monotonic() - self._read_at < _RECENT_SECONDS:
            return self._table
        return self._newest()

    def _create(self, columns: pa.Schema) -> Table:
        """Create the table. If two do so at once one wins, and both continue with that table."""
        try:
            self._try_create(columns)
        except Exception as error:
            if self._newest() is None:
                raise self._unusable("created", error) from error
        self._newest()
        return self._current

    def _unusable(self, what: str, error: Exception) -> PipelineError:
        problem = f"{self._where} cannot be {what}: {named(error)}"
        return PipelineError(problem, field=self.name, fix=f"Check table and {self._settings}")

    def _try_commit(self, token: str, written: WrittenFiles, batch: Batch) -> None:
        """Commit to the version read last. Raise CommitLostError if another one came first."""
        raise NotImplementedError

    def _has(self, token: str) -> bool:
        """Return True if the newest version, or one since the attempt, is the commit with this token."""
        raise NotImplementedError

    def _data_files(self, writer: ParquetWriter, keys: Sequence[str]) -> list[DataFile]:
        """Return the data files of the version read last, with bounds of their keys."""
        raise NotImplementedError

    def _tidy(self) -> None:
        """Do what keeps the table small and quick, from time to time; called after each commit."""

    @override
    def task_writer(self, batch: Batch | None, schema: StructType) -> ParquetWriter | UpdateWriter | CheckedWriter:
        files, rules = self._writer(schema, creates=batch is not None)
        self._asked = None if self._table is None else self._asks()
        writer: ParquetWriter | UpdateWriter = files
        if self._is_upsert:
            self._files = files
            rest = (name for name in self._keys if name not in files.partition_by)
            writer = UpdateWriter(files.schema, (*files.partition_by, *rest))
        own = arrow_schema(schema)
        if rules is None or rules.are_met_by_all(own):
            return writer
        return CheckedWriter(writer, rules, own, sets_aside=self._dead_letters == "")

    @override
    def collect(self, writer: Writer, results: Sequence[Any], batch: Batch) -> WrittenFiles | Merge:
        refused: dict[int, Mapping[int, str]] = {}
        left: tuple[str, ...] = ()
        if isinstance(writer, CheckedWriter):
            refused = {task: result.refused for task, result in enumerate(results) if result.refused}
            left = tuple(writer.rules.columns.names[len(writer.given) :])
            writer, results = writer.writer, [result.result for result in results]
        if isinstance(writer, UpdateWriter):
            assert self._files is not None  # made with the writer
            of_text = self._files.partition_by if self._empty_is_null else ()
            updates = collected(writer, results, empty_is_null=of_text)
            read = self._file_rows(self._files)
            return Merge(self._files, writer.keys, updates, self._target_file_bytes, read, left, refused)
        assert isinstance(writer, ParquetWriter)  # made by task_writer
        files = [file for result in results for file in result if file.rows]
        return WrittenFiles(writer, files, refused=refused)

    def _file_rows(self, writer: ParquetWriter) -> Callable[[DataFile, Sequence[str]], pa.Table]:
        """Return what reads columns of a data file, as the version read last has them."""
        return lambda file, names: file_rows(writer, file.path, file.values, names)

    @override
    def commit(self, written: WrittenFiles | Merge, batch: Batch) -> None:
        token, problem, is_told = uuid.uuid4().hex, "", True
        if written.refused:
            self.abort(written, batch)
            raise self._refused(written.refused, batch)
        for attempt in range(_ATTEMPTS):
            (self._newest if attempt else self._recent)()
            if attempt and self._has(token):
                break
            try:
                self._check_unchanged()
                self._fence(self._stored(batch.owner.group, batch.ranges), batch)
                self._try_commit(token, self._merged(written), batch)
                break
            except SinkFencedError:
                if attempt:  # else the position read may be an old one
                    if is_told:  # else an attempt may have been committed: its files stay
                        self.abort(written, batch)
                    raise
            except CommitLostError as error:
                problem, is_told, self._wary = str(error), is_told and error.is_told, _WARY_COMMITS
                time.sleep(random.uniform(0, min(0.01 * 2**attempt, _LONGEST_PAUSE)))  # spreads retries
        else:
            raise PipelineError(
                f"{_ATTEMPTS} commits in a row failed or were overtaken, the last one with {problem}",
                field=self.name,
                fix="Let batches be larger (trigger_interval_ms), or fewer writers share the table",
            )
        self._wary = max(self._wary - 1, 0)
        self._starts.update(batch.next_offsets)
        self._tidy()

    def _refused(self, refused: Mapping[int, Mapping[int, str]], batch: Batch) -> PipelineError:
        error = RefusedRowsError(refused, self.name)
        if self._dead_letters == "":
            return error
        reason = f": {error.first}{unknown_record(self._dead_letters)}"
        return self._refusal(self._where, reason, batch, "the table")

    def _check_unchanged(self) -> None:
        """Raise SinkFencedError if another writer has changed what the table asks since the tasks' writer was made."""
        if self._asks() != self._asked:
            raise SinkFencedError(f"{self._where} has changed; the batch is read again", field=self.name)

    @override
    def close(self) -> None:
        super().close()
        self._table = self._asked = None

    def _merged(self, written: WrittenFiles | Merge) -> WrittenFiles:
        """Return the files that the newest version is to get and to lose. Raises CommitLostError."""
        if isinstance(written, WrittenFiles):
            return written
        try:
            added, removed = written.over(self._data_files(written.writer, written.keys))
        except OSError as error:  # perhaps files of a version that is no longer the newest
            raise CommitLostError(named(error)) from error
        return WrittenFiles(written.writer, added, removed)

    @override
    def abort(self, written: WrittenFiles | Merge | None, batch: Batch) -> None:
        if isinstance(written, Merge):
            written.drop()
            return
        if written is None:
            return
        for file in written.files:
            with contextlib.suppress(OSError):
                written.writer.remove(file.name)

    def _file_writer(self, path: str, columns: pa.Schema, names: tuple[str, ...], filesystem: object) -> ParquetWriter:
        """Return a writer of files below `path`, partitioned by `names`; the log has their values and footers."""
        return ParquetWriter(
            path,
            columns,
            names,
            options={"coerce_timestamps": "us"},
            filesystem=filesystem,
            with_footers=True,
            value_folders=self._has_folders,
            compression=self._compression,
            target_file_bytes=self._target_file_bytes,
            row_group_bytes=self._row_group_bytes,
        )

    def _refuse_columns(self, wrong: Sequence[str]) -> NoReturn:
        """Raise PipelineError for columns of the rows that are not the table's."""
        fix = "Give the rows the table's columns, or write to another table"
        raise PipelineError(f"the rows and the table differ in {', '.join(wrong)}", field=self.name, fix=fix)

    def _check_partitioning(self, names: tuple[str, ...]) -> None:
        """Raise PipelineError if the table's partition columns are not those asked for."""
        if self._partition_by and self._partition_by != names:
            problem = f"the table is partitioned by {', '.join(names) or 'nothing'}"
            raise PipelineError(problem, field="partition_by", fix="Leave it out, or write to another table")
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
            keys_shown = json.dumps(self._keys)
            raise PipelineError(
                f"the table has one row for each of {keys}, not of {keys_shown}"
                if keys
                else f"the table has no {KEYS}",
                field="keys",
                fix=f"Write to another table, or if it has one row for each of {keys_shown}, set {KEYS} to that",
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
        check_partition_types(self._partition_by, schema)


def named(error: BaseException) -> str:
    """Return the error with its class: messages of a library mean little without it."""
    return f"{type(error).__name__}: {one_line(error, _LONGEST_ERROR)}"


def _names(keys: str) -> set[str] | None:
    """Return the column names in the property of a table's keys; None if it is not a list of names."""
    try:
        return set(loads(keys))
    except (ValueError, TypeError):
        return None
