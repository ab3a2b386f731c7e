"""An application whose tasks write to a database from Python workers of their own, until it is told to end.

database.py BOOTSTRAP GROUP TOPIC URL MODE
"""

from __future__ import annotations

import sys

from roster.spark import Pipeline, PostgresSink, session


def main() -> None:
    bootstrap, group, topic, url, mode = sys.argv[1:]
    spark = session("database", "local[2,4]", spark_driver_memory="512m")
    pipeline = Pipeline(
        spark,
        bootstrap,
        group,
        topic,
        max_offsets_per_batch=2_000,
        trigger_interval_ms=0,
        consumer={"session.timeout.ms": 3_000, "heartbeat.interval.ms": 300, "request.timeout.ms": 15_000},
    )
    # A function in Python: then the tasks read small batches too.
    pipeline.json_columns("id int, n long").map_arrow(lambda rows: rows, "id int, n long")
    upserts = {"mode": "upsert", "keys": "id"} if mode == "upsert" else {}
    pipeline.write(PostgresSink(url, "results", **upserts)).run()


if __name__ == "__main__":
    main()
