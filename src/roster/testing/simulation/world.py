"""One run: nodes, members and clients around one group, in one thread and one virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import count
from random import Random

from roster.coordinator.states import GroupState
from roster.member import MemberConfig, MemberState
from roster.member.types import FailureKind
from roster.model import TopicPartition
from roster.testing.simulation.books import COOPERATIVE, Books
from roster.testing.simulation.clock import Scheduler
from roster.testing.simulation.coverage import Coverage
from roster.testing.simulation.disk import Disk
from roster.testing.simulation.history import History
from roster.testing.simulation.invariants import broken
from roster.testing.simulation.member_process import MemberProcess
from roster.testing.simulation.network import Network
from roster.testing.simulation.node import Fate, Node
from roster.testing.simulation.scenario import NEWEST, VERSIONS, Scenario
from roster.testing.simulation.scripted import Scripted

SUBSCRIBED = frozenset({"t", "u", "v"})
"""Topics that members subscribe to; some of them may not exist."""
MOST_PROCESSES = 7
SETTLE_MS = 120_000
"""Longest time to rest once faults have stopped: sessions, rebalances, back-offs, timeouts one after another."""
LOOK_MS = 1_000
LAST_RESTART_MS = 4_500
"""Time by which every process is back that an action killed."""
IDLE_MS = 7_000
"""Time for which nothing may move in a group at rest: longer than metadata is believed."""


class World:
    """The parts of one run, and what they share."""

    group_id = "g"

    def __init__(self, scenario: Scenario, *, traced: bool = False) -> None:
        self.scenario = scenario
        self.chance = Random(f"run {scenario.seed}")  # noqa: S311 - a simulation
        self.scheduler = Scheduler()
        self.counts: Counter[str] = Counter()
        self.coverage = Coverage()
        self.history = History(lambda: self.scheduler.now, wanted=traced)
        self.network = Network(self.scheduler, self.chance, self.counts)
        self.network.faults = scenario.network
        self.disk = Disk(self.chance, self.counts)
        self.topics = dict(scenario.topics)
        self.most_partitions = dict(scenario.topics)
        self.unsteady_topics: set[str] = set()
        self.policies = scenario.policies
        self.books = Books(self)
        self._ids = count()
        self._tokens = count()
        self._names = count()
        self.nodes = [Node(self, 0), Node(self, 1)]
        self.leader = self.nodes[0]
        self._views = {node.number: self.leader for node in self.nodes}
        self.processes: list[MemberProcess] = []
        self.scripted: list[Scripted] = []
        self.impersonated: set[str] = set()
        self.slow_release = scenario.slow_release
        self.fates: list[tuple[Fate, int]] = []
        self.leaders_to_kill: list[int] = []
        self.disk_bad_until = self.disk_slow_until = 0
        self.disk_is_faulty = False
        self.calm = False
        """True once the faults have stopped."""

    # -- shared parts --------------------------------------------------------------------------------------------

    def new_id(self) -> str:
        """Return a new id for a member."""
        return f"{next(self._ids):04}"

    def new_token(self) -> int:
        """Return a new token for a request."""
        return next(self._tokens)

    def note(self, text: str) -> None:
        """Add a line about the world to the history."""
        self.history.note("world", text)

    def any_node(self) -> Node | None:
        """Return a node that runs."""
        running = [node for node in self.nodes if node.up]
        return self.chance.choice(running) if running else None

    def known_leader(self, node: Node) -> Node | None:
        """Return the node that leads the group's partition, as far as `node` knows."""
        return self._views[node.number]

    def log_offsets(self, partitions: Mapping[str, int]) -> dict[str, dict[int, tuple[int, int, int | None]]]:
        """Return start, end and committed offset of each partition, as a look at the logs does."""
        committed = self.disk.durable.offsets
        return {
            topic: {
                number: (0, 1_000 * (number + 1), committed.get(TopicPartition(topic, number)))
                for number in range(size)
            }
            for topic, size in partitions.items()
        }

    # -- the disk ------------------------------------------------------------------------------------------------

    def disk_refuses(self, *, is_group: bool) -> bool:
        """Return True if the disk refuses this write."""
        refused = self.scheduler.now < self.disk_bad_until and self.chance.random() < 0.5
        if is_group and self.fates and self.fates[0][0] is Fate.REFUSED:
            self.fates.pop(0)
            refused = True
        self.disk_is_faulty |= refused
        return refused

    def sync_ms(self) -> int:
        """Draw the time until a write is durable."""
        if self.scheduler.now < self.disk_slow_until:
            return self.chance.randint(300, 2_000)
        return int(self.chance.random() * (self.scenario.sync_ms + 1))

    def take_fate(self) -> Fate | None:
        """Return what becomes of this write of the group's record, if anything is planned."""
        if self.fates and self.fates[0][0] is not Fate.REFUSED:
            return self.fates[0][0]
        return None

    # -- nodes ---------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start the nodes; the first one leads."""
        for node in self.nodes:
            node.start()
        self._elect(self.leader)

    def _elect(self, node: Node) -> None:
        self.disk.crash()
        self.disk.epoch += 1
        self.leader = node
        for other in self.nodes:
            self.scheduler.after(self.network.delay() * 4, self._views.__setitem__, other.number, node)
        if node.up:
            node.lead(self.disk.epoch)

    def crash_node(self, node: Node, fate: Fate | None = None) -> None:
        """Kill a node; it is back after a while, and leads again unless another one has taken over."""
        downtime = self.fates.pop(0)[1] if fate is not None and self.fates else 500
        self.counts["coordinator crash" if fate is None else f"the {fate.value}"] += 1
        self.note(f"{node.name} crashes, {downtime} ms")
        self._crash(node, downtime)

    def _crash(self, node: Node, downtime: int) -> None:
        if not node.up:
            return
        was_leader = node is self.leader
        node.crash()
        if was_leader:
            self.disk.crash()
            self.disk.epoch += 1
        self.scheduler.after(downtime, self._restart, node)

    def _restart(self, node: Node) -> None:
        if not node.up:
            node.start()
            self.note(f"{node.name} is back")
            if self.leader is node:
                self._elect(node)

    def crash_leader(self, downtime: int) -> None:
        """Kill the coordinator."""
        self.counts["coordinator crash"] += 1
        self.note(f"{self.leader.name} crashes, {downtime} ms")
        self._crash(self.leader, downtime)

    def move(self, notice_ms: int) -> None:
        """Have the other node lead; the former leader learns of it after `notice_ms`."""
        old = self.leader
        other = self.nodes[1 - old.number]
        if other.up:
            self.note(f"the partition moves from {old.name} to {other.name}")
            life, epoch = old.life, old.epoch
            self._elect(other)
            self.scheduler.after(notice_ms, old.step_down, life, epoch)

    # -- members -------------------------------------------------------------------------------------------------

    @property
    def running(self) -> list[MemberProcess]:
        """Members that take part."""
        return [process for process in self.processes if process.running]

    def start_member(
        self,
        *,
        instance: str | None = None,
        policy: tuple[str, ...] | None = None,
        dynamic: bool = False,
        selection: frozenset[str] = SUBSCRIBED,
    ) -> MemberProcess:
        """Start a process with a member."""
        chance, scenario = self.chance, self.scenario
        name = f"m{next(self._names)}"
        if instance is None and not dynamic and chance.random() < scenario.static:
            instance = f"i-{name}"
        versions = NEWEST
        if instance is None and chance.random() < scenario.old:
            which = chance.choice(list(VERSIONS))
            self.counts[f"member that speaks versions {which}"] += which != "newest"
            versions = VERSIONS[which]
        config = MemberConfig(
            group=self.group_id,
            selection=selection,
            assignors=chance.choice(self.policies) if policy is None else policy,
            session_timeout_ms=scenario.session_ms,
            heartbeat_interval_ms=scenario.heartbeat_ms,
            rebalance_timeout_ms=scenario.rebalance_ms,
            request_timeout_ms=5_000,
            metadata_max_age_ms=6_000,
            group_instance_id=instance,
        )
        process = MemberProcess(self, name, config, versions)
        self.processes.append(process)
        self.note(f"{name} starts, {'/'.join(config.assignors)}{f', instance {instance}' if instance else ''}")  # type: ignore[arg-type]
        process.start()
        return process

    def restart(self, old: MemberProcess, policy: tuple[str, ...] | None = None) -> None:
        """Start a process again: a static member under the same instance id."""
        config = old.config
        if policy is None and self.scenario.upgrade:
            policy = self.policies[0]
        self.start_member(
            instance=config.group_instance_id,
            policy=config.assignors if policy is None else policy,  # type: ignore[arg-type]
            dynamic=config.group_instance_id is None,
            selection=config.selection,  # type: ignore[arg-type]
        )

    def may_fail(self, process: MemberProcess) -> bool:
        """Return True for a failure that a rolling upgrade explains: members of the stage before are still there."""
        failure = process.member.failure
        return bool(self.scenario.upgrade) and failure is not None and failure.kind is FailureKind.PROTOCOL

    def member_stepped(self, process: MemberProcess) -> None:
        """Kill a leader between JoinGroup and SyncGroup, if that is planned."""
        member = process.member
        if self.may_fail(process) and process.alive:
            process.kill()
            self.scheduler.after(3_000, self.restart, process)
        if self.leaders_to_kill and member.leader and member.state is MemberState.COMPLETING_REBALANCE:
            self.counts["leader died between join and sync"] += 1
            self.note(f"{process.name} leads and is killed")
            process.kill()
            self.scheduler.after(self.leaders_to_kill.pop(0), self.restart, process)

    # -- the end -------------------------------------------------------------------------------------------------

    def stop_faults(self) -> None:
        """End every fault: everything runs, nothing is lost any more."""
        self.note("faults stop")
        self.calm = True
        self.network.heal()
        self.slow_release = 0.0
        self.fates.clear()
        self.leaders_to_kill.clear()
        self.disk_bad_until = self.disk_slow_until = 0
        for scripted in self.scripted:
            scripted.stop()
        for process in self.processes:
            if process.alive:
                process.wake()
        for node in self.nodes:
            self._restart(node)
        if not self.running:
            self.start_member()

    def unrest(self) -> str | None:
        """Describe what keeps the group from being at rest; None if nothing does."""
        running = self.running
        for process in running:
            if process.member.state is not MemberState.STABLE or process.owns.revoking:
                return f"{process.name} is {process.member.state.value} in generation {process.member.generation}"
        coordinator = self.leader.coordinator
        group = None if coordinator is None else coordinator.group(self.group_id)
        if not running:
            return None
        if group is None or group.state is not GroupState.STABLE:
            return f"the group is {'unknown' if group is None else group.state.value}"
        ids = {process.member.member_id for process in running}
        if ids != set(group.members):
            return f"the group has {sorted(group.members)}, the processes are {sorted(ids)}"
        return self._unowned(running)

    def _unowned(self, running: list[MemberProcess]) -> str | None:
        subscribed = {topic for process in running for topic in process.member.topics or ()}
        wanted = [
            TopicPartition(topic, number)
            for topic in sorted(subscribed & self.topics.keys())
            for number in range(self.topics[topic])
        ]
        owned = sorted(partition for process in running for partition in process.owns.partitions)
        if owned != wanted:
            missing = sorted(set(wanted) - set(owned))
            extra = sorted(set(owned) - set(wanted))
            return f"not every partition has one owner: missing {missing}, too many {extra or len(owned) - len(wanted)}"
        return None

    def settle(self, sentence: str) -> None:
        """Run until the group is at rest; it has to be within `SETTLE_MS`."""
        end = self.scheduler.now + SETTLE_MS
        while (reason := self.unrest()) is not None:
            if self.scheduler.now >= end:
                broken(sentence, f"{SETTLE_MS // 1000} s after the faults stopped {reason}")
            self.scheduler.run(self.scheduler.now + LOOK_MS)

    def stay_idle(self) -> None:
        """Nothing moves in a group at rest."""
        rounds, owns = self.books.rounds, [process.owns.partitions for process in self.running]
        self.scheduler.run(self.scheduler.now + IDLE_MS)
        if self.books.rounds != rounds or [process.owns.partitions for process in self.running] != owns:
            broken("no rebalance while idle", f"{self.books.rounds - rounds} rebalances in a group at rest")

    def join_calmly(self) -> None:
        """One more member costs one round with an eager assignor, two with a cooperative one."""
        running = self.running
        if not running:
            return
        protocol = running[0].member.protocol_name
        rounds = self.books.rounds
        self.start_member(policy=running[0].config.assignors, dynamic=True)  # type: ignore[arg-type]
        self.scheduler.run(self.scheduler.now + LOOK_MS)
        self.settle("a group that one member joins is at rest soon")
        most = 2 if protocol in COOPERATIVE or len(self.policies) > 1 else 1
        if self.books.rounds - rounds > most:
            broken("at most two rounds to rest", f"{self.books.rounds - rounds} rounds with {protocol}")

    def nothing_is_left(self) -> None:
        """At rest no request waits and no write is under way."""
        for node in self.nodes:
            old = [call for call in node.calls.values() if self.scheduler.now - call.since > SETTLE_MS]
            if old:
                names = sorted({type(call.message).__name__ for call in old})
                broken("every request is answered once", f"{node.name} never answered {', '.join(names)}")
