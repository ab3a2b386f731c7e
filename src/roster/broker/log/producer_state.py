"""State of producers in a partition: the last batches of each, and the transactions (KIP-98, KIP-360, KIP-890)."""

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from roster.broker.errors import RefusedError
from roster.broker.log.aborted_transactions import AbortedTransaction, AbortedTransactions
from roster.wire import ErrorCode
from roster.wire.control_records import ControlType, EndTxnMarker
from roster.wire.records import NO_PRODUCER, BatchHeader

REMEMBERED_BATCHES = 5
"""Batches a producer may have in flight, and so the oldest retry that can arrive (Kafka's number)."""
HIGHEST_GIVEN_ID = (1 << 62) - 1
"""Higher producer ids are a client's invention: a broker that counts up never reaches them."""
_SEQUENCES = 1 << 31
NO_TRANSACTION = -1
_ENTRY = struct.Struct(">qhqi")
_TRANSACTION = struct.Struct(">iq")
_BATCH = struct.Struct(">iiqq")


class SequenceError(RefusedError):
    """A batch that does not follow what its producer wrote before."""


class WrittenBatch(NamedTuple):
    """A batch of a producer that is in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@dataclass(slots=True)
class Producer:
    """A producer: its epoch, its last batches, and where its open transaction begins."""

    epoch: int
    last_seen_ms: int = -1
    batches: deque[WrittenBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    coordinator_epoch: int = -1
    """Epoch of the last marker's coordinator; older coordinators are fenced."""
    first_offset: int = NO_TRANSACTION
    """The first record of its open transaction."""


class _Announced(NamedTuple):
    """The lowest sequence of an epoch that is being verified, and since when (wall-clock ms)."""

    epoch: int
    sequence: int
    at_ms: int


_NOT_ANNOUNCED = _Announced(-1, 0, -1)


def last_sequence(header: BatchHeader) -> int:
    """The sequence number of a batch's last record; they wrap after 2^31 - 1."""
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES


