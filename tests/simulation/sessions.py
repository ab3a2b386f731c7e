"""What a coordinator may know of its members' sessions: whom it may expel, whom it must, and how long it may wait."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from roster.coordinator.events import Event, TimerKind
from roster.coordinator.group import Group
from roster.coordinator.states import GroupState
from roster.coordinator_common import RequestReceived, TimerExpired, WriteCompleted
from roster.wire import Message
from roster.wire.messages import HeartbeatRequest, LeaveGroupRequest
from tests.simulation import invariants
from tests.simulation.scenario import Scenario

LOOK_EVERY_MS = 500
"""How often sessions and phases are looked at for their end."""


class Before(NamedTuple):
    """A group before a step."""

    group: Group | None
    state: GroupState
    generation: int
    members: dict[str, tuple[bool, str | None, bool, int]]
    """By member id: whether its JoinGroup is parked, its instance id, whether it is new, and its session timeout."""
    unsynced: frozenset[str]
    label: str
    """Name of the event."""


class Connections(Protocol):
    """A broker: its monotonic time, and which requests still have a client that waits."""

    @property
    def now(self) -> int:
        """Monotonic time, ms."""

    def is_connected(self, token: int) -> bool:
        """Return True while the client of a request waits on an open connection."""


class Sessions:
    """The sessions of one life of a coordinator, in its own time."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._alive: dict[str, int] = {}
        """The last request that certainly renewed the session."""
        self._contact: dict[str, int] = {}
        """The last request or response of any kind."""
        self._phase: GroupState | None = None
        self._phase_since = 0
        self._phase_late = 0
        """The same, moved with jumps of the clock, which no coordinator can act on before they happen."""
        self._joined_since = 0
        """When the last join phase ended."""
        self._looked = 0

    def heard(self, member: str, now: int) -> None:
        """A request came from a member, or a response went to it; "" for a client without a member id."""
        if member:
            self._contact[member] = now

    def renewed(self, member: str, now: int) -> None:
        """The session of a member begins again."""
        self._alive[member] = now

    def jumped(self, ms: int) -> None:
        """The clock was set forward."""
        self._phase_late += ms
        for member in self._contact:
            self._contact[member] += ms

    def group_gone(self) -> None:
        """The group is in no phase."""
        self._phase = None

    def took_in(self, event: Event, group: Group, now: int) -> None:
        """A Heartbeat that is accepted renews the session."""
        if isinstance(event, RequestReceived) and isinstance(event.message, HeartbeatRequest):
            request = event.message
            current = request.generation_id == group.generation
            instance = request.group_instance_id
            holds = instance is None or group.instances.get(instance) == request.member_id
            if request.member_id in group.members and current and holds:
                self.renewed(request.member_id, now)

    def judge_phase(self, group: Group, node: Connections, *, disk_is_faulty: bool) -> None:
        """Judge how long the group has been in its state, and its members silent."""
        now = node.now
        if group.state is not self._phase:
            self._phase, self._phase_since, self._phase_late = group.state, now, now
            if group.state is GroupState.COMPLETING:
                self._joined_since = now
        if now - self._looked < LOOK_EVERY_MS:
            return
        self._looked = now
        if group.state in (GroupState.PREPARING, GroupState.COMPLETING):
            longest = self._scenario.rebalance_ms + invariants.SLACK_MS
            if group.state is GroupState.PREPARING:  # static members that are missing may prolong it once
                longest += self._scenario.rebalance_ms + self._scenario.session_ms
            if not disk_is_faulty:
                invariants.a_rebalance_ends_in_time(group.state, now, self._phase_late + longest)
        for name, member in group.members.items():
            waits = member.parked_sync is not None and node.is_connected(member.parked_sync)
            if waits or member.parked_join is not None or member.is_new:
                self._contact[name] = now
            elif name in self._contact:
                invariants.a_silent_member_is_expelled_in_time(
                    name, now, self._contact[name], member.session_timeout_ms
                )

    def judge_expulsions(self, event: Event, before: Before, group: Group, refused: Collection[str], now: int) -> None:
        """Judge each member that a step took out of the group, but those whose protocols it refused.

        A static member is not taken out if it has another member id.
        """
        kept = {instance for instance in group.instances if group.instances[instance] not in before.members}
        for name, (_, instance, _, _) in before.members.items():
            if name not in group.members and name not in refused and (instance is None or instance not in kept):
                self._judge_expulsion(event, name, before, now)

    def _judge_expulsion(self, event: Event, name: str, before: Before, now: int) -> None:
        parked, _, is_new, session = before.members[name]
        rebalance = self._scenario.rebalance_ms
        match event:
            case TimerExpired(timer) if timer.kind is TimerKind.SESSION and (
                timer.member_id == name or (before.state is GroupState.PREPARING and not parked)
            ):
                if timer.member_id == name:
                    limit = self._scenario.new_member_join_timeout_ms if is_new else session
                    invariants.nobody_is_expelled_early(name, now, self._alive.get(name, -limit), limit)
            case TimerExpired(timer) if timer.kind is TimerKind.JOIN and not parked:
                invariants.nobody_is_expelled_early(name, now, self._phase_since, rebalance)
            case TimerExpired(timer) if timer.kind is TimerKind.SYNC and name in before.unsynced:
                invariants.nobody_is_expelled_early(name, now, self._joined_since, rebalance)
            case RequestReceived(message=LeaveGroupRequest()):
                if not leaves(event.message, name):
                    invariants.nobody_is_expelled_without_cause(name, event_name(event))
            case WriteCompleted() if event.error or not parked:
                pass
            case _:
                invariants.nobody_is_expelled_without_cause(name, event_name(event))


def leaves(request: Message, member: str) -> bool:
    """Return True if a LeaveGroup names the member."""
    if not isinstance(request, LeaveGroupRequest):
        return False
    return request.member_id == member or any(
        entry.member_id == member or not entry.member_id for entry in request.members
    )


def event_name(event: Event) -> str:
    """Name an event of a coordinator, for histories and the table of coverage."""
    match event:
        case RequestReceived():
            return type(event.message).__name__.removesuffix("Request")
        case TimerExpired(name):
            return f"{name.kind.value} timer"
        case WriteCompleted(error=error) if error:
            return "write failed"
    return type(event).__name__
