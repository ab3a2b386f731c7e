"""Tasks with state in a simulated group: stores that are restored from growing logs, and what the observer knows.

The member's assignor is the real `TaskAssignor`; the log and the copies of each store are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from roster.member.events import RebalanceRequested
from roster.member.subscription import LeaderFailure, claimed, decode_assignment
from roster.member.task_assignor import HeldTasks, TaskAssignor
from roster.member.task_options import TaskOptions
from roster.model.tasks import RUNNING, TaskId
from roster.model.topology import Subtopology
from roster.wire import WireError
from roster.wire.consumer.messages import decode_subscription
from roster.wire.streams.assignment_info import decode_assignment_info
from roster.wire.streams.subscription_info import decode_subscription_info
from tests.simulation import task_invariants

if TYPE_CHECKING:
    from roster.member.events import Event, Publish
    from roster.wire.messages import JoinGroupRequest, JoinGroupResponse, SyncGroupRequest
    from tests.simulation.setting import Setting

STATEFUL, STATELESS = 0, 1
SUBTOPOLOGIES = (Subtopology(STATEFUL, ("t",), ("store",)), Subtopology(STATELESS, ("u",)))
"""One sub-topology with a store, one without."""
TASK_TOPICS = frozenset({"t", "u"})
ACCEPTABLE = 50
FIRST_END = 1_000
"""Records in the log of a store when the run begins, or its partition is added."""
TICK_MS = 400
RESTORED, WRITTEN = 150, 10
"""Records that a copy is restored by in a tick, and those that an owner adds."""

Stores = dict[TaskId, int]
"""By task, how far its store on one disk is restored."""


class Worker(Protocol):
    """What a process of tasks has of its member: what it owns, and a way to give it events."""

    name: str
    alive: bool
    stopped: bool
    paused_until: int
    owns: Publish

    def feed(self, event: Event) -> None:
        """Give the member an event."""


class TaskWork:
    """Restores the stores of one process and reports their gaps, as a pipeline does after every batch."""

    def __init__(
        self, world: Setting, logs: Logs, name: str, options: TaskOptions, stores: Mapping[TaskId, int]
    ) -> None:
        self.world = world
        self.logs = logs
        self.stores: Stores = dict(stores)
        """What is on the disk, which a restart keeps."""
        self.reported = self.gaps()
        """The gaps that the member was last told."""
        self.has_looked = True
        """Whether that was after the member lost the group, if it has."""
        self.assignor = TaskAssignor(replace(options, host=f"{name}:80"), name.encode().ljust(16), self.reported)
        self._process: Worker | None = None

    def start(self, process: Worker) -> None:
        """Begin to work."""
        self._process = process
        self._tick()

    @property
    def held(self) -> HeldTasks:
        """The tasks of the process."""
        assert self._process is not None
        return self.assignor.held(self._process.owns.partitions, self._process.owns.revoking)

    def gaps(self) -> dict[TaskId, int]:
        """Return how far each store is behind its log's end."""
        return {task: self.logs.end(task) - position for task, position in sorted(self.stores.items())}

    def caught_up(self) -> list[TaskId]:
        """Return the tasks held of which the copy has caught up."""
        held = self.held
        mine = held.active | held.standby
        return [task for task, gap in self.gaps().items() if task in mine and gap <= ACCEPTABLE]

    def _tick(self) -> None:
        process = self._process
        if process is None or not process.alive or process.stopped:
            return
        if self.world.scheduler.now >= process.paused_until:
            self._restore()
            self.reported, self.has_looked = self.gaps(), True
            held = self.held
            reason = self.assignor.report(self.reported, held.active | held.revoking)
            if reason is not None:
                self.world.counts["copy caught up"] += 1
                process.feed(RebalanceRequested(reason))
        self.world.scheduler.after(TICK_MS, self._tick)

    def _restore(self) -> None:
        held = self.held
        for task in sorted(held.active | held.revoking | held.standby):
            if task.subtopology != STATEFUL:
                continue
            position = min(self.stores.get(task, 0) + RESTORED, self.logs.end(task))
            if task in held.active and position == self.logs.end(task):
                position = self.logs.write(task)
            self.stores[task] = position


class Logs:
    """Ends of the logs of the stores."""

    def __init__(self) -> None:
        self._ends: dict[TaskId, int] = {}

    def end(self, task: TaskId) -> int:
        """Return the end of a task's log."""
        return self._ends.get(task, FIRST_END)

    def write(self, task: TaskId) -> int:
        """Add what the owner of a task writes in a tick; return the new end."""
        self._ends[task] = self.end(task) + WRITTEN
        return self._ends[task]


