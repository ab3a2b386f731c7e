"""One run: nodes, members and clients around one group, in one thread and one virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from roster.coordinator.states import GroupState
from roster.member import MemberConfig, MemberState
from roster.model import TopicPartition
from roster.model.tasks import TaskId
from tests.simulation.books import COOPERATIVE, Books, may_fail
from tests.simulation.errors import broken
from tests.simulation.member_process import MemberProcess
from tests.simulation.node import Node
from tests.simulation.producer import TRANSACTION_MS, VERSIONS_OF_TRANSACTIONS, Producer
from tests.simulation.scenario import NEWEST, VERSIONS, Scenario
from tests.simulation.scripted import Scripted
from tests.simulation.setting import Fate, Setting
from tests.simulation.tasks import SUBTOPOLOGIES, TASK_TOPICS, Logs, TaskWork
from tests.simulation.tasks import unrest as tasks_unrest

SUBSCRIBED = frozenset({"t", "u", "v"})
"""Topics that members subscribe to; some of them may not exist."""
MOST_PROCESSES = 7
SETTLE_MS = 120_000
"""Longest time to rest once faults have stopped: sessions, rebalances, back-offs, timeouts one after another."""
LOOK_MS = 1_000
SLACK_MS = 30_000
"""Time that producers may take for retries beyond the timeout of their transactions."""
LAST_RESTART_MS = 4_500
"""Time by which every process is back that an action killed."""
IDLE_MS = 7_000
"""Time for which nothing may move in a group at rest: longer than metadata is believed."""


class World(Setting):
    """The parts of one run, and what they share."""

    def __init__(self, scenario: Scenario, *, traced: bool = False) -> None:
        super().__init__(scenario, traced=traced)
        self.policies = scenario.policies
        self.logs_of_stores = Logs()
        self.books = Books(self)
        self.nodes = [Node(self, self.books, number, self.crash_node) for number in range(2)]
        self.brokers.extend(self.nodes)
        self.leader = self.nodes[0]
        self.processes: list[MemberProcess] = []
        self.scripted: list[Scripted] = []
        self.leaders_to_kill: list[int] = []
        """Downtimes of the next leaders, which are killed between JoinGroup and SyncGroup."""
        self._to_restart = 0
        """How many processes are to start again after a while."""
        self.calm = False
        """True once the faults have stopped."""
        self._names = count()

    # -- nodes ---------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start the nodes; the first one leads."""
        for node in self.nodes:
            node.start()
        self._elect(self.leader)

    def _elect(self, node: Node) -> None:
        self.lose_unsynced()
        self.leader, self.leader_number = node, node.number
        epoch = self.disk.epoch
        for other in self.nodes:
            self.scheduler.after(self.network.delay() * 4, self.learn_leader, other.number, epoch, node.number)
        if node.up:
            node.lead(epoch)

    def crash_node(self, node: Node, fate: Fate, is_group: bool) -> None:
        """Kill a node at a write; it is back after a while, and leads again unless another one has taken over."""
        fates = self.fates if is_group else self.transaction_fates
        downtime = fates.pop(0)[1] if fates else 500
        self.counts[f"the {fate.value}" if is_group else f"in a transaction the {fate.value}"] += 1
        self.note(f"{node.name} crashes, {downtime} ms")
        self._crash(node, downtime)

    def _crash(self, node: Node, downtime: int) -> None:
        if not node.up:
            return
        was_leader = node is self.leader
        node.crash()
        if was_leader:
            self.lose_unsynced()
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
        transactional_id: str | None = None,
        stores: Mapping[TaskId, int] | None = None,
    ) -> MemberProcess:
        """Start a process with a member."""
        chance, scenario = self.chance, self.scenario
        name = f"m{next(self._names)}"
        if instance is None and not dynamic and chance.random() < scenario.static:
            instance = f"i-{name}"
        versions = NEWEST
        if instance is None and chance.random() < scenario.old:
            which = chance.choice(list(VERSIONS))
            versions = VERSIONS[which]
            if versions is not NEWEST:
                self.counts[f"member that speaks versions {which}"] += 1
        names = chance.choice(self.policies) if policy is None else policy
        work = None
        if self.books.tasks is not None:
            selection = TASK_TOPICS
            work = TaskWork(self, self.logs_of_stores, name, self.books.tasks.options, stores or {})
        config = MemberConfig(
            group=self.group_id,
            selection=selection,
            assignors=names if work is None else (work.assignor,),
            session_timeout_ms=scenario.session_ms,
            heartbeat_interval_ms=scenario.heartbeat_ms,
            rebalance_timeout_ms=scenario.rebalance_ms,
            request_timeout_ms=5_000,
            metadata_max_age_ms=6_000,
            group_instance_id=instance,
        )
        process = MemberProcess(self, self.books, name, config, versions, self.member_stepped)
        process.tasks = work
        if scenario.transactions is not None:
            name = transactional_id or instance or name
            versions = VERSIONS_OF_TRANSACTIONS[scenario.transactions]
            process.producer = Producer(self, process, name, versions, lambda: self.producer_fenced(process))
        self.processes.append(process)
        self.applications.append(process)
        self.note(f"{process.name} starts, {'/'.join(names)}{f', instance {instance}' if instance else ''}")
        process.start()
        return process

    def restart(self, old: MemberProcess, policy: tuple[str, ...] | None = None) -> None:
        """Start a process again: a static member under the same instance id."""
        config = old.config
        if policy is None and self.scenario.upgrade:
            policy = self.policies[0]
        self.start_member(
            instance=config.group_instance_id,
            policy=names_of(config) if policy is None else policy,
            dynamic=config.group_instance_id is None,
            selection=config.selection,  # type: ignore[arg-type]
            transactional_id=None if old.producer is None else old.producer.transactional_id,
            stores=None if old.tasks is None else old.tasks.stores,
        )

    def restart_later(self, ms: int, old: MemberProcess, policy: tuple[str, ...] | None = None) -> None:
        """Start a process again after some time; until then the group is not at rest."""

        def start() -> None:
            self._to_restart -= 1
            self.restart(old, policy)

        self._to_restart += 1
        self.scheduler.after(ms, start)

    def producer_fenced(self, process: MemberProcess) -> None:
        """End a process whose producer is fenced; it starts again unless another one has its transactional id."""
        assert process.producer is not None
        self.counts["producer fenced"] += 1
        name, took_part = process.producer.transactional_id, process.running
        process.kill()
        if took_part and not any(
            other.producer is not None and other.producer.transactional_id == name for other in self.running
        ):
            self.restart_later(3_000, process)

    def member_stepped(self, process: MemberProcess) -> None:
        """Kill a leader between JoinGroup and SyncGroup, if that is planned."""
        member = process.member
        if may_fail(self, process) and process.alive:
            process.kill()
            self.restart_later(3_000, process)
        if self.leaders_to_kill and member.leader and member.state is MemberState.COMPLETING_REBALANCE:
            self.counts["leader died between join and sync"] += 1
            self.note(f"{process.name} leads and is killed")
            process.kill()
            self.restart_later(self.leaders_to_kill.pop(0), process)

    # -- the end -------------------------------------------------------------------------------------------------

    def stop_faults(self) -> None:
        """End every fault: everything runs, nothing is lost any more."""
        self.note("faults stop")
        self.calm = True
        self.network.heal()
        self.slow_release = self.failed_lookups = 0.0
        self.fates.clear()
        self.transaction_fates.clear()
        self.leaders_to_kill.clear()
        self.disk_bad_until = self.disk_slow_until = 0
        for scripted in self.scripted:
            scripted.stop()
        for process in self.processes:
            if process.alive:
                process.wake()
        self._end_former_instances()
        for node in self.nodes:
            self._restart(node)
        if not self.running:
            self.start_member()

    def _end_former_instances(self) -> None:
        """End the processes whose transactional id a later one has: they would learn of it with their next work."""
        newest = {each.producer.transactional_id: each for each in self.running if each.producer is not None}
        for process in self.running:
            if process.producer is not None and newest[process.producer.transactional_id] is not process:
                process.kill()

    def unrest(self) -> str | None:
        """Describe what keeps the group from being at rest; None if nothing does."""
        running = self.running
        if self._to_restart:
            return "a process is to start again"
        for process in running:
            if process.member.state is not MemberState.STABLE or process.owns.revoking:
                return f"{process.name} is {process.member.state.value} in generation {process.member.generation}"
            if process.producer is not None and process.producer.begins:
                return f"the producer of {process.name} has no epoch"
        coordinator = self.leader.coordinator
        group = None if coordinator is None else coordinator.group(self.group_id)
        if not running:
            return None
        if group is None or group.state is not GroupState.STABLE:
            return f"the group is {'unknown' if group is None else group.state.value}"
        ids = {process.member.member_id for process in running}
        if ids != set(group.members):
            return f"the group has {sorted(group.members)}, the processes are {sorted(ids)}"
        return self._unowned(running) or self._tasks_unrest(running)

    def _tasks_unrest(self, running: list[MemberProcess]) -> str | None:
        if self.scenario.tasks is None:
            return None
        working = {process.name: process.tasks for process in running if process.tasks is not None}
        tasks = [
            TaskId(each.number, number)
            for each in SUBTOPOLOGIES
            for number in range(min(self.topics[topic] for topic in each.sources))
        ]
        return tasks_unrest(working, tasks, self.scenario.tasks.standbys)

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
        """Run until the group is at rest, for a session at least: what faults left behind may show only then."""
        end = self.scheduler.now + SETTLE_MS
        restless = self.scheduler.now
        while self.scheduler.now - restless <= self.scenario.session_ms:
            reason = self.unrest()
            if reason is not None:
                restless = self.scheduler.now
            if reason is not None and self.scheduler.now >= end:
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
        self.start_member(policy=names_of(running[0].config), dynamic=True)
        self.scheduler.run(self.scheduler.now + LOOK_MS)
        self.settle("a group that one member joins is at rest soon")
        if self.scenario.tasks is not None:
            return  # further rounds come as copies catch up: a few at a time, and `settle` has seen their end
        most = 2 if protocol in COOPERATIVE or len(self.policies) > 1 else 1
        if self.books.rounds - rounds > most:
            broken("at most two rounds to rest", f"{self.books.rounds - rounds} rounds with {protocol}")

    def end_transactions(self) -> None:
        """Begin no more transactions: those that are open end, and then outputs and offsets agree."""
        if self.scenario.transactions is None:
            return
        self.winding_up = True
        end = self.scheduler.now + TRANSACTION_MS + SLACK_MS
        while (reason := self._transaction_under_way()) is not None:
            if self.scheduler.now > end:
                broken("a transaction ends in time", reason)
            self.scheduler.run(self.scheduler.now + LOOK_MS)
        self.exactly_once.judge()

    def _transaction_under_way(self) -> str | None:
        producers = [process.producer for process in self.running if process.producer is not None]
        busy = [producer.client.name for producer in producers if producer.busy or producer.begins]
        return f"{busy[0]} is busy" if busy else self.exactly_once.unrest()

    def nothing_is_left(self) -> None:
        """At rest no request waits and no write is under way."""
        for node in self.nodes:
            old = [call for call in node.calls.values() if self.scheduler.now - call.since > SETTLE_MS]
            if old:
                names = sorted({type(call.message).__name__ for call in old})
                broken("every request is answered once", f"{node.name} never answered {', '.join(names)}")


def names_of(config: MemberConfig) -> tuple[str, ...]:
    """Return the names of a member's assignors."""
    return tuple(each if isinstance(each, str) else each.name for each in config.assignors)
