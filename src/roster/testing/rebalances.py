"""The history of a broker's groups: every rebalance with its causes, members and assignments."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from roster.coordinator import Coordinator
from roster.coordinator.events import Effects, Event, TimerKind, TimerName
from roster.coordinator.group import Group
from roster.coordinator.states import GroupState
from roster.coordinator_common import RequestReceived, TimerExpired
from roster.wire import ErrorCode, WireError
from roster.wire.consumer.messages import decode_assignment
from roster.wire.messages import (
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

_REBALANCING = (JoinGroupRequest, SyncGroupRequest, LeaveGroupRequest)

Assignment: TypeAlias = Mapping[str, tuple[int, ...]]
"""Partitions by topic."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a generation; `instance_id` is None unless it is static."""

    member_id: str
    client_id: str
    instance_id: str | None
    host: str


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One generation of a group, and what caused it."""

    group: str
    generation: int
    protocol: str
    """The assignor."""
    leader: str
    """Member id of the leader."""
    members: tuple[GroupMember, ...]
    joined: tuple[str, ...]
    """Members that were not in the previous generation."""
    left: tuple[str, ...]
    """Members of the previous generation that are not in this one."""
    causes: tuple[str, ...]
    """Why the group rebalanced, in order: which member joined, left, expired, or rejoined, and the reason it gave."""
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    """The assignment of each member, by member id; a member is missing until it has received its assignment."""

    @property
    def is_complete(self) -> bool:
        """True once every member has its assignment."""
        return len(self.assignments) == len(self.members)

    def assigned_to(self, client_id: str) -> Assignment:
        """Return the partitions of all members with a client id (or instance id)."""
        ids = [member.member_id for member in self.members if client_id in (member.client_id, member.instance_id)]
        assigned: dict[str, tuple[int, ...]] = {}
        for member_id in ids:
            for topic, partitions in self.assignments.get(member_id, {}).items():
                assigned[topic] = tuple(sorted((*assigned.get(topic, ()), *partitions)))
        return assigned

    def __str__(self) -> str:
        lines = [f"{self.group}: generation {self.generation}, {self.protocol}, because {'; '.join(self.causes)}"]
        for member in self.members:
            assigned = self.assignments.get(member.member_id)
            what = (
                "no answer yet"
                if assigned is None
                else ", ".join(f"{t} {list(p)}" for t, p in assigned.items()) or "nothing"
            )
            lines.append(f"  {member.instance_id or member.client_id} ({member.member_id}): {what}")
        return "\n".join(lines)


class RebalanceHistory:
    """Observes the events of a group coordinator and records its rebalances; may be read from any thread."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._rebalances: dict[str, list[Rebalance]] = {}
        self._causes: dict[str, list[str]] = {}
        self._requests: dict[int, tuple[str, str]] = {}
        """Group and member id of each JoinGroup and SyncGroup without a reply, by token."""
        self._known: dict[str, dict[str, str]] = {}
        """Client id or instance id of each group's members, by member id."""
        self._was: dict[str, GroupState] = {}

    def of(self, group: str) -> list[Rebalance]:
        """Return the rebalances of a group, oldest first."""
        with self._lock:
            return list(self._rebalances.get(group, ()))

    def restarted(self) -> None:
        """Forget requests without a reply; a new coordinator numbers its own from the start."""
        with self._lock:
            self._requests.clear()
            self._was.clear()
            for causes in self._causes.values():
                causes.clear()

    def observe(self, coordinator: Coordinator, event: Event, effects: Effects) -> None:
        """Record an event of the coordinator; called by the broker (`roster.broker.hooks`)."""
        if isinstance(event, RequestReceived) and not isinstance(event.message, _REBALANCING):
            return  # heartbeats and commits are frequent and change no group
        with self._lock:
            self._look_at(coordinator, event)
            for reply in effects.replies:
                request = self._requests.pop(reply.token, None)
                if request is None:
                    continue
                if isinstance(reply.message, JoinGroupResponse):
                    self._joined(coordinator.group(request[0]), reply.message)
                elif isinstance(reply.message, SyncGroupResponse):
                    self._synced(*request, reply.message)
        self._changed()

    def _look_at(self, coordinator: Coordinator, event: Event) -> None:
        if isinstance(event, RequestReceived):
            message = event.message
            if isinstance(message, (JoinGroupRequest, SyncGroupRequest)):
                self._requests[event.token] = (message.group_id, message.member_id)
            group_id = getattr(message, "group_id", "")
        elif isinstance(event, TimerExpired):
            group_id = event.name.group_id
        else:
            return
        group = coordinator.group(group_id) if isinstance(group_id, str) and group_id else None
        if group is None:
            return
        known = self._known.get(group_id, {})
        there = {member.member_id: member.instance_id or member.client_id for member in group.members.values()}
        cause = _cause(event, known, there)
        began = group.state is GroupState.PREPARING and self._was.get(group_id) is not GroupState.PREPARING
        if cause and (began or known.keys() != there.keys()):
            self._causes.setdefault(group_id, []).append(cause)
        self._known[group_id], self._was[group_id] = there, group.state

    def _joined(self, group: Group | None, response: JoinGroupResponse) -> None:
        """Begin a generation at the first JoinGroup reply that has it."""
        if group is None or response.error_code != ErrorCode.NONE:
            return
        self._was[group.group_id] = group.state
        past = self._rebalances.setdefault(group.group_id, [])
        members = tuple(
            GroupMember(member.member_id, member.client_id, member.instance_id, member.client_host)
            for member in group.members.values()
        )
        if past and past[-1].generation == response.generation_id and _ids(members) & _ids(past[-1].members):
            return  # the group was deleted meanwhile and starts at generation 1 with other members
        before = {member.member_id for member in past[-1].members} if past else set()
        now = {member.member_id for member in members}
        past.append(
            Rebalance(
                group.group_id,
                response.generation_id,
                group.protocol or "",
                response.leader,
                members,
                tuple(member.member_id for member in members if member.member_id not in before),
                tuple(sorted(before - now)),
                tuple(self._causes.pop(group.group_id, ())),
            )
        )

    def _synced(self, group_id: str, member_id: str, response: SyncGroupResponse) -> None:
        past = self._rebalances.get(group_id)
        if not past or response.error_code != ErrorCode.NONE:
            return
        try:
            decoded = decode_assignment(response.assignment) if response.assignment else None
        except WireError:  # the member is not a consumer
            decoded = None
        topics = decoded.assigned_partitions if decoded is not None else ()
        assigned = {topic.topic: tuple(topic.partitions) for topic in topics if topic.partitions}
        past[-1] = replace(past[-1], assignments={**past[-1].assignments, member_id: assigned})


