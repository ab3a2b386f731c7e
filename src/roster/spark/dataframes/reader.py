"""`read_stream`: a topic as a streaming DataFrame, by the methods of Spark's `DataStreamReader`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import DataFrame, SparkSession

from roster.pipeline.errors import PipelineError
from roster.spark.dataframes.plan import leaf
from roster.spark.dataframes.source_options import Source, WithOptions, source_of
from roster.spark.jobs.spark_jobs import check_session

_sources: dict[str, Source] = {}
"""Sources by the mark of their leaves: options may be secrets, and a plan is shown."""
_numbers = itertools.count()


def read_stream(spark: SparkSession) -> StreamReader:
    """Return a reader of topics, in place of `spark.readStream.format("kafka")`; options and columns are the same.

    >>> orders = read_stream(spark).option("kafka.bootstrap.servers", B).option("subscribe", "orders").load()
    """
    return StreamReader(spark)


class StreamReader(WithOptions):
    """Reads topics as a streaming DataFrame; made by `read_stream`."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__()
        check_session(spark)
        self._spark = spark

    def format(self, source: str) -> Self:
        """Accept "kafka", the only source. Raises PipelineError for others."""
        if source.lower() != "kafka":
            raise PipelineError(
                f"{source!r} is not read by a group", field="format", fix='Use "kafka", or spark.readStream'
            )
        return self

    def load(self) -> DataFrame:
        """Return the records as a streaming DataFrame with the columns of Spark's Kafka source.

        Raises PipelineError for an option that is unknown or wrong. No broker is asked yet.
        """
        source = source_of(self._options)
        mark = f"source-{next(_numbers)}"
        _sources[mark] = source
        return leaf(self._spark, mark, headers=source.has_headers)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            known = "format, option, options and load"
            raise AttributeError(f"a reader of topics has no {name!r}; it has {known}", name=name, obj=self)


def marked_source(mark: str) -> Source:
    """Return the source of a leaf that `StreamReader.load` made."""
    return _sources[mark]
