"""A Delta table, exactly once by positions in the table's own commits."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from roster._extras import missing_error
from roster._json import JsonObject
from roster.model import TopicPartition
from roster.pipeline.batch import Batch
from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.spark_types import StructType
from roster.sinks.delta_rules import asks, check_writable, has_mapping, missing_columns, rules_of
from roster.sinks.table import KEYS, CommitLostError, TableSink, WrittenFiles, named
from roster.sinks.tasks.parquet import ParquetWriter, WrittenFile
from roster.sinks.tasks.partitions import check_partition_types, value_text
from roster.sinks.tasks.rules import Rules
from roster.sinks.upsert import DataFile, bounds, file_rows

if TYPE_CHECKING:
    from deltalake import DeltaTable
else:  # type hints resolve without the extra
    DeltaTable = Any

log = logging.getLogger("roster.spark")

_LONGEST_STATISTIC = 32
"""Characters of a text's extremes that are written down."""
_HIGHEST = "\U0010ffff"
"""The character that sorts behind all others."""
_PLAIN = "!$&'()+,/:;=@"
"""Characters that deltalake does not escape in a path, beside letters, digits and `_.-~`."""
_RETENTION = "delta.deletedFileRetentionDuration"
_LOG_RETENTION = "delta.logRetentionDuration"
_KEPT = "interval 1 hours"
_TIDYING_SECONDS, _QUICK_TIDYING_SECONDS = 600, 10
"""Seconds between two times that a table of upserts, or one that is compacted, is tidied up."""
_ATTEMPTS = 20
"""Tries to commit a compaction amid commits of batches."""
_COMMITS, _APART = 32, 2.0
"""Commits after which small files are compacted, and the seconds between two from which on they are left alone."""


