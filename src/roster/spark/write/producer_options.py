"""Producer settings by the names of Kafka's clients, as far as the writer inside the tasks has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roster.spark.errors import PipelineError
from roster.wire.compression import Compression

_FIELD = "KafkaSink"


def _number(least: int, most: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        number = int(value) if isinstance(value, str) else value
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise ValueError(f"must be a number from {least} to {most}")
        return number

    return parse


def _seconds(least: int, most: int) -> Callable[[Any], float]:
    number = _number(least, most)
    return lambda value: number(value) / 1000


def _compression(value: Any) -> Compression:
    try:
        return Compression[str(value).upper()]
    except KeyError:
        raise ValueError(f"must be one of {', '.join(kind.name.lower() for kind in Compression)}") from None


def _one_of(*allowed: str) -> Callable[[Any], None]:
    def parse(value: Any) -> None:
        if str(value).lower() not in allowed:
            raise ValueError(f"must be {' or '.join(allowed)}")

    return parse


_INT32_MAX = 2**31 - 1
_OPTIONS: dict[str, tuple[str | None, Callable[[Any], Any]]] = {
    "client.id": ("client_id", str),
    "compression.type": ("compression", _compression),
    "compression.codec": ("compression", _compression),
    "batch.size": ("batch_bytes", _number(1, 1 << 30)),
    "max.request.size": ("request_bytes", _number(1000, 1 << 30)),
    "message.max.bytes": ("request_bytes", _number(1000, 1 << 30)),
    "buffer.memory": ("memory_bytes", _number(1 << 20, 1 << 40)),
    "queue.buffering.max.kbytes": ("memory_bytes", lambda value: _number(1 << 10, 1 << 30)(value) << 10),
    "delivery.timeout.ms": ("timeout", _seconds(1, _INT32_MAX)),
    "message.timeout.ms": ("timeout", _seconds(1, _INT32_MAX)),
    "request.timeout.ms": ("request_timeout", _seconds(1, 900_000)),
    # What cannot be otherwise, and what has no meaning where tasks send full batches and wait for all of them.
    "acks": (None, _one_of("all", "-1")),
    "enable.idempotence": (None, _one_of("true")),
    "partitioner": (None, _one_of("murmur2_random", "default")),
    "linger.ms": (None, str),
    "retries": (None, str),
    "retry.backoff.ms": (None, str),
}
"""Names of Java's client and of librdkafka, the writer's field (None: no effect), and what checks a value."""


def parse_producer_options(options: Mapping[str, str | int | bool]) -> dict[str, Any]:
    """Return fields of a `KafkaWriter`. Raise PipelineError for a setting that is unknown or cannot be."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _OPTIONS:
            raise PipelineError(
                f"{name!r} is no setting of this sink", field=_FIELD, fix=f"Use some of {', '.join(_OPTIONS)}"
            )
        field, parse = _OPTIONS[name]
        try:
            parsed = parse(value)
        except ValueError as error:
            problem = str(error) if "must" in str(error) else "must be a number"
            raise PipelineError(f"{name} {problem}, not {value!r}", field=_FIELD) from None
        if field is not None:
            found[field] = parsed
    if "request_bytes" in found:
        found["batch_bytes"] = min(found.get("batch_bytes", found["request_bytes"]), found["request_bytes"])
    return found
