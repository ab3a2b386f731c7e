"""`TaskAssignor`: the assignor of a group of tasks with state, and what its member knows of them.

It sends SubscriptionInfo with the gap of each store, places tasks as leader (`roster.member.task_leader`), and reads
AssignmentInfo. It asks for the next rebalance at two moments: when the answer is in a version below the one that all
members speak (`task_versions`), and when a store it restores has caught up (`task_catch_up`). Source: KIP-429 part II.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from roster.assignors import Assignor, ClaimSource, JoinContext, RebalanceProtocol
from roster.member.task_catch_up import CatchUp
from roster.member.task_leader import assign_tasks
from roster.member.task_options import TaskOptions
from roster.member.task_versions import version_to_rejoin
from roster.model import NO_GENERATION, Plan, Problem, TopicPartition
from roster.model.tasks import RUNNING, STATELESS, TaskId, TaskLags
from roster.model.topology import TopologyError
from roster.wire.streams.assignment_info import AssignmentInfo, decode_assignment_info
from roster.wire.streams.host_info import HostInfo
from roster.wire.streams.subscription_info import (
    LATEST_VERSION,
    AssignorErrorCode,
    SubscriptionInfo,
    encode_subscription_info,
)

PROTOCOL_NAME = "tasks"
"""Name of the assignor in JoinGroup, other than Kafka Streams' `stream`, whose members send other layouts."""


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """Tasks of a member at one moment; the four sets are disjoint but for `restoring`, which is part of `standby`.

    active: to be run; the member owns all their source partitions. revoking: to be finished, committed and released.
    standby: tasks of which a copy is to be kept and brought up to date, warm-ups among them.
    restoring: standby tasks whose copy has not caught up, by the gaps last reported.
    by_host: the active tasks of every process that answers queries; a process without tasks is left out.
    """

    active: frozenset[TaskId] = frozenset()
    revoking: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    restoring: frozenset[TaskId] = frozenset()
    by_host: Mapping[HostInfo, frozenset[TaskId]] = field(default_factory=dict)


class TaskAssignor(Assignor):
    """Assignor of one member of a group of tasks. All methods but `assign` run on the thread of its heartbeats.

    options: of the pipeline. process_id: 16 bytes, the same for all members of a process. gaps: records that each store
    here is behind its log's end, by task, as worked out before joining.
    """

    name = PROTOCOL_NAME
    supported_protocols = (RebalanceProtocol.COOPERATIVE,)
    claim_source = ClaimSource.FIELDS

    def __init__(self, options: TaskOptions, process_id: bytes, gaps: Mapping[TaskId, int] | None = None) -> None:
        self.options = options
        self._process_id = process_id
        self._gaps = self.with_state(gaps or {})
        self._joined_with: dict[TaskId, int] = {}
        self._version = LATEST_VERSION
        self._standby: frozenset[TaskId] = frozenset()
        self.assignments = 0
        """Number of assignments received."""
        self._by_host: Mapping[HostInfo, frozenset[TaskId]] = {}
        self._catch_up = CatchUp(options.acceptable_lag)

    # The member's side.

    def report(self, gaps: Mapping[TaskId, int], running: Collection[TaskId] = ()) -> str | None:
        """Take the present gap of every task with a store here, in records; a task left out has no store.

        A task of `running` that is left out has no gap; while its store is still restored, name it, for the case that
        the member loses the task before it has caught up. Returns the reason to join again, if a copy has caught up.
        Raises ValueError for a gap below 0.
        """
        self._gaps = self.with_state(dict.fromkeys(running, 0) | dict(gaps))
        done = self._catch_up.caught_up(self._gaps)
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
        """Encode SubscriptionInfo: what runs, and the gaps of the stores that are behind or do not run."""
        lags = self._gaps | {task: self._lag_where_it_runs(task) for task in self.options.tasks_of(join.owned)}
        # The place of a static member that starts again is given to it without a rebalance: the leader sees no new gap.
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
        """Return the gap of an active task that is still restored, so that a copy that is nearer can take it over."""
        if task.subtopology not in self.options.with_state:
            return STATELESS
        gap = self._gaps.get(task, 0)
        return gap if gap > self.options.acceptable_lag else RUNNING

    def on_assignment(
        self, partitions: frozenset[TopicPartition], user_data: bytes | None, generation: int
    ) -> str | None:
        """Record the assignment; returns the reason to join again while versions are probed.

        Raises TopologyError for an error of the leader, WireError and ValueError for what is no sound AssignmentInfo.
        """
        if not user_data:
            raise ValueError("the group's leader sent no AssignmentInfo: all members must run tasks")
        info = decode_assignment_info(user_data)
        self._check_error(info)
        active = frozenset(info.active)
        self._check_tasks(active, frozenset(info.standby), partitions)
        self._standby = frozenset(info.standby) - active
        self._by_host = {host: frozenset(tasks) for host, tasks in info.tasks_by_host.as_dict().items()}
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
            raise ValueError(f"the group's leader assigned task {strange[0]}, and there is no such sub-topology here")
        if partitions != {each for task in active for each in self.options.task_partitions(task)}:
            raise ValueError("the group's leader assigned other partitions than the sources of the active tasks")

    def with_state(self, gaps: Mapping[TaskId, int]) -> dict[TaskId, int]:
        """Return the gaps without those of other topologies' stores. Raises ValueError for a gap below 0."""
        if wrong := sorted(task for task, gap in gaps.items() if gap < 0):
            raise ValueError(f"gaps[{wrong[0]}]: must be a number of records from 0 up, not {gaps[wrong[0]]}")
        return {TaskId(*task): int(gap) for task, gap in gaps.items() if task[0] in self.options.with_state}

    # The leader's side.

    def assign(self, problem: Problem) -> Plan:
        """Place the tasks of the group."""
        return assign_tasks(problem, self.options)
