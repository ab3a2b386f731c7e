"""`TaskAssignor`: the assignor of stateful tasks, and a member's view of its tasks.

It sends SubscriptionInfo with the gap of each store, places tasks as leader (`roster.member.task_leader`), and reads
AssignmentInfo. It requests the next rebalance in two cases: if the answer is in a lower version than all members
support (`task_leader`), and if a store that it restores has caught up (`CatchUp`).

Kafka Streams rebalances every `probing.rebalance.interval.ms` (ten minutes) instead, so a warm-up is used late, or is
not ready yet. Source: KIP-429 part II (gaps reported when joining), KIP-441 (acceptable recovery lag).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from roster.assignors import Assignor, ClaimSource, JoinContext, RebalanceProtocol
from roster.member.task_leader import assign_tasks, version_to_rejoin
from roster.member.task_options import TaskOptions
from roster.model import NO_GENERATION, Address, Plan, Problem, TopicPartition
from roster.model.tasks import RUNNING, STATELESS, TaskId, TaskLags
from roster.model.topology import TopologyError
from roster.wire.streams.assignment_info import AssignmentInfo, decode_assignment_info
from roster.wire.streams.subscription_info import (
    LATEST_VERSION,
    AssignorErrorCode,
    SubscriptionInfo,
    encode_subscription_info,
)


class CatchUp:
    """The tasks of the last assignment that a member restores and that have not caught up.

    acceptable_lag: a store with a gap of at most so many records has caught up, as in the leader's `TaskProblem`.
    """

    def __init__(self, acceptable_lag: int) -> None:
        self._acceptable_lag = acceptable_lag
        self._behind: set[TaskId] = set()

    def assigned(self, restoring: Collection[TaskId], joined_with: Mapping[TaskId, int]) -> None:
        """Record a new assignment: its standby and warm-up tasks, and the gaps that the member reported when joining.

        The leader knows of tasks that had caught up then. The gap of a task that was not reported is the whole log.
        """
        self._behind = {task for task in restoring if not 0 <= joined_with.get(task, -1) <= self._acceptable_lag}

    def caught_up(self, gaps: Mapping[TaskId, int]) -> list[TaskId]:
        """Return the tasks that have just caught up, each once; the member rejoins if there are any."""
        done = sorted(task for task in self._behind if 0 <= gaps.get(task, -1) <= self._acceptable_lag)
        self._behind.difference_update(done)
        return done


PROTOCOL_NAME = "tasks"
"""Name of the assignor in JoinGroup. Kafka Streams' is `stream`; its members send another format."""


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """Tasks of a member at one moment. `restoring` is a part of `standby`; the other sets are disjoint.

    active: tasks to run; the member owns all their source partitions. revoking: tasks to finish, commit and release.
    standby: tasks whose up-to-date copy to keep, including warm-ups.
    restoring: standby tasks whose copy has not caught up, according to the gaps last reported.
    by_host: the active tasks of every process that answers queries, without processes that have none.
    """

    active: frozenset[TaskId] = frozenset()
    revoking: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    restoring: frozenset[TaskId] = frozenset()
    by_host: Mapping[Address, frozenset[TaskId]] = field(default_factory=dict)


