"""A live group of tasks: which member runs each task and keeps copies, from the members' own messages."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from roster.client.types import GroupDescription, MemberDescription
from roster.member.task_assignor import PROTOCOL_NAME
from roster.model.tasks import TaskId
from roster.wire.consumer import CLASSIC
from roster.wire.consumer.messages import decode_subscription
from roster.wire.errors import WireError
from roster.wire.streams.assignment_info import AssignmentInfo, decode_assignment_info
from roster.wire.streams.subscription_info import decode_subscription_info


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


def runs_tasks(group: GroupDescription) -> bool:
    """Return True for a group of members that run tasks."""
    return group.protocol == PROTOCOL_NAME and group.group_type == CLASSIC


def live_tasks(group: GroupDescription) -> tuple[LiveTask, ...]:
    """Return the tasks of a described group, ascending; members with unreadable messages are ignored.

    Gaps come from each member's last JoinGroup, which a coordinator shows only while the group is stable.
    """
    gaps: dict[str, Mapping[TaskId, int]] = {}
    owner: dict[TaskId, str] = {}
    copies: dict[TaskId, list[str]] = {}
    for member in group.members:
        info = _assigned(member)
        owner.update(dict.fromkeys(info.active if info else (), member.member_id))
        for task in info.standby if info else ():
            copies.setdefault(task, []).append(member.member_id)
        with contextlib.suppress(WireError):
            user_data = decode_subscription(member.metadata).user_data or b""
            gaps[member.member_id] = decode_subscription_info(user_data).tasks.as_dict()
    reported = {task for by_task in gaps.values() for task, gap in by_task.items() if gap >= 0}
    return tuple(
        LiveTask(
            task,
            owner.get(task),
            {member: _gap(gaps, member, task) for member in copies.get(task, ())},
            task in reported or task in copies,
        )
        for task in sorted({*owner, *copies, *reported})
    )


def _gap(gaps: Mapping[str, Mapping[TaskId, int]], member: str, task: TaskId) -> int | None:
    gap = gaps.get(member, {}).get(task, -1)
    return gap if gap >= 0 else None


def _assigned(member: MemberDescription) -> AssignmentInfo | None:
    try:
        return decode_assignment_info(member.user_data or b"")
    except WireError:
        return None
