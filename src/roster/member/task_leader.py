"""The leader of a group that runs tasks: from the members' SubscriptionInfo to their partitions and AssignmentInfo.

A member's assignment is the source partitions of its active tasks, which every Kafka tool sees; the user data is read
by the group's members only. A task that another member still runs is withheld as a whole for one round. Until then it
is a standby task of its new member, so that the copy there stays open.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from roster.assignors.claims import settle_claims, to_withhold
from roster.assignors.tasks import WHOLE_LOG, Client, TaskPlan, TaskProblem, assign
from roster.member.task_options import TaskOptions
from roster.model import NO_OWNER, Address, Plan, Problem, TopicPartition
from roster.model.arrays import Bool, Int32
from roster.model.tasks import RUNNING, STATELESS, TaskId
from roster.model.topology import task_sources
from roster.wire.errors import WireError
from roster.wire.streams.assignment_info import AssignmentInfo, HostTasks, encode_assignment_info
from roster.wire.streams.subscription_info import (
    LATEST_VERSION,
    AssignorErrorCode,
    SubscriptionInfo,
    decode_subscription_info,
    parse_host,
)


def members_by_process(subscriptions: Mapping[str, SubscriptionInfo]) -> dict[str, list[str]]:
    """Return {process id as a UUID: its members, sorted}.

    Members of a later release are left out: their process is unknown, and they rejoin at once (`settle_versions`).
    """
    processes = defaultdict(list)
    for member in sorted(subscriptions):
        if not subscriptions[member].future:
            processes[_written(subscriptions[member].process_id)].append(member)
    return dict(processes)


def running_tasks(
    owned: Mapping[str, Collection[TopicPartition]], sources: Mapping[TaskId, Collection[TopicPartition]]
) -> dict[str, list[TaskId]]:
    """Return {member: the tasks it runs}; a member runs a task if it owns every source partition of it.

    owned: the partitions that each member still owns, from its subscription. sources: the source partitions of each
    task.
    """
    tasks: defaultdict[TopicPartition, list[TaskId]] = defaultdict(list)
    for task, partitions in sources.items():
        for partition in partitions:
            tasks[partition].append(task)
    running = {}
    for member, partitions in owned.items():
        counts = Counter(task for partition in set(partitions) for task in tasks[partition])
        running[member] = sorted(task for task, count in counts.items() if count == len(set(sources[task])))
    return running


def task_clients(
    subscriptions: Mapping[str, SubscriptionInfo],
    running: Mapping[str, Collection[TaskId]] | None = None,
    racks: Mapping[str, str | None] | None = None,
    *,
    acceptable_lag: int = 10_000,
) -> dict[str, Client]:
    """Return {process id: its client}, with the threads of its members and the least lag of each task among them.

    running: the result of `running_tasks`; in the messages, running tasks and standby tasks without a gap both have lag
    0. A running task with a gap above `acceptable_lag` keeps that lag: its store is still being restored. racks: by
    member; a process is in the rack of its first member that has one. STATELESS is kept, as it is not a lag.
    """
    ids: dict[tuple[int, int], TaskId] = {}
    clients = {}
    for process, members in members_by_process(subscriptions).items():
        lags: dict[TaskId, int] = {}
        for member in members:
            tasks = subscriptions[member].tasks
            for key, lag in zip(
                zip(tasks.subtopology.tolist(), tasks.partition.tolist(), strict=True), tasks.lag.tolist(), strict=True
            ):
                task = ids.get(key) or ids.setdefault(key, TaskId(*key))
                known = lags.get(task)
                if known is None or lag < known:
                    lags[task] = lag
        runs = {task for member in members for task in (running or {}).get(member, ())}
        restoring = frozenset(task for task in runs if lags.get(task, RUNNING) > acceptable_lag)
        lags |= {task: RUNNING for task in runs - restoring if lags.get(task) != STATELESS}
        rack = next((racks[member] for member in members if racks.get(member)), None) if racks else None
        clients[process] = Client(sum(subscriptions[member].capacity for member in members), lags, rack, restoring)
    return clients


def _written(process_id: bytes) -> str:
    digits = process_id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@dataclass(frozen=True, slots=True)
class GroupVersions:
    """The leader's choice for every `AssignmentInfo` of this round: `version` and `commonly_supported`.

    future: members of whose subscription only the versions could be read. Their tasks are not known, and they get none,
    since they rejoin at once. rejoining: all members that rejoin at once, including these.
    """

    version: int
    commonly_supported: int
    future: frozenset[str]
    rejoining: frozenset[str]


def settle_versions(subscriptions: Mapping[str, SubscriptionInfo], latest: int = LATEST_VERSION) -> GroupVersions:
    """Choose the version of the group's next assignment, as its leader.

    subscriptions: by member id, including the leader's own. latest: the highest version that the leader supports.
    """
    version = min([latest, *(info.version for info in subscriptions.values())])
    commonly = min([latest, *(info.latest_supported for info in subscriptions.values())])
    future = frozenset(member for member, info in subscriptions.items() if info.version > latest)
    rejoining = frozenset(
        member for member, info in subscriptions.items() if info.version > version or info.version < commonly
    )
    return GroupVersions(version, commonly, future, rejoining)


def version_to_rejoin(answer: AssignmentInfo, used: int, latest: int = LATEST_VERSION) -> int | None:
    """Return the version with which a member rejoins at once, or None to stay with the version it `used`.

    An answer with an error does not change the version. Raises WireError for invalid versions.
    """
    where = f"AssignmentInfo v{answer.version}"
    if answer.version > used:
        raise WireError(f"{where}: version: above the {used} this member joined with")
    if answer.error:
        return None
    commonly = answer.commonly_supported
    if commonly > latest:
        raise WireError(f"{where}: commonly_supported: {commonly} is above the {latest} this member speaks")
    if commonly < answer.version:
        raise WireError(f"{where}: commonly_supported: {commonly} is below the version in use")
    return commonly if commonly > used or answer.version < used else None


def error_answers(
    subscriptions: Mapping[str, SubscriptionInfo], error: int, latest: int = LATEST_VERSION
) -> dict[str, AssignmentInfo]:
    """Return {member id: an empty assignment with the error}, in the member's version, at most `latest`."""
    commonly = min((info.latest_supported for info in subscriptions.values()), default=latest)
    answers = {}
    for member, info in subscriptions.items():
        version = min(info.version, latest)
        answers[member] = AssignmentInfo(
            version=version, commonly_supported=max(min(commonly, latest), version), error=error
        )
    return answers


