"""A Delta table, exactly once by positions in the table's own commits."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType
from typing_extensions import override

from roster._errors import one_line
from roster._extras import missing_error
from roster.model import TopicPartition
from roster.spark.batch import Batch
from roster.spark.errors import PipelineError
from roster.spark.sinks.table import LONGEST_ERROR, CommitLostError, StagedFiles, TableSink
from roster.spark.tasks.arrow_function import arrow_schema
from roster.spark.tasks.write.parquet import ParquetWriter, WrittenFile

if TYPE_CHECKING:
    from deltalake import DeltaTable
else:  # type hints resolve without the extra
    DeltaTable = Any

_LONGEST_STATISTIC = 32
"""Characters up to which a text's extremes are written down; a longer maximum would have to be rounded up."""


class DeltaSink(TableSink):
    """Appends to the Delta table at `table`, exactly once.

    `table` is a local path, or a URI that `deltalake` reaches with `storage_options`, such as `hdfs://host/table` or
    `s3://bucket/table`; the executors reach it too. The table is created by the first batch, with `partition_by` as its
    partition columns. Several applications of a group, and other writers, may append to it.

    Each commit has, as the protocol's `txn` actions, the next offset of each partition of its batch: the application
    id is `roster/<group>/<topic>/<partition>`. A commit goes through only if it is the first on the version read, and
    the positions there are where the batch begins. Readers see a batch whole or not at all. Files of batches that
    failed are removed as far as the driver knows them; the table's `vacuum` removes the rest.

    `compression`, `target_file_bytes` and `row_group_bytes` are as for `ParquetSink`. Needs the extra `delta`.
    Raises MissingExtraError without it, and PipelineError for an empty path. A run fails with PipelineError if the
    table cannot be reached, or rows have other columns than the table.
    """

    name = "DeltaSink"

    def __init__(
        self,
        table: str | Path,
        *,
        partition_by: str | Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        compression: str = "snappy",
        target_file_bytes: int = 256 << 20,
        row_group_bytes: int = 64 << 20,
    ) -> None:
        super().__init__(partition_by, compression, target_file_bytes, row_group_bytes)
        try:
            import deltalake  # noqa: F401, PLC0415 - an extra of its own
        except ModuleNotFoundError:
            raise missing_error("DeltaSink", "delta", ["deltalake"]) from None
        if not str(table):
            raise PipelineError("no table given", field="table", fix="For example DeltaSink('out/flights')")
        parts = urlsplit(str(table))
        self._is_local = parts.scheme in {"", "file"}
        path = unquote(parts.path) if parts.scheme else str(table)
        self._uri = str(Path(path).resolve()) if self._is_local else str(table)
        if self._is_local and Path(self._uri).is_file():
            raise PipelineError(f"{self._uri} is a file", field="table", fix="Name a folder, or a place for one")
        self._options = dict(storage_options or {})
        self._table: DeltaTable | None = None
        self._seen = 0

    @override
    def positions(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        table = self._newest()
        if table is None:
            return {}
        found = {p: table.transaction_version(_app_id(group, p)) for p in partitions}
        return {p: at for p, at in found.items() if at is not None}

    def _newest(self) -> DeltaTable | None:
        """Return the newest version of the table; None if there is none yet."""
        from deltalake import DeltaTable  # noqa: PLC0415
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

        try:
            if self._table is None:
                self._table = DeltaTable(self._uri, storage_options=self._options)
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            return None
        except Exception as error:
            raise PipelineError(
                f"{self._uri} cannot be read: {one_line(error, LONGEST_ERROR)}",
                field=self.name,
                fix="Check table and storage_options",
            ) from error
        return self._table

    @override
    def _writer(self, schema: StructType, *, creates: bool) -> ParquetWriter:
        self.check(schema)
        columns = arrow_schema(schema)
        table = self._newest()
        if table is None and creates:
            table = self._create(columns)
        names = self._partition_by
        if table is not None:
            names = tuple(table.metadata().partition_columns)
            self._check_columns(table, columns)
        filesystem = None if self._is_local else self._filesystem()
        return self._file_writer(self._uri if self._is_local else "", columns, names, filesystem)

    def _create(self, columns: pa.Schema) -> DeltaTable:
        from deltalake import DeltaTable  # noqa: PLC0415

        try:
            # If two create it at once one wins, and both continue with that table.
            DeltaTable.create(
                self._uri,
                columns,
                mode="ignore",
                partition_by=list(self._partition_by),
                storage_options=self._options,
            )
        except Exception as error:
            if self._newest() is None:
                raise PipelineError(
                    f"{self._uri} cannot be created: {one_line(error, LONGEST_ERROR)}",
                    field=self.name,
                    fix="Check table and storage_options",
                ) from error
        table = self._newest()
        assert table is not None  # noqa: S101 - just created
        return table

    def _check_columns(self, table: DeltaTable, columns: pa.Schema) -> None:
        from deltalake import Schema  # noqa: PLC0415

        wanted = {field.name: str(field.type) for field in table.schema().fields}
        given = {field.name: str(field.type) for field in Schema.from_arrow(columns).fields}
        if wanted != given:
            self._refuse_columns(sorted(n for n in {*wanted, *given} if wanted.get(n) != given.get(n)))
        self._check_partitioning(tuple(table.metadata().partition_columns))

    def _filesystem(self) -> Any:
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415
        from pyarrow.fs import PyFileSystem  # noqa: PLC0415

        return PyFileSystem(DeltaStorageHandler(self._uri, self._options))

    @override
    def _try_commit(self, token: str, staged: StagedFiles, batch: Batch) -> None:
        from deltalake.exceptions import DeltaError  # noqa: PLC0415
        from deltalake.transaction import AddAction, CommitProperties, Transaction  # noqa: PLC0415

        table = self._table
        assert table is not None  # noqa: S101 - task_writer has created it
        self._seen = table.version()
        now = time.time_ns() // 1_000_000
        names = staged.writer.partition_by
        owner = batch.owner
        roster = {"commit": token, "group": owner.group, "generation": owner.generation, "member": owner.member_id}
        try:
            table.create_write_transaction(
                [
                    AddAction(file.name, file.size, _partition_values(names, file), now, True, _statistics(file))
                    for file in staged.files
                ],
                "append",
                table.schema(),
                list(names),
                commit_properties=CommitProperties(
                    custom_metadata={"roster": roster},
                    max_commit_retries=0,
                    app_transactions=[
                        Transaction(_app_id(owner.group, p), span.end, now) for p, span in batch.ranges.items()
                    ],
                ),
            )
        except (DeltaError, OSError) as error:
            raise CommitLostError(one_line(error, LONGEST_ERROR)) from error

    @override
    def _has(self, token: str) -> bool:
        table = self._table
        assert table is not None  # noqa: S101 - the attempt was made on it
        since = table.version() - self._seen
        return since > 0 and any((entry.get("roster") or {}).get("commit") == token for entry in table.history(since))

    @override
    def close(self) -> None:
        super().close()
        self._table = None


def _app_id(group: str, partition: TopicPartition) -> str:
    return f"roster/{group}/{partition.topic}/{partition.partition}"


def _partition_values(names: Sequence[str], file: WrittenFile) -> dict[str, str | None]:
    return {name: _text(value) for name, value in zip(names, file.values, strict=True)}


def _text(value: Any) -> str | None:
    """A partition's value as the protocol writes it; an empty text counts as null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def _statistics(file: WrittenFile) -> str:
    """Return the number of rows, and each plain column's extremes and nulls, from the file's own metadata."""
    footer = pq.read_metadata(pa.BufferReader(file.footer))
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        found = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if "." in column.path or any(each is None or not each.has_null_count for each in found):
            continue
        nulls[column.name] = sum(each.null_count for each in found)
        extremes = [(each.min, each.max) for each in found if each.has_min_max]
        if extremes and all(_is_statistic(value) for pair in extremes for value in pair):
            least[column.name] = _plain(min(low for low, _ in extremes))
            most[column.name] = _plain(max(high for _, high in extremes))
    return json.dumps({"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _is_statistic(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_STATISTIC
    # Readers cut times off below a millisecond, and a maximum must not be below its rows.
    return isinstance(value, (int, datetime.date)) and not isinstance(value, (bool, datetime.datetime))


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else value
