"""A stateful pipeline as an application of its own, on a cluster: how many records each partition has.

    totals_app.py BOOTSTRAP GROUP TOPIC OUT MASTER

Reads all that is there and prints what each batch restored, as JSON objects.
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa


def main() -> None:
    from roster.spark import KafkaSink, Pipeline, session

    bootstrap, group, topic, out, master = sys.argv[1:]

    # Pickled by value: executors of another process have no module of this file's name.
    def partitions(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select(["partition"])

    spark = session(group, master, spark_executor_memory="512m", spark_locality_wait="60s")
    spark.sparkContext.setLogLevel("ERROR")
    Pipeline(
        spark,
        bootstrap,
        group,
        topic,
        max_offsets_per_batch=400,
        trigger_interval_ms=0,
        on_progress=lambda p: print(json.dumps({"done": p.batch, "restored": p.restored}), flush=True),
    ).map_arrow(partitions, "partition int").aggregate("partition", {"n": "count(*)"}).write(
        KafkaSink(bootstrap, out)
    ).run(available_now=True)
    print(json.dumps({"end": True}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
