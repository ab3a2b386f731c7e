"""Pipelines that go on without records; as a program, one that is killed.

idle.py windows BOOTSTRAP GROUP TOPIC OUT LATE STATE_DIR
idle.py joined BOOTSTRAP GROUP TOPIC OUT LATE STATE_DIR OTHER_TOPIC

The second is killed by itself, with SIGKILL, when what a batch without records makes is written and not committed.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from roster.pipeline.batch import Batch
    from roster.spark import Pipeline

SIZE = timedelta(seconds=2)


def _pipeline(spark: SparkSession, bootstrap: str, group: str, topic: str, directory: str) -> Pipeline:
    from roster.spark import Pipeline, State

    consumer, state = {"session.timeout.ms": 6_000}, State(dir=directory)
    pipeline = Pipeline(spark, bootstrap, group, topic, consumer=consumer, state=state, idle_after="1 second")
    return pipeline.json_columns("k string, n long, at timestamp")


def windows(
    spark: SparkSession, bootstrap: str, group: str, topic: str, out: str, late: str, directory: str
) -> Pipeline:
    from roster.spark import KafkaSink, Window

    return (
        _pipeline(spark, bootstrap, group, topic, directory)
        .repartition("k")
        .aggregate(
            "k", {"count": "count(*)", "total": "sum(n)"}, window=Window("at", SIZE), results="final", late_topic=late
        )
        .write(KafkaSink(bootstrap, out))
    )


def joined(
    spark: SparkSession, bootstrap: str, group: str, topic: str, out: str, late: str, directory: str, other: str
) -> Pipeline:
    from roster.spark import KafkaSink

    return (
        _pipeline(spark, bootstrap, group, topic, directory)
        .join(
            other,
            "k",
            "k string, m long, paid timestamp",
            within=SIZE,
            how="left",
            column="at",
            other_column="paid",
            late_topic=late,
        )
        .write(KafkaSink(bootstrap, out))
    )


def main() -> None:
    from roster.sinks.kafka_transactions import TransactionalSink
    from roster.spark import session

    kind, *arguments = sys.argv[1:]
    commit = TransactionalSink.commit_batch

    def dying(sink: TransactionalSink, written: Any, batch: Batch) -> Any:
        if not any(span.size for span in batch.ranges.values()):
            os.kill(os.getpid(), signal.SIGKILL)
        return commit(sink, written, batch)

    if kind == "joined":
        TransactionalSink.commit_batch = dying  # type: ignore[method-assign]
    made = {"windows": windows, "joined": joined}[kind]
    made(session("idle", "local[1]", spark_driver_memory="512m"), *arguments).run()


if __name__ == "__main__":
    main()
