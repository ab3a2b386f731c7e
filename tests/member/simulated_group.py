"""Members, a coordinator, a network and applications in one virtual time; every step is checked against the invariants.

The parts are real: `roster.member.Member` and `roster.coordinator.Coordinator`. The network keeps the order of each
connection, as TCP does; a connection may be reset (what has not arrived is lost), a request may arrive twice in a row,
answers may come twice, and a broker serves one request of a connection at a time, so that what comes behind a parked
one waits. Logs grow, each at a pace of its own, and a look at offsets may fail.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from itertools import count
from random import Random

from roster.assignors import Assignor
from roster.coordinator import Coordinator, CoordinatorConfig
from roster.coordinator import TimerName as CoordinatorTimerName
from roster.coordinator.events import Effects
from roster.coordinator_common import PartitionLoaded, PartitionLoading, RequestReceived, WriteCompleted
from roster.coordinator_common import TimerExpired as CoordinatorTimerExpired
from roster.member import Member, MemberConfig, MemberState
from roster.member.assign_group import assign_group
from roster.member.events import (
    Assign,
    Assigned,
    CommitDone,
    CommitRequested,
    Disconnect,
    Event,
    FetchOffsets,
    OffsetsFetched,
    Publish,
    Released,
    RequestFailed,
    Responded,
    Send,
    Started,
    Stopped,
    TimerExpired,
)
from roster.member.subscription import decode_assignment, topics_of
from roster.member.timers import TimerName
from roster.member.types import FailureKind, Node
from roster.model import CancelTimer, OffsetAndMetadata, SetTimer, TopicPartition
from roster.wire import API_VERSIONS, ErrorCode, Message
from roster.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from roster.wire.offsets_topic import GroupMetadataKey, decode_key

CAPACITY_COUNTS = ("lag-sticky", "lag-cooperative-sticky")
GROUP = "g"
SESSION = 10_000
HEARTBEAT = 1_000
REBALANCE = 20_000
NODE = Node(1, "broker", 9092)


@dataclass
class Faults:
    """Chances from 0 to 1 and delays in ms; all of them end with `World.calm`."""

    reset: float = 0.0
    duplicate: float = 0.0
    slow_release: float = 0.0
    no_offsets: float = 0.0
    delay: int = 30
    finish: int = 500
    """Longest time (ms) to finish revoked work."""


class Fate(Enum):
    """What becomes of a write, of its acknowledgement and of the coordinator."""

    LOST = "the coordinator dies before the record is durable"
    STORED = "the coordinator dies once the record is durable, before anybody is answered"
    ANSWERED = "the coordinator dies once the responses are on their way"
    FAILED = "the record cannot be written, the coordinator lives"


@dataclass
class Connection:
    """One member's connection: requests wait here while the broker serves the first of them."""

    alive: bool = True
    serving: bool = False
    queue: deque[tuple[int, Message]] = field(default_factory=deque)
    arrival: int = 0


