"""Common part of sinks into tables with their own commits: files from tasks, one commit by the driver, the fence."""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from typing_extensions import override

from roster.model import TopicPartition
from roster.spark.batch import Batch, Owner
from roster.spark.errors import PipelineError, SinkFencedError
from roster.spark.options import as_columns
from roster.spark.sinks.base import Sink
from roster.spark.tasks.write.parquet import ParquetWriter, WrittenFile
from roster.spark.tasks.write.partitions import check_partition_by, is_supported
from roster.spark.tasks.write.task import RESULT, Writer, WriteTask, results_of

_ATTEMPTS = 100
_LONGEST_PAUSE = 0.5
LONGEST_ERROR = 300
"""Characters of a library's message that an error repeats."""


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Files that no version of the table references yet."""

    writer: ParquetWriter
    files: Sequence[WrittenFile]


class CommitLostError(Exception):
    """Another commit came first, or it is unknown whether this one succeeded."""


class TableSink(Sink):
    """Sink into a table whose commits are atomic and refused if another one came first.

    Positions are part of the commit that names the files. A commit is tried on the newest version read: if a
    partition's position there is not the start of its range, another owner has moved it, and the batch is dropped. So
    one of two owners of a partition wins, and the other reads again from the table's position.
    """

    accepts_part = True
    writes_in_driver = True
    default_trigger_interval_ms = 10_000
    name = "table"

    def __init__(
        self, partition_by: str | Sequence[str], compression: str, target_file_bytes: int, row_group_bytes: int
    ) -> None:
        self._partition_by = as_columns(partition_by)
        self._compression = compression
        self._target_file_bytes = target_file_bytes
        self._row_group_bytes = row_group_bytes
        self._starts: dict[TopicPartition, int] = {}

    def positions(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the next offset of each partition that the newest version of the table has results of.

        Raises PipelineError if the table cannot be read.
        """
        raise NotImplementedError

    def _writer(self, schema: StructType, *, creates: bool) -> ParquetWriter:
        """Return a writer of the table's files; raise PipelineError if rows with these columns do not fit."""
        raise NotImplementedError

    def _try_commit(self, token: str, staged: StagedFiles, batch: Batch) -> None:
        """Commit to the version that `positions` has read. Raise CommitLostError if another one came first."""
        raise NotImplementedError

    def _has(self, token: str) -> bool:
        """Return True if the newest version, or one since the attempt, is the commit with this token."""
        raise NotImplementedError

    @override
    def open(self, spark: SparkSession, group: str) -> None:
        self.positions(group, [])

    @override
    def claim(
        self, partitions: Collection[TopicPartition], owner: Owner, committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        found = self.positions(owner.group, partitions)
        # Another sink has done the work past the table's position.
        moved = {p: max(at, committed.get(p, at)) for p, at in found.items()}
        self._starts.update(moved)
        return moved

    @override
    def task_writer(self, batch: Batch | None, schema: StructType) -> ParquetWriter:
        return self._writer(schema, creates=batch is not None)

    @override
    def collect(self, writer: Writer, results: Sequence[list[WrittenFile]], batch: Batch) -> StagedFiles:
        assert isinstance(writer, ParquetWriter)  # noqa: S101 - made by task_writer
        return StagedFiles(writer, [file for result in results for file in result if file.rows])

    @override
    def write(self, df: DataFrame, batch: Batch) -> StagedFiles:
        writer = self.task_writer(batch, df.schema)
        work: Any = WriteTask(writer)
        return self.collect(writer, results_of(df.mapInArrow(work, RESULT).collect()), batch)

    @override
    def commit(self, staged: StagedFiles, batch: Batch) -> None:
        token, problem = uuid.uuid4().hex, ""
        for attempt in range(_ATTEMPTS):
            found = self.positions(batch.owner.group, batch.ranges)
            if attempt and self._has(token):
                break
            self._fence(found, staged, batch)
            try:
                self._try_commit(token, staged, batch)
                break
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

    def _fence(self, found: Mapping[TopicPartition, int], staged: StagedFiles, batch: Batch) -> None:
        for partition, span in batch.ranges.items():
            at = found.get(partition, span.start)
            if at == span.start or (at < span.start and self._starts.get(partition) == span.start):
                continue
            self.abort(staged, batch)
            raise SinkFencedError(
                f"{partition} stands at {at}, not at {span.start}; the batch's files were dropped", field=self.name
            )

    @override
    def abort(self, staged: StagedFiles | None, batch: Batch) -> None:
        for file in staged.files if staged is not None else ():
            with contextlib.suppress(OSError):
                staged.writer.remove(file.name)  # type: ignore[union-attr]

    @override
    def close(self) -> None:
        self._starts.clear()

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

    @override
    def check(self, schema: StructType) -> None:
        check_partition_by(self._partition_by, schema)
        types = {field.name: field.dataType.typeName() for field in schema.fields}
        for name in self._partition_by:
            if not is_supported(types[name]):
                raise PipelineError(
                    f"column `{name}` is {types[name]}: only text, whole numbers, dates and booleans partition a table",
                    field="partition_by",
                    fix="Add such a column, for example the day of a timestamp",
                )
