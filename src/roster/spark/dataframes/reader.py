"""`read_stream`: a topic as a streaming DataFrame, by the methods of Spark's `DataStreamReader`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from roster.pipeline.errors import PipelineError
from roster.spark.dataframes.plan import leaf
from roster.spark.dataframes.source_options import Source, WithOptions, source_of
from roster.spark.jobs.spark_jobs import check_session

_sources: dict[str, Source] = {}
"""Sources by the mark of their leaves: options may be secrets, and a plan is shown."""
_numbers = itertools.count()
_OWN_COLUMNS = "its columns are those of Spark's Kafka source"
_PARSE = "Take values apart behind load(), for example by from_json"


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
        if str(source).lower() != "kafka":
            raise PipelineError(
                f"{source!r} is not read by a group", field="format", fix='Use "kafka", or spark.readStream'
            )
        return self

    def name(self, source_name: str) -> Self:
        """Accept a name, which has no use here: offsets belong to the group and the topic."""
        return self

    def load(
        self,
        path: str | None = None,
        format: str | None = None,
        schema: StructType | str | None = None,
        **options: object,
    ) -> DataFrame:
        """Return the records as a streaming DataFrame with the columns of Spark's Kafka source.

        Raises PipelineError for options that are unknown or wrong, a path, and a schema. No broker is asked yet.
        """
        if path is not None:
            raise PipelineError("topics have no path", field="load(path)", fix='Use .option("subscribe", "...").load()')
        if schema is not None:
            raise PipelineError(_OWN_COLUMNS, field="load(schema)", fix=_PARSE)
        if format is not None:
            self.format(format)
        source = source_of(self.options(**options)._options)
        mark = f"source-{next(_numbers)}"
        _sources[mark] = source
        return leaf(self._spark, mark, headers=source.has_headers)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            way = f"{_OWN_COLUMNS}. {_PARSE}" if name == "schema" else "it has format, option, options and load"
            if name != "schema" and hasattr(DataStreamReader, name):
                way += f". spark.readStream.{name} is for queries of Spark's own"
            raise AttributeError(f"a reader of topics has no {name!r}: {way}", name=name, obj=self)


def marked_source(mark: str) -> Source:
    """Return the source of a leaf that `StreamReader.load` made."""
    return _sources[mark]