class Actor:
    """A process: a member and the application around it."""

    def __init__(self, world: World, name: str, config: MemberConfig) -> None:
        self.world = world
        self.name = name
        self.config = config
        self.member = Member(config, Random(world.chance.random()))
        self.alive = True
        self.paused_until = 0
        self.backlog: list[Event] = []
        self.timers: dict[TimerName, int] = {}
        self.open: dict[int, Connection | None] = {}
        self.connections: dict[str, Connection] = {}
        self.owns = Publish(epoch=0)
        self.positions: dict[TopicPartition, int] = {}
        self.commits = 0
        self.pending: dict[int, dict[TopicPartition, int]] = {}
        self.failures: list[FailureKind] = []
        self.lookups = 0
        self.losses: list[frozenset[TopicPartition]] = []
        self.stopped = False

    @property
    def held(self) -> frozenset[TopicPartition]:
        return self.owns.partitions | self.owns.revoking

    @property
    def fenced(self) -> bool:
        return self.owns.failure is not None and self.owns.failure.kind is FailureKind.FENCED_INSTANCE

    def feed(self, event: Event) -> None:
        if not self.alive:
            return
        if self.world.now < self.paused_until:
            self.backlog.append(event)
            return
        for effect in self.member.step(event, self.world.now):
            self._carry_out(effect)
        self.world.check()

    def pause(self, ms: int) -> None:
        """SIGSTOP for a while: nothing is taken in, then everything at once."""
        self.paused_until = max(self.paused_until, self.world.now + ms)
        self.world.after(self.paused_until - self.world.now, self._wake)

    def _wake(self) -> None:
        if self.world.now >= self.paused_until:
            backlog, self.backlog = self.backlog, []
            for event in backlog:
                self.feed(event)

    def _carry_out(self, effect: object) -> None:
        match effect:
            case Send():
                self.world.send(self, effect)
            case SetTimer(name, deadline):
                self.timers[name] = deadline
                self.world.at(deadline, lambda: self._timer(name, deadline))
            case CancelTimer(name):
                self.timers.pop(name, None)
            case Assign():
                delay = self.world.chance.randint(0, 2 * self.world.faults.delay)
                self.world.after(delay, lambda: self._assign(effect))
            case FetchOffsets():
                self._fetch_offsets(effect)
            case Disconnect():
                for connection in self.connections.values():
                    self.world.reset(self, connection)
            case Publish():
                self._published(effect)
            case CommitDone(token, failure):
                positions = self.pending.pop(token)
                if failure is not None:
                    self.failures.append(failure.kind)
                elif positions:
                    self.world.acknowledged(positions)
            case Stopped():
                self.stopped = True

    def _timer(self, name: TimerName, deadline: int) -> None:
        if self.timers.get(name) == deadline:
            del self.timers[name]
            self.feed(TimerExpired(name))

    def _assign(self, task: Assign) -> None:
        self.feed(Assigned(task.id, *assign_group(task.assignor, replace(task.group, racks=None))))

    def _fetch_offsets(self, wanted: FetchOffsets) -> None:
        self.lookups += 1
        if self.world.chance.random() < self.world.faults.no_offsets:
            self.world.after(wanted.timeout_ms, lambda: self.feed(OffsetsFetched(wanted.id, None, "timed out")))
            return
        delay = min(self.world.chance.randint(0, 4 * self.world.faults.delay), wanted.timeout_ms)
        self.world.after(delay, lambda: self.feed(OffsetsFetched(wanted.id, self.world.offsets(wanted.partitions))))

    def _published(self, news: Publish) -> None:
        before = self.held
        self.owns = news
        if news.lost and news.failure is None and self.member.state is not MemberState.LEFT:
            self.losses.append(news.lost)
        for partition in self.held - before:
            self.positions[partition] = self.world.committed.get(partition, 0)
        if news.revoking:
            slow = self.world.chance.random() < self.world.faults.slow_release
            delay = 2 * REBALANCE if slow else self.world.chance.randint(0, self.world.faults.finish)
            self.world.after(delay, lambda: self._finish(news.revoking, news.epoch))

    def _finish(self, partitions: frozenset[TopicPartition], epoch: int) -> None:
        """Revoked work is done: commit it, then let go."""
        if self.alive:
            self.commit(partitions & self.owns.revoking, epoch)
            self.world.after(self.world.chance.randint(0, 100), lambda: self.feed(Released(partitions)))

    def commit(self, partitions: frozenset[TopicPartition] | None = None, epoch: int | None = None) -> None:
        """Work a little on everything held and commit it."""
        mine = self.held if partitions is None else partitions
        if not mine or not self.alive or self.stopped or self.world.now < self.paused_until:
            return
        for partition in mine:
            self.positions[partition] += 1
        self.commits += 1
        offsets = {partition: self.positions[partition] for partition in mine}
        self.pending[self.commits] = offsets
        values = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        self.feed(CommitRequested(self.commits, values, self.owns.epoch if epoch is None else epoch))


