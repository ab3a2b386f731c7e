"""Batches as Spark jobs: a DataFrame whose tasks read their own offset ranges."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from roster.spark.errors import PipelineError
from roster.spark.loop import Outcome
from roster.spark.mapped import Mapped, arrow_schema
from roster.spark.reader import ReadTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from roster.spark.batch import Batch, Split
    from roster.spark.reader import ReaderConfig
    from roster.spark.sinks import Sink

_JOB_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class _ByTask(AccumulatorParam[dict[int, int]]):
    """Counts by task: a task that runs twice counts once."""

    def zero(self, value: dict[int, int]) -> dict[int, int]:
        return {}

    def addInPlace(self, value1: dict[int, int], value2: dict[int, int]) -> dict[int, int]:  # noqa: N802 - PySpark's name
        return {**value1, **value2}


class SparkRunner:
    """Runs one pipeline's batches in a Spark session; each batch is a job group of its own."""

    def __init__(
        self,
        spark: SparkSession,
        config: ReaderConfig,
        function: Callable[[pa.RecordBatch], pa.RecordBatch | Iterator[pa.RecordBatch]] | None,
        schema: str | StructType | None,
        transform: Callable[[DataFrame], DataFrame] | None,
    ) -> None:
        self._spark, self._config, self._transform = spark, config, transform
        self._schema = config.schema if schema is None else schema
        self._function = None if function is None else Mapped(function, arrow_schema(self._schema))
        self._context = spark.sparkContext
        self._counted = self._context.accumulator({}, _ByTask())
        self._prefix = f"roster-{config.group}-{uuid.uuid4().hex[:8]}"
        self._job_group: str | None = None

    @property
    def cores(self) -> int:
        """How many tasks Spark says it runs at once."""
        return self._context.defaultParallelism

    def run(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: Sink) -> Outcome:
        """Read, transform and write in the calling thread."""
        context = self._context
        before = {name: context.getLocalProperty(name) for name in _JOB_PROPERTIES}
        job_group = f"{self._prefix}-{batch.number}"
        context.setJobGroup(job_group, f"{self._config.group}: batch {batch.number}", interruptOnCancel=True)
        self._job_group = job_group
        self._counted.value = {}
        try:
            staged = sink.write(self._frame(tasks), batch)
            return Outcome(staged, sum(self._counted.value.values()))
        finally:
            self._job_group = None
            with contextlib.suppress(PySparkException, Py4JError):
                for name, value in before.items():
                    context.setLocalProperty(name, value)  # type: ignore[arg-type]

    def cancel(self) -> None:
        """Cancel the jobs of the running batch; its Python workers are ended with them."""
        job_group = self._job_group
        if job_group is not None:
            self._context.cancelJobGroup(job_group)

    def _frame(self, tasks: Sequence[Sequence[Split]]) -> DataFrame:
        read: Any = ReadTask(self._config, tasks, self._function, self._counted)
        count = len(tasks)
        frame = self._spark.range(0, count, 1, count).mapInArrow(read, self._schema)
        if self._transform is None:
            return frame
        result: Any = self._transform(frame)
        if not isinstance(result, DataFrame):
            raise PipelineError(
                f"the function returned {result!r}, not a DataFrame", field="transform", fix="End it with `return df`"
            )
        return result


def check_session(spark: SparkSession) -> None:
    """PipelineError unless the session is a running classic one."""
    context: Any = getattr(spark, "_sc", None)
    if context is None:
        raise PipelineError(
            f"{type(spark).__module__}.{type(spark).__name__} is not a classic Spark session",
            field="spark",
            fix="Use roster.spark.session(...) or SparkSession.builder with a master, not Spark Connect",
        )
    if context._jsc is None or context._jsc.sc().isStopped():
        raise PipelineError(
            "the Spark session is stopped", field="spark", fix="Start one with roster.spark.session(...)"
        )
