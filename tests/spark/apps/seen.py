"""Pipelines in a session with Spark's UI, and what Spark's own places show of them.

    seen.py BOOTSTRAP TOPIC

Prints one JSON object: the events that a Python listener heard, the page of the Structured Streaming tab and the one of
the query that ended, and the gauges of Spark's metrics.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from datetime import timedelta
from typing import Any
from urllib.request import urlopen

from pyspark.sql.streaming.listener import StreamingQueryListener


class Heard(StreamingQueryListener):
    def __init__(self) -> None:
        self.events: list[list[Any]] = []

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(["started", str(event.runId), event.name, event.timestamp])

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(["progress", str(event.progress.runId), json.loads(event.progress.json)])

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(["terminated", str(event.runId), event.exception])


def main() -> None:
    from roster.spark import KafkaSink, Pipeline, Window, session

    bootstrap, topic = sys.argv[1:]
    settings = {"spark.ui.enabled": True, "spark.ui.port": 0, "spark.sql.streaming.ui.enabled": True}
    spark = session("seen", "local[1]", spark_sql_shuffle_partitions=1, **settings)
    spark.sparkContext.setLogLevel("ERROR")
    heard = Heard()
    spark.streams.addListener(heard)
    rows = []

    def pipeline(group: str, function: Any, **options: Any) -> Pipeline:
        made = Pipeline(spark, bootstrap, group, [topic], max_offsets_per_batch=40, on_progress=rows.append, **options)
        return made.foreach_batch(function)

    def fail(df: Any, batch: Any) -> None:
        raise ValueError("no such column")

    pipeline("seen.good", lambda df, batch: df.count()).run(available_now=True)
    with contextlib.suppress(ValueError):
        pipeline("bad", fail).run(available_now=True)
    counted = Pipeline(spark, bootstrap, f"windows-{topic}", [topic], on_progress=rows.append, max_offsets_per_batch=40)
    counted.aggregate("key", {"n": "count(*)"}, window=Window("timestamp", timedelta(hours=1)), store="counts")
    counted.write(KafkaSink(bootstrap, f"{topic}-results")).run(available_now=True)
    while sum(event[0] == "terminated" for event in heard.events) < 3:
        time.sleep(0.01)  # the bus tells listeners in a thread of its own
    address = spark.sparkContext.uiWebUrl

    def fetched(path: str) -> str:
        with urlopen(f"{address}{path}", timeout=60) as answer:
            return answer.read().decode()

    run, stateful = heard.events[0][1], next(event[1] for event in heard.events if event[2] == f"windows-{topic}")
    tab = fetched("/StreamingQuery/")
    page = fetched(f"/StreamingQuery/statistics/?id={run}")
    state_page = fetched(f"/StreamingQuery/statistics/?id={stateful}")
    gauges = {
        name.partition("AccumulatorSource.")[2]: found["value"]
        for name, found in json.loads(fetched("/metrics/json/"))["gauges"].items()
        if "AccumulatorSource" in name
    }
    progress = [json.loads(each.to_json()) for each in rows]
    pages = {"tab": tab, "page": page, "state page": state_page}
    print(json.dumps({"heard": heard.events, **pages, "gauges": gauges, "progress": progress}))
    spark.stop()


if __name__ == "__main__":
    main()