class World:
    """Virtual time, the broker side, and what must always hold."""

    def __init__(self, seed: int, topics: dict[str, int], faults: Faults) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.topics = dict(topics)
        self.faults = faults
        self.now = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.actors: list[Actor] = []
        self._ids = count()
        self._tokens = count()
        self._tickets: dict[int, tuple[Actor, int, Connection, Message]] = {}
        self.log: dict[int, list[tuple[bytes, bytes | None]]] = defaultdict(list)
        self._writes: deque[tuple[int, int, tuple[tuple[bytes, bytes | None], ...]]] = deque()
        self._life = 0
        self.up = False
        self._boot()
        self.rosters: dict[int, frozenset[str]] = {}
        self.assigned: dict[int, dict[str, frozenset[TopicPartition]]] = defaultdict(dict)
        self.heads: dict[int, tuple[str, str]] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.pace: dict[TopicPartition, int] = {}
        self.acked: dict[TopicPartition, int] = {}
        self.generation = 0
        self.rounds = 0
        self.crashes = 0
        self.group_writes = 0
        self.fates: dict[int, tuple[Fate, int]] = {}
        """By the number of a write of a group's record: what happens then, and the downtime in ms after a crash."""

    # Time.

    def at(self, time: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(time, self.now), next(self._order), action))

    def after(self, ms: int, action: Callable[[], None]) -> None:
        self.at(self.now + ms, action)

    def run(self, ms: int) -> None:
        end = self.now + ms
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = end

    def calm(self) -> None:
        """No more faults, and every process runs."""
        self.faults = Faults()

    # Processes.

    def join(
        self,
        name: str,
        assignors: tuple[str | Assignor, ...],
        instance: str | None = None,
        heartbeat_ms: int = HEARTBEAT,
        **options: object,
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
            **options,  # type: ignore[arg-type]
        )
        actor = Actor(self, name, config)
        self.actors.append(actor)
        actor.feed(Started())
        self._tick(actor)
        return actor

    def _tick(self, actor: Actor) -> None:
        """The application commits now and then."""
        actor.commit()
        if actor.alive and not actor.stopped:
            self.after(self.chance.randint(300, 2_500), lambda: self._tick(actor))

    def kill(self, actor: Actor) -> None:
        actor.alive = False
        for connection in actor.connections.values():
            connection.alive = False

    @property
    def living(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.alive and actor.member.state is not MemberState.LEFT]

    # The network.

    def send(self, actor: Actor, send: Send) -> None:
        if send.to is None:
            actor.open[send.id] = None
            self.after(self._delay(), lambda: self._answer_plain(actor, send))
            return
        connection = actor.connections.get(send.channel.value)
        if connection is None or not connection.alive:
            connection = actor.connections[send.channel.value] = Connection()
        actor.open[send.id] = connection
        self.after(send.timeout_ms, lambda: self._fail(actor, send.id, "timed out"))
        if self.chance.random() < self.faults.reset:
            lost = connection
            self.after(self._delay(), lambda: self.reset(actor, lost))
        copies = 2 if self.chance.random() < self.faults.duplicate and not _introduces(send.message) else 1
        connection.arrival = max(connection.arrival, self.now + self._delay())
        for _ in range(copies):
            self.at(connection.arrival, lambda c=connection: self._arrive(actor, c, send))  # type: ignore[misc]

    def offsets(self, partitions: Mapping[str, int]) -> dict[str, dict[int, tuple[int, int, int | None]]]:
        """First, end and committed offset of each partition."""
        found: dict[str, dict[int, tuple[int, int, int | None]]] = {}
        for topic, size in partitions.items():
            found[topic] = {}
            for number in range(size):
                partition = TopicPartition(topic, number)
                committed = self.committed.get(partition)
                end = self._pace_of(partition) * self.now // 1_000
                found[topic][number] = (0, max(end, committed or 0), committed)
        return found

    def _pace_of(self, partition: TopicPartition) -> int:
        """New records a second."""
        if partition not in self.pace:
            self.pace[partition] = Random(f"{self.seed} {partition}").choice((0, 10, 1_000))
        return self.pace[partition]

    def _delay(self) -> int:
        return self.chance.randint(0, self.faults.delay)

    def reset(self, actor: Actor, connection: Connection) -> None:
        if not connection.alive:
            return
        connection.alive = False
        connection.queue.clear()
        for number, used in list(actor.open.items()):
            if used is connection:
                self._fail(actor, number, "connection reset")

    def _fail(self, actor: Actor, number: int, reason: str) -> None:
        if actor.open.pop(number, self) is not self:
            actor.feed(RequestFailed(number, reason))

    def _arrive(self, actor: Actor, connection: Connection, send: Send) -> None:
        if not connection.alive:
            return
        if not self.up:
            self.reset(actor, connection)
            return
        connection.queue.append((send.id, send.message))
        self._serve(actor, connection)

    def _serve(self, actor: Actor, connection: Connection) -> None:
        if connection.serving or not connection.queue or not connection.alive:
            return
        connection.serving = True
        number, message = connection.queue.popleft()
        token = next(self._tokens)
        self._tickets[token] = (actor, number, connection, message)
        key = message.__table__.key
        assert key is not None
        event = RequestReceived(token, API_VERSIONS[key].high, "client", "host", self.now, message)
        self._coordinate(self.coordinator.step(event, self.now))

    def _answer_plain(self, actor: Actor, send: Send) -> None:
        """FindCoordinator and Metadata, which any broker answers."""
        response: Message
        match send.message:
            case FindCoordinatorRequest():
                code = ErrorCode.NONE if self.up else ErrorCode.COORDINATOR_NOT_AVAILABLE
                found = FindCoordinatorResponse.Coordinator(
                    key=GROUP, node_id=NODE.node_id, host=NODE.host, port=NODE.port, error_code=code
                )
                response = FindCoordinatorResponse(coordinators=[found])
            case MetadataRequest():
                rows = [
                    MetadataResponse.Topic(
                        name=name, partitions=[MetadataResponse.Partition(partition_index=n) for n in range(size)]
                    )
                    for name, size in self.topics.items()
                ]
                response = MetadataResponse(topics=rows)
            case other:
                raise AssertionError(f"sent to any broker: {other}")
        self.after(self._delay(), lambda: self._deliver(actor, send.id, response))

    def _deliver(self, actor: Actor, number: int, response: Message) -> None:
        if number in actor.open:
            del actor.open[number]
            actor.feed(Responded(number, response))
            if self.chance.random() < self.faults.duplicate:
                actor.feed(Responded(number, response))

    # The coordinator and its disk.

    def _boot(self) -> None:
        self._life += 1
        self.coordinator = Coordinator(
            CoordinatorConfig(partitions=1, initial_rebalance_delay_ms=100, min_session_timeout_ms=1_000),
            lambda: f"{next(self._ids):04}",
            lambda token: token in self._tickets and self._tickets[token][2].alive,
        )
        self.up = True
        self._coordinate(self.coordinator.step(PartitionLoading(0), self.now))
        records, life = tuple(self.log[0]), self._life
        self.after(self._delay(), lambda: self._load(records, life))

    def _load(self, records: tuple[tuple[bytes, bytes | None], ...], life: int) -> None:
        if life == self._life:
            self._coordinate(self.coordinator.step(PartitionLoaded(0, records, self.now), self.now))
            self._check_loaded()

    def crash_coordinator(self, downtime: int) -> None:
        """kill -9: writes under way become durable or not, in order; then it comes back and loads."""
        if not self.up:
            return
        self.up = False
        self.crashes += 1
        self._life += 1
        for _, partition, records in list(self._writes)[: self.chance.randint(0, len(self._writes))]:
            self.log[partition].extend(records)
        self._writes.clear()
        self._tickets.clear()
        for actor in self.actors:
            for connection in actor.connections.values():
                self.reset(actor, connection)
        self.after(downtime, self._boot)

    def _coordinate(self, effects: Effects) -> None:
        life = self._life
        for timer in effects.timers:
            if isinstance(timer, SetTimer):
                self._coordinator_timers[timer.name] = timer.deadline
                self.at(timer.deadline, lambda t=timer: self._coordinator_timer(t, life))  # type: ignore[misc]
            else:
                self._coordinator_timers.pop(timer.name, None)
        for write in effects.writes:
            self._writes.append((write.id, write.partition, write.records))
            self.after(self.chance.randint(0, 10), lambda: self._write_done(life))
        for reply in effects.replies:
            self._reply(reply.token, reply.message)

    @property
    def _coordinator_timers(self) -> dict[CoordinatorTimerName, int]:
        if not hasattr(self, "_timers_of"):
            self._timers_of: dict[int, dict[CoordinatorTimerName, int]] = defaultdict(dict)
        return self._timers_of[self._life]

    def _coordinator_timer(self, timer: SetTimer, life: int) -> None:
        if life == self._life and self._coordinator_timers.get(timer.name) == timer.deadline:
            del self._coordinator_timers[timer.name]
            self._coordinate(self.coordinator.step(CoordinatorTimerExpired(timer.name, self.now), self.now))

    def _write_done(self, life: int) -> None:
        if life != self._life or not self._writes:
            return
        number, partition, records = self._writes[0]
        fate, downtime = self._fate(records)
        if fate is Fate.LOST:
            self._writes.clear()
            self.crash_coordinator(downtime)
            return
        self._writes.popleft()
        if fate is Fate.FAILED:
            failed = WriteCompleted(number, self.now, ErrorCode.NOT_ENOUGH_REPLICAS)
            self._coordinate(self.coordinator.step(failed, self.now))
            return
        self.log[partition].extend(records)
        if fate is not Fate.STORED:
            self._coordinate(self.coordinator.step(WriteCompleted(number, self.now), self.now))
        if fate is not None:
            self._writes.clear()
            self.crash_coordinator(downtime)

    def _fate(self, records: tuple[tuple[bytes, bytes | None], ...]) -> tuple[Fate | None, int]:
        if not any(isinstance(decode_key(key), GroupMetadataKey) for key, _ in records):
            return None, 0
        self.group_writes += 1
        return self.fates.get(self.group_writes, (None, 0))

    def _reply(self, token: int, message: Message) -> None:
        if token not in self._tickets:
            return
        actor, number, connection, request = self._tickets.pop(token)
        self._witness(request, message)
        connection.serving = False
        if connection.alive:
            connection.arrival = max(connection.arrival, self.now)
            self.after(self._delay(), lambda: connection.alive and self._deliver(actor, number, message))
        self._serve(actor, connection)

    # What must hold.

    def _witness(self, request: Message, response: Message) -> None:
        match request, response:
            case _, JoinGroupResponse(error_code=ErrorCode.NONE):
                self._joined(response)
            case SyncGroupRequest(), SyncGroupResponse(error_code=ErrorCode.NONE):
                self._synced(request, response)
            case OffsetCommitRequest(), OffsetCommitResponse():
                if all(p.error_code == ErrorCode.NONE for t in response.topics for p in t.partitions):
                    self._commit_accepted(request)

    def _check_loaded(self) -> None:
        group = self.coordinator.group(GROUP)
        for partition, offset in self.acked.items():
            assert group is not None, "S6: an acknowledged commit survives"
            stored = group.offsets.get(partition.topic, {}).get(partition.partition)
            assert stored is not None, "S6: an acknowledged commit survives"
            assert stored.offset >= offset, "S6: an acknowledged commit survives"

    def _joined(self, response: JoinGroupResponse) -> None:
        assert response.generation_id >= self.generation, "S10: a generation never goes back"
        self.generation = response.generation_id
        generation, head = response.generation_id, (response.protocol_name or "", response.leader)
        if response.leader == response.member_id and not response.skip_assignment:
            if generation in self.rosters and self.heads.get(generation) != head:
                self.assigned.pop(generation, None)
            self.rounds += generation not in self.rosters
            self.rosters[generation] = frozenset(m.member_id for m in response.members)
            self.heads[generation] = head
            assert response.member_id in self.rosters[generation], "S10: the leader is a member"

    def _synced(self, request: SyncGroupRequest, response: SyncGroupResponse) -> None:
        mine = decode_assignment(response.assignment).partitions
        generation = self.assigned[request.generation_id]
        for other, theirs in generation.items():
            if other != request.member_id and not self._same_instance(other, request.member_id):
                assert not mine & theirs, f"S1: {mine & theirs} twice in generation {request.generation_id}"
        generation[request.member_id] = mine
        for partition in mine:
            assert 0 <= partition.partition < self.topics[partition.topic], "S4: only partitions that exist"

    def _commit_accepted(self, request: OffsetCommitRequest) -> None:
        assignments = self.assigned[request.generation_id_or_member_epoch]
        for topic in request.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
                for other, theirs in assignments.items():
                    if other != request.member_id and not self._same_instance(other, request.member_id):
                        assert partition not in theirs, f"S8: {request.member_id} committed {other}'s {partition}"
                before = self.committed.get(partition, 0)
                assert row.committed_offset >= before, f"S8: {partition} went back from {before}"
                self.committed[partition] = row.committed_offset

    def acknowledged(self, positions: dict[TopicPartition, int]) -> None:
        self.acked |= {p: max(offset, self.acked.get(p, 0)) for p, offset in positions.items()}
        for partition, offset in positions.items():
            assert self.committed.get(partition, -1) >= offset, "S6: an acknowledged commit counts"

    def _same_instance(self, one: str, other: str) -> bool:
        instance = {a.member.member_id: a.config.group_instance_id for a in self.actors if a.member.member_id}
        return instance.get(one) is None or instance.get(other) is None or instance[one] == instance[other]

    def check(self) -> None:
        """S2, S3: no partition is held by two processes unless the group has put the older holder out."""
        holders: dict[TopicPartition, Actor] = {}
        for actor in self.actors:
            if not actor.alive:
                continue
            for partition in actor.held:
                other = holders.setdefault(partition, actor)
                if other is not actor:
                    self._judge(partition, actor, other)

    def _judge(self, partition: TopicPartition, one: Actor, other: Actor) -> None:
        if one.config.group_instance_id is not None and one.config.group_instance_id == other.config.group_instance_id:
            return
        old, new = sorted((one, other), key=lambda a: a.owns.generation)
        assert old.owns.generation < new.owns.generation, f"S3: {partition} twice in generation {new.owns.generation}"
        for generation in range(old.owns.generation + 1, new.owns.generation + 1):
            if old.owns.member_id not in self.rosters.get(generation, frozenset()):
                return
        raise AssertionError(
            f"S2/S3 at {self.now}: {partition} is held by {old.name} (generation {old.owns.generation})"
            f" and {new.name} (generation {new.owns.generation}), both members"
        )

    def check_settled(self) -> None:
        """L1, L2: everyone is stable in one generation and every partition has one owner."""
        living = self.living
        for actor in living:
            assert actor.member.state is MemberState.STABLE, (
                f"L1: {actor.name} is {actor.member.state} ({actor.owns.failure})"
            )
            assert not actor.owns.revoking
        assert len({actor.owns.generation for actor in living}) <= 1, "L1: one generation"
        if living:
            everything = {TopicPartition(topic, n) for topic, size in self.topics.items() for n in range(size)}
            owned = [partition for actor in living for partition in actor.owns.partitions]
            assert sorted(owned) == sorted(everything), "L2: every partition has exactly one owner"
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


def _introduces(message: Message) -> bool:
    """A static member's first join: a second one is, by KIP-345, another process that takes its place."""
    return isinstance(message, JoinGroupRequest) and message.group_instance_id is not None and not message.member_id


__all__ = ["GROUP", "HEARTBEAT", "REBALANCE", "SESSION", "Actor", "Fate", "Faults", "World", "topics_of"]
