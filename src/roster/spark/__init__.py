"""The pipeline that makes a Spark application a member of a consumer group."""

from roster.spark.batch import Batch, Owner, Progress, Range
from roster.spark.errors import PipelineError, SinkFencedError
from roster.spark.parquet import ParquetSink
from roster.spark.pipeline import Pipeline
from roster.spark.session import session
from roster.spark.sinks import ConsoleSink, KafkaSink, Sink

__all__ = [
    "Batch",
    "ConsoleSink",
    "KafkaSink",
    "Owner",
    "ParquetSink",
    "Pipeline",
    "PipelineError",
    "Progress",
    "Range",
    "Sink",
    "SinkFencedError",
    "session",
]
