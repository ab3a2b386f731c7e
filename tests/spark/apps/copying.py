"""A pipeline as an application of its own: the tests start it, hold it mid-batch, pause it and kill it.

    copying.py BOOTSTRAP GROUP TOPIC OUT [--hold FILE] [--most N] [--available-now] [--master URL]
        [--small | --dataframe [--state FOLDER]]

Prints one JSON object a line: {"batch": …} when a batch starts, {"done": …} when it counts, {"end": …} at the end.
Tasks wait as long as FILE exists, and write their process id to FILE.held meanwhile. With --small the staying worker
does the batches in the place of Spark's tasks; it says no {"batch": …}. With --dataframe it is
Structured Streaming code, which says {"done": …} by a listener; with --state it leaves out repetitions, of which there
are none, and so knows all records.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from itertools import count
from typing import Any

import pyarrow as pa


def run_dataframe(spark: Any, arguments: argparse.Namespace, function: Any, say: Any) -> None:
    """Run the same as Structured Streaming code, until it is killed."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from roster.spark import read_stream, write_stream

    class Told(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...
        def onQueryTerminated(self, event: Any) -> None: ...
        def onQueryProgress(self, event: Any) -> None:
            say(done=event.progress.batchId, rows=event.progress.numInputRows)

    spark.streams.addListener(Told())
    options = {
        "kafka.bootstrap.servers": arguments.bootstrap,
        "subscribe": arguments.topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": arguments.most,
        "kafka.session.timeout.ms": arguments.session_timeout_ms,
        "kafka.heartbeat.interval.ms": 500,
        **({"roster.state.dir": arguments.state} if arguments.state else {}),
    }
    frame = read_stream(spark).options(**options).load()
    rows = frame.mapInArrow(lambda batches: map(function, batches), "partition int, offset long, value binary")
    if arguments.state:
        rows = rows.dropDuplicates(["partition", "offset"])
    query = write_stream(rows).queryName(arguments.group).trigger(processingTime="0 seconds").start(arguments.out)
    query.awaitTermination()


def main() -> None:
    from roster.pipeline.options import Tuning
    from roster.spark import ParquetSink, Pipeline, session

    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "group", "topic", "out"):
        parser.add_argument(name)
    parser.add_argument("--hold", default="")
    parser.add_argument("--most", type=int, default=1000)
    parser.add_argument("--available-now", action="store_true")
    parser.add_argument("--master", default="local[1]")
    parser.add_argument("--session-timeout-ms", type=int, default=10_000)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--dataframe", action="store_true")
    parser.add_argument("--state", default="")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    hold = arguments.hold

    # Pickled by value: executors of another process have no module of this file's name.
    def wait_while_held(rows: pa.RecordBatch) -> pa.RecordBatch:
        while hold and os.path.exists(hold):  # noqa: PTH110
            with open(f"{hold}.held", "w") as mark:  # noqa: PTH123
                mark.write(str(os.getpid()))
            time.sleep(0.05)
        return rows.select(["partition", "offset", "value"])

    def say(**what: Any) -> None:
        print(json.dumps(what), flush=True)

    frames = count()

    def announce(df: Any) -> Any:
        if next(frames) > 0:  # the first is that of the warm-up
            say(batch=True)
        return df

    spark = session(
        arguments.group,
        arguments.master,
        spark_sql_shuffle_partitions=1,
        spark_driver_memory="512m",
        spark_executor_memory="512m",
        spark_executor_cores=1,
        # Tasks run in workers as any application has them: nothing is loaded before.
        **({} if arguments.small else {"spark.python.daemon.module": "pyspark.daemon"}),
    )
    spark.sparkContext.setLogLevel("ERROR")
    if arguments.dataframe:
        run_dataframe(spark, arguments, wait_while_held, say)
        return
    Pipeline._tuning = Tuning() if arguments.small else Tuning(small_batch_offsets=0)
    pipeline = Pipeline(
        spark,
        arguments.bootstrap,
        arguments.group,
        [arguments.topic],
        max_offsets_per_batch=arguments.most,
        consumer={"session.timeout.ms": arguments.session_timeout_ms, "heartbeat.interval.ms": 500},
        trigger_interval_ms=0,
        on_progress=lambda p: say(done=p.batch, rows=p.rows, lag=p.total_lag, generation=p.generation),
    ).map_arrow(wait_while_held, "partition int, offset long, value binary")
    if not arguments.small:
        pipeline.transform(announce)
    pipeline.write(ParquetSink(arguments.out)).run(available_now=arguments.available_now)
    say(end=True)
    spark.stop()


if __name__ == "__main__":
    main()