@dataclass(slots=True)
class _Share:
    """Tasks of one member in the new assignment."""

    active: list[TaskId] = field(default_factory=list)
    standby: list[TaskId] = field(default_factory=list)


def assign_tasks(problem: Problem, options: TaskOptions) -> Plan:
    """Place the tasks of a group.

    A member that reads other topics, or sent no SubscriptionInfo, gets no task and ASSIGNMENT_ERROR. If a source topic
    is missing, all members get INCOMPLETE_SOURCE_TOPIC_METADATA. Raises TopologyError if sources are not
    co-partitioned.
    """
    infos, unreadable = _read(problem)
    strangers = {member for member in infos if problem.topics_of(member) != options.topics & set(problem.topics)} | set(
        unreadable
    )
    errors = error_answers({**infos, **unreadable}, AssignorErrorCode.ASSIGNMENT_ERROR)
    error_data = {member: encode_assignment_info(errors[member]) for member in sorted(strangers)}
    infos = {member: info for member, info in infos.items() if member not in strangers}
    counts = dict(zip(problem.topics, problem.counts.tolist(), strict=True))
    if not options.topics <= counts.keys():
        missing = error_answers(infos, AssignorErrorCode.INCOMPLETE_SOURCE_TOPIC_METADATA)
        error_data |= {member: encode_assignment_info(answer) for member, answer in missing.items()}
        return Plan.of(problem, np.full(problem.partition_count, NO_OWNER, dtype=np.int32), user_data=error_data)
    return _Leading(problem, options, infos, task_sources(options.subtopologies, counts)).plan(error_data)


def _read(problem: Problem) -> tuple[dict[str, SubscriptionInfo], dict[str, SubscriptionInfo]]:
    """Return the SubscriptionInfo of members that sent one, and an empty one for each other member."""
    infos, unreadable = {}, {}
    for member, data in zip(problem.members, problem.user_data, strict=True):
        try:
            infos[member] = decode_subscription_info(data or b"")
        except WireError:
            unreadable[member] = SubscriptionInfo.empty(LATEST_VERSION)
    return infos, unreadable


