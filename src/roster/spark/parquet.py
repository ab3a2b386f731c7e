"""Parquet files, exactly once by the sink's own position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.spark.sinks import Sink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from roster.model import TopicPartition


class ParquetSink(Sink):
    """Parquet files under `path`; `spark.read.parquet(path)` sees each record's results once."""

    def __init__(self, path: str, *, partition_by: Sequence[str] = (), checkpoint_every: int = 32) -> None: ...

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that has results here."""
        return {}

    def read(self, spark: SparkSession) -> DataFrame:
        """The committed rows, after completing what a dead writer left half published."""
        raise NotImplementedError
