"""A function as a sink."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's convention
from typing_extensions import override

from roster.pipeline.batch import Batch
from roster.pipeline.batch_sink import BatchSink


class ForeachBatch(BatchSink):
    """Calls a function with each batch's DataFrame; at least once, unless the function stores `batch.ranges` itself."""

    def __init__(self, function: Callable[[DataFrame, Batch], object]) -> None:
        self._function = function

    @override
    def warm_up(self, df: DataFrame) -> None:
        """Run an aggregate with a shuffle: the function may not be called, and most have one."""
        df.groupBy(F.spark_partition_id()).count().collect()

    @override
    def write(self, df: DataFrame, batch: Batch) -> None:
        self._function(df, batch)
