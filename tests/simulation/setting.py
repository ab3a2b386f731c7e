"""What the parts of one run share: the seed's generator, virtual time, network, disk, topics; and who is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from itertools import count
from random import Random
from typing import Protocol

from roster.coordinator import Coordinator
from roster.member import Member, MemberConfig
from roster.member.events import Publish
from roster.model import TopicPartition
from tests.simulation.clock import Scheduler
from tests.simulation.coverage import Coverage
from tests.simulation.disk import Disk, Durable
from tests.simulation.exactly_once import ExactlyOnce
from tests.simulation.history import History
from tests.simulation.network import Network, Peer
from tests.simulation.scenario import Scenario

OFFSETS = "__consumer_offsets"
"""Name of the log with the group."""


class Fate(Enum):
    """What becomes of the coordinator at one of its writes of the group's record."""

    LOST = "coordinator dies before the record is durable"
    STORED = "coordinator dies once the record is durable, before any response"
    ANSWERED = "coordinator dies once the responses are on their way"
    REFUSED = "disk refuses the record"


class Broker(Peer, Protocol):
    """A broker process, as clients and the observer see it."""

    number: int
    up: bool
    epoch: int
    coordinator: Coordinator | None

    @property
    def now(self) -> int:
        """Monotonic time of the process."""

    def is_connected(self, token: int) -> bool:
        """Return True while the client of a request waits on an open connection."""


class Application(Protocol):
    """A process with a member, as the observer sees it."""

    name: str
    config: MemberConfig
    member: Member
    alive: bool
    owns: Publish

    @property
    def held(self) -> frozenset[TopicPartition]:
        """Partitions that the application may work on."""

    @property
    def fenced(self) -> bool:
        """True if another process with its instance id took its place."""


class Setting:
    """Shared state of one run."""

    group_id = "g"

    def __init__(self, scenario: Scenario, *, traced: bool) -> None:
        self.scenario = scenario
        self.chance = Random(f"run {scenario.seed}")
        self.scheduler = Scheduler()
        self.counts: Counter[str] = Counter()
        self.coverage = Coverage()
        self.history = History(lambda: self.scheduler.now, wanted=traced)
        self.network = Network(self.scheduler, self.chance, self.counts)
        self.network.faults = scenario.network
        self.durable = Durable()
        self.disk = Disk(self.chance, self.counts, self.durable)
        """The log with the group."""
        self.unsteady_topics: set[str] = set()
        """Topics that were deleted."""
        self.exactly_once = ExactlyOnce(self.counts, self.durable, self.unsteady_topics)
        self.logs = {OFFSETS: self.disk}
        """The group's log, and those of transactions and their outputs where there are any."""
        if scenario.transactions is not None:
            for name, reader in self.exactly_once.readers.items():
                self.logs[name] = Disk(self.chance, self.counts, reader)
        self.topics = dict(scenario.topics)
        self.most_partitions = dict(scenario.topics)
        """The most partitions that each topic has had."""
        self.brokers: list[Broker] = []
        self.applications: list[Application] = []
        self._leader_known_to = {0: (0, 0), 1: (0, 0)}
        """By broker, the newest epoch it knows of, and the number of the broker that leads the group in it."""
        self.leader_number = 0
        self.impersonated: set[str] = set()
        """Instance ids that a misbehaving client has used."""
        self.slow_release = scenario.slow_release
        self.finish_ms = 400
        """Longest time to finish revoked work, of applications that are not slow."""
        self.failed_lookups = 0.2
        """Share of the leaders' look-ups of offsets that fail."""
        self.fates: list[tuple[Fate, int]] = []
        """What becomes of the next writes of the group's record, with the downtime in ms."""
        self.transaction_fates: list[tuple[Fate, int]] = []
        """The same for the next writes of transactions: decisions, outputs, offsets, markers."""
        self.winding_up = False
        """True once no further transaction is to begin."""
        self.disk_bad_until = self.disk_slow_until = 0
        self.disk_is_faulty = False
        self._ids = count()
        self._tokens = count()
        self._producer_ids = count(1_000)
        self._transactions = count()

    def new_id(self) -> str:
        """Return a new id for a member."""
        return f"{next(self._ids):04}"

    def new_token(self) -> int:
        """Return a new token for a request."""
        return next(self._tokens)

    def new_producer_id(self) -> int:
        """Return a new producer id."""
        return next(self._producer_ids)

    def new_transaction(self) -> int:
        """Return the number of a new transaction."""
        return next(self._transactions)

    def note(self, text: str) -> None:
        """Add a line about the world to the history."""
        self.history.note("world", text)

    def lose_unsynced(self) -> None:
        """Begin a new epoch: a crash decides what is left of every write that was not durable."""
        for log in self.logs.values():
            log.crash()
            log.epoch += 1

    def learn_leader(self, broker: int, epoch: int, leader: int) -> None:
        """Have a broker learn who leads; what is older than what it knows says nothing."""
        self._leader_known_to[broker] = max(self._leader_known_to[broker], (epoch, leader))

    def leader_known_to(self, broker: int) -> int:
        """Return the number of the broker that leads the group's partition, as far as `broker` knows."""
        return self._leader_known_to[broker][1]

    def any_broker(self) -> Broker | None:
        """Return a broker that runs."""
        running = [broker for broker in self.brokers if broker.up]
        return self.chance.choice(running) if running else None

    def log_offsets(self, partitions: Mapping[str, int]) -> dict[str, dict[int, tuple[int, int, int | None]]]:
        """Return start, end and committed offset of each partition, as a look at the logs does."""
        committed = self.durable.offsets
        return {
            topic: {
                number: (0, 1_000 * (number + 1), committed.get(TopicPartition(topic, number)))
                for number in range(size)
            }
            for topic, size in partitions.items()
        }

    def disk_refuses(self, *, is_group: bool, is_transaction: bool = False) -> bool:
        """Return True if the disk refuses this write."""
        refused = self.scheduler.now < self.disk_bad_until and self.chance.random() < 0.5
        fates = self.fates if is_group else self.transaction_fates if is_transaction else []
        if fates and fates[0][0] is Fate.REFUSED:
            fates.pop(0)
            refused = True
        self.disk_is_faulty |= refused
        return refused

    def sync_ms(self) -> int:
        """Draw the time until a write is durable."""
        if self.scheduler.now < self.disk_slow_until:
            return self.chance.randint(300, 2_000)
        return int(self.chance.random() * (self.scenario.sync_ms + 1))

    def take_fate(self, *, is_group: bool) -> Fate | None:
        """Return what becomes of this write of the group's record or of a transaction, if anything is planned."""
        fates = self.fates if is_group else self.transaction_fates
        if fates and fates[0][0] is not Fate.REFUSED:
            return fates[0][0]
        return None