def _ids(members: tuple[GroupMember, ...]) -> set[str]:
    return {member.member_id for member in members} | {member.instance_id for member in members if member.instance_id}


def _cause(
    event: RequestReceived | TimerExpired[TimerName], before: Mapping[str, str], after: Mapping[str, str]
) -> str:
    """Describe an event as the cause of a rebalance; "" if it is none."""
    if isinstance(event, TimerExpired):
        gone = ", ".join(before[member_id] for member_id in before if member_id not in after)
        if event.name.kind is TimerKind.SYNC:
            return f"{gone} did not fetch an assignment" if gone else ""
        if event.name.kind is TimerKind.JOIN:
            return f"{gone} did not rejoin in time" if gone else ""
        return f"the session of {gone} ended" if gone else ""
    message = event.message
    if isinstance(message, LeaveGroupRequest):
        gone = ", ".join(before[member_id] for member_id in before if member_id not in after)
        reason = next((leaving.reason for leaving in message.members if leaving.reason), None)
        return _with_reason(f"{gone} left", reason) if gone else ""
    if not isinstance(message, JoinGroupRequest):
        return ""
    name = message.group_instance_id or event.client_id
    new = after.keys() - before.keys()
    if new and before.keys() - after.keys():
        return _with_reason(f"{name} came back", message.reason)
    return _with_reason(f"{name} joined" if new else f"{name} rejoined", message.reason)


def _with_reason(what: str, reason: str | None) -> str:
    return f"{what} ({reason})" if reason else what
