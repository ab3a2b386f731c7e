"""A stateful pipeline as an application of its own, on a cluster: how many records each partition has.

    totals.py BOOTSTRAP GROUP TOPIC OUT MASTER SERVER

Reads all that is there and prints for each batch its rows, what was restored, and the state as it is asked for here and
at SERVER over HTTP, as JSON objects.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.spark.apps.standalone import session_on

if TYPE_CHECKING:
    from roster.spark import Progress


def main() -> None:
    from roster.spark import KafkaSink, Pipeline, State

    bootstrap, group, topic, out, master, server = sys.argv[1:]

    # Pickled by value: executors of another process have no module of this file's name.
    def partitions(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select(["partition"])

    def tell(progress: Progress) -> None:
        rows = made.store("totals").range()
        with urllib.request.urlopen(f"http://{server}/stores/totals/range", timeout=120) as response:
            asked = json.load(response)["rows"]
        told = {"rows": progress.rows, "restored": progress.restored, "state": rows, "asked": asked}
        print(json.dumps(told), flush=True)

    spark = session_on(master, group)
    made = Pipeline(
        spark,
        bootstrap,
        group,
        topic,
        max_offsets_per_batch=400,
        trigger_interval_ms=0,
        state=State(application_server=server),
        on_progress=tell,
    )
    made.map_arrow(partitions, "partition int").aggregate("partition", {"n": "count(*)"}, store="totals")
    made.write(KafkaSink(bootstrap, out)).run(available_now=True)
    print(json.dumps({"end": True}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
