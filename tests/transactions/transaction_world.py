"""A shell for the transaction coordinator in virtual time, with partitions that keep their own books.

Everything that takes time is a task in a list: the end of a write, a marker, a producer id. A script decides which one
is next; `crash` forgets the coordinator, its tasks and what was not durable, as kill -9 does. Not the
simulator's world, whose producers decide by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from roster.coordinator_common import (
    PartitionLoaded,
    PartitionLoading,
    RequestReceived,
    TimerExpired,
    Write,
    WriteCompleted,
)
from roster.model import SetTimer, TopicPartition
from roster.transactions import (
    AddPartitions,
    Event,
    MarkersWritten,
    ProducerIdGiven,
    TimerName,
    TransactionConfig,
    TransactionCoordinator,
    WriteMarkers,
)
from roster.transactions.events import Effects
from roster.wire import ErrorCode, Message, decode, encode

CONFIG = TransactionConfig(partitions=2, offsets_partitions=4)
WALL_OFFSET = 1_700_000_000_000


class Violation(AssertionError):
    """A property of transactions that does not hold."""


@dataclass(frozen=True)
class Entry:
    """A batch or a marker in a partition; `label` is the transaction its client meant, `commit` the marker's kind."""

    producer_id: int
    epoch: int
    label: str | None = None
    commit: bool | None = None


@dataclass
class Partition:
    """What a partition's log does: fence old epochs, keep open transactions, move the last stable offset."""

    entries: list[Entry] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    first_open: dict[int, int] = field(default_factory=dict)
    stable: int = 0

    def append(self, entry: Entry) -> bool:
        """Append unless the producer was fenced."""
        if entry.epoch < self.epochs.get(entry.producer_id, -1):
            return False
        self.epochs[entry.producer_id] = entry.epoch
        if entry.commit is None:
            self.first_open.setdefault(entry.producer_id, len(self.entries))
        else:
            self.first_open.pop(entry.producer_id, None)
        self.entries.append(entry)
        stable = min(self.first_open.values(), default=len(self.entries))
        if stable < self.stable:
            raise Violation(f"the last stable offset goes back from {self.stable} to {stable}")
        self.stable = stable
        return True

    def outcomes(self) -> list[tuple[str, bool]]:
        """The transactions whose end is below the last stable offset, with it; one entry a batch."""
        open_: dict[int, list[str]] = {}
        decided = []
        for entry in self.entries:
            if entry.commit is None:
                open_.setdefault(entry.producer_id, []).append(entry.label or "")
            else:
                decided += [(label, entry.commit) for label in open_.pop(entry.producer_id, ())]
        return decided


class World:
    """One coordinator and its surroundings."""

    def __init__(self, config: TransactionConfig = CONFIG) -> None:
        self.config = config
        self.now = 0
        self.log: dict[int, list[tuple[bytes, bytes | None]]] = {each: [] for each in range(config.partitions)}
        self.data: dict[TopicPartition, Partition] = {}
        self.timers: dict[TimerName, int] = {}
        self.tasks: list[tuple[Any, Callable[[], None]]] = []
        self.replies: dict[int, Any] = {}
        self.last_token = 0
        self.next_producer_id = 100
        self.failing = False
        """True while writes fail."""
        self.start()

    # The coordinator's life

    def start(self) -> None:
        self.coordinator = TransactionCoordinator(self.config)
        for partition, records in self.log.items():
            self.step(PartitionLoading(partition))
            self.step(PartitionLoaded(partition, tuple(records), self.wall))

    def crash(self) -> None:
        """Lose what is in memory: clients that wait get no answer."""
        self.tasks.clear()
        self.timers.clear()
        self.start()

    @property
    def wall(self) -> int:
        return WALL_OFFSET + self.now

    def step(self, event: Event) -> None:
        effects: Effects = self.coordinator.step(event, self.now)
        for timer in effects.timers:
            if isinstance(timer, SetTimer):
                self.timers[timer.name] = timer.deadline
            else:
                self.timers.pop(timer.name, None)
        for write in effects.writes:
            self.tasks.append((write, lambda write=write: self.finish(write)))
        for marker in effects.markers:
            left = sorted(marker.partitions)
            self.tasks.append((marker, lambda marker=marker, left=left: self.mark(marker, left)))
        for number in effects.producer_ids:
            self.tasks.append((number, lambda number=number: self.give_id(number)))
        for reply in effects.replies:
            self.replies[reply.token] = reply.message
        for added in effects.added:
            self.replies[added.token] = added.errors

    def finish(self, write: Write) -> None:
        """End a write; those of one partition end in order."""
        error = ErrorCode.KAFKA_STORAGE_ERROR if self.failing else ErrorCode.NONE
        if not error:
            self.log[write.partition] += write.records
        self.step(WriteCompleted(write.id, self.wall, error))

    def mark(self, marker: WriteMarkers, left: list[TopicPartition]) -> None:
        """Write one of the markers; report when there are none left."""
        if left:
            partition = self.data.setdefault(left.pop(0), Partition())
            partition.append(Entry(marker.producer_id, marker.producer_epoch, commit=marker.committed))
        if left:
            self.tasks.append((marker, lambda: self.mark(marker, left)))
        else:
            self.step(MarkersWritten(marker.transactional_id, marker.producer_id, marker.producer_epoch, self.wall))

    def give_id(self, number: int) -> None:
        self.next_producer_id += 1
        self.step(ProducerIdGiven(number, self.next_producer_id, self.wall))

    # Time and tasks

    def ready(self) -> list[int]:
        """The tasks that may be next: of the writes of one partition only the first."""
        seen: set[int] = set()
        ready = []
        for index, (what, _) in enumerate(self.tasks):
            if isinstance(what, Write):
                if what.partition in seen:
                    continue
                seen.add(what.partition)
            ready.append(index)
        return ready

    def run_task(self, index: int = 0) -> None:
        self.tasks.pop(index)[1]()

    def run(self) -> None:
        """Run every task, in order."""
        while self.tasks:
            self.run_task()

    def advance(self, milliseconds: int) -> None:
        """Let time pass; timers expire when they are due, tasks stay."""
        end = self.now + milliseconds
        while self.timers:
            name, deadline = min(self.timers.items(), key=lambda item: (item[1], str(item[0])))
            if deadline > end:
                break
            self.now = max(self.now, deadline)
            del self.timers[name]
            self.step(TimerExpired(name, self.wall))
        self.now = end

    # Clients

    def send(self, message: Message, version: int) -> int:
        """Send a request, through the wire's encoding; return the token of its reply."""
        self.last_token += 1
        read = decode(type(message), version, encode(message, version))
        self.step(RequestReceived(self.last_token, version, "c", "h", self.wall, read))
        return self.last_token

    def add(self, transactional_id: str, producer_id: int, epoch: int, *partitions: Any, verify: bool = False) -> int:
        """What the broker asks for a Produce."""
        self.last_token += 1
        wanted = frozenset(TopicPartition(*each) for each in partitions)
        self.step(
            AddPartitions(self.last_token, transactional_id, producer_id, epoch, wanted, self.wall, verify_only=verify)
        )
        return self.last_token

    def ask(self, message: Message, version: int) -> Any:
        """Send a request, let everything happen that is under way, and return the reply."""
        token = self.send(message, version)
        self.run()
        return self.replies[token]

    def added(self, transactional_id: str, producer_id: int, epoch: int, *partitions: Any, verify: bool = False) -> Any:
        """The errors of `add`, everything under way done."""
        token = self.add(transactional_id, producer_id, epoch, *partitions, verify=verify)
        self.run()
        return self.replies[token]
