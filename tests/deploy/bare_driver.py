"""The loop of a driver without Spark: it writes the numbers of a topic to a sink, and may be frozen at a step."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from roster.client import FencedInstanceError
from roster.pipeline.batch import Batch, Split
from roster.pipeline.batch_sink import BatchSink, Source
from roster.pipeline.driver.loop import DriverLoop
from roster.pipeline.driver.members import group_member
from roster.pipeline.driver.runner_protocol import Outcome, Refused
from roster.pipeline.options import Options
from roster.pipeline.tasks.writer import TaskWriter, written
from roster.spark import DeltaSink, IcebergSink, KafkaSink, ParquetSink, PostgresSink
from tests.deploy.frozen_driver import STEPS, freeze_at

NUMBERS, RESULTS, REPLACED = "numbers", "results", 3
OF_KAFKA = StructType([StructField("value", BinaryType())])
OF_TABLES = StructType([StructField("number", LongType())])
SESSION: Any = SimpleNamespace(
    version="4.3.0",
    conf={"spark.sql.parquet.compression.codec": "snappy", "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"},
)
"""What a sink asks of Spark."""


def catalog(folder: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


def sink_of(kind: str, bootstrap: str, place: str) -> BatchSink:
    """The sink, into a topic, folder, table or database."""
    if kind == "kafka":
        return KafkaSink(bootstrap, RESULTS)
    if kind == "iceberg":
        return IcebergSink("fence.numbers", catalog(place))
    if kind == "postgres":
        return PostgresSink(place, "numbers")
    return {"parquet": ParquetSink, "delta": DeltaSink}[kind](place)


class BareRunner:
    """Reads and writes in the driver."""

    whole_partitions, cores, takes_arrivals, most_offsets = False, 2, False, 10_000

    def __init__(self, bootstrap: str, schema: StructType) -> None:
        self._schema = schema
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads", "enable.auto.commit": False})

    def run(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: BatchSink, refused: Refused = ()) -> Outcome:
        sink.begin(batch)
        writer = sink.task_writer(batch, self._schema)
        assert isinstance(writer, TaskWriter)
        results = [written(writer, self._rows(splits)) for splits in tasks]
        return Outcome(rows=0, written=sink.collect(writer, results, batch))

    def _rows(self, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
        for topic, partition, start, end in splits:
            self._consumer.assign([TopicPartition(topic, partition, start)])
            values: list[bytes] = []
            while len(values) < end - start:
                for message in self._consumer.consume(end - start - len(values), 1.0):
                    assert message.error() is None, message.error()
                    values.append(message.value() or b"")
            column = pa.array(values if self._schema is OF_KAFKA else list(map(int, values)))
            yield pa.RecordBatch.from_arrays([column], [self._schema.names[0]])

    def restore(self, seconds: float) -> bool:
        return False

    def cancel(self) -> None:
        pass

    def check(self) -> None:
        pass

    def activity(self) -> object:
        return time.monotonic()


def drive(
    kind: str,
    bootstrap: str,
    place: str,
    step: int | None,
    freeze: str,
    log: str,
    name: str = "bare-0",
    group: str = "bare",
    topic: str = NUMBERS,
) -> None:
    """Run until it is replaced or gets SIGTERM; a process of its own, in its own process group."""
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if step is not None:
        freeze_at(STEPS[kind][step], Path(freeze))
    options = Options(
        None,  # type: ignore[arg-type]  # no session
        bootstrap=bootstrap,
        group=group,
        topics=(topic,),
        consumer={"group.instance.id": name},
        trigger_interval_ms=50,
        starting_offsets="earliest",
    )
    with closing(sink_of(kind, bootstrap, place)) as sink:
        sink.open(SESSION, options.group)
        bound = sink.bind(Source(bootstrap, options.group, options.settings.group_instance_id))
        runner: Any = BareRunner(bootstrap, OF_KAFKA if kind == "kafka" else OF_TABLES)
        try:
            with closing(group_member(options)) as member:
                loop = DriverLoop(member, runner, bound, options)
                signal.signal(signal.SIGTERM, lambda *_: loop.stop())
                member.start()
                loop.run(available_now=False)
        except FencedInstanceError as error:
            print(f"this driver has been replaced: {error}", file=sys.stderr, flush=True)
            sys.exit(REPLACED)
