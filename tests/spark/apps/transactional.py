"""The driver of an exactly-once pipeline to Kafka as a process that starts in a second: its tasks run in the process.

    transactional.py BOOTSTRAP GROUP TOPIC OUT SESSION_TIMEOUT_MS OPEN_SECONDS [writes|paused]

With the last word it can be switched, and begins so. Each transaction stays open for up to OPEN_SECONDS, so that a
kill finds one. SIGTERM ends it in order.
"""

from __future__ import annotations

import logging
import pickle
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from roster.client import Admin
from roster.pipeline.batch_sink import Source
from roster.pipeline.driver.loop import DriverLoop
from roster.pipeline.driver.members import group_member
from roster.pipeline.driver.runner_protocol import Outcome, Refused
from roster.pipeline.driver.switching import Switching
from roster.pipeline.options import Options
from roster.pipeline.tasks.reader import ReaderConfig, ReadTask
from roster.pipeline.tasks.writer import written
from roster.records.native import compiled
from roster.spark import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roster.pipeline.batch import Batch, Split
    from roster.pipeline.batch_sink import BatchSink


_COLUMNS = {"key": BinaryType(), "value": BinaryType(), "topic": StringType(), "partition": IntegerType()}
_ROWS = StructType([StructField(name, kind) for name, kind in _COLUMNS.items()])


class InProcess:
    """Runs the tasks that Spark would run, one after the other."""

    whole_partitions = False
    takes_arrivals = True
    most_offsets: int | None = None

    cores = 2

    def __init__(self, config: ReaderConfig, open_seconds: float) -> None:
        self._config, self._open_seconds = config, open_seconds

    def run(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: BatchSink, refused: Refused = ()) -> Outcome:
        writer: Any = sink.task_writer(batch, _ROWS)
        results = []
        for task in range(len(tasks)):
            read = ReadTask(self._config, tasks).read([task])
            results.append(pickle.loads(pickle.dumps(written(writer, read))))
        kept = sink.collect(writer, results, batch)
        time.sleep(random.uniform(0, self._open_seconds))
        return Outcome(kept, rows=batch.offsets)

    def find_stores(self) -> None:
        pass

    def restore(self, seconds: float) -> bool:
        return False

    def settle(self) -> None:
        pass

    def cancel(self) -> None:
        """Tasks are short."""

    def check(self) -> None:
        pass

    def activity(self) -> object:
        return time.monotonic()


def main() -> None:
    bootstrap, group, topic, out, session_timeout_ms, open_seconds, *begins = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    options = Options(
        spark=None,
        bootstrap=bootstrap,
        group=group,
        topics=(topic,),
        max_offsets_per_batch=300,
        consumer={
            "session.timeout.ms": int(session_timeout_ms),
            "heartbeat.interval.ms": 200,
            "request.timeout.ms": 10_000,
            "max.poll.interval.ms": 20_000,
        },
        trigger_interval_ms=0,
    )
    config = ReaderConfig(bootstrap=bootstrap, group=group, compiled=compiled())
    sink = KafkaSink(bootstrap, out, exactly_once=True, options={"transaction.timeout.ms": 60_000})
    sink.open(None, group)  # type: ignore[arg-type]
    source, admin = Source(bootstrap=bootstrap, group=group, request_timeout_ms=10_000), Admin(bootstrap)
    switching = Switching(group, admin, paused=begins == ["paused"], keeps_state=False) if begins else None
    bound = sink.bind(source)
    member = group_member(options)
    loop = DriverLoop(member, InProcess(config, float(open_seconds)), bound, options, switching=switching)
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    member.start(60)
    try:
        loop.run(available_now=False)
    finally:
        sink.close()
        member.close()
        admin.close()


if __name__ == "__main__":
    main()