class ProducerTable:
    """The producers of one partition, with the transactions that are open and those that were aborted."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._open: dict[int, int] = {}
        """First offset of each open transaction by producer id, in the order of the log."""
        self._ended: list[tuple[int, int]] = []
        """First offset and marker of transactions whose marker may not be durable yet."""
        self._announced: dict[int, _Announced] = {}
        """Producers whose transaction is being verified, by producer id."""
        self.aborted = AbortedTransactions()

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._producers.items())

    @property
    def highest_id(self) -> int:
        """The highest producer id a broker can have issued, or -1."""
        return max((p for p in self._producers if p <= HIGHEST_GIVEN_ID), default=NO_PRODUCER)

    # Batches

    def check(self, header: BatchHeader) -> WrittenBatch | None:
        """Return the batch in the log that this one repeats, None if it is new; SequenceError if it may not be written.

        A producer this partition has never seen may begin with any sequence: its earlier batches can have expired.
        """
        known = self._producers.get(header.producer_id)
        if known is None:
            self._check_announced(header)
            return None
        self._check_epoch(header, known)
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
        self._check_announced(header)
        expected = (known.batches[-1].last_sequence + 1) % _SEQUENCES if known.batches else 0
        if header.base_sequence != expected:
            raise SequenceError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}",
            )
        if known.first_offset != NO_TRANSACTION and not header.is_transactional:
            raise SequenceError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has a transaction open, the batch is not part of one",
            )
        return None

    def announce(self, header: BatchHeader, now_ms: int) -> None:
        """Note a batch that may begin a transaction here, once that is verified: no later one may come before it."""
        epoch, lowest, _ = self._announced.get(header.producer_id, _NOT_ANNOUNCED)
        if header.producer_epoch > epoch or (header.producer_epoch == epoch and header.base_sequence < lowest):
            self._announced[header.producer_id] = _Announced(header.producer_epoch, header.base_sequence, now_ms)

    def withdraw(self, header: BatchHeader) -> None:
        """Forget an announced batch that will not be written."""
        announced = self._announced.get(header.producer_id)
        if announced is not None and announced[:2] == (header.producer_epoch, header.base_sequence):
            del self._announced[header.producer_id]

    def _check_announced(self, header: BatchHeader) -> None:
        epoch, lowest, _ = self._announced.get(header.producer_id, _NOT_ANNOUNCED)
        if header.producer_epoch == epoch and header.base_sequence > lowest:
            raise SequenceError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, {lowest} is not written yet",
            )

    def check_epoch(self, header: BatchHeader) -> None:
        """Raise SequenceError for a batch of a fenced producer."""
        known = self._producers.get(header.producer_id)
        if known is not None:
            self._check_epoch(header, known)

    def _check_epoch(self, header: BatchHeader, known: Producer) -> None:
        if header.producer_epoch < known.epoch:
            raise SequenceError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {known.epoch}, the batch {header.producer_epoch}",
            )

    def add(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Remember a batch written at an offset; `now_ms` is the wall clock: the records' own time may be history.

        A batch without a sequence is the broker's own, with offsets of a group.
        """
        known = self._producer_of(header, now_ms)
        if header.base_sequence >= 0:
            known.batches.append(
                WrittenBatch(
                    header.base_sequence, last_sequence(header), base_offset, base_offset + header.last_offset_delta
                )
            )
        if header.is_transactional and known.first_offset == NO_TRANSACTION:
            known.first_offset = self._open[header.producer_id] = base_offset
        self._announced.pop(header.producer_id, None)

    def _producer_of(self, header: BatchHeader, now_ms: int) -> Producer:
        """Return the producer of a batch in the batch's epoch, in which it has written nothing if that is new."""
        known = self._producers.get(header.producer_id)
        if known is None:
            known = self._producers[header.producer_id] = Producer(header.producer_epoch)
        elif known.epoch != header.producer_epoch:
            known.epoch = header.producer_epoch
            known.batches.clear()
        known.last_seen_ms = now_ms
        return known

    # Transactions

    def begins_at(self, producer_id: int, epoch: int) -> int:
        """Return the first offset of the transaction that a producer has open in this epoch, else -1."""
        known = self._producers.get(producer_id)
        return NO_TRANSACTION if known is None or known.epoch != epoch else known.first_offset

    def has_epoch(self, producer_id: int, epoch: int) -> bool:
        """Return True if the producer wrote in this epoch, or in a later one."""
        known = self._producers.get(producer_id)
        return known is not None and known.epoch >= epoch

    def check_marker(self, header: BatchHeader, marker: EndTxnMarker) -> None:
        """Raise SequenceError for a marker of a fenced producer or coordinator."""
        known = self._producers.get(header.producer_id)
        if known is None:
            return
        self._check_epoch(header, known)
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise SequenceError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of coordinator epoch {marker.coordinator_epoch}, there was {known.coordinator_epoch}",
            )

    def end(self, header: BatchHeader, marker: EndTxnMarker, offset: int, now_ms: int) -> None:
        """Remember a marker written at an offset; its epoch is the producer's from now on."""
        known = self._producer_of(header, now_ms)
        self._announced.pop(header.producer_id, None)
        known.coordinator_epoch = marker.coordinator_epoch
        first = known.first_offset
        if first == NO_TRANSACTION:
            return
        known.first_offset = NO_TRANSACTION
        del self._open[header.producer_id]
        self._ended.append((first, offset))
        if marker.control_type is ControlType.ABORT:
            self.aborted.append(AbortedTransaction(header.producer_id, first, offset))

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset below which every transaction is decided, by a marker that is durable."""
        undecided = [next(iter(self._open.values()))] if self._open else []
        return min([high_watermark, *undecided, *(first for first, _ in self._ended)])

    def durable(self, high_watermark: int) -> None:
        """Take note of what is durable now."""
        if self._ended:
            self._ended = [ended for ended in self._ended if ended[1] >= high_watermark]

    def expire(self, before_ms: int) -> None:
        """Forget the producers that wrote nothing since a wall-clock time, except those with an open transaction."""
        for producer_id, known in list(self._producers.items()):
            if known.last_seen_ms < before_ms and known.first_offset == NO_TRANSACTION:
                del self._producers[producer_id]
        self._announced = {key: batch for key, batch in self._announced.items() if batch.at_ms >= before_ms}

    # Storing

    def encode(self, from_offset: int = 0) -> bytes:
        """The whole table as bytes, for the sidecar of a segment that begins at an offset."""
        parts = [struct.pack(">i", len(self._producers))]
        for producer_id, known in self._producers.items():
            parts.append(_ENTRY.pack(producer_id, known.epoch, known.last_seen_ms, len(known.batches)))
            parts.append(_TRANSACTION.pack(known.coordinator_epoch, known.first_offset))
            parts.extend(_BATCH.pack(*batch) for batch in known.batches)
        parts.append(self.aborted.encode(from_offset))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> "ProducerTable":
        """Read what `encode` wrote. Raise struct.error for anything else."""
        table = cls()
        (count,) = struct.unpack_from(">i", data)
        position = 4
        for _ in range(count):
            producer_id, epoch, last_seen_ms, batches = _ENTRY.unpack_from(data, position)
            position += _ENTRY.size
            known = table._producers[producer_id] = Producer(epoch, last_seen_ms)
            known.coordinator_epoch, known.first_offset = _TRANSACTION.unpack_from(data, position)
            position += _TRANSACTION.size
            for _ in range(batches):
                known.batches.append(WrittenBatch(*_BATCH.unpack_from(data, position)))
                position += _BATCH.size
        open_ = {key: known.first_offset for key, known in table if known.first_offset != NO_TRANSACTION}
        table._open = dict(sorted(open_.items(), key=lambda item: item[1]))
        table.aborted = AbortedTransactions.decode(data, position)
        return table