class TaskBooks:
    """What was said of tasks on the wire, and what is to hold of it."""

    def __init__(self, options: TaskOptions) -> None:
        self.options = options
        self._lags: dict[int, dict[str, dict[TaskId, int]]] = {}
        """By generation and member, the lags that the members joined with."""

    def joining(self, name: str, work: TaskWork, request: JoinGroupRequest) -> None:
        """Judge what a member says of its stores."""
        for protocol in request.protocols:
            lags = lags_of(protocol.metadata)
            if lags is None:
                continue
            is_lost = work.assignor.assignments > 0 and decode_subscription(protocol.metadata).generation_id < 0
            work.has_looked &= not is_lost or bool(stateful(lags))
            runs, reported = self.options.tasks_of(claimed(protocol.metadata)), work.reported if work.has_looked else {}
            task_invariants.a_member_joins_with_the_gaps_of_its_stores(
                name, stateful(lags), reported, runs, self.options.acceptable_lag
            )

    def announced(self, generation: int, response: JoinGroupResponse) -> None:
        """Note what the leader is told."""
        found = {member.member_id: lags_of(member.metadata) for member in response.members}
        self._lags[generation] = {member: stateful(lags) for member, lags in found.items() if lags is not None}

    def assigning(self, request: SyncGroupRequest) -> None:
        """Judge a leader's assignment."""
        lags = self._lags.get(request.generation_id)
        active: dict[str, frozenset[TaskId]] = {}
        copies: dict[str, frozenset[TaskId]] = {}
        for entry in request.assignments:
            if (tasks := tasks_of(entry.assignment)) is not None:
                active[entry.member_id], standby = tasks
                copies[entry.member_id] = active[entry.member_id] | standby
        if lags is None or not active:
            return
        task_invariants.a_task_has_one_active_owner(request.generation_id, active)
        for task in sorted({task for mine in lags.values() for task in mine}):
            warm = {member for member, mine in lags.items() if is_caught_up(mine.get(task))} & copies.keys()
            task_invariants.an_active_task_goes_to_a_caught_up_copy(task, warm, active)
            task_invariants.a_caught_up_copy_is_kept_until_another_has_caught_up(
                task, warm, copies, 1 + self.options.standbys
            )


def unrest(running: Mapping[str, TaskWork], tasks: list[TaskId], standbys: int) -> str | None:
    """Describe what keeps tasks from being at rest: each is to run once, with its standbys, all of them caught up."""
    held = {name: work.held for name, work in running.items()}
    warm = {name: set(work.caught_up()) for name, work in running.items()}
    for task in tasks:
        owners = [name for name, each in held.items() if task in each.active]
        copies = [name for name, each in held.items() if task in each.standby]
        if len(owners) != 1:
            return f"task {task} runs in {owners}"
        if task.subtopology != STATEFUL:
            continue
        if len(copies) != min(standbys, len(running) - 1):
            return f"task {task} has standby copies in {copies}"
        if cold := [name for name in owners + copies if task not in warm[name]]:
            return f"task {task} is not restored in {cold}"
    return None


def lags_of(metadata: bytes) -> dict[TaskId, int] | None:
    """Return the lags in a subscription, or None if it is none of a member that runs tasks."""
    try:
        return decode_subscription_info(decode_subscription(metadata).user_data or b"").tasks.as_dict()
    except WireError:
        return None


def tasks_of(assignment: bytes) -> tuple[frozenset[TaskId], frozenset[TaskId]] | None:
    """Return the active and the standby tasks of an assignment, or None if it has an error or no tasks."""
    try:
        info = decode_assignment_info(decode_assignment(assignment).user_data or b"")
    except (LeaderFailure, WireError):
        return None
    return None if info.error else (frozenset(info.active), frozenset(info.standby))


def stateful(lags: Mapping[TaskId, int]) -> dict[TaskId, int]:
    """Return the lags of tasks with state."""
    return {task: lag for task, lag in lags.items() if task.subtopology == STATEFUL}


def is_caught_up(lag: int | None) -> bool:
    """Return True for a task that runs, or whose copy is at most the acceptable gap behind."""
    return lag is not None and (lag == RUNNING or 0 <= lag <= ACCEPTABLE)
