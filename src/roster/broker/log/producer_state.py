"""State of idempotent producers: the last batches of each in a partition (KIP-98, KIP-360)."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from roster.wire import ErrorCode
from roster.wire.records import NO_PRODUCER

if TYPE_CHECKING:
    from roster.wire.records import BatchHeader

REMEMBERED_BATCHES = 5
"""Batches a producer may have in flight, and so the oldest retry that can arrive (Kafka's number)."""
HIGHEST_GIVEN_ID = (1 << 62) - 1
"""Higher producer ids are a client's invention: a broker that counts up never reaches them."""
_SEQUENCES = 1 << 31
_ENTRY = struct.Struct(">qhqi")
_BATCH = struct.Struct(">iiqq")


class SequenceError(Exception):
    """A batch that does not follow what its producer wrote before; `code` is the answer for the client."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class WrittenBatch(NamedTuple):
    """A batch of a producer that is in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    last_seen_ms: int = -1
    batches: deque[WrittenBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


def last_sequence(header: BatchHeader) -> int:
    """The sequence number of a batch's last record; they wrap after 2^31 - 1."""
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES


class ProducerTable:
    """The producers of one partition."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def highest_id(self) -> int:
        """The highest producer id a broker can have issued, or -1."""
        return max((p for p in self._producers if p <= HIGHEST_GIVEN_ID), default=NO_PRODUCER)

    def check(self, header: BatchHeader) -> WrittenBatch | None:
        """Return the batch in the log that this one repeats, None if it is new; SequenceError if it may not be written.

        A producer this partition has never seen may begin with any sequence: its earlier batches can have expired.
        """
        known = self._producers.get(header.producer_id)
        if known is None:
            return None
        if header.producer_epoch < known.epoch:
            raise SequenceError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {known.epoch}, the batch {header.producer_epoch}",
            )
        if header.producer_epoch > known.epoch:
            if header.base_sequence != 0:
                raise SequenceError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} begins epoch {header.producer_epoch} at {header.base_sequence}",
                )
            return None
        last = last_sequence(header)
        for batch in known.batches:
            if batch.first_sequence == header.base_sequence and batch.last_sequence == last:
                return batch
        expected = (known.batches[-1].last_sequence + 1) % _SEQUENCES if known.batches else 0
        if header.base_sequence != expected:
            raise SequenceError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}",
            )
        return None

    def add(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Remember a batch written at an offset; `now_ms` is the wall clock: the records' own time may be history."""
        known = self._producers.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            known = self._producers[header.producer_id] = _Producer(header.producer_epoch)
        known.last_seen_ms = now_ms
        known.batches.append(
            WrittenBatch(
                header.base_sequence, last_sequence(header), base_offset, base_offset + header.last_offset_delta
            )
        )

    def expire(self, before_ms: int) -> None:
        """Forget the producers that wrote nothing since a wall-clock time."""
        for producer_id in [p for p, known in self._producers.items() if known.last_seen_ms < before_ms]:
            del self._producers[producer_id]

    def encode(self) -> bytes:
        """The whole table as bytes, for a segment's sidecar."""
        parts = [struct.pack(">i", len(self._producers))]
        for producer_id, known in self._producers.items():
            parts.append(_ENTRY.pack(producer_id, known.epoch, known.last_seen_ms, len(known.batches)))
            parts.extend(_BATCH.pack(*batch) for batch in known.batches)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> ProducerTable:
        """Read what `encode` wrote; raise struct.error for anything else."""
        table = cls()
        (count,) = struct.unpack_from(">i", data)
        position = 4
        for _ in range(count):
            producer_id, epoch, last_seen_ms, batches = _ENTRY.unpack_from(data, position)
            position += _ENTRY.size
            known = table._producers[producer_id] = _Producer(epoch, last_seen_ms)
            for _ in range(batches):
                known.batches.append(WrittenBatch(*_BATCH.unpack_from(data, position)))
                position += _BATCH.size
        return table
