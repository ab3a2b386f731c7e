"""DataFrame programs as an application of its own: the tests start it and kill it.

    dataframes.py BOOTSTRAP GROUP STATE TOPIC:PROGRAM:OUT...

Each program is one of `test_stateful_queries` or `shapes`. The results of its first query go to a topic of one
partition, as JSON. Prints {"done": group} for each batch. Runs until it is killed.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from tests.spark.dataframes.shapes import SHAPES
from tests.spark.dataframes.test_stateful_queries import PROGRAMS


def made(name: str, records: Any) -> tuple[Any, str]:
    """The frame of a program, and its output mode."""
    if name in SHAPES:
        query = SHAPES[name].queries(records)[0]
        return query.frame, query.mode
    program, mode, _ = PROGRAMS[name]
    return program(records), mode


def main() -> None:
    from pyspark.sql import functions as F
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from roster.spark import read_stream, session, write_stream

    class Told(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...
        def onQueryTerminated(self, event: Any) -> None: ...
        def onQueryProgress(self, event: Any) -> None:
            print(json.dumps({"done": event.progress.name, "rows": event.progress.numInputRows}), flush=True)

    bootstrap, group, state, *programs = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    spark = session(group, "local[1]", spark_sql_shuffle_partitions=1, spark_driver_memory="640m")
    spark.sparkContext.setLogLevel("ERROR")
    spark.streams.addListener(Told())
    queries = []
    for each in programs:
        topic, name, out = each.split(":")
        options = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": 60,
            "kafka.session.timeout.ms": 8000,
            "kafka.heartbeat.interval.ms": 500,
            "roster.state.dir": state,
        }
        frame, mode = made(name, read_stream(spark).options(**options).load())
        rows = frame.select(F.to_json(F.struct("*")).alias("value"))
        writer = write_stream(rows).queryName(f"{group}-{out}").outputMode(mode).format("kafka").option("topic", out)
        queries.append(writer.trigger(processingTime="0 seconds").start())
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main()
