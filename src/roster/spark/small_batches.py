"""Small batches, read by the driver: a task that starts a Python worker's work costs more than a few records do."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from roster.records.native import kernel
from roster.spark.arrow_function import arrow_schema
from roster.spark.batch import Split
from roster.spark.reader import ReaderConfig, ReadError, read_splits

log = logging.getLogger(__name__)

MOST_OFFSETS = 1_000
MOST_BYTES = 512 << 10
"""Of the Arrow columns. The rows become part of Spark's plan and of its task."""
_MOST_SECONDS = 2.0
"""Spark cannot cancel what the driver reads, and the group waits for the batch."""
_LEFT_TO_SPARK = 100
"""Batches that are not tried after one that could not be read here."""


class SmallBatches:
    """Makes DataFrames of batches that are one small task, without a task to read them.

    Whatever stands in the way (no answer, records that are gone, large records) is left to Spark's tasks, which read
    the same ranges, try again, and name the problem.
    """

    def __init__(self, spark: SparkSession, config: ReaderConfig, columns: StructType) -> None:
        """`columns` are those of the records that `config` reads."""
        wait = min(config.read_timeout_ms, round(_MOST_SECONDS * 1000))
        self._spark, self._config, self._columns = spark, replace(config, read_timeout_ms=wait), columns
        self._left_to_spark = 0

    def frame(self, tasks: Sequence[Sequence[Split]]) -> tuple[DataFrame, int] | None:
        """Return the records and their number; None if tasks are to read them."""
        if len(tasks) != 1 or not 0 < sum(split.end - split.start for split in tasks[0]) <= MOST_OFFSETS:
            return None
        if self._left_to_spark > 0:
            self._left_to_spark -= 1
            return None
        rows = self._read(tasks[0])
        if rows is None:
            self._left_to_spark = _LEFT_TO_SPARK
            return None
        return (self._frame(rows), rows.num_rows) if rows.num_rows else None

    def warm_up(self) -> None:
        """Load what the first batch needs."""
        kernel(self._config.compiled)
        self._frame(arrow_schema(self._columns).empty_table()).collect()

    def _frame(self, rows: pa.Table) -> DataFrame:
        # One partition, which an aggregate needs no shuffle for, however many cores there are.
        return self._spark.createDataFrame(rows, self._columns).coalesce(1)

    def _read(self, splits: Sequence[Split]) -> pa.Table | None:
        """Read the records; None if there are too many bytes, it takes too long, or it fails."""
        until, size, read = time.monotonic() + _MOST_SECONDS, 0, []
        try:
            for batch in read_splits(self._config, splits):
                size += batch.nbytes
                if size > MOST_BYTES or time.monotonic() > until:
                    log.debug("a small batch is left to tasks: %d bytes read so far", size)
                    return None
                read.append(batch)
        except ReadError as error:
            log.debug("a small batch is left to tasks: %s", error)
            return None
        return pa.Table.from_batches(read) if read else arrow_schema(self._columns).empty_table()
