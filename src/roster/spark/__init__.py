"""The pipeline that makes a Spark application a member of a consumer group."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from roster._extras import EXTRAS, missing_error

if TYPE_CHECKING:
    from roster.pipeline.batch import Batch, Owner, Progress, Range, Restoring, StoreProgress
    from roster.pipeline.batch_sink import Sink
    from roster.pipeline.consumer_settings import ConsumerSettings
    from roster.pipeline.errors import FunctionError, PipelineError, SinkFencedError
    from roster.pipeline.state_options import State
    from roster.pipeline.tasks.reader import ReadError
    from roster.records.produce import WriteError
    from roster.schemas import Registry, RegistryError
    from roster.sinks.delta import DeltaSink
    from roster.sinks.formats import Avro
    from roster.sinks.iceberg import IcebergSink
    from roster.sinks.kafka import KafkaSink
    from roster.sinks.parquet import ParquetSink
    from roster.sinks.postgres import PostgresSink
    from roster.spark.dataframes.query import StreamQuery
    from roster.spark.dataframes.reader import StreamReader, read_stream
    from roster.spark.dataframes.sinks import ConsoleSink
    from roster.spark.dataframes.writer import StreamWriter, write_stream
    from roster.spark.history import history_tables, record_history, replay_history
    from roster.spark.pipeline import Pipeline
    from roster.spark.queries.view import StateUnavailableError, StateView
    from roster.spark.spark_session import session
    from roster.spark.structured_streaming import ProgressCommitter, commit_progress, starting_offsets
    from roster.state.store import StateError
    from roster.state.windows import Window

__all__ = [
    "Avro",
    "Batch",
    "ConsoleSink",
    "ConsumerSettings",
    "DeltaSink",
    "FunctionError",
    "IcebergSink",
    "KafkaSink",
    "Owner",
    "ParquetSink",
    "Pipeline",
    "PipelineError",
    "PostgresSink",
    "Progress",
    "ProgressCommitter",
    "Range",
    "ReadError",
    "Registry",
    "RegistryError",
    "Restoring",
    "Sink",
    "SinkFencedError",
    "State",
    "StateError",
    "StateUnavailableError",
    "StateView",
    "StoreProgress",
    "StreamQuery",
    "StreamReader",
    "StreamWriter",
    "Window",
    "WriteError",
    "commit_progress",
    "history_tables",
    "read_stream",
    "record_history",
    "replay_history",
    "session",
    "starting_offsets",
    "write_stream",
]

if _missing := [module for module in EXTRAS["spark"] if find_spec(module) is None]:
    raise missing_error("roster.spark", "spark", _missing)

_OLDEST_PYSPARK = 4
_HOMES = {
    "roster.records.produce": ("WriteError",),
    "roster.schemas": ("Registry", "RegistryError"),
    "roster.pipeline.batch": ("Batch", "Owner", "Progress", "Range", "Restoring", "StoreProgress"),
    "roster.pipeline.consumer_settings": ("ConsumerSettings",),
    "roster.spark.dataframes.query": ("StreamQuery",),
    "roster.spark.dataframes.reader": ("StreamReader", "read_stream"),
    "roster.spark.dataframes.writer": ("StreamWriter", "write_stream"),
    "roster.pipeline.errors": ("FunctionError", "PipelineError", "SinkFencedError"),
    "roster.spark.history": ("history_tables", "record_history", "replay_history"),
    "roster.spark.pipeline": ("Pipeline",),
    "roster.pipeline.tasks.reader": ("ReadError",),
    "roster.pipeline.batch_sink": ("Sink",),
    "roster.spark.dataframes.sinks": ("ConsoleSink",),
    "roster.sinks.postgres": ("PostgresSink",),
    "roster.sinks.delta": ("DeltaSink",),
    "roster.sinks.formats": ("Avro",),
    "roster.sinks.iceberg": ("IcebergSink",),
    "roster.sinks.kafka": ("KafkaSink",),
    "roster.sinks.parquet": ("ParquetSink",),
    "roster.spark.spark_session": ("session",),
    "roster.spark.queries.view": ("StateUnavailableError", "StateView"),
    "roster.pipeline.state_options": ("State",),
    "roster.spark.structured_streaming": ("ProgressCommitter", "commit_progress", "starting_offsets"),
    "roster.state.store": ("StateError",),
    "roster.state.windows": ("Window",),
}


def __getattr__(name: str) -> object:
    """Import a name on first use: a task's process needs only the reader, and starts faster without the rest."""
    for module, names in _HOMES.items():
        if name in names:
            _check_pyspark()
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'roster.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


@cache
def _check_pyspark() -> None:
    """Raise PipelineError if PySpark is too old or a client only, instead of one missing module after another."""
    from pyspark.version import __version__  # noqa: PLC0415 - as late as the rest

    if int(__version__.partition(".")[0]) < _OLDEST_PYSPARK:
        problem = f"PySpark {__version__} is installed, and Roster needs {_OLDEST_PYSPARK}.0 or newer"
    elif find_spec("py4j") is None:
        problem = "only Spark Connect's client is installed (pyspark-client), and Roster needs a classic session"
    else:
        return
    from roster.pipeline.errors import PipelineError  # noqa: PLC0415

    raise PipelineError(problem, field="pyspark", fix=f"pip install 'pyspark>={_OLDEST_PYSPARK}'")
