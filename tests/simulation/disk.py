"""The log of a partition: real record batches, synced later, torn or lost in a crash; and what its synced part says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeAlias

from roster.coordinator.events import LoadedRecord, TransactionalRecord, TransactionEnd
from roster.model import TopicPartition
from roster.wire import WireError
from roster.wire.control_records import ControlType, EndTxnMarker, build_marker
from roster.wire.offsets_topic import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
)
from roster.wire.records import Record, build_batch, read_batch, read_header, verify_crc

Records: TypeAlias = tuple[tuple[bytes, bytes | None], ...]


@dataclass(slots=True, eq=False)
class Batch:
    """One append: its bytes, its first offset, and whose transaction it is part of or ends."""

    data: bytes
    records: Records
    offset: int = 0
    producer: tuple[int, int] | None = None
    """Id and epoch of the producer, for a part of a transaction."""
    end: TransactionEnd | None = None
    synced: bool = False
    dropped: bool = False


def control_batch(end: TransactionEnd, epoch: int) -> Batch:
    """Build the marker of a producer's transaction."""
    marker = EndTxnMarker(ControlType.COMMIT if end.committed else ControlType.ABORT, 0)
    data = build_marker(marker, producer_id=end.producer_id, producer_epoch=epoch, timestamp=0)
    return Batch(data, (), producer=(end.producer_id, epoch), end=end)


def record_batch(records: Records, producer: tuple[int, int] | None = None) -> Batch:
    """Build a batch of a coordinator's records, as part of a producer's transaction if there is one."""
    rows = [Record(timestamp=0, key=key, value=value) for key, value in records]
    if producer is None:
        return Batch(bytes(build_batch(rows)), records)
    data = build_batch(rows, producer_id=producer[0], producer_epoch=producer[1], transactional=True)
    return Batch(bytes(data), records, producer=producer)


class Reader(Protocol):
    """What makes sense of the synced part of a log."""

    def apply(self, batch: Batch) -> None:
        """Take in a batch that became durable."""


class Durable:
    """What the synced part of the log says, read without the coordinator's help."""

    def __init__(self) -> None:
        self.group: GroupMetadataValue | None = None
        self.generation = 0
        """Highest generation in any record of the group so far."""
        self.offsets: dict[TopicPartition, int] = {}
        self.assignments: dict[tuple[int, str], bytes] = {}
        """Synced assignments by generation and member id."""

        self._pending: dict[int, dict[TopicPartition, int]] = {}
        """Offsets in transactions that are not decided, by producer id."""

    @property
    def has_pending(self) -> bool:
        """True while the offsets of a transaction are not decided."""
        return bool(self._pending)

    def apply(self, batch: Batch) -> None:
        """Take in a batch that became durable."""
        if batch.end is not None:
            decided = self._pending.pop(batch.end.producer_id, {})
            self.offsets.update(decided if batch.end.committed else {})
            return
        offsets = self.offsets if batch.producer is None else self._pending.setdefault(batch.producer[0], {})
        for key, value in batch.records:
            about = decode_key(key)
            content = None if about is None or value is None else decode_value(about, value)
            match about, content:
                case OffsetCommitKey(), OffsetCommitValue():
                    offsets[TopicPartition(about.topic, about.partition)] = content.offset
                case OffsetCommitKey(), _:
                    self.offsets.pop(TopicPartition(about.topic, about.partition), None)
                case GroupMetadataKey(), GroupMetadataValue():
                    self.group = content
                    self.generation = max(self.generation, content.generation)
                    for member in content.members:
                        self.assignments[content.generation, member.member_id] = member.assignment
                case GroupMetadataKey(), _:
                    self.group = None


class Disk:
    """Batches in order; only the coordinator of the present epoch may append."""

    def __init__(self, chance: Random, counts: Counter[str], reader: Reader) -> None:
        self._chance = chance
        self._counts = counts
        self._reader = reader
        self._batches: list[Batch] = []
        self.epoch = 0

    def append(self, batch: Batch, epoch: int) -> bool:
        """Append a batch, not synced yet; False for a coordinator whose epoch is over."""
        if epoch != self.epoch:
            self._counts["write of an old coordinator refused"] += 1
            return False
        if self._batches:
            last = self._batches[-1]
            batch.offset = last.offset + max(len(last.records), 1)
        self._batches.append(batch)
        return True

    def sync(self, batch: Batch) -> bool:
        """Make everything up to `batch` durable; False if it was lost in a crash before."""
        if batch.dropped:
            return False
        self._sync_to(self._batches.index(batch) + 1)
        return True

    def _sync_to(self, length: int) -> None:
        first = length
        while first and not self._batches[first - 1].synced:
            first -= 1
        for batch in self._batches[first:length]:
            batch.synced = True
            self._reader.apply(batch)

    def crash(self) -> None:
        """Lose power or the leadership: of what was not synced a beginning survives, its last batch perhaps torn."""
        synced = sum(batch.synced for batch in self._batches)
        unsynced = self._batches[synced:]
        kept = self._chance.randint(0, len(unsynced))
        if kept < len(unsynced):
            self._counts["unsynced write lost"] += len(unsynced) - kept
        remains = b"".join(batch.data for batch in unsynced[:kept])
        if kept < len(unsynced) and self._chance.random() < 0.5:
            self._counts["torn write"] += 1
            torn = unsynced[kept].data
            remains += torn[: self._chance.randrange(1, len(torn))]
        valid = len(intact_batches(remains))
        for batch in unsynced[valid:]:
            batch.dropped = True
        del self._batches[synced + valid :]
        self._sync_to(len(self._batches))

    def lose_unsynced(self) -> None:
        """Lose all that was not synced."""
        for batch in self._batches:
            batch.dropped = not batch.synced
        self._batches = [batch for batch in self._batches if batch.synced]

    def load(self) -> tuple[LoadedRecord, ...]:
        """Return every record of the log, with the ends of transactions."""
        loaded: list[LoadedRecord] = []
        for batch in self._batches:
            if batch.end is not None:
                loaded.append(batch.end)
            elif batch.producer is not None:
                loaded += [TransactionalRecord(batch.producer[0], key, value) for key, value in batch.records]
            else:
                loaded += batch.records
        return tuple(loaded)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def intact_batches(data: bytes) -> list[bytes]:
    """Cut the bytes that a crash left into batches, up to the first one that is torn."""
    batches = []
    position = 0
    while position < len(data):
        try:
            size = read_header(data[position:]).size
            batch = data[position : position + size]
            if len(batch) < size or not verify_crc(batch):
                break
            read_batch(batch)
        except WireError:
            break
        batches.append(batch)
        position += size
    return batches
