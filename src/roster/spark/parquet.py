"""Parquet files, exactly once by the sink's own position."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.sql.types import StructType

from roster.spark.commitlog import FOLDER, CommitLog, folder
from roster.spark.errors import PipelineError
from roster.spark.sinks import Sink
from roster.spark.storage import LocalStorage, Storage, java_problem, storage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from roster.model import TopicPartition
    from roster.spark.batch import Batch, Owner

_logger = logging.getLogger(__name__)

SCHEMA = f"{FOLDER}/schema.json"
"""The columns of the first batch, as Spark writes them down."""


class ParquetSink(Sink):
    """Parquet files under `path`; a plain `spark.read.parquet(path)` sees each record's results once.

    The positions live beside the files (`<path>/_roster`, see `roster.spark.commitlog`), so results and offsets count
    in one step whatever the transform does: aggregates over several partitions are fine. All applications of one group
    write to one path. `path` is a local folder (which driver and executors share, with its parent) or a URI on a file
    system whose rename is atomic. `partition_by` names columns that become folders, `checkpoint_every` counts log
    entries.

    Files that do not count yet are beside the path, in `.<name>.staging`, so readers of the whole tree (DuckDB's or
    polars' `out/**/*.parquet`) do not see them; where nothing can be made there, they are in `<path>/_roster/staging`.
    An output without rows has one empty file with its columns, or, with `partition_by`, none: `read` knows its columns.

    Each batch makes files of its own, so batches that do not fill `max_offsets_per_batch` start 10 s apart unless the
    pipeline's `trigger_interval_ms` says otherwise.
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

    def open(self, spark: SparkSession | None, group: str | None = None) -> None:
        """Read the log and complete what a dead writer left; PipelineError if the path belongs to another group."""
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

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that has results here."""
        return dict(self._fresh().positions)

    def rows(self) -> int:
        """How many rows count."""
        return self._fresh().rows

    def read(self, spark: SparkSession) -> DataFrame:
        """The committed rows, after completing what a dead writer left unpublished; also where there are none yet.

        PipelineError if no batch was ever written.
        """
        self.open(spark)
        place, log = self._opened()
        if log.files:
            return spark.read.parquet(place.uri)
        schema = place.read(SCHEMA)
        if schema is None:
            raise PipelineError(f"{self._path} holds no results yet", field="path", fix="Run the pipeline first")
        return spark.createDataFrame([], StructType.fromJson(json.loads(schema)))

    def claim(
        self, partitions: Collection[TopicPartition], owner: Owner, committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Fence the owners of before and say where their results end."""
        return self._opened()[1].claim(partitions, owner, committed)

    def write(self, df: DataFrame, batch: Batch) -> str:
        """Write the rows to a stage of their own."""
        place, log = self._opened()
        if not log.files:
            place.create(SCHEMA, df.schema.json().encode())
        stage = log.stage(batch.ranges)
        writer = df.write
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        try:
            writer.parquet(f"{place.uri}/{folder(stage)}")
        except BaseException:
            log.discard(stage)
            raise
        return stage

    def commit(self, staged: str, batch: Batch) -> None:
        """One log entry makes the stage count; then its files are renamed to where readers look."""
        place, log = self._opened()
        names = [name for name in place.files(folder(staged)) if name.endswith(".parquet")]
        names = [name for name in names if not name.rpartition("/")[2].startswith((".", "_"))]
        if isinstance(place, LocalStorage):
            local = place.root / folder(staged)
            counts = {name: pq.read_metadata(local / name).num_rows for name in names}
            rows = sum(counts.values())
            # The first batch keeps an empty file: Spark cannot tell the columns of an output without files.
            names = [name for name in names if counts[name]] or ([] if log.files else names[:1])
        else:
            rows = 0
        log.commit(batch.owner, batch.ranges, staged, names, rows)

    def abort(self, staged: str | None, batch: Batch) -> None:
        """Remove the stage."""
        if staged is not None:
            self._opened()[1].discard(staged)

    def close(self) -> None:
        """Nothing is held open."""
        self._log = self._storage = None

    def _fresh(self) -> CommitLog:
        """The log as it stands now, read without disturbing a running pipeline's view of it."""
        log = CommitLog(storage(self._path) if self._storage is None else self._storage)
        log.open()
        return log

    def _opened(self) -> tuple[Storage, CommitLog]:
        if self._storage is None or self._log is None:
            raise PipelineError("the sink is not open", field="ParquetSink", fix="Give it to Pipeline.write")
        return self._storage, self._log
