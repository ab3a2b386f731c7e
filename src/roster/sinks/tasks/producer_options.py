"""Producer settings, by their names in Kafka's clients, that the writer inside the tasks supports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roster.pipeline.tasks.client_settings import INT32, Table, number, one_of, parse_settings, seconds
from roster.wire.compression import Compression

_FIELD = "KafkaSink"


def _compression(value: Any) -> Compression:
    try:
        return Compression[str(value).upper()]
    except KeyError:
        raise ValueError(f"must be one of {', '.join(kind.name.lower() for kind in Compression)}") from None


_OPTIONS: Table = {
    "client.id": ("client_id", str),
    "compression.type": ("compression", _compression),
    "compression.codec": ("compression", _compression),
    "batch.size": ("batch_bytes", number(1, 1 << 30)),
    "max.request.size": ("request_bytes", number(1000, 1 << 30)),
    "message.max.bytes": ("request_bytes", number(1000, 1 << 30)),
    "buffer.memory": ("memory_bytes", number(1 << 20, 1 << 40)),
    "queue.buffering.max.kbytes": ("memory_bytes", lambda value: number(1 << 10, 1 << 30)(value) << 10),
    "delivery.timeout.ms": ("timeout", seconds(1, INT32)),
    "message.timeout.ms": ("timeout", seconds(1, INT32)),
    "request.timeout.ms": ("request_timeout", seconds(1, 900_000)),
    "transaction.timeout.ms": ("transaction_timeout_ms", number(1, INT32)),
    # Settings with one possible value, and those without meaning for tasks that send full batches and wait for all.
    "acks": (None, one_of("all", "-1")),
    "enable.idempotence": (None, one_of("true")),
    "partitioner": (None, one_of("murmur2_random", "default")),
    "linger.ms": (None, str),
    "retries": (None, str),
    "retry.backoff.ms": (None, str),
}
"""{name in Java's client or librdkafka: (the writer's field, None without effect; check of its value)}."""


def parse_producer_options(options: Mapping[str, str | int | bool]) -> dict[str, Any]:
    """Return fields of a `KafkaWriter`, and `transaction_timeout_ms` if given.

    Raises PipelineError for an unknown or unsupported setting.
    """
    found = parse_settings(options, _OPTIONS, _FIELD)
    if "request_bytes" in found:
        found["batch_bytes"] = min(found.get("batch_bytes", found["request_bytes"]), found["request_bytes"])
    return found
