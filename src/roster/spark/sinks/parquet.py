"""Parquet files, exactly once by positions that the sink keeps beside them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's convention
from pyspark.sql.types import StructType
from typing_extensions import override

from roster.model import TopicPartition
from roster.spark.batch import Batch, Owner
from roster.spark.errors import PipelineError
from roster.spark.sinks.base import Sink
from roster.spark.sinks.commit_log import FOLDER, CommitLog, folder
from roster.spark.sinks.storage import LocalStorage, Storage, java_problem, storage

_logger = logging.getLogger(__name__)

SCHEMA = f"{FOLDER}/schema.json"
"""Columns of the first batch, as Spark's JSON of a schema."""
_COUNT_SECONDS = 30.0
"""How long to wait for Spark's count of the rows written: its listeners run behind the job."""


class Staged(NamedTuple):
    """Files that do not count yet."""

    stage: str
    rows: int | None
    """Rows written according to Spark; None where the files cannot be on another machine's disk."""


class ParquetSink(Sink):
    """Parquet files below `path`, exactly once: `spark.read.parquet(path)` has each record's results once.

    Positions lie beside the files (`<path>/_roster`, see `roster.spark.sinks.commit_log`), so results and offsets count
    in one step whatever the transform does, aggregates over several partitions included. All applications of a group
    write to one path, which belongs to that group.

    `path` is a local folder, or a URI of a file system whose rename is atomic (`hdfs`, `viewfs`, `abfs`, `abfss`). A
    local folder and its parent must be shared by the driver and all executors; if rows that an executor wrote are
    missing on the driver's side, the run fails with PipelineError and nothing of the batch counts. `partition_by` names
    columns whose values become folders. `checkpoint_every` is the number of log entries between two checkpoints.

    Files that do not count yet are staged beside the path in `.<name>.staging`, where readers of the whole tree
    (DuckDB's or polars' `out/**/*.parquet`) do not see them, or in `<path>/_roster/staging` if nothing can be created
    there. An output without rows has one empty file with its columns, or with `partition_by` none: `read` works anyway.

    Each batch writes files of its own, so a batch of less than `max_offsets_per_batch` starts 10 s after the one before
    unless the pipeline's `trigger_interval_ms` is set.

    Raises PipelineError for an empty path. A run fails with PipelineError if the path cannot be written, holds another
    group's results, or its log is damaged.
    """

    default_trigger_interval_ms = 10_000
    accepts_part = True

    def __init__(self, path: str | Path, *, partition_by: Sequence[str] = (), checkpoint_every: int = 32) -> None:
        if not str(path):
            raise PipelineError("no path given", field="path", fix="For example ParquetSink('out/flights')")
        self._path = str(path)
        self._partition_by = tuple(partition_by)
        self._checkpoint_every = checkpoint_every
        self._storage: Storage | None = None
        self._log: CommitLog | None = None

    @override
    def open(self, spark: SparkSession | None, group: str | None = None) -> None:
        try:
            self._storage = storage(self._path, spark)
            self._log = CommitLog(self._storage, checkpoint_every=self._checkpoint_every)
            if group is not None:
                self._log.prepare()
            self._log.open()
        except OSError as error:
            raise PipelineError(
                f"{self._path} cannot be used: {error.strerror or error}", field="path", fix="Name a writable folder"
            ) from error
        except Py4JError as error:
            _logger.debug("%s cannot be used", self._path, exc_info=True)
            raise PipelineError(
                f"{self._path} cannot be used: {java_problem(error)}",
                field="path",
                fix="Check that the file system answers and lets the driver write there",
            ) from None
        if group is not None:
            self._log.check_group(group)

    @override
    def claim(
        self, partitions: Collection[TopicPartition], owner: Owner, committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        return self._opened()[1].claim(partitions, owner, committed)

    @override
    def write(self, df: DataFrame, batch: Batch) -> Staged:
        place, log = self._opened()
        if not log.files:
            place.create(SCHEMA, df.schema.json().encode())
        counted = None
        if isinstance(place, LocalStorage) and not runs_in_one_process(df.sparkSession):
            counted = Observation()
            df = df.observe(counted, F.count(F.lit(1)).alias("rows"))
        stage = log.stage(batch.ranges)
        writer = df.write
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        try:
            writer.parquet(f"{place.uri}/{folder(stage)}")
            return Staged(stage, None if counted is None else _rows(counted))
        except BaseException:
            log.discard(stage)
            raise

    @override
    def commit(self, staged: Staged, batch: Batch) -> None:
        place, log = self._opened()
        names = [name for name in place.files(folder(staged.stage)) if name.endswith(".parquet")]
        names = [name for name in names if not name.rpartition("/")[2].startswith((".", "_"))]
        rows = 0
        if isinstance(place, LocalStorage):
            local = place.root / folder(staged.stage)
            counts = {name: pq.read_metadata(local / name).num_rows for name in names}
            rows = sum(counts.values())
            if staged.rows is not None and rows < staged.rows:
                log.discard(staged.stage)
                raise PipelineError(
                    f"executors wrote {staged.rows} rows, of which the driver finds {rows} in {local}: they do not "
                    "share this disk; nothing of the batch is committed",
                    field="path",
                    fix="Use a path that driver and executors share with its parent (such as NFS), or an hdfs:// URI",
                )
            # The first batch keeps an empty file: Spark cannot infer the columns of an output without files.
            names = [name for name in names if counts[name]] or ([] if log.files else names[:1])
        log.commit(batch.owner, batch.ranges, staged.stage, names, rows)

    @override
    def abort(self, staged: Staged | None, batch: Batch) -> None:
        if staged is not None:
            self._opened()[1].discard(staged.stage)

    @override
    def close(self) -> None:
        self._log = self._storage = None

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition that has results here. Raise PipelineError for a damaged log."""
        return dict(self._fresh().positions)

    def rows(self) -> int:
        """Return the number of rows committed; 0 on file systems other than local ones, where it is not counted."""
        return self._fresh().rows

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the committed rows, after publishing what a writer that died had committed.

        Raises PipelineError if no batch was ever written.
        """
        self.open(spark)
        place, log = self._opened()
        if log.files:
            return spark.read.parquet(place.uri)
        schema = place.read(SCHEMA)
        if schema is None:
            raise PipelineError(f"{self._path} holds no results yet", field="path", fix="Run the pipeline first")
        return spark.createDataFrame([], StructType.fromJson(json.loads(schema)))

    def _fresh(self) -> CommitLog:
        """Read the log anew, without changing a running pipeline's view of it."""
        log = CommitLog(storage(self._path) if self._storage is None else self._storage)
        log.open()
        return log

    def _opened(self) -> tuple[Storage, CommitLog]:
        if self._storage is None or self._log is None:
            raise PipelineError("the sink is not open", field="ParquetSink", fix="Give it to Pipeline.write")
        return self._storage, self._log


def runs_in_one_process(spark: SparkSession) -> bool:
    """Return True if tasks run in the driver's own JVM, and so see its disk."""
    master = spark.sparkContext.master or ""
    return master == "local" or master.startswith("local[")


def _rows(counted: Observation) -> int | None:
    """Return the rows that passed; None, with a warning, if Spark's listeners do not deliver the count."""
    found: list[int] = []
    # `get` blocks without a limit where an event is dropped.
    waiter = threading.Thread(target=lambda: found.append(int(counted.get["rows"])), name="roster-rows", daemon=True)
    waiter.start()
    waiter.join(_COUNT_SECONDS)
    if not found:
        _logger.warning("Spark has not said how many rows were written: the files found are not compared with that")
        return None
    return found[0]
