"""The main door: a Spark application as an ordinary member of a Kafka consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from roster.spark.options import Options, StartingOffsets, parse_bootstrap, parse_starting_offsets, parse_topics

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from roster.spark.batch import Batch, Progress
    from roster.spark.sinks import Sink


class Pipeline:
    """Reads a group's share of some topics in micro-batches and commits what was done to the group."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str | Sequence[str],
        group: str,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        starting_offsets: StartingOffsets = "earliest",
        on_progress: Callable[[Progress], object] | None = None,
        **options: Any,
    ) -> None:
        self._spark = spark
        self._on_progress = on_progress
        self._options = Options(
            bootstrap=parse_bootstrap(bootstrap),
            group=group,
            topics=parse_topics(topics),
            starting_offsets=parse_starting_offsets(starting_offsets),
            **options,
        )

    def map_arrow(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch | Iterator[pa.RecordBatch]],
        schema: str | StructType,
    ) -> Self:
        """Apply `function` to each Arrow batch inside the reading task, before the rows reach the JVM."""
        raise NotImplementedError

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Self:
        """Apply `function` to each batch's DataFrame."""
        raise NotImplementedError

    def write(self, sink: Sink) -> Self:
        """Send batches to `sink`."""
        raise NotImplementedError

    def foreach_batch(self, function: Callable[[DataFrame, Batch], object]) -> Self:
        """Send batches to `function`; at least once."""
        raise NotImplementedError

    @property
    def last_progress(self) -> Progress | None:
        """The latest finished batch of this run."""
        raise NotImplementedError

    def run(self, *, available_now: bool = False) -> None:
        """Join, work, commit; returns after `stop()`, SIGINT, SIGTERM, or (`available_now`) once nothing is left."""
        raise NotImplementedError

    def stop(self) -> None:
        """End after the batch in flight; thread-safe."""
        raise NotImplementedError
