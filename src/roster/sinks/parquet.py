"""Parquet files, exactly once by positions that the sink keeps beside them."""

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType
from typing_extensions import override

from roster.model import TopicPartition
from roster.model.topology import repeated
from roster.pipeline.batch import Batch, Owner
from roster.pipeline.batch_sink import BatchSink
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import as_columns
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.tasks.writer import Writer
from roster.sinks.commit_log import FOLDER, UNCOMMITTED, CommitLog
from roster.sinks.storage import Storage
from roster.sinks.tasks.parquet import ParquetWriter, WrittenFile
from roster.sinks.tasks.partitions import check_partition_by, check_partition_types

COMPRESSIONS = {
    "none": "none",
    "uncompressed": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
    "brotli": "brotli",
    "lz4_raw": "lz4",
    "lz4raw": "lz4",
}
"""Names of `spark.sql.parquet.compression.codec` that pyarrow writes, with pyarrow's; `lz4` is framed as in Hadoop."""

_TIMESTAMPS: dict[str, dict[str, object]] = {
    "INT96": {"use_deprecated_int96_timestamps": True},
    "TIMESTAMP_MICROS": {"coerce_timestamps": "us"},
    "TIMESTAMP_MILLIS": {"coerce_timestamps": "ms", "allow_truncated_timestamps": True},
}
_TIMESTAMP_TYPE = "spark.sql.parquet.outputTimestampType"
_PLAIN = {
    *("binary", "boolean", "byte", "date", "double", "float", "integer", "long", "short", "string"),
    *("timestamp", "timestamp_ntz"),
}
_ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"
_VERSION = "org.apache.spark.version"
"""Keys by which Spark finds its own schema again, and knows which calendar old dates are in."""


