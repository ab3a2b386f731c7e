"""A pipeline with windows that close without records; as a program, one that is killed.

idle_app.py BOOTSTRAP GROUP TOPIC OUT LATE STATE_DIR
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from roster.spark import Pipeline

SIZE = timedelta(seconds=2)


def windows(
    spark: SparkSession, bootstrap: str, group: str, topic: str, out: str, late: str, directory: str
) -> Pipeline:
    from roster.spark import KafkaSink, Pipeline, State, Window

    consumer, state = {"session.timeout.ms": 6_000}, State(dir=directory)
    return (
        Pipeline(spark, bootstrap, group, topic, consumer=consumer, state=state, idle_after="1 second")
        .json_columns("k string, n long, at timestamp")
        .aggregate(
            "k", {"count": "count(*)", "total": "sum(n)"}, window=Window("at", SIZE), results="final", late_topic=late
        )
        .write(KafkaSink(bootstrap, out))
    )


def main() -> None:
    from roster.spark import session

    windows(session("idle", "local[1]", spark_driver_memory="512m"), *sys.argv[1:]).run()


if __name__ == "__main__":
    main()
