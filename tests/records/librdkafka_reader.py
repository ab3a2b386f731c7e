"""The same ranges read through librdkafka's consumer: the oracle of the tests, the peer of `benchmarks/fetch.py`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROWS_PER_BATCH = 16_000
_LOG_APPEND_TIME = 2  # librdkafka's number; Kafka's is 1


def consumed(
    bootstrap: str,
    ranges: Sequence[tuple[str, int, int, int]],
    *,
    isolation_level: str = "read_uncommitted",
    headers: bool = True,
    seconds: float = 60.0,
) -> Iterator[pa.RecordBatch]:
    """Record batches of all ranges (topic, partition, start, end), with the columns of Roster's reader."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "librdkafka-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation_level,
            "check.crcs": True,
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 5,
            "log_level": 2,
        }
    )
    try:
        yield from _batches(consumer, ranges, headers, seconds)
    finally:
        consumer.close()


def _batches(
    consumer: Consumer, ranges: Sequence[tuple[str, int, int, int]], headers: bool, seconds: float
) -> Iterator[pa.RecordBatch]:
    open_ranges = {(topic, partition): (start, end) for topic, partition, start, end in ranges}
    consumer.assign([TopicPartition(*key, start) for key, (start, _) in open_ranges.items()])
    held: list[Any] = []
    last = time.monotonic()
    while open_ranges:
        for message in consumer.consume(2000, 0.02):
            last = time.monotonic()
            key, error = (message.topic(), message.partition()), message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise AssertionError(f"{key}: {error.str()}")
            if key not in open_ranges:
                continue
            end = open_ranges[key][1]
            if error is None and message.offset() < end:
                held.append(message)
            if message.offset() >= (end - 1 if error is None else end):
                del open_ranges[key]
                consumer.incremental_unassign([TopicPartition(*key)])
        assert time.monotonic() - last < seconds, f"no record of {open_ranges}"
        if len(held) >= ROWS_PER_BATCH:
            yield _columns(held, headers)
            held = []
    if held:
        yield _columns(held, headers)


def _columns(messages: list[Any], headers: bool) -> pa.RecordBatch:
    stamps = [message.timestamp() for message in messages]
    columns = {
        "key": pa.array([message.key() for message in messages], pa.binary()),
        "value": pa.array([message.value() for message in messages], pa.binary()),
        "topic": pa.array([message.topic() for message in messages], pa.string()),
        "partition": pa.array([message.partition() for message in messages], pa.int32()),
        "offset": pa.array([message.offset() for message in messages], pa.int64()),
        "timestamp": pa.array([at * 1000 for _, at in stamps], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([int(kind == _LOG_APPEND_TIME) for kind, _ in stamps], pa.int32()),
    }
    if headers:
        found = [message.headers() for message in messages]
        columns["headers"] = pa.array([h and [{"key": k, "value": v} for k, v in h] for h in found], HEADERS)
    return pa.RecordBatch.from_pydict(columns)
