"""An idempotent producer that sends at a rate and counts every delivery report, failures by reason."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from roster.cli.errors import Failure, one_line
from roster.security.librdkafka import librdkafka_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from roster.cli.load.source import Records
    from roster.cli.options import Target

DELIVERY_TIMEOUT_S = 300
_SLICE_S = 0.02
MOST_BEHIND_S = 1.0
_REFUSED = re.compile(r"encountered error: (.*?) \(actions ")
"""How librdkafka's debug context `msg` reports a produce request that it is going to send again."""
RECORD_OVERHEAD = 128
"""Bytes that a batch of one record has besides key and value, and some to spare."""
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own `max.message.bytes`."""
_LEAST_BUFFER_KB = 64 * 1024


@dataclass(slots=True)
class Tally:
    """Progress of a load: records sent, acknowledged by the broker, and failed by reason.

    `trouble` is the last error since a record was acknowledged, while the producer goes on trying; "" if there is none.
    """

    sent: int = 0
    acknowledged: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    trouble: str = ""
    started: float = field(default_factory=time.monotonic)
    lost_s: float = 0.0
    """Seconds in which the rate could not be kept, as with a broker away or a process that was stopped."""

    @property
    def failed(self) -> int:
        """Records that will not arrive."""
        return self.failures.total()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started


class _Trouble(logging.Handler):
    """Reads the errors that librdkafka retries from its log; no callback has them."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def emit(self, record: logging.LogRecord) -> None:
        found = _REFUSED.search(record.getMessage())
        if found:
            self._tally.trouble = found[1]


def open_producer(
    target: Target, tally: Tally | None = None, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
) -> Producer:
    """Open an idempotent producer that keeps trying while the broker is away.

    Args:
        target: the cluster.
        tally: gets errors while the producer keeps trying.
        max_message_bytes: the topic's `max.message.bytes`.

    """
    seen = Tally() if tally is None else tally
    log = logging.Logger("roster.load", logging.DEBUG)
    log.addHandler(_Trouble(seen))

    def on_error(error: KafkaError) -> None:
        seen.trouble = error.str()

    return Producer(
        {
            **librdkafka_settings(target.security),
            "debug": "msg",
            "error_cb": on_error,
            "message.max.bytes": max(1000, max_message_bytes),
            "bootstrap.servers": target.bootstrap,
            "client.id": "roster-load",
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            "linger.ms": 20,
            "message.timeout.ms": DELIVERY_TIMEOUT_S * 1000,
            "queue.buffering.max.kbytes": max(_LEAST_BUFFER_KB, 2 * max_message_bytes // 1024),
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.refresh.fast.interval.ms": 100,
        },
        logger=log,
    )


def send(
    producer: Producer,
    topic: str,
    batches: Iterable[Records],
    rate: float | None,
    tally: Tally,
    on_progress: Callable[[Tally], None],
) -> None:
    """Send every record, at most `rate` a second, and wait until each is acknowledged or has failed.

    A broker that is away is waited for, up to DELIVERY_TIMEOUT_S a record. `on_progress` is called some ten times a
    second or more.

    Raises:
        Failure: the producer is beyond repair (its sequence was refused); nothing more can be sent.

    """

    def delivered(error: Any, _message: object) -> None:
        if error is None:
            tally.acknowledged += 1
            tally.trouble = ""
        else:
            tally.failures[error.str()] += 1
            if error.fatal():
                raise Failure(f"the broker refused the producer for good: {error.str()}")

    slice_size = max(1, int(rate * _SLICE_S)) if rate else 2000
    for records in batches:
        for start in range(0, len(records.values), slice_size):
            stop = start + slice_size
            for key, value in zip(records.keys[start:stop], records.values[start:stop], strict=True):
                _produce(producer, topic, key, value, delivered, tally, on_progress)
            producer.poll(0)
            on_progress(tally)
            _wait_for_turn(producer, rate, tally, on_progress)
    while producer.flush(0.1):
        on_progress(tally)


def _produce(
    producer: Producer,
    topic: str,
    key: bytes | None,
    value: bytes,
    delivered: Callable[[Any, object], None],
    tally: Tally,
    on_progress: Callable[[Tally], None],
) -> None:
    tally.sent += 1
    while True:
        try:
            producer.produce(topic, value=value, key=key, on_delivery=delivered)
        except BufferError:
            producer.poll(0.1)
            on_progress(tally)
        except KafkaException as error:
            tally.failures[one_line(error)] += 1
            return
        else:
            return


def _wait_for_turn(producer: Producer, rate: float | None, tally: Tally, on_progress: Callable[[Tally], None]) -> None:
    """Keep to the rate; time lost beyond MOST_BEHIND_S is not made up for by sending faster."""
    if rate:
        tally.lost_s = max(tally.lost_s, tally.seconds - tally.sent / rate - MOST_BEHIND_S)
    while rate and (ahead := tally.sent / rate + tally.lost_s - tally.seconds) > 0:
        producer.poll(min(ahead, 0.1))
        on_progress(tally)