class DeltaSink(TableSink[DeltaTable]):
    """Writes to the Delta table at `table`, exactly once.

    With `mode="append"` each row is a row of the table. With `mode="upsert"` the table has one row for each value of
    `keys`: a row replaces the one of its key, and a retracted result is deleted. `keys` may be left out behind a
    stateful operator, whose keys they are then; they are integers, text, booleans, dates, times or bytes, and
    `partition_by` is among them. A key's records must be in one partition of the topic: the last one wins.

    `table` is a local path, or a URI that `deltalake` reaches with `storage_options`, such as `hdfs://host/table` or
    `s3://bucket/table`; the executors reach it too. The table is created by the first batch, with `partition_by` as its
    partition columns. Several applications of a group, and other writers, may append to it.

    Each commit has, as the protocol's `txn` actions, the next offset of each partition of its batch: the application
    id is `roster/<group>/<topic>/<partition>`. A commit goes through only if it is the first on the version read, and
    the positions there are where the batch begins. Readers see a batch whole or not at all. Files of batches that
    failed are removed as far as the driver knows them; the table's `vacuum` removes the rest.

    An upsert replaces the files that hold its keys ([what that costs](../how-to/one-row-a-key.md)). It deletes them for
    good when the table's property `delta.deletedFileRetentionDuration` has passed, which is an hour in a table made
    here. The property `roster.keys` has the keys.

    Small files of frequent batches are [compacted while batches go on](../how-to/frequent-batches.md).

    `compression` and `row_group_bytes` are as for `ParquetSink`; `target_file_bytes` too, and 16 MiB in upsert mode.
    Needs the extra `delta`. Raises MissingExtraError without it, and PipelineError for an empty path. A run fails with
    PipelineError if the table cannot be reached, rows have other columns than the table, or it has other keys.
    """

    name = "DeltaSink"
    _empty_is_null = _has_folders = True
    _settings = "storage_options"

    def __init__(
        self,
        table: str | Path,
        *,
        mode: str = "append",
        keys: str | Sequence[str] = (),
        partition_by: str | Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        compression: str = "snappy",
        target_file_bytes: int | None = None,
        row_group_bytes: int = 64 << 20,
    ) -> None:
        try:
            import deltalake  # noqa: F401 - an extra of its own
        except ModuleNotFoundError:
            raise missing_error("DeltaSink", "delta", ["deltalake"]) from None
        if not str(table):
            raise PipelineError("no table given", field="table", fix="For example DeltaSink('out/flights')")
        parts = urlsplit(str(table))
        self._is_local = parts.scheme in {"", "file"}
        path = unquote(parts.path) if parts.scheme else str(table)
        where = str(Path(path).resolve()) if self._is_local else str(table)
        if self._is_local and Path(where).is_file():
            raise PipelineError(f"{where} is a file", field="table", fix="Name a folder, or a place for one")
        super().__init__(where, mode, keys, partition_by, compression, target_file_bytes, row_group_bytes)
        self._options = dict(storage_options or {})
        self._seen = 0
        self._offsets: dict[str, int | None] = {}
        """Positions in the version `_offsets_at`, as far as they are known, by application id."""
        self._offsets_at = -1
        self._known: dict[str, DataFile] = {}
        """Data files of the version read last, by their path."""
        self._accepted: tuple[pa.Schema, tuple[object, ...], Rules] | None = None
        """Columns of rows, what a table asks, and what it so asks of the rows."""
        self._tidied = time.monotonic()
        self._background: ThreadPoolExecutor | None = None
        self._tidying: Future[None] | None = None
        self._has_created = False
        self._commits: deque[float] = deque(maxlen=_COMMITS)
        """When the last ones were, in monotonic seconds."""
        self._compactions = 0
        self._written_last: tuple[ParquetWriter, tuple[object, ...]] | None = None
        """The last batch's writer of files, and what the table asked then."""

    @override
    def _read(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            if self._table is None:
                return DeltaTable(self._where, storage_options=self._options)
            self._table.update_incremental()
        except TableNotFoundError:
            return None
        return self._table

    @override
    def _stored(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        table, version = self._current, self._current.version()
        if self._offsets_at != version:
            self._offsets, self._offsets_at = {}, version
        names = {p: _app_id(group, p) for p in partitions}
        for name in names.values():
            if name not in self._offsets:  # deltalake reads all commits since the last checkpoint for each
                self._offsets[name] = table.transaction_version(name)
        versions = {p: self._offsets[name] for p, name in names.items()}
        return {p: version for p, version in versions.items() if version is not None}

    @override
    def _writer(self, schema: StructType, *, creates: bool) -> tuple[ParquetWriter, Rules | None]:
        self.check(schema)
        columns = arrow_schema(schema)
        table = self._recent()
        if table is None and creates:
            table = self._create(columns)
        names, rules, asked = self._partition_by, None, None
        if table is not None:
            names = tuple(table.metadata().partition_columns)
            asked = asks(table)
            known = columns, asked
            if self._accepted is None or self._accepted[:2] != known:
                self._accepted = (*known, self._rules(table, schema))
            rules = self._accepted[2]
            columns = pa.schema([*columns, *list(rules.columns)[len(columns) :]])
        filesystem = None if self._is_local else self._filesystem()
        writer = self._file_writer(self._where if self._is_local else "", columns, names, filesystem)
        self._written_last = None if asked is None else (writer, asked)
        return writer, rules

    def _rules(self, table: DeltaTable, schema: StructType) -> Rules:
        """Return what the table asks of rows with these columns. Raise PipelineError for what is not done here."""
        names, columns = tuple(table.metadata().partition_columns), arrow_schema(schema)
        check_writable(table, is_upsert=self._is_upsert)
        missing = missing_columns(table, columns)
        self._check_partitioning(names)
        check_partition_types(names, schema)
        self._check_table(table)
        rules = rules_of(table, [*columns.names, *(field.name for field in missing)], names)
        if missing:
            log.info("%s: %s is null in new rows", self._where, ", ".join(field.name for field in missing))
        return rules

    @override
    def _asks(self) -> tuple[object, ...]:
        return asks(self._current)

    @override
    def _try_create(self, columns: pa.Schema) -> None:
        from deltalake import DeltaTable

        self._has_created = False
        DeltaTable.create(
            self._where,
            columns,
            partition_by=list(self._partition_by),
            storage_options=self._options,
            configuration={KEYS: json.dumps(self._keys), _RETENTION: _KEPT} if self._is_upsert else None,
            raise_if_key_not_exists=False,
        )
        self._has_created = True

    def _check_table(self, table: DeltaTable) -> None:
        """Raise PipelineError if the table's keys are others, or its files cannot be replaced here."""
        self._check_declared(table.metadata().configuration.get(KEYS))
        if self._is_upsert and _is_unread(table):
            raise PipelineError("the table uses deletionVectors", field=self.name, fix="Write to a table without")

    @override
    def _data_files(self, writer: ParquetWriter, keys: Sequence[str]) -> list[DataFile]:
        entries = pa.table(self._current.get_add_actions(flatten=True))
        paths = [self._file_name(path) for path in entries["path"].to_pylist()]
        entries = entries.set_column(entries.column_names.index("path"), "path", pa.array(paths, pa.string()))
        fresh = entries.filter(pa.array([path not in self._known for path in paths], pa.bool_()))
        names = writer.partition_by
        statistics = {name: _typed(fresh, f"partition.{name}", writer.schema.field(name).type) for name in names}
        for name in keys:
            kind = writer.schema.field(name).type
            kinds = {f"min.{name}": kind, f"max.{name}": kind, f"null_count.{name}": pa.int64()}
            statistics |= {column: _typed(fresh, column, values_of) for column, values_of in kinds.items()}
        ends = bounds(pa.table(statistics), names, keys)
        values = zip(*(statistics[name].to_pylist() for name in names), strict=True) if names else [()] * len(fresh)
        rows, sizes = fresh["num_records"].fill_null(0).to_pylist(), fresh["size_bytes"].to_pylist()
        for path, count, size, (low, high, prefix), values_of in zip(
            fresh["path"].to_pylist(), rows, sizes, ends, values, strict=True
        ):
            self._known[path] = DataFile(path, writer.path(path), count, size, low, high, values_of, prefix)
        self._known = {path: self._known[path] for path in paths}
        return list(self._known.values())

    def _file_name(self, path: str) -> str:
        """Return a file's name by its path in the log. Raise PipelineError for one that cannot be removed."""
        if not _is_plain(path):
            fix = "Rewrite its files with OPTIMIZE (REORG TABLE for all), or write to another table"
            raise PipelineError(f"the table's file {path} cannot be replaced by deltalake", field=self.name, fix=fix)
        return unquote(path)

    @override
    def _tidy(self) -> None:
        now = time.monotonic()
        self._commits.append(now)
        if self._tidying is not None and not self._tidying.done():
            return
        is_quick = len(self._commits) == _COMMITS and now - self._commits[0] < _COMMITS * _APART
        is_compacted = is_quick and not self._is_upsert and not _is_unread(self._current)
        if is_compacted:
            self._commits.clear()
            self._compactions += 1
            if self._compactions == 1:
                self._shorten_log(self._current)
        seconds = _QUICK_TIDYING_SECONDS if self._compactions else _TIDYING_SECONDS
        is_tidied = (self._is_upsert or self._compactions > 0) and now - self._tidied >= seconds
        if is_tidied:
            self._tidied = now
        if is_compacted or is_tidied:
            if self._background is None:
                self._background = ThreadPoolExecutor(1, "roster-table")
            self._tidying = self._background.submit(self._tidied_up, is_compacted=is_compacted, is_tidied=is_tidied)

    def _shorten_log(self, table: DeltaTable) -> None:
        """Let a table that this run has made forget its versions soon: no reader needs old ones."""
        if {_RETENTION, _LOG_RETENTION}.isdisjoint(table.metadata().configuration):
            if self._has_created:
                table.alter.set_table_properties({_RETENTION: _KEPT, _LOG_RETENTION: _KEPT})
            else:
                what = f"set {_LOG_RETENTION} and {_RETENTION}, such as to '{_KEPT}'; they are 30 and 7 days by default"
                log.warning("%s: with batches as frequent as these, %s", self._where, what)

    def _tidied_up(self, *, is_compacted: bool, is_tidied: bool) -> None:
        """Compact small files, mostly to small ones, so that a row is written again a few times only; write a
        checkpoint, and remove log and files of versions older than the table's properties say.
        """
        from deltalake import DeltaTable

        try:
            table = DeltaTable(self._where, storage_options=self._options)  # the other one is another thread's
            if is_compacted:
                size = self._target_file_bytes // _COMMITS // (1 if self._compactions % _COMMITS == 0 else _COMMITS)
                self._compact(table, size)
            if is_tidied:
                table.create_checkpoint()
                if table.metadata().configuration.get("delta.enableExpiredLogCleanup") != "false":
                    table.cleanup_metadata()
                table.vacuum(dry_run=False)
        except Exception as error:  # there is a next time
            log.warning("%s: it is tidied up later: %s", self._where, named(error))

    def _compact(self, table: DeltaTable, target_bytes: int) -> None:
        """Put one file in the place of several small ones, for each partition of the table.

        deltalake's own compaction does not see another one that replaces the same files (1.6): rows would be doubled.
        """
        if self._written_last is None or self._written_last[1] != asks(table):
            return
        writer = self._written_last[0]
        entries, names = pa.table(table.get_add_actions(flatten=True)), writer.partition_by
        values = [_typed(entries, f"partition.{name}", writer.schema.field(name).type).to_pylist() for name in names]
        parts = zip(*values, strict=True) if names else [()] * len(entries)
        sizes = entries["size_bytes"].to_pylist()
        groups: dict[tuple[object, ...], list[DataFile]] = {}
        bytes_of = Counter[tuple[object, ...]]()
        for path, size, part in sorted(zip(entries["path"].to_pylist(), sizes, parts, strict=True), key=itemgetter(1)):
            if _is_plain(path) and bytes_of[part] + size <= target_bytes:
                bytes_of[part] += size
                file = DataFile(unquote(path), writer.path(unquote(path)), 0, size, b"", b"", part)
                groups.setdefault(part, []).append(file)
        for files in groups.values():
            if len(files) > 1:
                self._replace(table, writer, files)

    def _replace(self, table: DeltaTable, writer: ParquetWriter, files: Sequence[DataFile]) -> None:
        """Write the rows of files again, and commit what is written in their place, unless they are gone by then.

        It is committed as the version after one that has them all, or not at all.
        """
        from deltalake.exceptions import CommitFailedError

        asked, output = asks(table), writer.open()
        for file in files:
            for rows in file_rows(writer, file.path, file.values, writer.schema.names).to_batches():
                output.write(rows)
        written = output.close()
        old, new = ({quote(file.name, safe=_PLAIN) for file in names} for names in (files, written))
        for attempt in range(_ATTEMPTS + 1):
            table.update_incremental()
            there = set(pa.table(table.get_add_actions(flatten=True))["path"].to_pylist())
            if there & new:  # it was committed, and the answer was lost
                return
            if attempt == _ATTEMPTS or not old <= there or asks(table) != asked:
                break
            with contextlib.suppress(CommitFailedError):
                self._write(table, writer, written, files, {"compaction": len(files)}, (), is_change=False)
                return
        log.debug("%s: other writers came first: a compaction of %d files is given up", self._where, len(files))
        for unused in written:
            writer.remove(unused.name)

    def _filesystem(self) -> object:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self._where, self._options))

    @override
    def _try_commit(self, token: str, written: WrittenFiles, batch: Batch) -> None:
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import Transaction

        table, owner = self._current, batch.owner
        self._seen = table.version()
        now = time.time_ns() // 1_000_000
        roster = {"commit": token, "group": owner.group, "generation": owner.generation, "member": owner.member_id}
        transactions = [Transaction(_app_id(owner.group, p), span.end, now) for p, span in batch.ranges.items()]
        try:
            self._write(table, written.writer, written.files, written.removed, roster, transactions)
        except (DeltaError, OSError) as error:
            raise CommitLostError(named(error)) from error
        self._read_at = float("-inf")  # deltalake's object stays at the version before
        if self._offsets_at == self._seen:
            self._offsets |= {transaction.app_id: transaction.version for transaction in transactions}
            self._offsets_at += 1

    def _write(
        self,
        table: DeltaTable,
        writer: ParquetWriter,
        files: Sequence[WrittenFile],
        removed: Sequence[DataFile],
        roster: Mapping[str, object],
        transactions: Sequence[Any],
        *,
        is_change: bool = True,
    ) -> None:
        """Commit files as the version after the table's. Raises DeltaError, also where another one came first."""
        from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction

        now, names = time.time_ns() // 1_000_000, writer.partition_by
        actions: list[Any] = [
            RemoveAction(file.name, is_change, now, file.size, _partition_values(names, file.values))
            for file in removed
        ]
        for file in files:
            values = _partition_values(names, file.values)
            actions.append(AddAction(file.name, file.size, values, now, is_change, _statistics(file)))
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            list(names),
            commit_properties=CommitProperties(
                custom_metadata={"roster": roster, "isBlindAppend": not removed},
                max_commit_retries=0,
                app_transactions=list(transactions),
            ),
            post_commithook_properties=PostCommitHookProperties(
                create_checkpoint=not self._compactions, cleanup_expired_logs=False if self._compactions else None
            ),
        )

    @override
    def close(self) -> None:
        super().close()
        if self._background is not None:
            self._background.shutdown()
        self._background = None
        self._offsets_at = -1  # of a table that another one may have replaced by then

    @override
    def _has(self, token: str) -> bool:
        table = self._current
        since = table.version() - self._seen
        return since > 0 and any((entry.get("roster") or {}).get("commit") == token for entry in table.history(since))


