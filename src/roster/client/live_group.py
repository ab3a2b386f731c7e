"""A live group as a problem for any assignor: its members, their partitions and their lag."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roster.assignors.lag import with_offsets
from roster.client.admin import Admin
from roster.client.errors import GroupEmptyError, GroupTypeError, RebalanceInProgressError, UnknownGroupError
from roster.client.offsets import by_topic
from roster.client.types import GroupDescription, MemberDescription
from roster.member.task_assignor import PROTOCOL_NAME
from roster.model import AutoOffsetReset, MemberInfo, PartitionOffsets, Problem, TopicPartition
from roster.model.tasks import TaskId
from roster.wire import WireError
from roster.wire.consumer import CLASSIC, CONSUMER, PROTOCOL_TYPE
from roster.wire.consumer.messages import Subscription, decode_subscription
from roster.wire.consumer.user_data import split_lag_user_data
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


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """A group at one moment.

    Claims in `problem` are what its members are assigned now; `unreadable` are the ids of members whose subscription
    cannot be decoded, which an assignor gives nothing.
    """

    description: GroupDescription
    problem: Problem
    unreadable: tuple[str, ...]


def members_of(admin: Admin, group: str) -> Sequence[MemberDescription]:
    """Return the members of a group, none if the group does not exist. Raises ClientError."""
    try:
        return admin.describe_group(group).members
    except UnknownGroupError:
        return ()


def live_group(
    admin: Admin, group: str, *, with_lag: bool = False, auto_offset_reset: str = AutoOffsetReset.LATEST
) -> LiveGroup:
    """Describe the group as a problem; joins nothing and changes nothing.

    Args:
        admin: the cluster.
        group: a classic consumer group.
        with_lag: look up offsets too, for assignors that weigh lag.
        auto_offset_reset: "earliest" or "latest": where lag is counted from in partitions without a committed offset.

    Raises:
        GroupTypeError: the broker assigns (KIP-848), or this is not a consumer group.
        GroupEmptyError: the group has no members.
        RebalanceInProgressError: subscriptions are visible only while the group is Stable.
        ClientError: the cluster refused or did not answer.
    """
    description = admin.describe_group(group)
    require_stable_consumers(description)
    members: dict[str, MemberInfo] = {}
    unreadable = []
    for member in description.members:
        try:
            subscription = decode_subscription(member.metadata)
        except WireError:
            subscription = Subscription()
            unreadable.append(member.member_id)
        owned: dict[str, list[int]] = {}
        for topic, number in member.assignment:
            owned.setdefault(topic, []).append(number)
        _, capacity, _ = split_lag_user_data([subscription.user_data])
        members[member.member_id] = MemberInfo(
            subscription.topics,
            owned,
            0,
            member.instance_id,
            subscription.rack_id or None,
            int(capacity[0]),
            subscription.user_data,
        )
    topics = {topic for member in members.values() for topic in (*member.topics, *member.owned)}
    replicas = admin.replica_racks(sorted(topics))
    partitions = {topic: len(racks) for topic, racks in replicas.items()}
    problem = Problem.build(members, partitions, replica_racks=replicas)
    if with_lag:
        problem = with_offsets(problem, _offsets(admin, group, problem), auto_offset_reset)
    return LiveGroup(description, problem, tuple(unreadable))


def require_stable_consumers(group: GroupDescription) -> None:
    """Raise GroupTypeError, GroupEmptyError or RebalanceInProgressError for a group that cannot be planned."""
    name = group.group_id
    if group.group_type == CONSUMER:
        raise GroupTypeError(
            f"{name} is a consumer group (KIP-848): its broker assigns partitions ({group.protocol}), "
            "no assignor of a member is asked, so there is nothing to plan"
        )
    if not group.members:
        raise GroupEmptyError(f"{name} has no members (it is {group.state})")
    if group.protocol_type != PROTOCOL_TYPE:
        raise GroupTypeError(f"{name} is not a group of consumers; its protocol type is {group.protocol_type!r}")
    if group.state != "Stable":
        raise RebalanceInProgressError(
            f"group {name} is {group.state}: subscriptions are visible only while the group is Stable; try again"
        )


def _offsets(admin: Admin, group: str, problem: Problem) -> PartitionOffsets:
    every = [
        TopicPartition(topic, number)
        for topic, count in zip(problem.topics, problem.counts.tolist(), strict=True)
        for number in range(count)
    ]
    begins, ends = admin.beginning_offsets(every), admin.end_offsets(every)
    return by_topic(problem.topics, begins, ends, admin.group_offsets(group))
