"""Records sent at a rate by an idempotent producer, and the figures of its progress."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from roster.model import parse_addresses
from roster.records.produce import KafkaOutput, KafkaWriter, WriteError
from roster.wire.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from roster.cli.options import Target

DELIVERY_TIMEOUT_S = 300
_SLICE_S = 0.02
MOST_BEHIND_S = 1.0
RECORD_OVERHEAD = 128
"""Bytes that a batch of one record has besides key and value, and some to spare."""
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own `max.message.bytes`."""
_MOST_BATCH_BYTES = 900_000
_STICKY_BYTES = 16 << 10
"""Bytes without a key that go to one partition before the next: `batch.size` of Kafka's Java client."""
_LEAST_BUFFER = 64 << 20


@dataclass(slots=True)
class Tally:
    """Progress of a load of `total` records: those sent, and those acknowledged by the broker.

    `trouble` is why records are not acknowledged while the producer retries; "" if all is well.
    `failure` is why it gave up; "" if it did not.
    """

    total: int = 0
    sent: int = 0
    acknowledged: int = 0
    failure: str = ""
    trouble: str = ""
    started: float = field(default_factory=time.monotonic)
    lost_s: float = 0.0
    """Seconds in which the rate was not kept, as with a broker away or a stopped process."""

    @property
    def failed(self) -> int:
        """Records that will not, or may not, arrive."""
        return self.total - self.acknowledged if self.failure else 0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def rate(self) -> float:
        """Records acknowledged a second."""
        return self.acknowledged / max(self.seconds, 1e-9)


class Producer:
    """Sends records to one topic, and retries while the broker is away."""

    def __init__(
        self,
        target: Target,
        topic: str,
        tally: Tally,
        on_progress: Callable[[Tally], None],
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        """`on_progress` is called some ten times a second or more; `max_message_bytes` is the topic's setting."""
        self._tally, self._on_progress = tally, on_progress
        writer = KafkaWriter(
            tuple(parse_addresses(target.bootstrap)),
            topic,
            client_id=target.client_id,
            compression=Compression.LZ4,
            batch_bytes=max(1, min(_MOST_BATCH_BYTES, max_message_bytes - RECORD_OVERHEAD)),
            sticky_bytes=_STICKY_BYTES,
            memory_bytes=max(_LEAST_BUFFER, 2 * max_message_bytes),
            timeout=DELIVERY_TIMEOUT_S,
            security=target.security,
        )
        self._output: KafkaOutput = writer.open(self._report)

    def send(self, batches: Iterable[pa.RecordBatch], rate: float | None) -> None:
        """Send every record, at most `rate` a second, and wait until each is acknowledged.

        A broker that is away is waited for, up to DELIVERY_TIMEOUT_S without an acknowledgement. What cannot be sent
        ends it, with the reason in the tally.
        """
        slice_size = max(1, int(rate * _SLICE_S)) if rate else None
        try:
            for records in batches:
                step = slice_size or max(1, records.num_rows)
                for start in range(0, records.num_rows, step):
                    part = records.slice(start, step)
                    self._tally.sent += part.num_rows
                    self._output.write(part)
                    if rate:
                        self._output.flush()
                        self._wait_for_rate(rate)
                    self._report()
            self._output.close()
            self._report()
        except WriteError as error:
            self._tally.acknowledged, self._tally.failure = self._output.acknowledged, error.reason
            self.abort()

    def abort(self) -> None:
        """Drop unacknowledged records."""
        self._output.abort()

    def _report(self) -> None:
        self._tally.acknowledged, self._tally.trouble = self._output.acknowledged, self._output.problem
        self._on_progress(self._tally)

    def _wait_for_rate(self, rate: float) -> None:
        """Wait to keep the rate; time lost beyond MOST_BEHIND_S is not made up by sending faster."""
        tally = self._tally
        tally.lost_s = max(tally.lost_s, tally.seconds - tally.sent / rate - MOST_BEHIND_S)
        while (ahead := tally.sent / rate + tally.lost_s - tally.seconds) > 0:
            self._output.poll(min(ahead, 0.1))
            self._report()
