"""A live group of tasks: which member runs each task and keeps copies, from the members' own messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roster.assignors.tasks import Client, TaskProblem
from roster.client.types import GroupDescription, MemberDescription
from roster.member.task_assignor import PROTOCOL_NAME
from roster.member.task_clients import members_by_process, task_clients
from roster.model.tasks import TaskId
from roster.wire.consumer import CLASSIC
from roster.wire.consumer.leader_note import split_note
from roster.wire.consumer.messages import decode_subscription
from roster.wire.errors import WireError
from roster.wire.streams.assignment_info import AssignmentInfo, decode_assignment_info
from roster.wire.streams.subscription_info import SubscriptionInfo, decode_subscription_info


@dataclass(frozen=True, slots=True)
class LiveTask:
    """A task of a live group.

    owner: the member that runs it; None during a hand-over. standbys: {member that keeps a copy: gap in records when it
    last joined}, None for a copy that did not exist then. stateful: True if members reported stores of it.
    """

    task: TaskId
    owner: str | None
    standbys: Mapping[str, int | None]
    stateful: bool


@dataclass(frozen=True, slots=True)
class LiveTasks:
    """The tasks of a group, ascending, and its processes with the gaps each joined with.

    members: {process id: its members}; clients: {process id: what the assignor sees of it}.
    """

    tasks: tuple[LiveTask, ...]
    members: Mapping[str, list[str]]
    clients: Mapping[str, Client]

    @property
    def standbys(self) -> int:
        """Copies that every task with state has beside the one that runs."""
        return min((len(each.standbys) for each in self.tasks if each.stateful), default=0)

    def problem(self, *, standbys: int, acceptable_lag: int, max_warmups: int) -> TaskProblem:
        """Return the group as a problem for the assignor, with a leader's options."""
        return TaskProblem(
            [each.task for each in self.tasks if each.stateful],
            [each.task for each in self.tasks if not each.stateful],
            self.clients,
            standbys=standbys,
            acceptable_lag=acceptable_lag,
            max_warmups=max_warmups,
        )


def runs_tasks(group: GroupDescription) -> bool:
    """Return True for a group of members that run tasks."""
    return group.protocol == PROTOCOL_NAME and group.group_type == CLASSIC


def live_tasks(group: GroupDescription) -> LiveTasks:
    """Read the tasks of a described group; members with unreadable messages are ignored.

    Gaps come from each member's last JoinGroup, which a coordinator shows only while the group is stable.
    """
    joined: dict[str, SubscriptionInfo] = {}
    racks: dict[str, str | None] = {}
    active: dict[str, list[TaskId]] = {}
    copies: dict[TaskId, list[str]] = {}
    for member in group.members:
        info = _assigned(member)
        active[member.member_id] = list(info.active) if info else []
        for task in info.standby if info else ():
            copies.setdefault(task, []).append(member.member_id)
        try:
            subscription = decode_subscription(member.metadata)
            joined[member.member_id] = decode_subscription_info(subscription.user_data or b"")
            racks[member.member_id] = subscription.rack_id
        except WireError:
            continue
    owner = {task: member for member, tasks in active.items() for task in tasks}
    gaps = {member: info.tasks.as_dict() for member, info in joined.items()}
    told = {task: lag for each in gaps.values() for task, lag in each.items() if lag >= 0}
    tasks = tuple(
        LiveTask(
            task,
            owner.get(task),
            {member: _gap(gaps, member, task) for member in copies.get(task, ())},
            task in told or task in copies,
        )
        for task in sorted({*owner, *copies, *told})
    )
    return LiveTasks(tasks, members_by_process(joined), task_clients(joined, active, racks))


def _gap(gaps: Mapping[str, Mapping[TaskId, int]], member: str, task: TaskId) -> int | None:
    gap = gaps.get(member, {}).get(task, -1)
    return gap if gap >= 0 else None


def _assigned(member: MemberDescription) -> AssignmentInfo | None:
    try:
        return decode_assignment_info(split_note(member.user_data)[0] or b"")
    except WireError:
        return None
