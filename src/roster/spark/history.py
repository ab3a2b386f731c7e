"""The history of all consumer groups: recorded by a pipeline over `__consumer_offsets`, read and replayed by jobs."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's convention
from pyspark.sql.pandas.types import from_arrow_schema

from roster._json import JsonObject
from roster.assignors import Assignor, find_assignor
from roster.client import Admin
from roster.history.derived import ENDS, TABLES, GroupHistory
from roster.history.folder import RECORDS, HistoryError, HistoryFolder
from roster.history.recorders import MINUTE_MS, record_ends, regularly
from roster.history.replay import REPLAYS, replay
from roster.history.report import GROUPS_SHOWN, PLOT_POINTS, report
from roster.history.tables import SCHEMA, HistoryRows
from roster.history.thinned import PACKED, packed_ends, packed_events, topics_read, unpacked
from roster.records.native import OFFSETS, compiled
from roster.security import Security
from roster.sinks.parquet import ParquetSink
from roster.spark.pipeline import Pipeline

OFFSETS_TOPIC = "__consumer_offsets"
_PART_BYTES = 64 << 20
"""Bytes of Parquet whose groups are worked on together; a day of 10,000 groups with steady commits has 12 GB."""


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


def history_tables(spark: SparkSession, place: str, to: str) -> dict[str, DataFrame]:
    """Write and return what a recorded history says of all groups: rebalances, moves, ownership, lag and weights.

    Args:
        spark: the session.
        place: the folder of the history, as for `record_history`.
        to: a folder that driver and executors share, where one job writes all of them as Parquet, in place of what it
            has; the DataFrames read it.

    Raises:
        HistoryError: the folder has no history, or `to` has one.

    """
    folder = Path(to).absolute()
    if any((folder / name).exists() for name in (RECORDS, ENDS)):
        raise HistoryError(f"to: {to} has a history, which the tables would replace; name another folder")
    _write(spark, place, folder)
    return {
        name: spark.read.schema(from_arrow_schema(schema)).parquet(f"{folder}/table={name}")
        for name, schema in TABLES.items()
    }


def _write(spark: SparkSession, place: str, folder: Path) -> None:
    """Write the tables, in place of those that are there; tasks write files, which count once the job has ended."""
    scratch = folder / f"_{uuid.uuid4().hex}"
    for name in TABLES:
        (scratch / f"table={name}").mkdir(parents=True)

    def write(groups: Iterator[GroupHistory]) -> pa.Table:
        file, tables = f"{uuid.uuid4().hex}.parquet", [dict(group.tables()) for group in groups]
        for name in TABLES:
            rows = pa.concat_tables([of_group[name] for of_group in tables])
            pq.write_table(rows, scratch / f"table={name}" / file, compression="zstd")
        return pa.table({"file": [file]})

    try:
        files = _by_groups(spark, place, write, pa.schema([("file", pa.string())])).collect()
        written = {row["file"] for row in files}
        for name in TABLES:
            new, old = scratch / f"table={name}", folder / f"table={name}"
            for file in new.iterdir():
                if file.name not in written:  # by an attempt that failed, or was not the first
                    file.unlink()
            shutil.rmtree(old, ignore_errors=True)
            new.rename(old)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def replay_history(spark: SparkSession, place: str, assignors: Sequence[str | Assignor]) -> DataFrame:
    """Return what each assignor would have done at every recorded rebalance of all groups, a row for both.

    An assignor goes on from its own last plan of a group. What only finished a round of the recorded assignor is left
    out, racks are not known, and lag is interpolated between the recordings of the ends.

    Args:
        spark: the session.
        place: the folder of the history, as for `record_history`.
        assignors: names, or assignors that executors can import.

    Raises:
        HistoryError: the folder has no history.
        ValueError: an unknown assignor.

    """
    chosen = [find_assignor(name) for name in assignors]

    def replayed(groups: Iterator[GroupHistory]) -> pa.Table:
        return pa.concat_tables([replay(group, chosen) for group in groups])

    return _by_groups(spark, place, replayed, REPLAYS)


def _by_groups(
    spark: SparkSession, place: str, function: Callable[[Iterator[GroupHistory]], pa.Table], schema: pa.Schema
) -> DataFrame:
    """Apply a function to the histories of some groups at a time, about as much as a task can have in memory."""
    folder = HistoryFolder(place)
    folder.require()
    tasks = 4 * spark.sparkContext.defaultParallelism
    parts = 8 * tasks + sum(map(os.path.getsize, folder.files(RECORDS))) // _PART_BYTES

    def rows(name: str, read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]], schema: pa.Schema) -> DataFrame:
        """Read the files of a folder, in tasks of about equal size."""
        paths = sorted(folder.files(name), key=os.path.getsize)
        shares = [paths[number::tasks] for number in range(min(tasks, len(paths)))]

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in (number for batch in batches for number in batch["id"].to_pylist()):
                yield from read(shares[number])

        numbers = spark.range(0, len(shares), 1, max(len(shares), 1))
        return numbers.mapInArrow(work, from_arrow_schema(schema))

    events = rows(RECORDS, partial(packed_events, compiled(OFFSETS), folder.rebalances()), PACKED)
    ends = rows(ENDS, packed_ends, PACKED).drop("group")
    topics = rows(RECORDS, topics_read, pa.schema([PACKED.field(name) for name in ("group", "topic")])).distinct()
    events = events.unionByName(ends.join(F.broadcast(topics), "topic"))
    part = F.pmod(F.xxhash64("group"), F.lit(parts)).alias("part")

    def of_part(rows: pa.Table) -> pa.Table:
        return function(map(GroupHistory, unpacked(rows)))

    of_groups = events.select("*", part).repartition(tasks, "part").groupBy("part")
    return of_groups.applyInArrow(of_part, from_arrow_schema(schema))


def replay_report(replays: DataFrame) -> tuple[str, list[JsonObject]]:
    """Return a page that compares the policies of `replay_history` in a table and plots, and the rows of the table."""
    if not (span := replays.agg(F.min("ended_at"), F.max("ended_at")).first()) or span[0] is None:
        return report([], [], []), []
    begin, end = (int(moment.timestamp()) for moment in span)
    step = max((end - begin) // PLOT_POINTS, 60)
    point = F.floor(F.col("ended_at").cast("long") / step) * step
    sums = [F.sum(name).alias(name) for name in ("moved", "stopped")]
    totals = replays.groupBy("policy").agg(
        F.count("*").alias("rebalances"),
        *sums,
        F.sum("rounds").alias("rounds"),
        F.avg((F.col("most") - F.col("least") > 1).cast("int")).alias("uneven"),
        F.avg("lag_spread").alias("lag_spread"),
        F.percentile_approx("drain_seconds", 0.5).alias("drain_median"),
        F.percentile_approx("drain_seconds", 0.95).alias("drain_p95"),
    )
    over_time = replays.groupBy("policy", point.alias("at")).agg(*sums).orderBy("at")
    groups = replays.groupBy("group").pivot("policy").sum("stopped")
    most = groups.withColumn("sum", sum((F.col(f"`{name}`") for name in groups.columns[1:]), F.lit(0)))
    top = most.orderBy(F.desc("sum"), "group").drop("sum").limit(GROUPS_SHOWN)
    frames = totals.orderBy("policy"), over_time, top
    policies, *more = ([row.asDict() for row in frame.collect()] for frame in frames)
    return report(policies, *more), policies
