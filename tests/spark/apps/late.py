"""A pipeline with windows in a table and late rows in a topic; as a program, one whose driver is killed by itself.

    late.py KIND FOLDER BOOTSTRAP GROUP TOPIC LATE STATE_DIR MOST KILLED_AT

It reads all that is there, MOST records a batch. KILLED_AT: the number of the batch whose results are committed, when
state, late rows and offsets are not: then it gets a SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.sinks.table_places import PLACES

if TYPE_CHECKING:
    from roster.pipeline.batch_sink import BatchSink
    from roster.spark import Pipeline

WINDOW = timedelta(seconds=10)


class Results:
    """A sink of a kind, and the rows that are in it."""

    def __init__(self, kind: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = str(folder)
        self._place = None if kind == "parquet" else PLACES[kind](self._folder)

    def sink(self) -> BatchSink:
        from roster.spark import ParquetSink

        return ParquetSink(self._folder) if self._place is None else self._place.sink()

    def rows(self, spark: Any) -> list[dict[str, Any]]:
        if self._place is not None:
            return list(self._place.arrow().to_pylist())
        return [row.asDict() for row in spark.read.parquet(self._folder).collect()]


def windows(
    spark: Any, sink: BatchSink, bootstrap: str, group: str, topic: str, late: str, directory: str, most: int
) -> Pipeline:
    from roster.spark import Pipeline, State, Window

    options: dict[str, Any] = {
        "consumer": {"session.timeout.ms": 6_000},
        "max_offsets_per_batch": most,
        "state": State(dir=directory),
    }
    return (
        Pipeline(spark, bootstrap, group, topic, **options)
        .json_columns("k string, n long, at timestamp")
        .aggregate(
            "k",
            {"count": "count(*)", "total": "sum(n)"},
            window=Window("at", WINDOW),
            results="final",
            late_topic=late,
        )
        .write(sink)
    )


def main() -> None:
    from roster.sinks.kafka_transactions import TransactionalSink
    from roster.spark import session

    kind, folder, bootstrap, group, topic, late, directory, most, killed_at = sys.argv[1:]
    commit, calls = TransactionalSink.commit_batch, count(1)

    def dying(sink: TransactionalSink, written: None, batch: Any) -> Any:
        if next(calls) == int(killed_at):
            os.kill(os.getpid(), signal.SIGKILL)
        return commit(sink, written, batch)

    TransactionalSink.commit_batch = dying  # type: ignore[method-assign]
    spark = session("late", "local[1]", spark_driver_memory="512m")
    results = Results(kind, Path(folder))
    windows(spark, results.sink(), bootstrap, group, topic, late, directory, int(most)).run(available_now=True)


if __name__ == "__main__":
    main()