def _is_unread(table: DeltaTable) -> bool:
    """Return True if the table's files have not just its rows, or have other names for the columns."""
    return has_mapping(table) or "deletionVectors" in (table.protocol().reader_features or ())


def _is_plain(path: str) -> bool:
    """Return True for a path in the log that deltalake writes alike in a removal, for which it has its own escapes."""
    return quote(unquote(path), safe=_PLAIN) == path and "://" not in path


def _app_id(group: str, partition: TopicPartition) -> str:
    return f"roster/{group}/{partition.topic}/{partition.partition}"


def _typed(entries: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column of a table's entries; nulls if there is none, as for bytes."""
    if name not in entries.column_names:
        return pa.chunked_array([pa.nulls(len(entries), kind)])
    return entries[name].cast(kind)


def _partition_values(names: Sequence[str], values: Sequence[object]) -> dict[str, str | None]:
    return {name: value_text(value) for name, value in zip(names, values, strict=True)}


def _statistics(file: WrittenFile) -> str:
    """Return the number of rows, and each plain column's extremes and nulls, from the file's own metadata."""
    footer = pq.read_metadata(pa.BufferReader(file.footer))
    least: JsonObject = {}
    most: JsonObject = {}
    nulls: dict[str, int] = {}
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        statistics = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if "." in column.path or any(statistic is None or not statistic.has_null_count for statistic in statistics):
            continue
        nulls[column.name] = sum(statistic.null_count for statistic in statistics)
        extremes = [(statistic.min, statistic.max) for statistic in statistics if statistic.has_min_max]
        if extremes and all(_is_statistic(value) for pair in extremes for value in pair):
            low, high = _least(min(low for low, _ in extremes)), _most(max(high for _, high in extremes))
            least |= {column.name: low}
            most |= {} if high is None else {column.name: high}
    return json.dumps({"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _is_statistic(value: object) -> bool:
    return isinstance(value, (str, int, datetime.date)) and not isinstance(value, bool)


def _least(value: object) -> object:
    """Return a minimum as the protocol writes it, not above the value: times in milliseconds, texts cut off."""
    if isinstance(value, datetime.datetime):
        return _instant(value)
    return value[:_LONGEST_STATISTIC] if isinstance(value, str) else _plain(value)


def _most(value: object) -> object:
    """Return a maximum as the protocol writes it, not below the value; None if there is none."""
    if isinstance(value, datetime.datetime):
        below = datetime.timedelta(microseconds=-value.microsecond % 1000)
        return None if value.replace(tzinfo=None) > datetime.datetime.max - below else _instant(value + below)  # noqa: DTZ901
    if isinstance(value, str) and len(value) > _LONGEST_STATISTIC:
        is_highest = value[_LONGEST_STATISTIC] == _HIGHEST
        return None if is_highest else value[:_LONGEST_STATISTIC] + _HIGHEST
    return _plain(value)


def _instant(value: datetime.datetime) -> str:
    plain = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
    return plain.isoformat(timespec="milliseconds") + ("" if value.tzinfo is None else "Z")


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime.date) else value