def _is_plain(kind: DataType) -> bool:
    """Return True if Spark and pyarrow write columns of this type alike."""
    if isinstance(kind, StructType):
        return bool(kind.fields) and all(_is_plain(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _is_plain(kind.elementType)
    if isinstance(kind, MapType):
        return _is_plain(kind.keyType) and _is_plain(kind.valueType)
    return isinstance(kind, DecimalType) or kind.typeName() in _PLAIN


def _has(kind: DataType, name: str) -> bool:
    if isinstance(kind, StructType):
        return any(_has(field.dataType, name) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has(kind.elementType, name)
    if isinstance(kind, MapType):
        return _has(kind.keyType, name) or _has(kind.valueType, name)
    return kind.typeName() == name


SCHEMA = f"{FOLDER}/schema.json"
"""Columns of the first batch, as Spark's JSON of a schema."""


class WrittenFolder(NamedTuple):
    """Files that do not count yet."""

    folder: str
    files: Sequence[WrittenFile]


class ParquetSink(BatchSink):
    """Parquet files below `path`, exactly once: `spark.read.parquet(path)` has each record's results once.

    Positions lie beside the files (`<path>/_roster`, see `roster.sinks.commit_log`), so results and offsets count
    in one step whatever the transform does, aggregates over several partitions included. All applications of a group
    write to one path, which belongs to that group.

    Tasks write the files as Spark would: `compression` is a codec of Spark's (None: the session's
    `spark.sql.parquet.compression.codec`), a file ends at `target_file_bytes` and a row group at `row_group_bytes` of
    Arrow data, which a task keeps in memory.

    `path` is a folder or its `file:` URI; the driver and all executors must share it. If rows that an executor wrote
    are missing on the driver's side, the run fails with PipelineError and nothing of the batch counts. `partition_by`
    names columns whose values become folders.

    The names of files that do not count yet end with `.uncommitted`, so no reader of `*.parquet` takes them. If no
    batch had rows, the output has one empty file with its columns, or with `partition_by` none: `read` works anyway.
    Without a batch there is nothing to read.

    Each batch writes files of its own, so a batch of less than `max_offsets_per_batch` starts 10 s after the one before
    unless the pipeline's `trigger_interval_ms` is set.

    Raises PipelineError for an empty path, another URI, an unknown compression, and limits below 1. A run fails with
    PipelineError if the path cannot be written, holds another group's results, its log is damaged, or pyarrow writes a
    column in another way than Spark, such as an interval.
    """

    default_trigger_interval_ms = 10_000
    accepts_part = True

    def __init__(
        self,
        path: str | Path,
        *,
        partition_by: str | Sequence[str] = (),
        compression: str | None = None,
        target_file_bytes: int = 256 << 20,
        row_group_bytes: int = 64 << 20,
        mode: str = "append",
    ) -> None:
        if mode != "append":
            fix = "Use DeltaSink, IcebergSink or PostgresSink with mode='upsert' for one row a key"
            raise PipelineError(f"{mode!r} is not possible: files are added only", field="mode", fix=fix)
        if not str(path):
            raise PipelineError("no path given", field="path", fix="For example ParquetSink('out/flights')")
        if compression is not None and compression.lower() not in {*COMPRESSIONS, "lz4"}:
            known = ", ".join(sorted({*COMPRESSIONS, "lz4"}))
            raise PipelineError(f"{compression!r} is not a compression", field="compression", fix=f"Use one of {known}")
        for name, value in (("target_file_bytes", target_file_bytes), ("row_group_bytes", row_group_bytes)):
            if value < 1:
                raise PipelineError(f"{value} bytes", field=name, fix="Give a number of at least 1")
        self._compression = compression
        self._target_file_bytes, self._row_group_bytes = target_file_bytes, row_group_bytes
        self._path = str(path)
        self._partition_by = as_columns(partition_by, "partition_by")
        self._storage = Storage(self._path)
        self._log: CommitLog | None = None
        self._spark: SparkSession | None = None

    @override
    def check(self, schema: StructType) -> None:
        check_partition_by(self._partition_by, schema)
        check_partition_types(self._partition_by, schema)
        if twice := repeated([name.lower() for name in schema.names]):
            problem = f"there are two columns {twice[0]!r}, in upper or lower case"
            raise PipelineError(problem, field="ParquetSink", fix="Give each a name of its own")
        if wrong := [field for field in schema.fields if not _is_plain(field.dataType)]:
            kind = wrong[0].dataType.simpleString()
            problem = f"pyarrow writes column `{wrong[0].name}`, which is {kind}, in another way than Spark"
            raise PipelineError(problem, field="ParquetSink", fix="Cast it, for example to text")

    @override
    def open(self, spark: SparkSession | None, group: str | None = None, timeout_ms: int = 60_000) -> None:
        self._spark = spark
        try:
            self._log = CommitLog(self._storage)
            if group is not None:
                self._log.prepare()
            self._log.open()
        except OSError as error:
            raise PipelineError(
                f"{self._path} cannot be used: {error.strerror or error}", field="path", fix="Name a writable folder"
            ) from error
        if group is not None:
            self._log.check_group(group)

    @override
    def claim(
        self, partitions: Collection[TopicPartition], owner: Owner, committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        return self._opened().claim(partitions, owner, committed)

    @override
    def task_writer(self, batch: Batch | None, schema: StructType) -> ParquetWriter:
        self.check(schema)
        writer = self._writer(schema)
        if batch is None:
            return writer
        log = self._opened()
        if not log.files:
            self._storage.create(SCHEMA, schema.json().encode())
        folder = log.new_folder(batch.ranges)
        return replace(writer, root=(self._storage.root / folder).as_posix(), folder=folder)

    def _writer(self, schema: StructType) -> ParquetWriter:
        """Return the writer of rows with these columns. Raises PipelineError for a compression of the session."""
        assert self._spark is not None  # of the pipeline that has opened the sink
        codec = self._compression or str(self._spark.conf.get("spark.sql.parquet.compression.codec"))
        if codec.lower() not in COMPRESSIONS:
            fix = f"Use one of {', '.join(COMPRESSIONS)}"
            raise PipelineError(f"pyarrow has no compression {codec!r}", field="compression", fix=fix)
        kind = str(self._spark.conf.get("spark.sql.parquet.outputTimestampType"))
        if _has(schema, "timestamp_ntz"):  # it stays INT64 for Spark; pyarrow has one way for all columns
            kind = "TIMESTAMP_MICROS"
        written = StructType([field for field in schema.fields if field.name not in self._partition_by])
        return ParquetWriter(
            "",
            arrow_schema(schema),
            self._partition_by,
            COMPRESSIONS[codec.lower()],
            self._row_group_bytes,
            self._target_file_bytes,
            options={"store_decimal_as_integer": True, **_TIMESTAMPS[kind]},
            metadata={_ROW_METADATA: written.json(), _VERSION: self._spark.version},
            ending=UNCOMMITTED,
        )

    @override
    def collect(self, writer: Writer, results: Sequence[list[WrittenFile]], batch: Batch) -> WrittenFolder:
        assert isinstance(writer, ParquetWriter)  # made by task_writer
        log = self._opened()
        files = [file for result in results for file in result]
        if results and not files and not log.files and not self._partition_by:
            files = [writer.write_empty()]
        return WrittenFolder(writer.folder, files)

    @override
    def commit(self, written: WrittenFolder, batch: Batch) -> None:
        log = self._opened()
        local = self._storage.root / written.folder
        counts = _counts(local, written.files)
        rows, wanted = sum(counts.values()), sum(file.rows for file in written.files)
        if rows < wanted:
            log.discard(written.folder)
            raise PipelineError(
                f"executors wrote {wanted} rows, and the driver finds {rows} of them in {local}: they do not share this"
                " disk; nothing of the batch is committed",
                field="path",
                fix="Use a path that driver and executors share (such as NFS), or DeltaSink",
            )
        # The first batch keeps an empty file: Spark cannot infer the columns of an output without files.
        names = [name for name in counts if counts[name]] or ([] if log.files else list(counts)[:1])
        log.commit(batch.owner, batch.ranges, written.folder, names, rows)

    @override
    def abort(self, written: WrittenFolder | None, batch: Batch) -> None:
        if written is not None:
            self._opened().discard(written.folder)

    @override
    def close(self) -> None:
        self._log = None

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition that has results here. Raise PipelineError for a damaged log."""
        return dict(self._fresh().positions)

    def rows(self) -> int:
        """Return the number of rows committed. Raise PipelineError for a damaged log."""
        return self._fresh().rows

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the committed rows, after publishing what a writer that died had committed.

        Raises PipelineError if no batch was ever written.
        """
        self.open(spark)
        if self._opened().files:
            return spark.read.parquet(self._storage.uri)
        schema = self._storage.read(SCHEMA)
        if schema is None:
            raise PipelineError(f"{self._path} holds no results yet", field="path", fix="Run the pipeline first")
        return spark.createDataFrame([], StructType.fromJson(json.loads(schema)))

    def _fresh(self) -> CommitLog:
        """Read the log anew, without changing a running pipeline's view of it."""
        log = CommitLog(self._storage)
        log.open()
        return log

    def _opened(self) -> CommitLog:
        if self._log is None:
            raise PipelineError("the sink is not open", field="ParquetSink", fix="Give it to Pipeline.write")
        return self._log


def _counts(local: Path, files: Sequence[WrittenFile]) -> dict[str, int]:
    """Return the rows of each of these files that lies whole on this disk."""
    counts = {}
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            if (local / file.name).stat().st_size == file.size:
                counts[file.name] = file.rows
    return counts
