"""The log of one partition of `__consumer_offsets`: real record batches, synced later, torn or lost in a crash."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from roster.coordinator.events import LoadedRecord
from roster.model import TopicPartition
from roster.wire import WireError
from roster.wire.offsets_topic import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
)
from roster.wire.records import Record, build_batch, read_batch, read_header, verify_crc


@dataclass(slots=True, eq=False)
class Batch:
    """One append: its bytes, and the leader epoch it was written in."""

    data: bytes
    records: tuple[tuple[bytes, bytes | None], ...]
    epoch: int
    synced: bool = False
    dropped: bool = False


class Durable:
    """What the synced part of the log says, read without the coordinator's help."""

    def __init__(self) -> None:
        self.group: GroupMetadataValue | None = None
        self.generation = 0
        """Highest generation in any record of the group so far."""
        self.offsets: dict[TopicPartition, int] = {}
        self.assignments: dict[tuple[int, str], bytes] = {}
        """Synced assignments by generation and member id."""

    def apply(self, records: tuple[tuple[bytes, bytes | None], ...]) -> None:
        """Take in records that became durable."""
        for key, value in records:
            about = decode_key(key)
            content = None if about is None or value is None else decode_value(about, value)
            match about, content:
                case OffsetCommitKey(), OffsetCommitValue():
                    self.offsets[TopicPartition(about.topic, about.partition)] = content.offset
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

    def __init__(self, chance: Random, counts: Counter[str]) -> None:
        self._chance = chance
        self._counts = counts
        self._batches: list[Batch] = []
        self.epoch = 0
        self.durable = Durable()

    def append(self, records: tuple[tuple[bytes, bytes | None], ...], epoch: int) -> Batch | None:
        """Append a batch, not synced yet; None for a coordinator whose epoch is over."""
        if epoch != self.epoch:
            self._counts["write of an old coordinator refused"] += 1
            return None
        data = build_batch([Record(timestamp=0, key=key, value=value) for key, value in records])
        batch = Batch(bytes(data), records, epoch)
        self._batches.append(batch)
        return batch

    def drop(self, batch: Batch) -> None:
        """Take out the last batch: the disk refused it."""
        self._batches.remove(batch)
        batch.dropped = True

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
            self.durable.apply(batch.records)

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

    def load(self) -> tuple[LoadedRecord, ...]:
        """Return every record of the log."""
        return tuple(record for batch in self._batches for record in batch.records)

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