class _Leading:
    """One assignment of a group whose topics all exist."""

    def __init__(
        self,
        problem: Problem,
        options: TaskOptions,
        infos: Mapping[str, SubscriptionInfo],
        sources: Mapping[TaskId, tuple[TopicPartition, ...]],
    ) -> None:
        self.problem = problem
        self.options = options
        self.infos = infos
        self.sources = sources
        self.versions = settle_versions(infos)
        self.index = {member: i for i, member in enumerate(problem.members)}
        topic_at = {topic: int(problem.first[i]) for i, topic in enumerate(problem.topics)}
        self.flat = {
            task: [topic_at[topic] + number for topic, number in partitions] for task, partitions in sources.items()
        }
        settled = settle_claims(problem)
        self.owner_before, self.contested = settled.owner_before, settled.contested
        self.running = running_tasks(self._owned(), sources)

    def plan(self, error_data: Mapping[str, bytes]) -> Plan:
        """Return the plan; `error_data` is the user data of members that get no task."""
        shares = self.shares()
        owner = np.full(self.problem.partition_count, NO_OWNER, dtype=np.int32)
        for member, share in shares.items():
            for task in share.active:
                owner[self.flat[task]] = self.index[member]
        withheld = self._withheld(owner)
        self._keep_open(shares, withheld)
        return Plan.of(
            self.problem,
            owner,
            owner_before=self.owner_before,
            withheld=withheld,
            contested=self.contested,
            user_data={**error_data, **self._answers(shares, owner, withheld)},
        )

    def shares(self) -> dict[str, _Share]:
        """Place the tasks on processes, then distribute the tasks of each process among its members."""
        present = {member: info for member, info in self.infos.items() if member not in self.versions.future}
        racks = dict(zip(self.problem.members, self.problem.member_racks, strict=True))
        processes = members_by_process(present)
        with_state = self.options.with_state
        placed = assign(
            TaskProblem(
                [task for task in self.sources if task.subtopology in with_state],
                [task for task in self.sources if task.subtopology not in with_state],
                task_clients(present, self.running, racks, acceptable_lag=self.options.acceptable_lag),
                standbys=self.options.standbys,
                acceptable_lag=self.options.acceptable_lag,
                max_warmups=self.options.max_warmups,
            )
        )
        shares = {member: _Share() for member in self.infos}
        for process, members in processes.items():
            self._share_out(placed, process, members, shares)
        return shares

    def _share_out(self, placed: TaskPlan, process: str, members: list[str], shares: dict[str, _Share]) -> None:
        tasks = placed.clients[process]
        copies = sorted({*tasks.standby, *tasks.warmup})
        if len(members) == 1:
            shares[members[0]] = _Share(list(tasks.active), copies)
            return
        capacity = {member: self.infos[member].capacity for member in members}
        named = {member: set(self.infos[member].tasks.as_dict()) for member in members}
        with_state = self.options.with_state
        for member, active in _level(tasks.active, capacity, self.running, with_state).items():
            shares[member].active = active
        for member, standby in _level(copies, capacity, named, with_state).items():
            shares[member].standby = standby

    def _owned(self) -> dict[str, list[TopicPartition]]:
        owned: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for partition in np.flatnonzero(self.owner_before != NO_OWNER).tolist():
            member = self.problem.members[int(self.owner_before[partition])]
            owned[member].append(self.problem.topic_partition(partition))
        return owned

    def _withheld(self, owner: Int32) -> Bool:
        """Return [partitions] True where the new owner waits one round: all of a task's if another member owns one."""
        withheld = to_withhold(self.problem, owner, self.owner_before)
        if withheld.any():
            for partitions in self.flat.values():
                if withheld[partitions].any():
                    withheld[partitions] = True
        return withheld

    def _keep_open(self, shares: Mapping[str, _Share], withheld: Bool) -> None:
        """Make withheld stateful tasks standby tasks for now; leave out stateless ones."""
        for share in shares.values():
            waiting = {task for task in share.active if withheld[self.flat[task]].any()}
            share.active = [task for task in share.active if task not in waiting]
            waiting = {task for task in waiting if task.subtopology in self.options.with_state}
            share.standby = sorted(waiting.union(share.standby))

    def _answers(self, shares: Mapping[str, _Share], owner: Int32, withheld: Bool) -> dict[str, bytes]:
        tasks_by_host = HostTasks.of(self._by_host(owner, withheld))
        return {
            member: encode_assignment_info(
                AssignmentInfo(
                    version=self.versions.version,
                    commonly_supported=self.versions.commonly_supported,
                    active=share.active,
                    standby=share.standby,
                    tasks_by_host=tasks_by_host,
                )
            )
            for member, share in shares.items()
        }

    def _by_host(self, owner: Int32, withheld: Bool) -> dict[Address, list[TaskId]]:
        """Return {end point: the tasks that run there}; a withheld task is with its old owner until it is released."""
        now = np.where(withheld, self.owner_before, owner)
        by_host: defaultdict[Address, list[TaskId]] = defaultdict(list)
        for task, partitions in self.flat.items():
            if (runs_on := int(now[partitions[0]])) == NO_OWNER:
                continue
            info = self.infos.get(self.problem.members[runs_on])
            if info is not None and info.user_endpoint:
                by_host[parse_host(info.user_endpoint, "user_endpoint")].append(task)
        return {host: by_host[host] for host in sorted(by_host)}


def _level(
    tasks: Collection[TaskId],
    capacity: Mapping[str, int],
    had: Mapping[str, Collection[TaskId]],
    with_state: Collection[int] = (),
) -> dict[str, list[TaskId]]:
    """Distribute tasks among the members of one process by capacity, with few moves; they share its stores.

    with_state: sub-topologies whose tasks are made level by themselves.
    """
    clients = {
        member: Client(threads, dict.fromkeys(had.get(member, ()), RUNNING)) for member, threads in capacity.items()
    }
    stateful = [task for task in tasks if task.subtopology in with_state]
    stateless = [task for task in tasks if task.subtopology not in with_state]
    placed = assign(TaskProblem(stateful, stateless, clients, acceptable_lag=WHOLE_LOG)).clients
    return {member: placed[member].active for member in capacity}
