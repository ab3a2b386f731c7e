"""A scripted group in the simulator's world: a test says who joins, dies and commits, and when.

Members, coordinator, network, disk and invariants are those of `tests.simulation`; here are assignors and settings of
the test's choice, logs that grow at a pace, answers that come twice, and what is balanced at rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from roster.assignors import Assignor
from roster.member import MemberConfig, MemberState
from roster.member.events import CommitDone, Event, FetchOffsets, Publish, Responded
from roster.member.types import FailureKind
from roster.model import TopicPartition
from tests.simulation.member_process import MemberProcess
from tests.simulation.network import NetworkFaults
from tests.simulation.node import Node
from tests.simulation.scenario import NEWEST, Scenario
from tests.simulation.setting import Fate
from tests.simulation.world import World as SimulatedWorld

CAPACITY_COUNTS = ("lag-sticky", "lag-cooperative-sticky")
GROUP = SimulatedWorld.group_id
SESSION = 10_000
HEARTBEAT = 1_000
REBALANCE = 20_000


@dataclass
class Faults:
    """Chances from 0 to 1 and delays in ms; all of them end with `World.stop_faults`."""

    reset: float = 0.0
    duplicate: float = 0.0
    slow_release: float = 0.0
    no_offsets: float = 0.0
    delay: int = 30
    finish: int = 500
    """Longest time (ms) to finish revoked work."""


class Actor(MemberProcess):
    """A process of the simulator, and what a test asks about it afterwards."""

    world: World

    def __init__(self, world: World, name: str, config: MemberConfig) -> None:
        super().__init__(world, world.books, name, config, NEWEST, world.member_stepped)
        self.failures: list[FailureKind] = []
        """Why commits failed."""
        self.lookups = 0
        """How often the leader looked at offsets."""
        self.losses: list[frozenset[TopicPartition]] = []

    def feed(self, event: Event) -> None:
        super().feed(event)
        if isinstance(event, Responded) and self.world.chance.random() < self.world.answered_twice:
            super().feed(event)

    def commit(self, partitions: frozenset[TopicPartition] | None = None, epoch: int | None = None) -> None:
        """Work a little on everything held, or on some of it, and commit it."""
        if self.alive and self.world.now >= self.paused_until:
            self._commit(self.held if partitions is None else partitions, self.owns.epoch if epoch is None else epoch)

    def _carry_out(self, effect: object) -> None:
        match effect:
            case CommitDone(failure=failure) if failure is not None:
                self.failures.append(failure.kind)
            case FetchOffsets():
                self.lookups += 1
            case Publish(lost=lost, failure=None) if lost and self.member.state is not MemberState.LEFT:
                self.losses.append(lost)
        super()._carry_out(effect)


class World(SimulatedWorld):
    """The simulator's world without actions of its own."""

    def __init__(self, seed: int, topics: dict[str, int], faults: Faults) -> None:
        network = NetworkFaults(delay=faults.delay, duplicate=faults.duplicate, reset=faults.reset)
        super().__init__(
            Scenario(
                seed,
                topics,
                policies=(),
                members=0,
                static=0.0,
                old=0.0,
                network=network,
                slow_release=faults.slow_release,
                sync_ms=10,
                initial_delay_ms=100,
                session_ms=SESSION,
                rebalance_ms=REBALANCE,
                heartbeat_ms=HEARTBEAT,
            )
        )
        self.failed_lookups = faults.no_offsets
        self.finish_ms = faults.finish
        self.answered_twice = faults.duplicate
        """Chance that a member is given an answer twice."""
        self.actors: list[Actor] = []
        self.pace: dict[TopicPartition, int] = {}
        """Records that a log grows by in a second, where the seed is not to say."""
        self.group_writes = 0
        self.planned: dict[int, tuple[Fate, int]] = {}
        """By the number of a write of the group's record: what happens then, and the downtime in ms after a crash."""
        self.boot()

    @property
    def now(self) -> int:
        return self.scheduler.now

    @property
    def rounds(self) -> int:
        return self.books.rounds

    def after(self, ms: int, action: Callable[[], None]) -> None:
        self.scheduler.after(ms, action)

    def run(self, ms: int) -> None:
        self.scheduler.run(self.now + ms)

    def stop_faults(self) -> None:
        """No more faults of the network; nothing is started, and who sleeps sleeps on."""
        self.network.heal()
        self.slow_release = self.failed_lookups = self.answered_twice = 0.0

    def grow(self, topic: str, partitions: int) -> None:
        self.topics[topic] = self.most_partitions[topic] = partitions

    def join(
        self,
        name: str,
        assignors: tuple[str | Assignor, ...],
        instance: str | None = None,
        heartbeat_ms: int = HEARTBEAT,
        **options: Any,
    ) -> Actor:
        config = MemberConfig(
            group=GROUP,
            selection=frozenset(self.topics),
            assignors=assignors,
            session_timeout_ms=SESSION,
            heartbeat_interval_ms=heartbeat_ms,
            rebalance_timeout_ms=REBALANCE,
            request_timeout_ms=8_000,
            metadata_max_age_ms=5_000,
            group_instance_id=instance,
            **options,
        )
        actor = Actor(self, name, config)
        for each in (self.actors, self.processes, self.applications):
            each.append(actor)
        actor.start()
        return actor

    @property
    def living(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.alive and actor.member.state is not MemberState.LEFT]

    def member_stepped(self, process: MemberProcess) -> None:
        """Nothing is planned for members."""

    def log_offsets(self, partitions: Mapping[str, int]) -> dict[str, dict[int, tuple[int, int, int | None]]]:
        def of(partition: TopicPartition) -> tuple[int, int, int | None]:
            drawn = Random(f"{self.scenario.seed} {partition}").choice((0, 10, 1_000))
            committed = self.durable.offsets.get(partition)
            return 0, max(self.pace.get(partition, drawn) * self.now // 1_000, committed or 0), committed

        return {
            topic: {number: of(TopicPartition(topic, number)) for number in range(size)}
            for topic, size in partitions.items()
        }

    def disk_refuses(self, *, is_group: bool, is_transaction: bool = False) -> bool:
        if is_group:
            self.group_writes += 1
            if self.group_writes in self.planned:
                self.fates.append(self.planned[self.group_writes])
        return super().disk_refuses(is_group=is_group, is_transaction=is_transaction)

    def crash_node(self, node: Node, fate: Fate, is_group: bool) -> None:
        if fate is Fate.LOST:
            self.disk.lose_unsynced()
        super().crash_node(node, fate, is_group)

    # -- at rest ---------------------------------------------------------------------------------------------------

    def check_settled(self) -> None:
        """L1, L2, L4: all are stable in one generation, each partition has one owner, and shares are balanced."""
        living = self.living
        assert living == self.running, f"L1: {[actor.member.failure for actor in living]}"
        reason = self.unrest()
        assert reason is None, f"L1, L2: {reason}"
        assert len({actor.owns.generation for actor in living}) <= 1, "L1: one generation"
        if living:
            self._check_balance(living)

    def _check_balance(self, living: list[Actor]) -> None:
        """L4, as far as the policy promises it: alike members differ by one, of each topic all have what is due."""
        (protocol,) = {actor.member.protocol_name for actor in living}
        if protocol == "range":
            return
        weights = [actor.config.capacity if protocol in CAPACITY_COUNTS else 1 for actor in living]
        sizes = [len(actor.owns.partitions) for actor in living]
        if len(set(weights)) == 1:
            assert max(sizes) - min(sizes) <= 1, f"L4: balanced, not {sizes}"
        if protocol in CAPACITY_COUNTS:
            for topic, size in self.topics.items():
                for actor, weight in zip(living, weights, strict=True):
                    due = Fraction(size * weight, sum(weights))
                    mine = sum(partition.topic == topic for partition in actor.owns.partitions)
                    assert due - 1 < mine < due + 1, f"L4: {actor.name} is due {due} of {topic} and has {mine}"