class TaskAssignor(Assignor):
    """Assignor of one member of a group that runs tasks. Except `assign`, all methods run on the heartbeat thread.

    options: the pipeline's. process_id: 16 bytes, the same for all members of a process. gaps: by task, how many
    records its local store is behind the end of its changelog, computed before joining.
    """

    name = PROTOCOL_NAME
    supported_protocols = (RebalanceProtocol.COOPERATIVE,)
    claim_source = ClaimSource.FIELDS

    def __init__(self, options: TaskOptions, process_id: bytes, gaps: Mapping[TaskId, int] | None = None) -> None:
        self.options = options
        self._process_id = process_id
        self._gaps = self.with_state(gaps or {})
        self._in_group = False
        """True if the gaps may have been reported as a member of the group; they are void once it is lost."""
        self._looks_again = False
        """True from a join without these gaps until what the stores are then is reported."""
        self._joined_with: dict[TaskId, int] = {}
        self._version = LATEST_VERSION
        self._standby: frozenset[TaskId] = frozenset()
        self.assignments = 0
        """Number of assignments received."""
        self._by_host: Mapping[Address, frozenset[TaskId]] = {}
        self._catch_up = CatchUp(options.acceptable_lag)

    # The member's side.

    def report(self, gaps: Mapping[TaskId, int], running: Collection[TaskId] = ()) -> str | None:
        """Store the present gap, in records, of every task with a local store; a task left out of `gaps` has no store.

        A task of `running` may be left out if its gap is 0. Name it while its store is being restored, in case the
        member loses the task before it has caught up. Returns a reason to rejoin if a copy has caught up, or if the
        leader knows nothing of a store since the member lost the group, else None. Raises ValueError for a gap below 0.
        """
        self._gaps = self.with_state(dict.fromkeys(running, 0) | dict(gaps))
        done = self._catch_up.caught_up(self._gaps)
        if self._looks_again and self._in_group:
            self._looks_again = False
            if unknown := sorted(self._gaps.keys() - self._joined_with.keys() - set(running)):
                return f"looked again at {', '.join(map(str, unknown))}"
        self._in_group |= bool(running)
        return f"caught up on {', '.join(map(str, done))}" if done else None

    def held(self, owned: frozenset[TopicPartition], revoking: frozenset[TopicPartition]) -> HeldTasks:
        """Return the tasks of a member that owns these partitions."""
        active = self.options.tasks_of(owned)
        finishing = self.options.tasks_of(owned | revoking) - active
        standby = self._standby - active - finishing
        restoring = frozenset(
            task for task in standby if not 0 <= self._gaps.get(task, -1) <= self.options.acceptable_lag
        )
        return HeldTasks(active, finishing, standby, restoring, self._by_host)

    def subscription_user_data(self, join: JoinContext) -> bytes:
        """Encode SubscriptionInfo: the running tasks, and the gaps of stores that are behind or not running here.

        A member that has lost the group claims no store until it has reported its gaps again: others may have run its
        tasks since, and a store that is taken for caught up takes a task from the owner that is.
        """
        if join.generation == NO_GENERATION and self._in_group:
            self._in_group, self._looks_again, self._gaps = False, True, {}
        lags = self._gaps | {task: self._lag_where_it_runs(task) for task in self.options.tasks_of(join.owned)}
        # A restarted static member gets its place back without a rebalance, so the leader would see no new gap.
        is_seen = not (join.is_static and join.generation == NO_GENERATION)
        self._joined_with = {task: max(lag, 0) for task, lag in lags.items()} if is_seen else {}
        info = SubscriptionInfo(
            version=self._version,
            latest_supported=LATEST_VERSION,
            process_id=self._process_id,
            tasks=TaskLags.of({task: lags[task] for task in sorted(lags)}),
            user_endpoint=self.options.host,
            capacity=join.capacity,
        )
        return encode_subscription_info(info)

    def _lag_where_it_runs(self, task: TaskId) -> int:
        """Return the gap of an active task that is still being restored, so that a nearer copy can take it over."""
        if task.subtopology not in self.options.with_state:
            return STATELESS
        gap = self._gaps.get(task, 0)
        return gap if gap > self.options.acceptable_lag else RUNNING

    def on_assignment(
        self, partitions: frozenset[TopicPartition], user_data: bytes | None, generation: int
    ) -> str | None:
        """Record the assignment; return a reason to rejoin while versions are probed, else None.

        Raises TopologyError for an error from the leader, WireError and ValueError for an invalid AssignmentInfo.
        """
        if not user_data:
            raise ValueError("the group's leader sent no AssignmentInfo: all members must run tasks")
        info = decode_assignment_info(user_data)
        self._check_error(info)
        active = frozenset(info.active)
        self._check_tasks(active, frozenset(info.standby), partitions)
        self._standby = frozenset(info.standby) - active
        self._by_host = {host: frozenset(tasks) for host, tasks in info.tasks_by_host.as_dict().items()}
        self._in_group = True
        self.assignments += 1
        self._catch_up.assigned(self._standby, self._joined_with)
        version = version_to_rejoin(info, self._version)
        if version is None:
            return None
        before, self._version = self._version, version
        return f"version probing: from version {before} to {version}"

    def _check_error(self, info: AssignmentInfo) -> None:
        topics = ", ".join(sorted(self.options.topics))
        match info.error:
            case AssignorErrorCode.NONE:
                return
            case AssignorErrorCode.INCOMPLETE_SOURCE_TOPIC_METADATA:
                raise TopologyError(f"a source topic is missing (of {topics}): create it, then start again")
            case AssignorErrorCode.ASSIGNMENT_ERROR:
                raise TopologyError(
                    f"the group's leader runs another topology than this member, which reads {topics}:"
                    " give all members the same, or use another group"
                )
            case code:
                raise TopologyError(f"the group's leader sent error code {code}")

    def _check_tasks(
        self, active: frozenset[TaskId], standby: frozenset[TaskId], partitions: frozenset[TopicPartition]
    ) -> None:
        known = self.options.sources_of
        if strange := sorted(task for task in active | standby if task.subtopology not in known):
            raise ValueError(
                f"the group's leader assigned task {strange[0]}, whose sub-topology this member does not know"
            )
        if partitions != {partition for task in active for partition in self.options.task_partitions(task)}:
            raise ValueError("the group's leader assigned other partitions than the sources of the active tasks")

    def with_state(self, gaps: Mapping[TaskId, int]) -> dict[TaskId, int]:
        """Return the gaps of this topology's stateful tasks. Raises ValueError for a gap below 0."""
        if wrong := sorted(task for task, gap in gaps.items() if gap < 0):
            raise ValueError(f"gaps[{wrong[0]}]: must be a number of records from 0 up, not {gaps[wrong[0]]}")
        return {TaskId(*task): int(gap) for task, gap in gaps.items() if task[0] in self.options.with_state}

    # The leader's side.

    def assign(self, problem: Problem) -> Plan:
        """Place the tasks of the group."""
        return assign_tasks(problem, self.options)
