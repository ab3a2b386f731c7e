"""The history of all consumer groups, recorded by a pipeline over `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from roster.client import Admin
from roster.history.folder import RECORDS, HistoryFolder
from roster.history.recorders import MINUTE_MS, record_ends, regularly
from roster.history.tables import SCHEMA, HistoryRows
from roster.records.native import OFFSETS, compiled
from roster.security import Security
from roster.sinks.parquet import ParquetSink
from roster.spark.pipeline import Pipeline

OFFSETS_TOPIC = "__consumer_offsets"


def record_history(
    spark: SparkSession,
    bootstrap: str | Sequence[str],
    to: str,
    *,
    group: str = "roster-history",
    security: Security | Mapping[str, object] | None = None,
    available_now: bool = False,
) -> None:
    """Record commits and rebalances of all groups, exactly once, and the ends of all topics each minute.

    Several applications share the work as members of `group`. Runs until SIGINT or SIGTERM, or with `available_now`
    until it has read what there is.

    Args:
        spark: the session.
        bootstrap: brokers to ask first.
        to: a folder that driver and executors share, and all applications of the group.
        group: the recorder's own consumer group.
        security: as for `Pipeline`.
        available_now: as for `Pipeline.run`.

    Raises:
        PipelineError, ClientError: as for `Pipeline.run`.

    """
    pipeline = Pipeline(
        spark,
        bootstrap,
        group,
        [OFFSETS_TOPIC],
        isolation_level="read_committed",
        trigger_interval_ms=0 if available_now else MINUTE_MS,
        security=security,
    )
    pipeline.map_arrow(HistoryRows(compiled(OFFSETS)), from_arrow_schema(SCHEMA))
    pipeline.write(ParquetSink(f"{to}/{RECORDS}", partition_by=["table", "day"], compression="zstd"))
    with Admin(bootstrap, client_id=group, security=security) as admin:
        ends = partial(record_ends, admin, HistoryFolder(to))
        if available_now:
            ends()
            pipeline.run(available_now=True)
        else:
            with regularly(ends, MINUTE_MS / 1000, "roster-history-ends"):
                pipeline.run()
