"""A group member, a runner and a sink that live in memory and follow a script."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from roster.client import OffsetAndMetadata, Ownership
from roster.model import TopicPartition
from roster.model.offsets import Arrival
from roster.pipeline.batch import Batch, Owner
from roster.pipeline.batch_sink import BatchSink
from roster.pipeline.driver.batch_run import BatchGuard
from roster.pipeline.driver.runner_protocol import Outcome, Refused
from roster.pipeline.errors import SinkFencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from roster.pipeline.batch import Split

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


class FakeMember:
    """Its ownership changes when `become` says so; each `wait` plays the next step of the script."""

    def __init__(self, ends: Mapping[TopicPartition, int]) -> None:
        self.ends = dict(ends)
        self.begins = dict.fromkeys(ends, 0)
        self.offsets: dict[TopicPartition, int] = {}
        self.metadata: dict[TopicPartition, str] = {}
        self.counts: dict[str, int] = {}
        self.history: list[tuple[Any, ...]] = []
        self.script: list[Callable[[], object]] = []
        self.commit_errors: list[Exception] = []
        self.offset_errors: list[Exception] = []
        self.end: Callable[[], object] = lambda: None
        self.static_id = ""
        self.watched: list[dict[TopicPartition, int]] = []
        self._now = Ownership()

    def become(self, *owned: TopicPartition, **more: Any) -> None:
        """The next ownership: these partitions, and what else is given; generation and id stay if not named."""
        fields = {"generation": self._now.generation, "member_id": self._now.member_id or "m", **more}
        fields.setdefault("epoch", self._now.epoch + 1)
        self._now = Ownership(partitions=frozenset(owned), **fields)

    def start(self, timeout: float = 60.0) -> None:
        self.history.append(("start",))

    def ownership(self) -> Ownership:
        return self._now

    def wait(self, epoch: int, timeout: float) -> Ownership:
        if self._now.epoch == epoch:
            (self.script.pop(0) if self.script else self.end)()
        return self._now

    def wait_for_records(
        self, positions: Mapping[TopicPartition, int], epoch: int, timeout: float, *, is_committed: bool = False
    ) -> Ownership:
        self.watch(positions, timeout)
        return self.wait(epoch, timeout)

    def watch(
        self,
        positions: Mapping[TopicPartition, int],
        seconds: float,
        *,
        is_committed: bool = False,
        pause: float = 0.0,
    ) -> None:
        self.watched.append(dict(positions))

    def arrivals(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, list[Arrival]]:
        """All that came since the last watch, in parts of three records, or a few dozen parts of more."""
        last = self.watched[-1] if self.watched else {}
        found = {}
        for p, at in positions.items():
            if last.get(p, at + 1) <= at < self.ends[p]:
                size = max(3, (self.ends[p] - at) // 30)
                cuts = itertools.pairwise([*range(at, self.ends[p], size), self.ends[p]])
                found[p] = [Arrival(*p, *cut, self.ends[p], False, b"records") for cut in cuts]
        return found

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], ownership: Ownership) -> None:
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        plain = {partition: found.offset for partition, found in offsets.items()}
        self.offsets.update(plain)
        self.metadata.update({partition: found.metadata for partition, found in offsets.items()})
        self.history.append(("commit", plain, ownership.generation))

    def confirm(self, partitions: Collection[TopicPartition], ownership: Ownership) -> tuple[int, str]:
        return self._now.generation, self._now.member_id

    def release(self, partitions: Collection[TopicPartition]) -> None:
        self.history.append(("release", set(partitions)))
        self.become(*self._now.partitions)

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return {p: self._found(p) if p in self.offsets else None for p in partitions}

    def _found(self, partition: TopicPartition) -> OffsetAndMetadata:
        return OffsetAndMetadata(self.offsets[partition], metadata=self.metadata.get(partition, ""))

    def group_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What other clients see."""
        return {partition: self._found(partition) for partition in self.offsets}

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {p: self.begins.get(p, 0) for p in partitions}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        if self.offset_errors:
            raise self.offset_errors.pop(0)
        return {p: self.ends[p] for p in partitions}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {p: moment if moment < self.ends[p] else None for p, moment in times.items()}

    def partitions_for(self, topics: Collection[str]) -> dict[str, int]:
        return dict(self.counts)

    def topics(self) -> frozenset[str]:
        return frozenset(self.counts)

    @property
    def assignor(self) -> str:
        return "cooperative-sticky"

    def close(self, leave: bool = True, timeout: float = 10.0) -> None:
        self.history.append(("close",))

    def of(self, *kinds: str) -> list[tuple[Any, ...]]:
        """The history's entries of these kinds."""
        return [entry for entry in self.history if entry[0] in kinds]


class FakeSink(BatchSink):
    """Exactly once like `ParquetSink` when `exact`, else without a position."""

    default_trigger_interval_ms = 0

    def __init__(self, *, exact: bool = True) -> None:
        self.exact = exact
        self.positions: dict[TopicPartition, int] = {}
        self.claims: dict[TopicPartition, str] = {}
        self.records: list[tuple[TopicPartition, int]] = []
        self.aborted = 0

    def claim(
        self, partitions: Collection[TopicPartition], owner: Owner, committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        for partition in partitions:
            if partition in self.positions:
                self.positions[partition] = max(self.positions[partition], committed.get(partition, 0))
        self.claims.update(dict.fromkeys(partitions, owner.member_id))
        return {p: self.positions[p] for p in partitions if p in self.positions} if self.exact else {}

    def commit(self, written: list[tuple[TopicPartition, int]], batch: Batch) -> None:
        for partition, span in batch.ranges.items():
            if self.exact and self.positions.get(partition, span.start) != span.start:
                raise SinkFencedError(f"{partition} stands elsewhere")
        self.positions.update(batch.next_offsets)
        self.records += written

    def abort(self, written: Any, batch: Batch) -> None:
        self.aborted += 1


class FakeRunner:
    """A batch's results are its partitions and offsets; `during` is called in the middle of each batch."""

    whole_partitions = False
    takes_arrivals = True
    most_offsets: int | None = None

    cores = 2

    def __init__(self, during: Callable[[Batch], object] = lambda batch: None) -> None:
        self.during = during
        self.batches: list[Batch] = []
        self.cancelled = False
        self.finished = 0

    def run(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: BatchSink, refused: Refused = ()) -> Outcome:
        self.batches.append(batch)
        self.cancelled = False
        self.during(batch)
        if self.cancelled:
            raise RuntimeError("job group cancelled")
        read = [
            (TopicPartition(s.topic, s.partition), o) for task in tasks for s in task for o in range(s.start, s.end)
        ]
        return Outcome(read, rows=len(read))

    def find_stores(self) -> None:
        pass

    def restore(self, seconds: float) -> bool:
        return False

    def settle(self) -> None:
        pass

    def cancel(self) -> None:
        self.cancelled = True

    def check(self) -> None:
        pass

    def activity(self) -> object:
        return self.finished


class StillGuard(BatchGuard):
    """Looks only when a test says so."""

    def start(self) -> None:
        pass
